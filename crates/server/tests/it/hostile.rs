//! Peers that mean harm: slow ones, silent ones, greedy ones, and frames made to hurt.

use std::time::{Duration, Instant};

use futures_util::SinkExt;
use sandcrate_server::{ServerConfig, ServerLimits};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;

use crate::support::{PATIENCE, Server, next, plain_client, until};

fn limited(limits: ServerLimits) -> ServerConfig {
    ServerConfig { limits, ..ServerConfig::default() }
}

const SHORT: Duration = Duration::from_millis(300);

/// Waits for the server to hang up on `stream`.
async fn hung_up(stream: &mut TcpStream) {
    let mut buffer = [0; 4096];
    let ended = async { while stream.read(&mut buffer).await.is_ok_and(|length| length > 0) {} };
    tokio::time::timeout(PATIENCE, ended).await.expect("the server hangs up");
}

#[tokio::test]
async fn a_head_that_never_ends_is_cut_off() {
    let server =
        Server::with(limited(ServerLimits { header_timeout: SHORT, ..ServerLimits::default() })).await;
    for beginning in ["", "GET /rpc/ws HTTP/1.1\r\nx: y"] {
        let mut slow = TcpStream::connect(server.address).await.unwrap();
        slow.write_all(beginning.as_bytes()).await.unwrap();
        hung_up(&mut slow).await;
    }
    // A byte now and then does not help.
    let slow = TcpStream::connect(server.address).await.unwrap();
    let (mut reading, mut writing) = slow.into_split();
    let dripping = tokio::spawn(async move {
        writing.write_all(b"GET /rpc/ws HTTP/1.1\r\n").await.unwrap();
        while writing.write_all(b"x").await.is_ok() {
            tokio::time::sleep(SHORT / 10).await;
        }
    });
    let mut rest = Vec::new();
    tokio::time::timeout(PATIENCE, reading.read_to_end(&mut rest)).await.expect("cut off").ok();
    dripping.abort();
    server.stop().await;
}

#[tokio::test]
async fn connections_are_bounded_and_places_come_back() {
    let limits = ServerLimits { max_connections: 3, header_timeout: SHORT, ..ServerLimits::default() };
    let server = Server::with(limited(limits)).await;
    // An upgraded connection keeps its place.
    let mut rpc = server.rpc().await;
    let idle: Vec<_> =
        [TcpStream::connect(server.address).await, TcpStream::connect(server.address).await].into();
    let begin = Instant::now();
    assert_eq!(server.http("GET", "/healthz", &[]).await.0, 200);
    assert!(begin.elapsed() >= SHORT / 2, "nobody had to wait");
    rpc.ok("__ping", json!({})).await;
    drop(idle);
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_never_reads_is_closed() {
    let limits = ServerLimits { write_timeout: SHORT, ..ServerLimits::default() };
    let server = Server::with(limited(limits)).await;
    let mut rpc = server.rpc().await;
    for number in 0..40 {
        let data = json!({"session_id": format!("s{number}"), "cmd": "fill 1048576"});
        rpc.request(number, "box_exec", data).await;
    }
    // Not one reply is read, until the server has given up: its tasks are gone. Two listeners, the keeper of the
    // gateway's sessions and the keeper of sandboxes' time stay.
    until("the connection is closed", || server.app.tasks.len() <= 4).await;
    let mut other = server.rpc().await;
    other.ok("__ping", json!({})).await;
    server.stop().await;
}

/// A download and its piece of the file went on for ever, however many there were.
#[tokio::test]
async fn a_download_that_nobody_reads_is_ended_and_an_idle_connection_kept() {
    let limits = ServerLimits { write_timeout: SHORT, ..ServerLimits::default() };
    let server = Server::with(limited(limits)).await;
    let http = plain_client();
    let url = format!("http://{}/v1/sessions/s", server.address);
    assert_eq!(http.post(&url).send().await.unwrap().status(), 201);
    // More than the kernel holds for both sides.
    let file = http.put(format!("{url}/files/workspace/z")).body(vec![b'x'; 64 << 20]).send();
    assert_eq!(file.await.unwrap().status(), 201);
    let mut rpc = server.rpc().await;
    let tasks = server.app.tasks.len();

    let mut downloads = Vec::new();
    for _ in 0..4 {
        let mut download = TcpStream::connect(server.address).await.unwrap();
        download
            .write_all(b"GET /v1/sessions/s/files/workspace/z HTTP/1.1\r\nhost: localhost\r\n\r\n")
            .await
            .unwrap();
        // Its answer has begun.
        download.peek(&mut [0]).await.unwrap();
        downloads.push(download);
    }
    until("the connections are closed", || server.app.tasks.len() <= tasks).await;
    // Neither this one nor the client's, which had nothing to be written to them meanwhile.
    rpc.ok("__ping", json!({})).await;
    assert_eq!(http.get(&url).send().await.unwrap().status(), 200);
    assert_eq!(server.app.tasks.len(), tasks, "the idle connection was used again");
    drop(downloads);
    server.stop().await;
}

#[tokio::test]
async fn a_dead_peer_is_noticed_and_a_quiet_one_kept() {
    let limits = ServerLimits { ping_interval: Duration::from_millis(100), ..ServerLimits::default() };
    let server = Server::with(limited(limits)).await;
    let head = "GET /rpc/ws HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    let mut dead = TcpStream::connect(server.address).await.unwrap();
    dead.write_all(head.as_bytes()).await.unwrap();
    let mut quiet = server.rpc().await;
    let listening = tokio::spawn(async move {
        // Answers pings and says nothing.
        let _ = tokio::time::timeout(Duration::from_secs(1), next(&mut quiet.0)).await;
        quiet
    });
    hung_up(&mut dead).await;
    let mut quiet = listening.await.unwrap();
    quiet.ok("__ping", json!({})).await;
    server.stop().await;
}

#[tokio::test]
async fn requests_under_way_are_bounded() {
    let limits = ServerLimits { in_flight_per_connection: 2, ..ServerLimits::default() };
    let server = Server::with(limited(limits)).await;
    let mut rpc = server.rpc().await;
    for number in 0..2 {
        rpc.request(number, "box_exec", json!({"session_id": format!("s{number}"), "cmd": "wait 500"})).await;
    }
    rpc.request(9, "__ping", json!({})).await;
    // The ping is not read before a slot is free, so it cannot be first.
    assert_ne!(rpc.reply().await["seq_id"], 9);
    let mut other = server.rpc().await;
    other.ok("__ping", json!({})).await;
    server.stop().await;
}

/// Idle connections must not use up what requests need.
#[tokio::test]
async fn an_idle_connection_takes_no_place_from_others() {
    let limits = ServerLimits { in_flight_total: 1, ..ServerLimits::default() };
    let server = Server::with(limited(limits)).await;
    let idle = [server.rpc().await, server.rpc().await];
    let mut busy = server.rpc().await;
    busy.ok("__ping", json!({})).await;
    drop(idle);
    server.stop().await;
}

/// AP-17: frames that cost the parser far more than their length.
#[tokio::test]
async fn ap17_frames_made_to_hurt_are_answered() {
    let server = Server::start().await;
    let mut rpc = server.rpc().await;
    let deep = format!(
        "{{\"seq_id\": 1, \"action\": \"__ping\", \"data\": {}{}}}",
        "[".repeat(500_000),
        "]".repeat(500_000)
    );
    rpc.send(deep).await;
    let reply = rpc.reply().await;
    assert_eq!((&reply["seq_id"], &reply["code"]), (&json!(1), &json!(1)));

    let keys: Vec<String> = (0..1_000_000).map(|number| format!("\"k{number}\":0")).collect();
    rpc.send(format!("{{\"seq_id\": 2, \"action\": \"__ping\", \"data\": {{{}}}}}", keys.join(","))).await;
    let reply = rpc.reply().await;
    assert_eq!((&reply["seq_id"], &reply["code"]), (&json!(2), &json!(1)));

    rpc.send(r#"{"seq_id": 3, "action": "nope", "data": {}, "action": "__ping", "seq_id": 4}"#).await;
    let reply = rpc.reply().await;
    assert_eq!((&reply["seq_id"], &reply["code"]), (&json!(4), &json!(0)), "the last of equal keys counts");

    rpc.send(format!("{{\"seq_id\": {}1, \"action\": \"__ping\", \"data\": {{}}}}", "9".repeat(100_000)))
        .await;
    assert_eq!(rpc.reply().await["code"], 1);
    rpc.ok("__ping", json!({})).await;
    server.stop().await;
}

#[tokio::test]
async fn a_message_over_16_mib_ends_its_connection_only() {
    let server = Server::start().await;
    let mut rpc = server.rpc().await;
    // The server hangs up before it is all sent.
    let _ = rpc.0.send(Message::text("x".repeat(17 << 20))).await;
    while let Some(message) = next(&mut rpc.0).await {
        match message {
            Message::Close(Some(frame)) => assert_eq!(u16::from(frame.code), 1009),
            Message::Close(None) => {}
            other => panic!("{other:?}"),
        }
    }
    let mut other = server.rpc().await;
    other.ok("__ping", json!({})).await;
    server.stop().await;
}
