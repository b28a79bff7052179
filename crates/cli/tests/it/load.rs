//! Many clients at once over LangBot's wire: every request is answered once and correctly, and nothing is left.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio_tungstenite::connect_async;
use tokio_tungstenite::tungstenite::Message;

use crate::driver::StateDir;
use crate::server::{Server, serve};

const CLIENTS: usize = 64;
const SESSIONS: usize = 500;
const EXECS: usize = 20_000;
/// Requests one client has under way: enough to keep both cores busy whatever times out.
const IN_FLIGHT: usize = 4;

/// Sessions whose commands run out of memory.
const GREEDY: usize = 10;

/// What one request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Echo,
    Timeout,
    Memory,
}

/// 5 % time out, 1 % run out of memory.
fn kind_of(number: usize) -> Kind {
    match number % 100 {
        3 | 23 | 43 | 63 | 83 => Kind::Timeout,
        50 => Kind::Memory,
        _ => Kind::Echo,
    }
}

/// Every session has some, whatever `kind_of` takes out.
fn echo_session(number: usize) -> usize {
    number / 3 % SESSIONS
}

fn request(number: usize, kind: Kind) -> Value {
    // Commands that end their session have sessions of their own, so that the others' answers are certain.
    let session = match kind {
        Kind::Echo => format!("load-{}", echo_session(number)),
        Kind::Timeout => format!("stuck-{number}"),
        Kind::Memory => format!("greedy-{}", number / 100 % GREEDY),
    };
    let cmd = match kind {
        Kind::Echo => format!("echo {number}; echo err {number} >&2; exit {}", number % 7),
        Kind::Timeout => format!("echo before {number}; sleep 60"),
        Kind::Memory => "head -c 200M /dev/zero | tail > /dev/null; echo survived $?".to_owned(),
    };
    let timeout = if kind == Kind::Timeout { 1 } else { 60 };
    let memory = if kind == Kind::Memory { 48 } else { 512 };
    json!({
        "seq_id": number, "action": "box_exec",
        "data": {"session_id": session, "cmd": cmd, "timeout_sec": timeout, "memory_mb": memory},
    })
}

fn check(number: usize, kind: Kind, reply: &Value) -> Result<(), String> {
    let data = &reply["data"];
    let wrong = |what: &str| Err(format!("request {number} ({kind:?}): {what}: {reply}"));
    if reply["code"] != 0 {
        return wrong("an error");
    }
    match kind {
        Kind::Echo => {
            let expected = json!([number.to_string(), format!("err {number}"), number % 7, "completed"]);
            let seen = json!([data["stdout"], data["stderr"], data["exit_code"], data["status"]]);
            if seen == expected { Ok(()) } else { wrong("another answer") }
        }
        Kind::Timeout => {
            // On a machine this busy its second may be over before its first word.
            let said = data["stdout"] == "" || data["stdout"] == format!("before {number}");
            let ended = data["exit_code"].is_null() && data["status"] == "timed_out";
            if said && ended { Ok(()) } else { wrong("no timeout") }
        }
        // The kernel kills what took the memory; the shell that waited for it tells.
        Kind::Memory => {
            let stdout = data["stdout"].as_str().unwrap_or_default();
            if data["status"] == "completed" && stdout != "survived 0" {
                Ok(())
            } else {
                wrong("not stopped")
            }
        }
    }
}

async fn client(address: Arc<str>, numbers: Vec<usize>, answered: Arc<AtomicU64>) -> Result<(), String> {
    let (socket, _) =
        connect_async(format!("ws://{address}/rpc/ws")).await.map_err(|error| error.to_string())?;
    let (mut sender, mut receiver) = socket.split();
    let mut waiting = HashMap::new();
    let mut rest = numbers.into_iter();
    loop {
        while waiting.len() < IN_FLIGHT {
            let Some(number) = rest.next() else { break };
            let kind = kind_of(number);
            let text = request(number, kind).to_string();
            sender.send(Message::text(text)).await.map_err(|error| error.to_string())?;
            waiting.insert(number, kind);
        }
        if waiting.is_empty() {
            return Ok(());
        }
        let message = tokio::time::timeout(Duration::from_secs(120), receiver.next()).await;
        let message = message.map_err(|_| format!("no answer for {waiting:?}"))?;
        match message.ok_or("the server closed")?.map_err(|error| error.to_string())? {
            Message::Text(text) => {
                let reply: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
                let number =
                    usize::try_from(reply["seq_id"].as_u64().unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
                let kind =
                    waiting.remove(&number).ok_or(format!("answered twice or never asked: {reply}"))?;
                check(number, kind, &reply)?;
                answered.fetch_add(1, Ordering::Relaxed);
            }
            Message::Ping(_) | Message::Pong(_) => {}
            other => return Err(format!("{other:?}")),
        }
    }
}

/// Mounts, cgroups and processes whose names tell that they are of this server.
fn left(state: &Path) -> Vec<String> {
    let instances = state.join("instances");
    std::fs::read_dir(instances)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path().display().to_string())
        .collect()
}

#[test]
fn under_load_every_request_is_answered_once_and_correctly_and_nothing_is_left() {
    let state = StateDir::new();
    let server = Server::start(serve(&[], state.path()));
    let address: Arc<str> = server.address.as_str().into();
    let answered = Arc::new(AtomicU64::new(0));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let outcomes: Vec<Result<(), String>> = runtime.block_on(async {
        let clients = (0..CLIENTS).map(|index| {
            let numbers = (index..EXECS).step_by(CLIENTS).collect();
            tokio::spawn(client(Arc::clone(&address), numbers, Arc::clone(&answered)))
        });
        let clients: Vec<_> = clients.collect();
        let mut outcomes = Vec::new();
        for client in clients {
            outcomes.push(client.await.unwrap());
        }
        outcomes
    });
    let wrong: HashSet<String> = outcomes.into_iter().filter_map(Result::err).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(answered.load(Ordering::Relaxed), EXECS as u64);
    let (status, sessions) = server.get("/v1/status");
    assert_eq!(status, 200);
    assert_eq!(sessions["active_sessions"], SESSIONS + GREEDY, "{sessions}");
    server.running.signal(Signal::TERM);
    let ended = server.running.finish();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert_eq!(left(state.path()), Vec::<String>::new());
}
