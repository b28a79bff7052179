//! The action RPC over a websocket: every session action, then frames, sizes and concurrency.

use std::fmt::Write;
use std::time::Duration;

use super::json::Json;
use super::ledger::Ledger;
use super::peer::{Came, Server, Socket};
use super::{exchange, normalise};
use crate::skip::{Feature, skip_without};

const PING: &str = r#"{"seq_id":1,"action":"__ping","data":{}}"#;
const LAST_PING: &str = r#"{"seq_id": 77, "action": "__ping", "data": {}}"#;
/// The vector that asks for an image that does not exist.
const IMAGE_MISSING: u32 = 38;
/// Long enough for a reply that should not come to show itself.
const QUIET: Duration = Duration::from_millis(150);

#[test]
fn every_session_action_answers_as_recorded() {
    // Docker has a writable root and limits on whole boxes; an ordinary user's boxes may have neither.
    if skip_without(&[Feature::Box, Feature::Root, Feature::Cgroups]) {
        return;
    }
    let shared = tempfile::tempdir().unwrap();
    let root = shared.path().to_str().unwrap();
    let server = Server::start(&[]);
    let mut socket = Socket::rpc(server.port);
    let mut ledger = Ledger::open("rpc-ws-core");
    for number in ledger.numbers() {
        exchange(&mut ledger, number, &mut socket, root);
        if number == IMAGE_MISSING {
            // Where images are labels, the session was made; it is not to be in the lists that follow.
            socket.call(r#"{"seq_id": 1, "action": "box_delete_session", "data": {"session_id": "noimg"}}"#);
        }
    }
    ledger.finish();
}

#[test]
fn frames_sizes_and_concurrency_are_as_recorded() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let server = Server::start(&[]);
    let mut ledger = Ledger::open("rpc-ws-framing");
    for number in ledger.numbers() {
        let vector = ledger.vector(number);
        if vector.get("send").is_some() {
            let (theirs, ours) = frames(&vector, server.port);
            ledger.compare(number, &theirs, &ours);
        } else if vector.get("stdout_len").is_some() {
            let (theirs, ours) = clipped(&vector, server.port);
            ledger.compare(number, &theirs, &ours);
        } else if vector.get("timeline").is_some() {
            let (theirs, ours) = timeline(&vector, server.port);
            ledger.compare(number, &theirs, &ours);
        } else {
            if vector.at("case").text() == "exec-continues-after-client-disconnect" {
                let mut gone = Socket::rpc(server.port);
                gone.send(&exec(1, "C", "sleep 0.5; touch /tmp/done", "/tmp", 30));
                std::thread::sleep(QUIET);
            }
            exchange(&mut ledger, number, &mut Socket::rpc(server.port), "/nowhere");
        }
    }
    ledger.finish();
}

/// One request, as the recording made them.
fn exec(seq: u32, session: &str, cmd: &str, workdir: &str, timeout: u32) -> String {
    let cmd = Json::Text(cmd.to_owned()).python();
    format!(
        r#"{{"seq_id": {seq}, "action": "box_exec", "data": {{"session_id": "{session}", "image": "pybox:latest", "cmd": {cmd}, "workdir": "{workdir}", "timeout_sec": {timeout}}}}}"#
    )
}

/// The raw text or bytes of one recorded message; long ones were recorded by their length.
fn recorded(text: &str) -> Result<String, Vec<u8>> {
    let length = |prefix: &str| text.strip_prefix(prefix)?.strip_suffix('>')?.parse::<usize>().ok();
    if let Some(length) = length("<str len ") {
        let (head, tail) = (r#"{"seq_id":1,"action":"__ping","data":{"p":""#, r#""}}"#);
        return Ok(format!("{head}{}{tail}", "x".repeat(length - head.len() - tail.len())));
    }
    if let Some(length) = length("<bytes len ") {
        assert_eq!(PING.len(), length);
        return Err(PING.as_bytes().to_vec());
    }
    Ok(text.to_owned())
}

/// Sends frames on a connection of their own, then a ping: what came, and whether the ping was answered.
fn frames(vector: &Json, port: u16) -> (String, String) {
    let mut theirs = String::new();
    for message in vector.at("recv").list() {
        match message.get("type").map(Json::text) {
            Some("TEXT") => writeln!(theirs, "{}", message.at("data").text()).unwrap(),
            Some("CLOSE") => writeln!(theirs, "closed with {}", message.at("data").python()).unwrap(),
            _ => {}
        }
    }
    if let Some(Json::Object(_)) = vector.get("ping_after") {
        theirs.push_str("ping answered\n");
    }

    let mut ours = String::new();
    let mut socket = Socket::rpc(port);
    let mut open = true;
    for message in vector.at("send").list() {
        open &= match recorded(message.text()) {
            Ok(text) => socket.send(&text),
            Err(bytes) => socket.send_binary(&bytes),
        };
    }
    // Replies come in order of completion, so those that are expected are awaited before the ping is sent.
    let expected = theirs.lines().filter(|line| line.starts_with('{')).count();
    let mut pinged = false;
    loop {
        if !pinged && ours.lines().count() >= expected {
            pinged = true;
            open &= socket.send(LAST_PING);
        }
        match socket.next_within(if pinged { super::peer::PATIENCE } else { Duration::from_secs(5) }) {
            Came::Text(text) if text.starts_with(r#"{"seq_id": 77,"#) => {
                break ours.push_str("ping answered\n");
            }
            Came::Text(text) => writeln!(ours, "{text}").unwrap(),
            Came::Binary(length) => writeln!(ours, "{length} bytes").unwrap(),
            Came::Close(code, _) => break writeln!(ours, "closed with {code}").unwrap(),
            Came::Lost => break ours.push_str("connection lost\n"),
            Came::Nothing if !pinged => pinged = open && socket.send(LAST_PING),
            Came::Nothing => break ours.push_str("nothing more\n"),
        }
    }
    while let Came::Text(late) = socket.next_within(QUIET) {
        writeln!(ours, "late: {late}").unwrap();
    }
    (theirs, ours)
}

/// Lengths and ends of output around the limit.
fn clipped(vector: &Json, port: u16) -> (String, String) {
    let tail = |text: &str, count: usize| {
        let chars: Vec<char> = text.chars().collect();
        chars[chars.len().saturating_sub(count)..].iter().collect::<String>()
    };
    let reply = Socket::rpc(port).call(&exec(1, "clip", vector.at("cmd").text(), "/tmp", 60));
    let reply = Json::parse(&reply);
    let (mut theirs, mut ours) = (String::new(), String::new());
    for stream in ["stdout", "stderr"] {
        let length = vector.at(&format!("{stream}_len")).python();
        let their_tail = vector.at(&format!("{stream}_tail")).text();
        writeln!(theirs, "{stream} {length} {their_tail}").unwrap();
        match reply.at("data").get(stream) {
            Some(text) => {
                let (count, end) =
                    (text.text().chars().count(), tail(text.text(), their_tail.chars().count()));
                writeln!(ours, "{stream} {count} {end}").unwrap();
            }
            None => writeln!(ours, "{}", reply.python()).unwrap(),
        }
    }
    writeln!(theirs, "exit {}", vector.at("exit_code").python()).unwrap();
    let exit = reply.at("data").get("exit_code").map(Json::python).unwrap_or_default();
    writeln!(ours, "exit {exit}").unwrap();
    (theirs, ours)
}

/// Sends at the recorded times, and compares the replies by their ids: the order is not a promise.
fn timeline(vector: &Json, port: u16) -> (String, String) {
    let mut socket = Socket::rpc(port);
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    let mut waiting = 0;
    let mut clock = 0;
    let events = vector.at("timeline").list();
    for (index, event) in events.iter().enumerate() {
        let time: u64 = event.at("t_ms").python().parse().unwrap();
        if event.at("dir").text() == "send" {
            // Only pauses between requests of one batch mean something; others wait for replies.
            let previous = index.checked_sub(1).map(|before| events[before].at("dir").text());
            if previous == Some("send") {
                std::thread::sleep(Duration::from_millis(time - clock));
            }
            socket.send(&timeline_request(event, vector.at("case").text()));
        } else {
            theirs.push(match event.get("msg") {
                Some(reply) => normalise::document(reply.clone(), "/nowhere").python(),
                None => format!(
                    "{} code {} {}",
                    event.at("seq_id").python(),
                    event.at("code").python(),
                    event.get("stdout").unwrap_or(&Json::Null).python()
                ),
            });
            waiting += 1;
        }
        clock = time;
        let batch_ends = events.get(index + 1).is_none_or(|next| next.at("dir").text() == "send");
        for _ in 0..if batch_ends { std::mem::take(&mut waiting) } else { 0 } {
            let reply = Json::parse(&socket.reply());
            ours.push(if event.get("msg").is_some() {
                normalise::document(reply, "/nowhere").python()
            } else {
                let stdout = reply.at("data").get("stdout").unwrap_or(&Json::Null).python();
                format!("{} code {} {stdout}", reply.at("seq_id").python(), reply.at("code").python())
            });
        }
    }
    theirs.sort();
    ours.sort();
    (theirs.join("\n"), ours.join("\n"))
}

fn timeline_request(event: &Json, case: &str) -> String {
    let seq: u32 = event.at("seq_id").python().parse().unwrap();
    let session = event.get("session_id").filter(|id| **id != Json::Null).map(Json::text);
    match (event.at("action").text(), session) {
        ("box_exec", Some(session)) => {
            let limited = case == "exec-queued-behind-timeout" && seq == 21;
            exec(seq, session, event.at("cmd").text(), "/tmp", if limited { 1 } else { 30 })
        }
        (action, Some(session)) => format!(
            r#"{{"seq_id": {seq}, "action": "{action}", "data": {{"session_id": "{session}", "image": "pybox:latest"}}}}"#
        ),
        (action, None) => format!(r#"{{"seq_id": {seq}, "action": "{action}", "data": {{}}}}"#),
    }
}
