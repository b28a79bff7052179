//! The line to managed processes.

use sandcrate_host::{Client as _, HostMounts, Service};
use sandcrate_protocol::{BoxSpec, ErrorKind, ProcessSpec};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::{Connected, PATIENCE, Server};

async fn started(server: &Server, command: &str) -> Connected {
    let client = server.connect().await;
    client.create_session(&BoxSpec::new("mcp")).await.unwrap();
    client.start_process("mcp", &ProcessSpec::new(command)).await.unwrap();
    client
}

#[tokio::test]
async fn s8_a_session_whose_id_has_a_slash_can_be_attached_to() {
    let server = Server::start().await;
    let service = Service::builder().config(&server.config()).build().unwrap();
    service.initialize().await;
    service.create_session(&json!({"session_id": "group_a/b"}), HostMounts::Check).await.unwrap();
    service.start_managed_process("group_a/b", &json!({"command": "cat"})).await.unwrap();
    let url = service.attach_url("group_a/b", None).unwrap();
    let (mut socket, _) = tokio_tungstenite::connect_async(url).await.unwrap();
    socket.close(None).await.unwrap();
}

async fn one_line(streams: &mut sandcrate_host::ProcessStreams) -> String {
    let mut line = String::new();
    let mut reader = tokio::io::BufReader::new(&mut streams.reader);
    tokio::time::timeout(PATIENCE, reader.read_line(&mut line)).await.unwrap().unwrap();
    line
}

#[tokio::test]
async fn a_process_is_attached_over_the_relay_as_streams() {
    let server = Server::start().await;
    let client = started(&server, "cat").await;
    let mut streams = client.attach("mcp", "default").await.unwrap();
    // In pieces: only a whole line is a message.
    streams.writer.write_all(b"{\"ping\"").await.unwrap();
    streams.writer.write_all(b": 1}\nrest").await.unwrap();
    streams.writer.flush().await.unwrap();
    assert_eq!(one_line(&mut streams).await, "{\"ping\": 1}\n");
    let error = client.attach("mcp", "default").await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::ProcessConflict, "{error}");
    client.stop_process("mcp", "default").await.unwrap();
    assert_eq!(one_line(&mut streams).await, "", "the end of the process is the end of its output");
    let error = client.attach("mcp", "default").await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::ProcessNotFound, "{error}");
}

#[tokio::test]
async fn a_process_of_our_own_runtime_is_attached_as_streams_and_reads_end_of_file() {
    let server = Server::start().await;
    let client = sandcrate_host::EmbeddedClient::new(server.bench.runtime.clone());
    client.create_session(&BoxSpec::new("mcp")).await.unwrap();
    client.start_process("mcp", &ProcessSpec::new("cat")).await.unwrap();
    let mut streams = client.attach("mcp", "default").await.unwrap();
    streams.writer.write_all(b"one\ntwo").await.unwrap();
    assert_eq!(one_line(&mut streams).await, "one\n");
    streams.writer.shutdown().await.unwrap();
    let mut rest = String::new();
    let read = streams.reader.read_to_string(&mut rest);
    tokio::time::timeout(PATIENCE, read).await.unwrap().unwrap();
    assert_eq!(rest, "two", "bytes are passed on as they are");
    assert_eq!(client.process("mcp", "default").await.unwrap().exit_code, Some(0));
    assert!(streams.writer.write_all(b"x").await.is_err());
}
