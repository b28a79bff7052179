//! Calls as the reference's own client made them to the reference's own runtime: ours sends the same, and
//! understands the same.

use futures_util::{SinkExt as _, StreamExt as _};
use sandcrate_host::{Client, Connection as _, HostError};
use sandcrate_protocol::{BoxSpec, ProcessSpec};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::support::{connector, quick};

const CALLS: &str = include_str!("../fixtures/recorded-calls.jsonl");

#[derive(Deserialize)]
struct Recorded {
    case: String,
    sent: String,
    received: String,
    /// The class of the exception, and its text.
    raised: Option<String>,
    text: Option<String>,
}

fn recorded() -> Vec<Recorded> {
    CALLS.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Answers pings, and one call after the other as recorded; each has to be the one that was recorded.
async fn replay(listener: TcpListener, calls: Vec<Recorded>) {
    let (stream, _) = listener.accept().await.unwrap();
    let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
    let mut calls = calls.into_iter();
    while let Some(Ok(message)) = socket.next().await {
        let Ok(text) = message.into_text() else { continue };
        let Ok(request) = serde_json::from_str::<Value>(&text) else { continue };
        let mut reply = if request["action"] == "__ping" {
            json!({"code": 0, "message": "success", "data": {}, "chunk_status": "continue"})
        } else {
            let call = calls.next().unwrap();
            let sent: Value = serde_json::from_str(&call.sent).unwrap();
            assert_eq!(
                (&request["action"], &request["data"]),
                (&sent["action"], &sent["data"]),
                "{}",
                call.case
            );
            serde_json::from_str(&call.received).unwrap()
        };
        reply["seq_id"] = request["seq_id"].clone();
        socket.send(reply.to_string().into()).await.unwrap();
    }
}

/// The call of a case, with what it gave as JSON.
async fn made(client: &dyn Client, case: &str) -> Result<Value, HostError> {
    let spec = BoxSpec {
        cmd: "echo hi".to_owned(),
        workdir: "/tmp".to_owned(),
        image: "pybox:latest".to_owned(),
        ..BoxSpec::new("rc")
    };
    let json = |value| serde_json::to_value(value).unwrap();
    match case {
        "get_status" => client.status().await,
        "execute" => client.execute(&spec).await.map(|result| serde_json::to_value(result).unwrap()),
        "execute-conflict" => {
            let other = BoxSpec { memory_mb: 64, ..spec };
            client.execute(&other).await.map(|result| serde_json::to_value(result).unwrap())
        }
        "get_session-missing" => client.session("nope").await,
        "get_managed-missing" | "get_managed" => client.process("rc", "default").await.map(json),
        "start_managed" => {
            let process = ProcessSpec { cwd: "/tmp".to_owned(), ..ProcessSpec::new("cat") };
            client.start_process("rc", &process).await.map(json)
        }
        "stop_managed" => client.stop_process("rc", "default").await.map(|()| json!({"stopped": "default"})),
        "delete_session" => client.delete_session("rc").await.map(|()| json!({"deleted": "rc"})),
        other => panic!("no call for {other}"),
    }
}

#[tokio::test]
async fn calls_and_answers_are_those_of_the_reference() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config =
        json!({"box": {"runtime": {"endpoint": format!("ws://{}", listener.local_addr().unwrap())}}});
    let serving = tokio::spawn(replay(listener, recorded()));
    let connector = connector(&config, quick());
    connector.connect().await.unwrap();
    let client = connector.client();
    let mut count = 0;
    for call in recorded() {
        let received: Value = serde_json::from_str(&call.received).unwrap();
        match (made(&*client, &call.case).await, call.raised) {
            (Ok(result), None) => assert_eq!(result, received["data"], "{}", call.case),
            (Err(error), Some(class)) => {
                assert_eq!(error.class(), class, "{}", call.case);
                let text = call.text.or_else(|| received["message"].as_str().map(str::to_owned));
                assert_eq!(Some(error.message), text);
            }
            (outcome, raised) => panic!("{}: {outcome:?}, and the reference has {raised:?}", call.case),
        }
        count += 1;
    }
    assert_eq!(count, 9);
    connector.dispose().await;
    serving.await.unwrap();
}
