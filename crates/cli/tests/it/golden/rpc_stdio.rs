//! The action RPC over standard streams: lines, chunks in both directions, and the end.

use std::time::Duration;

use rustix::process::Signal;

use super::json::Json;
use super::ledger::Ledger;
use super::normalise;
use super::peer::{Socket, StdioPeer, http};
use crate::skip::{Feature, skip_without};

#[test]
fn lines_and_chunks_are_as_recorded() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let mut peer = StdioPeer::start();
    let mut ledger = Ledger::open("rpc-stdio");
    for number in ledger.numbers() {
        let vector = ledger.vector(number);
        let (theirs, ours) = match vector.at("case").text() {
            "response-large-quotes" => large_quotes(&mut peer, &vector),
            "response-2MB" => two_megabytes(&mut peer, &vector),
            "relay-http-in-stdio-mode" => {
                let (status, _, body) = http(peer.port, "GET", "/v1/sessions/x/managed-process/ws");
                let theirs = normalise::answer(&vector.at("status").python(), "", vector.at("body").text());
                (theirs, normalise::answer(&status.to_string(), "", &body))
            }
            "rpc-ws-also-open-in-stdio-mode" => {
                let theirs = normalise::reply(vector.at("recv").text(), "/nowhere");
                let request = r#"{"seq_id": 1, "action": "box_get_sessions", "data": {}}"#;
                let ours = match Socket::open(peer.port, "/rpc/ws", None) {
                    Ok(mut socket) => normalise::reply(&socket.call(request), "/nowhere"),
                    Err((status, _)) => format!("refused with {status}"),
                };
                (theirs, ours)
            }
            "stdin-eof" => {
                let ended = std::mem::replace(&mut peer, StdioPeer::start());
                (exit(&vector), format!("exit {}", ended.end()))
            }
            "raw-line-over-64KiB-unchunked" => {
                let line = format!(
                    r#"{{"seq_id": 1, "action": "__ping", "data": {{"p": "{}"}}}}"#,
                    "x".repeat(70_000)
                );
                (exit(&vector), after_bad_line(line.as_bytes()))
            }
            "invalid-utf8-line" => {
                (exit(&vector), after_bad_line(b"{\"seq_id\": 1, \"action\": \"\xff\xfe\"}"))
            }
            "stdio-SIGTERM" => (exit(&vector), signalled(Signal::TERM)),
            "stdio-SIGINT" => (exit(&vector), signalled(Signal::INT)),
            _ => lines(&mut peer, &vector),
        };
        ledger.compare(number, &theirs, &ours);
    }
    ledger.finish();
}

fn exit(vector: &Json) -> String {
    format!("exit {}", vector.at("exit_code").python())
}

/// A long text was recorded by both its ends and its length.
fn expand(text: &str) -> String {
    let Some((head, rest)) = text.split_once("...(len ") else { return text.to_owned() };
    let (length, tail) = rest.split_once(")...").unwrap();
    let filler = head.chars().next_back().unwrap().to_string();
    let missing = length.parse::<usize>().unwrap() - head.len() - tail.len();
    format!("{head}{}{tail}", filler.repeat(missing))
}

/// Sends, and reads as many lines as were recorded. A line that was recorded by its ends is compared by them.
fn lines(peer: &mut StdioPeer, vector: &Json) -> (String, String) {
    for text in vector.at("send").list() {
        peer.send(expand(text.text()).as_bytes());
    }
    let expected: Vec<&str> = vector.at("recv").list().iter().map(Json::text).collect();
    let ends = |line: &str| {
        let (head, rest) = line.split_once("...(len ")?;
        Some((head.to_owned(), rest.split_once(")...")?.1.to_owned()))
    };
    let whole = |line: &str| normalise::reply(line, "/nowhere");
    let mut theirs: Vec<String> = expected
        .iter()
        .map(|line| if ends(line).is_some() { (*line).to_owned() } else { whole(line) })
        .collect();
    let mut ours = Vec::new();
    for line in &expected {
        let Some(got) = peer.line() else { break };
        ours.push(match ends(line) {
            Some((head, tail)) if got.starts_with(&head) && got.ends_with(&tail) => {
                format!("{head}...(len {})...{tail}", got.chars().count())
            }
            Some(_) => super::shorten(&got),
            None => whole(&got),
        });
    }
    while let Some(more) = peer.line_within(Duration::from_millis(100)) {
        ours.push(whole(&more));
    }
    // Replies come in order of completion; only the pieces of one have an order.
    if !expected.iter().any(|line| line.contains("chunk_start")) {
        theirs.sort();
        ours.sort();
    }
    (theirs.join("\n"), ours.join("\n"))
}

/// Asks for a large reply: its lines, and the message that they make.
fn large(peer: &mut StdioPeer, cmd: &str) -> (Vec<String>, String) {
    let cmd = Json::Text(cmd.to_owned()).python();
    let request = format!(
        r#"{{"seq_id": 30, "action": "box_exec", "data": {{"session_id": "st", "image": "pybox:latest", "cmd": {cmd}, "workdir": "/tmp"}}}}"#
    );
    peer.send(format!("{request}\n").as_bytes());
    let (mut lines, mut message) = (Vec::new(), String::new());
    while let Some(line) = peer.line() {
        let document = Json::parse(&line);
        lines.push(line);
        match document.get("type").map(Json::text) {
            Some("chunk_start") => {}
            Some("chunk_data") => message.push_str(document.at("data").text()),
            _ => break,
        }
    }
    (lines, message)
}

/// Each line holds 16384 bytes of the message, whatever it becomes by quoting.
fn large_quotes(peer: &mut StdioPeer, vector: &Json) -> (String, String) {
    let describe = |kind: &str, offset: &str, chars: usize| format!("{kind} {offset} {chars}\n");
    let mut theirs = String::new();
    // The digits of the duration make the last piece longer or shorter.
    let (pieces, last) = vector.at("lines").list().split_at(vector.at("lines").list().len() - 2);
    for line in pieces {
        let chars = line.at("data_chars").python().parse().unwrap();
        theirs.push_str(&describe(line.at("type").text(), &line.at("offset").python(), chars));
    }
    theirs.push_str(&format!("{} more, stdout {}\n", last.len(), vector.at("stdout_len").python()));

    let (lines, message) = large(peer, r#"head -c 100000 /dev/zero | tr '\0' '"'"#);
    let mut ours = String::new();
    let documents: Vec<Json> = lines.iter().map(|line| Json::parse(line)).collect();
    let (pieces, last) = documents.split_at(documents.len().saturating_sub(2));
    for document in pieces {
        let offset = document.get("offset").unwrap_or(&Json::Null).python();
        let chars = document.get("data").map_or(0, |data| data.text().chars().count());
        ours.push_str(&describe(document.at("type").text(), &offset, chars));
    }
    let stdout = Json::parse(&message).at("data").at("stdout").text().len();
    ours.push_str(&format!("{} more, stdout {stdout}\n", last.len()));
    (theirs, ours)
}

fn two_megabytes(peer: &mut StdioPeer, vector: &Json) -> (String, String) {
    let total = |first: &str| Json::parse(first).at("total_size").python().parse::<usize>().unwrap();
    // The digits of the duration and of the sequence number are in the total.
    let theirs =
        format!("{} lines, {}0 bytes", vector.at("n_lines").python(), total(vector.at("first").text()) / 10);
    let cmd = r"head -c 3000000 /dev/zero | tr '\0' b; head -c 2000000 /dev/zero | tr '\0' c >&2";
    let (lines, message) = large(peer, cmd);
    assert_eq!(Json::parse(&message).python(), message);
    (theirs, format!("{} lines, {}0 bytes", lines.len(), total(&lines[0]) / 10))
}

/// What a child of its own does after a line it cannot take.
fn after_bad_line(line: &[u8]) -> String {
    let mut peer = StdioPeer::start();
    peer.send(line);
    peer.send(b"\n{\"seq_id\": 2, \"action\": \"__ping\", \"data\": {}}\n");
    let mut out = String::new();
    while let Some(line) = peer.line_within(Duration::from_secs(5)) {
        out.push_str(&line);
        if line.starts_with(r#"{"seq_id": 2,"#) {
            break;
        }
    }
    if out.is_empty() { format!("exit {}", peer.end()) } else { out }
}

fn signalled(signal: Signal) -> String {
    let mut peer = StdioPeer::start();
    peer.send(b"{\"seq_id\": 1, \"action\": \"box_create_session\", \"data\": {\"session_id\": \"sig\"}}\n");
    assert!(peer.line().is_some_and(|reply| reply.contains("success")));
    format!("exit {}", peer.signal(signal))
}
