//! Terminals by WebSocket.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use reqwest::Method;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use super::Server;

type Socket = WebSocketStream<MaybeTlsStream<tokio::net::TcpStream>>;

async fn open(server: &Server, query: &str) -> Socket {
    let url = format!("{}/v1/sessions/demo/terminal{query}", server.base.replace("http", "ws"));
    connect_async(url).await.unwrap().0
}

/// The bytes up to the last frame, that frame, and how the connection was closed.
async fn read(socket: &mut Socket) -> (Vec<u8>, Value, Option<CloseCode>) {
    let (mut bytes, mut last, mut close) = (Vec::new(), Value::Null, None);
    while let Some(Ok(message)) = socket.next().await {
        match message {
            Message::Binary(data) => bytes.extend_from_slice(&data),
            Message::Text(text) => last = serde_json::from_str(&text).unwrap(),
            Message::Close(frame) => close = frame.map(|frame| frame.code),
            _ => {}
        }
    }
    (bytes, last, close)
}

#[tokio::test]
async fn a_terminal_falls_back_to_sh_and_carries_bytes_both_ways() {
    let server = Server::start().await;
    server.session("demo").await;
    let mut socket = open(&server, "?rows=40&cols=120").await;
    assert_eq!(socket.next().await.unwrap().unwrap(), Message::Binary("$ ".into()));
    socket.send(Message::Binary(b"ls\r\xff".to_vec().into())).await.unwrap();
    assert_eq!(socket.next().await.unwrap().unwrap(), Message::Binary(b"ls\r\xff".to_vec().into()));
    socket.send(Message::Text(r#"{"type":"resize","rows":24,"cols":80}"#.into())).await.unwrap();
    socket.send(Message::Text("nonsense".into())).await.unwrap();
    socket.send(Message::Text(r#"{"type":"signal","signal":"TERM"}"#.into())).await.unwrap();
    let (_, last, close) = read(&mut socket).await;
    assert_eq!(
        (&last["type"], &last["exit_code"], &last["signal"]),
        (&json!("exit"), &json!(143), &json!(15))
    );
    assert_eq!(close, Some(CloseCode::Normal));
    let (_, list) = server.get("/v1/sessions/demo/commands").await;
    assert_eq!(list["commands"].as_array().unwrap().last().unwrap()["pty"], true);
}

#[tokio::test]
async fn a_terminal_ends_with_its_command() {
    let server = Server::start().await;
    server.session("demo").await;
    let mut socket = open(&server, "?cmd=both").await;
    let (bytes, last, close) = read(&mut socket).await;
    assert_eq!((bytes.as_slice(), &last["exit_code"]), (&b"  out \nerr\n"[..], &json!(3)));
    assert_eq!(close, Some(CloseCode::Normal));
    let mut socket = open(&server, "?cmd=nowhere").await;
    let (_, last, _) = read(&mut socket).await;
    assert_eq!((&last["type"], &last["error"]["code"]), (&json!("error"), &json!("command_not_found")));
}

/// Both a program that heeds SIGHUP and one that does not.
#[tokio::test]
async fn a_client_that_leaves_ends_its_command() {
    let server = Server::start().await;
    server.session("demo").await;
    for (cmd, signal) in [("hang", 1), ("stubborn", 9)] {
        let mut socket = open(&server, &format!("?cmd={cmd}")).await;
        assert!(matches!(socket.next().await, Some(Ok(Message::Binary(_)))));
        drop(socket);
        let ended = async {
            loop {
                let (_, list) = server.get("/v1/sessions/demo/commands").await;
                let last = list["commands"].as_array().unwrap().last().unwrap().clone();
                if last["running"] == false {
                    return last["exit"]["signal"].clone();
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let ended = tokio::time::timeout(Duration::from_secs(10), ended).await;
        assert_eq!(ended.expect("the command goes on"), signal, "{cmd}");
    }
}

#[tokio::test]
async fn what_is_no_terminal_is_refused() {
    let server = Server::start().await;
    let path = "/v1/sessions/demo/terminal";
    server.refused(Method::GET, path, None, 404, "session_not_found").await;
    server.session("demo").await;
    server.refused(Method::GET, path, None, 426, "upgrade_required").await;
    server.refused(Method::GET, &format!("{path}?rows=0"), None, 400, "validation_error").await;
    server.refused(Method::GET, &format!("{path}?row=1"), None, 400, "validation_error").await;
    server.refused(Method::GET, &format!("{path}?cols=70000"), None, 400, "validation_error").await;
}

/// A command, its arguments and its environment come by body; the address has but a number.
#[tokio::test]
async fn a_command_that_was_started_has_its_terminal_shown() {
    let server = Server::start().await;
    server.session("demo").await;
    let start = async |body: Value| {
        let (status, started) = server.post("/v1/sessions/demo/commands", body).await;
        assert_eq!(status, 201, "{started}");
        started["command_id"].as_str().unwrap().to_owned()
    };
    let id = start(json!({"argv": ["both"], "pty": {"rows": 40, "cols": 120}})).await;
    let mut socket = open(&server, &format!("?command={id}")).await;
    let (bytes, last, close) = read(&mut socket).await;
    assert_eq!((bytes.as_slice(), &last["exit_code"]), (&b"  out \nerr\n"[..], &json!(3)));
    assert_eq!(close, Some(CloseCode::Normal));
    let path = "/v1/sessions/demo/terminal";
    server
        .refused(Method::GET, &format!("{path}?command=none"), None, 404, "managed_process_not_found")
        .await;
    server.refused(Method::GET, &format!("{path}?command={id}&rows=3"), None, 400, "validation_error").await;
    let id = start(json!({"argv": ["both"]})).await;
    server.refused(Method::GET, &format!("{path}?command={id}"), None, 400, "validation_error").await;
}
