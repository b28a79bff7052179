//! The scenarios of LangBot's integration tests, and the races of expiry and timeouts.
//!
//! Their requests were not recorded, only what the client was told; the requests here are those of the tests.

use std::time::Duration;

use super::json::Json;
use super::ledger::Ledger;
use super::normalise;
use super::peer::{Server, Socket};
use crate::skip::{Feature, skip_without};

/// The result of an action, or its error as the client prints it.
fn outcome(socket: &mut Socket, action: &str, data: &str) -> String {
    let request = format!(r#"{{"seq_id": 1, "action": "{action}", "data": {data}}}"#);
    told(&Json::parse(&socket.call(&request)))
}

fn told(reply: &Json) -> String {
    if reply.at("code").python() == "0" {
        return normalise::document(reply.at("data").clone(), "/nowhere").python();
    }
    let message = reply.at("message").text();
    format!("{}('{message}')", message.split(':').next().unwrap_or_default())
}

fn result(vector: &Json) -> String {
    match vector.at("result") {
        Json::Text(error) => error.clone(),
        other => normalise::document(other.clone(), "/nowhere").python(),
    }
}

fn spec(session: &str, rest: &str) -> String {
    format!(r#"{{"session_id": "{session}", "image": "alpine:latest"{rest}}}"#)
}

fn exec(session: &str, cmd: &str) -> String {
    spec(session, &format!(r#", "workdir": "/tmp", "cmd": {}"#, Json::Text(cmd.to_owned()).python()))
}

#[test]
fn scenarios_of_langbots_integration_tests_end_as_recorded() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let mut ledger = Ledger::open("seed-scenarios");
    let none = Server::start(&[("LANGBOT_BOX_CONFIG", r#"{"backend": "e2b"}"#)]);
    let ours = outcome(&mut Socket::rpc(none.port), "box_exec", &exec("x", "true"));
    ledger.compare(9, &result(&ledger.vector(9)), &ours);

    let server = Server::start(&[]);
    let mut socket = Socket::rpc(server.port);
    let start = |session: &str, command: &str, args: &str| {
        format!(
            r#"{{"session_id": "{session}", "spec": {{"command": "{command}", "args": {args}, "cwd": "/tmp"}}}}"#
        )
    };
    let id = |session: &str| format!(r#"{{"session_id": "{session}"}}"#);
    let timeout = spec("int-timeout", r#", "workdir": "/tmp", "cmd": "sleep 120", "timeout_sec": 3"#);
    let endless = r#"["-c", "while true; do sleep 1; done"]"#;
    let sleep = r#"["3600"]"#;
    let wget = "wget -q -O - --timeout=3 http://1.1.1.1 2>&1";
    let steps: Vec<(u32, &str, String)> = vec![
        (10, "box_exec", exec("int-simple", "echo hello-box")),
        (11, "box_exec", exec("int-persist", "echo 'hello from file' > /tmp/test.txt")),
        (12, "box_exec", exec("int-persist", "cat /tmp/test.txt")),
        (13, "box_exec", timeout),
        (14, "box_get_sessions", "{}".to_owned()),
        (15, "box_exec", exec("int-offline", wget)),
        (16, "box_create_session", spec("mcp-int-lifecycle", "")),
        (17, "box_start_managed_process", start("mcp-int-lifecycle", "sh", endless)),
        (18, "box_get_managed_process", id("mcp-int-lifecycle")),
        (19, "box_delete_session", id("mcp-int-lifecycle")),
        (20, "box_create_session", spec("mcp-int-ws", "")),
        (0, "box_delete_session", id("mcp-int-ws")),
        (0, "box_create_session", spec("mcp-int-cleanup", "")),
        (0, "box_start_managed_process", start("mcp-int-cleanup", "sleep", sleep)),
        (23, "box_delete_session", id("mcp-int-cleanup")),
        (24, "box_get_session", id("mcp-int-cleanup")),
        (0, "box_create_session", spec("mcp-int-get", "")),
        (0, "box_start_managed_process", start("mcp-int-get", "sleep", sleep)),
        (25, "box_get_session", id("mcp-int-get")),
        (0, "box_stop_managed_process", id("mcp-int-get")),
        (27, "box_status", "{}".to_owned()),
    ];
    for (number, action, data) in steps {
        let ours = outcome(&mut socket, action, &data);
        if number == 0 {
            assert!(ours.starts_with('{'), "{action} {data}: {ours}");
            continue;
        }
        let vector = ledger.vector(number);
        // The client returns nothing for a deletion, and the list itself for a list.
        let ours = match action {
            "box_delete_session" => {
                if ours.starts_with(r#"{"deleted""#) {
                    "null".to_owned()
                } else {
                    ours
                }
            }
            "box_get_sessions" => Json::parse(&ours).at("sessions").python(),
            _ => ours,
        };
        ledger.compare(number, &result(&vector), &ours);
    }
    ledger.finish();
}

/// The ids of all sessions.
fn names(socket: &mut Socket) -> String {
    let reply = Json::parse(&socket.call(r#"{"seq_id": 1, "action": "box_get_sessions", "data": {}}"#));
    let ids = reply.at("data").at("sessions").list().iter().map(|session| session.at("session_id").clone());
    Json::List(ids.collect()).python()
}

#[test]
fn expiry_and_timeouts_end_as_recorded() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let mut ledger = Ledger::open("ttl-races");
    let server = Server::start(&[("SANDCRATE__RUNTIME__SESSION_TTL_SEC", "1")]);
    let mut socket = Socket::rpc(server.port);
    let expired = || std::thread::sleep(Duration::from_millis(2500));
    let listed = |vector: &Json, key: &str| vector.at(key).python();

    outcome(&mut socket, "box_create_session", &spec("s1", ""));
    outcome(&mut socket, "box_create_session", &spec("pers", r#", "persistent": true"#));
    outcome(&mut socket, "box_create_session", &spec("mp", ""));
    let process = r#"{"session_id": "mp", "spec": {"command": "sleep", "args": ["3600"]}}"#;
    outcome(&mut socket, "box_start_managed_process", process);
    expired();
    let before = names(&mut socket);
    outcome(&mut socket, "box_create_session", &spec("s2", ""));
    let after = names(&mut socket);
    let vector = ledger.vector(1);
    let theirs =
        format!("{} {}", listed(&vector, "before_next_create"), listed(&vector, "after_next_create"));
    ledger.compare(1, &theirs, &format!("{before} {after}"));

    expired();
    outcome(&mut socket, "box_exec", &exec("s2", "true"));
    ledger.compare(2, &listed(&ledger.vector(2), "sessions"), &names(&mut socket));

    // Another session is made while this one has been executing for longer than it may be idle.
    let mut other = Socket::rpc(server.port);
    other.send(&format!(
        r#"{{"seq_id": 3, "action": "box_exec", "data": {}}}"#,
        exec("s1", "echo begin; sleep 3; echo end")
    ));
    expired();
    outcome(&mut socket, "box_create_session", &spec("s3", ""));
    ledger.compare(3, &result(&ledger.vector(3)), &told(&Json::parse(&other.reply())));

    let server = Server::start(&[]);
    let (mut socket, mut other) = (Socket::rpc(server.port), Socket::rpc(server.port));
    other.send(&format!(r#"{{"seq_id": 3, "action": "box_exec", "data": {}}}"#, exec("d", "sleep 10")));
    std::thread::sleep(Duration::from_millis(700));
    outcome(&mut socket, "box_delete_session", r#"{"session_id": "d"}"#);
    ledger.compare(4, &result(&ledger.vector(4)), &told(&Json::parse(&other.reply())));

    let limited = spec("e", r#", "workdir": "/tmp", "cmd": "sleep 30", "timeout_sec": 2"#);
    other.send(&format!(r#"{{"seq_id": 3, "action": "box_exec", "data": {limited}}}"#));
    std::thread::sleep(Duration::from_millis(500));
    let second = outcome(&mut socket, "box_exec", &exec("e", "echo second"));
    let first = told(&Json::parse(&other.reply()));
    let vector = ledger.vector(5);
    let part = |key: &str| normalise::document(vector.at(key).clone(), "/nowhere").python();
    let theirs = format!("{}\n{}\n{}", part("r1"), part("r2"), listed(&vector, "after"));
    ledger.compare(5, &theirs, &format!("{first}\n{second}\n{}", names(&mut socket)));
    ledger.finish();
}
