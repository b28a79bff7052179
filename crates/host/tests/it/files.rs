//! Files of a box: by the runtime itself, by the actions of our server, and by a program where there are none.

use std::process::Command;

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use sandcrate_host::{Client, Connection as _, FileKind};
use sandcrate_protocol::{BoxSpec, ErrorKind};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::support::{Bench, Server, connector, quick};

/// What every client does with files below a directory that is there.
async fn files_live(client: &dyn Client, place: &str, large: usize) {
    let spec = BoxSpec::new("s");
    let path = format!("{place}/a/b.bin");
    assert_eq!(client.stat(&spec, &path).await.unwrap(), None);
    let error = client.read(&spec, &path, 10).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::FileNotFound, "{error}");
    let content: Bytes = (0..large).map(|index| (index % 251) as u8).collect();
    client.write(&spec, &path, content.clone()).await.unwrap();
    let meta = client.stat(&spec, &path).await.unwrap().unwrap();
    assert_eq!((meta.name.as_str(), meta.kind, meta.size), ("b.bin", FileKind::File, large as u64));
    assert!(client.read(&spec, &path, u64::MAX).await.unwrap() == content, "every byte comes back");
    assert_eq!(client.read(&spec, &path, 3).await.unwrap(), content.slice(..3));
    client.write(&spec, &path, Bytes::from_static(b"\xff\r\n")).await.unwrap();
    assert_eq!(client.read(&spec, &path, 100).await.unwrap(), &b"\xff\r\n"[..], "it is replaced");
    client.write(&spec, &path, Bytes::new()).await.unwrap();
    assert_eq!(client.read(&spec, &path, 100).await.unwrap().len(), 0);
    let listed = client.list(&spec, place).await.unwrap();
    assert_eq!((listed.len(), listed[0].name.as_str(), listed[0].kind), (1, "a", FileKind::Directory));
    assert_eq!(client.list(&spec, &path).await.unwrap_err().kind, ErrorKind::FileFailed);
    assert_eq!(client.read(&spec, &format!("{place}/a"), 9).await.unwrap_err().kind, ErrorKind::FileFailed);
}

#[tokio::test]
async fn files_are_reached_in_process() {
    let bench = Bench::new().await;
    files_live(&*bench.client(), "/workspace", 9 << 20).await;
}

#[tokio::test]
async fn files_are_reached_by_the_actions_of_our_server() {
    let server = Server::start().await;
    files_live(&*server.connect().await, "/workspace", 9 << 20).await;
    assert_eq!(server.bench.backend.calls().exec, 0);
}

/// A runtime without the actions: it knows `box_exec` alone, and runs it here.
async fn plain_runtime(listener: TcpListener) {
    let (stream, _) = listener.accept().await.unwrap();
    let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
    while let Some(Ok(message)) = socket.next().await {
        let Ok(text) = message.into_text() else { continue };
        let Ok(request) = serde_json::from_str::<Value>(&text) else { continue };
        let reply = match request["action"].as_str().unwrap() {
            "__ping" => json!({"code": 0, "message": "success", "data": {}}),
            "box_exec" => {
                let output = Command::new("sh")
                    .arg("-c")
                    .arg(request["data"]["cmd"].as_str().unwrap())
                    .output()
                    .unwrap();
                let text = |bytes: &[u8]| {
                    assert!(bytes.len() <= 1 << 20, "no runtime keeps so much output");
                    String::from_utf8_lossy(bytes).trim().to_owned()
                };
                let data = json!({
                    "session_id": "s", "backend_name": "b", "status": "completed", "exit_code": output.status.code(),
                    "stdout": text(&output.stdout), "stderr": text(&output.stderr), "duration_ms": 1,
                });
                json!({"code": 0, "message": "success", "data": data})
            }
            action => {
                json!({"code": 1, "message": format!("ValueError: Action {action} not found"), "data": {}})
            }
        };
        let mut reply = reply;
        reply["seq_id"] = request["seq_id"].clone();
        reply["chunk_status"] = json!("continue");
        socket.send(reply.to_string().into()).await.unwrap();
    }
}

#[tokio::test]
async fn files_are_reached_by_a_program_where_there_are_no_actions() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config =
        json!({"box": {"runtime": {"endpoint": format!("ws://{}", listener.local_addr().unwrap())}}});
    let serving = tokio::spawn(plain_runtime(listener));
    let connector = connector(&config, quick());
    connector.connect().await.unwrap();
    let place = tempfile::tempdir().unwrap();
    let client = connector.client();
    files_live(&*client, place.path().to_str().unwrap(), 1 << 20).await;
    // No link is followed at the end of a path.
    std::os::unix::fs::symlink("/etc/passwd", place.path().join("link")).unwrap();
    let link = place.path().join("link");
    let spec = BoxSpec::new("s");
    let meta = client.stat(&spec, link.to_str().unwrap()).await.unwrap().unwrap();
    assert_eq!(meta.kind, FileKind::Symlink);
    let error = client.read(&spec, link.to_str().unwrap(), 9).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::FileFailed);
    connector.dispose().await;
    serving.abort();
}
