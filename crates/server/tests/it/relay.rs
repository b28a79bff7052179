//! The process relay: lines both ways, refusals before the upgrade, the story of the end.

use futures_util::SinkExt;
use sandcrate_backend::Execution;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::support::{Server, close_frame, connect, next, next_text, refused, request, until};

const PATH: &str = "/v1/sessions/s/managed-process/p/ws";

/// A server with the process `p` of session `s`.
async fn with_process(command: &str, args: &[&str]) -> Server {
    let server = Server::start().await;
    let mut rpc = server.rpc().await;
    rpc.ok("box_create_session", json!({"session_id": "s"})).await;
    let spec = json!({"process_id": "p", "command": command, "args": args});
    rpc.ok("box_start_managed_process", json!({"session_id": "s", "spec": spec})).await;
    server
}

async fn refusal(server: &Server, path: &str) -> (u16, Value) {
    let (status, body) = refused(connect(server.url(path)).await.unwrap_err());
    (status.as_u16(), body)
}

#[tokio::test]
async fn each_line_is_a_text_message() {
    let server = with_process("cat", &[]).await;
    let mut relay = connect(server.url(PATH)).await.unwrap();
    for (sent, lines) in [
        ("hello", vec!["hello"]),
        ("two\nlines", vec!["two", "lines"]),
        ("", vec![""]),
        ("trail  \r\n", vec!["trail  \r", ""]),
        ("你好", vec!["你好"]),
    ] {
        relay.send(Message::text(sent)).await.unwrap();
        for line in lines {
            assert_eq!(next_text(&mut relay).await, line);
        }
    }
    relay.send(Message::binary(b"ignored".to_vec())).await.unwrap();
    relay.send(Message::text("after")).await.unwrap();
    assert_eq!(next_text(&mut relay).await, "after");
    server.stop().await;
}

#[tokio::test]
async fn the_subprotocol_is_selected_when_offered() {
    let server = with_process("cat", &[]).await;
    for (offered, selected) in [(Some("mcp"), Some("mcp")), (Some("other, mcp"), Some("mcp")), (None, None)] {
        let headers: Vec<_> = offered.map(|offer| ("sec-websocket-protocol", offer)).into_iter().collect();
        let asked = request(server.url(PATH), &headers);
        let (client, response) = tokio_tungstenite::connect_async(asked).await.unwrap();
        let answer = response.headers().get("sec-websocket-protocol").map(|value| value.to_str().unwrap());
        assert_eq!(answer, selected);
        drop(client);
        let process = || server.app.runtime.process("s", "p").unwrap();
        until("the relay is free again", || !process().attached).await;
    }
    server.stop().await;
}

#[tokio::test]
async fn what_cannot_be_attached_is_refused_before_the_upgrade() {
    let server = with_process("exit", &["0"]).await;
    until("the process ends", || server.app.runtime.process("s", "p").unwrap().exit_code.is_some()).await;
    let error = |code: &str, message: &str| json!({"error": {"code": code, "message": message}});
    for (path, body) in [
        ("/v1/sessions/nope/managed-process/ws", error("BoxSessionNotFoundError", "session nope not found")),
        (
            "/v1/sessions/a%2Fb/managed-process/x%20y/ws",
            error("BoxSessionNotFoundError", "session a/b not found"),
        ),
        (
            "/v1/sessions/s/managed-process/ws",
            error(
                "BoxManagedProcessNotFoundError",
                "session s has no managed process with process_id=default",
            ),
        ),
        (PATH, error("BoxManagedProcessConflictError", "managed process p in session s is not running")),
    ] {
        assert_eq!(refusal(&server, path).await, (400, body), "{path}");
        // Without an upgrade the same answer comes: the checks are first.
        assert_eq!(server.http("GET", path, &[]).await.0, 400);
    }
    assert_eq!(server.http("POST", PATH, &[]).await.0, 405);
    server.stop().await;
}

/// P3: a line over 64 KiB ended the relay and was lost.
#[tokio::test]
async fn p3_lines_of_megabytes_pass_both_ways() {
    let server = with_process("line", &["3000000"]).await;
    let mut relay = connect(server.url(PATH)).await.unwrap();
    assert_eq!(next_text(&mut relay).await.len(), 3_000_000);
    let long = "z".repeat(5 << 20);
    relay.send(Message::text(long.clone())).await.unwrap();
    assert!(next_text(&mut relay).await == long);
    server.stop().await;
}

/// P6 and AP-18: a second attachment hung silently; it is refused, or waits when it asks to.
#[tokio::test]
async fn p6_a_second_attachment_is_a_conflict_unless_it_asks_to_wait() {
    let server = with_process("cat", &[]).await;
    let mut first = connect(server.url(PATH)).await.unwrap();
    let (status, body) = refusal(&server, PATH).await;
    assert_eq!((status, &body["error"]["code"]), (409, &json!("BoxManagedProcessConflictError")));
    let waiting = tokio::spawn(connect(server.url(&format!("{PATH}?wait=1"))));
    first.send(Message::text("one")).await.unwrap();
    assert_eq!(next_text(&mut first).await, "one");
    assert!(!waiting.is_finished());
    first.close(None).await.unwrap();
    let mut second = waiting.await.unwrap().unwrap();
    second.send(Message::text("two")).await.unwrap();
    assert_eq!(next_text(&mut second).await, "two");
    server.stop().await;
}

/// P8: the exit was not told; P5: nor were the last words of a process that ended before anybody listened.
#[tokio::test]
async fn p8_the_close_tells_the_exit() {
    let server = with_process("bye", &[]).await;
    let mut relay = connect(server.url(PATH)).await.unwrap();
    assert_eq!(next_text(&mut relay).await, "last words");
    let frame = close_frame(&mut relay).await;
    assert_eq!((u16::from(frame.code), frame.reason.as_str()), (1000, "exited with code 7"));
    server.stop().await;
}

#[tokio::test]
async fn the_close_tells_that_the_session_is_gone() {
    let server = with_process("cat", &[]).await;
    let mut relay = connect(server.url(PATH)).await.unwrap();
    let mut rpc = server.rpc().await;
    rpc.ok("box_delete_session", json!({"session_id": "s"})).await;
    let frame = close_frame(&mut relay).await;
    assert_eq!((u16::from(frame.code), frame.reason.as_str()), (1000, "session deleted"));
    server.stop().await;
}

#[tokio::test]
async fn a_stop_closes_the_relay() {
    let server = with_process("cat", &[]).await;
    let mut relay = connect(server.url(PATH)).await.unwrap();
    let mut rpc = server.rpc().await;
    rpc.ok("box_stop_managed_process", json!({"session_id": "s", "process_id": "p"})).await;
    assert_eq!(u16::from(close_frame(&mut relay).await.code), 1000);
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_leaves_can_come_back() {
    let server = with_process("cat", &[]).await;
    for word in ["one", "two"] {
        let mut relay = connect(server.url(&format!("{PATH}?wait=1"))).await.unwrap();
        relay.send(Message::text(word)).await.unwrap();
        assert_eq!(next_text(&mut relay).await, word);
    }
    assert!(server.app.runtime.process("s", "p").unwrap().exit_code.is_none());
    server.stop().await;
}

#[tokio::test]
async fn a_message_over_the_limit_ends_the_relay_and_not_the_process() {
    let server = with_process("cat", &[]).await;
    let mut relay = connect(server.url(PATH)).await.unwrap();
    // The server hangs up before it is all sent.
    let _ = relay.send(Message::text("x".repeat(17 << 20))).await;
    assert!(matches!(next(&mut relay).await, None | Some(Message::Close(_))));
    assert!(server.app.runtime.process("s", "p").unwrap().exit_code.is_none());
    server.stop().await;
}

/// The process takes nothing any more: the one who leaves is seen to leave all the same.
#[tokio::test]
async fn a_client_that_leaves_a_stuck_process_frees_it() {
    let server = with_process("hang", &[]).await;
    let mut relay = connect(server.url(PATH)).await.unwrap();
    for _ in 0..=Execution::QUEUED_INPUT {
        relay.send(Message::text("never read")).await.unwrap();
    }
    relay.close(None).await.unwrap();
    drop(relay);
    let attached = || server.app.runtime.process("s", "p").unwrap().attached;
    until("the process is free", || !attached()).await;
    connect(server.url(PATH)).await.unwrap();
    server.stop().await;
}
