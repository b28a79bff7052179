//! The client over RPC, against a server over loopback.

use sandcrate_protocol::{BoxSpec, ErrorKind, ExecStatus, NetworkMode};
use serde_json::json;

use crate::support::Server;

fn spec(id: &str, cmd: &str) -> BoxSpec {
    BoxSpec { cmd: cmd.to_owned(), ..BoxSpec::new(id) }
}

#[tokio::test]
async fn test_rpc_client_execute() {
    let server = Server::start().await;
    let client = server.connect().await;
    let result = client.execute(&spec("s", "echo hello")).await.unwrap();
    assert_eq!((result.stdout.as_str(), result.status), ("hello", ExecStatus::Completed));
    assert_eq!((result.session_id.as_str(), result.exit_code), ("s", Some(0)));
    server.stop().await;
}

#[tokio::test]
async fn test_rpc_client_get_sessions() {
    let server = Server::start().await;
    let client = server.connect().await;
    assert!(client.sessions().await.unwrap().is_empty());
    client.execute(&spec("s", "echo hello")).await.unwrap();
    let sessions = client.sessions().await.unwrap();
    assert_eq!((sessions.len(), &sessions[0]["session_id"]), (1, &json!("s")));
}

#[tokio::test]
async fn test_rpc_client_get_status() {
    let server = Server::start().await;
    let status = server.connect().await.status().await.unwrap();
    for key in ["backend", "active_sessions", "managed_processes", "session_ttl_sec"] {
        assert!(status.get(key).is_some(), "{key}: {status}");
    }
}

#[tokio::test]
async fn test_rpc_client_get_backend_info() {
    let server = Server::start().await;
    let info = server.connect().await.backend_info().await.unwrap();
    assert_eq!(info, json!({"name": "fake", "available": true}));
}

#[tokio::test]
async fn test_rpc_client_delete_session() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.execute(&spec("s", "echo hello")).await.unwrap();
    client.delete_session("s").await.unwrap();
    assert!(client.sessions().await.unwrap().is_empty());
    assert!(server.bench.backend.sessions().is_empty());
}

#[tokio::test]
async fn test_rpc_client_delete_session_raises_not_found() {
    let server = Server::start().await;
    let error = server.connect().await.delete_session("none").await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::SessionNotFound);
    assert_eq!(error.message, "BoxSessionNotFoundError: session none not found");
}

#[tokio::test]
async fn test_rpc_client_create_session() {
    let server = Server::start().await;
    let session = server.connect().await.create_session(&spec("s", "")).await.unwrap();
    assert_eq!((&session["session_id"], &session["backend_name"]), (&json!("s"), &json!("fake")));
}

#[tokio::test]
async fn test_rpc_client_exec_raises_conflict_error() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.execute(&spec("s", "echo hello")).await.unwrap();
    let other = BoxSpec { network: NetworkMode::On, ..spec("s", "echo hello") };
    let error = client.execute(&other).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::SessionConflict);
    assert!(error.message.contains("network=off"), "{error}");
}

#[tokio::test]
async fn test_backend_unavailable_returns_error() {
    let server = Server::start().await;
    server.bench.backend.set_unavailable(Some("it is not installed"));
    let error = server.connect().await.execute(&spec("s", "echo hello")).await.unwrap_err();
    assert_eq!((error.kind, error.class()), (ErrorKind::BackendUnavailable, "BoxBackendUnavailableError"));
    assert!(error.message.starts_with("BoxBackendUnavailableError: "), "{error}");
}

/// More than goes into one piece of a reply.
#[tokio::test]
async fn long_output_arrives_whole() {
    let server = Server::start().await;
    let result = server.connect().await.execute(&spec("s", "fill 1048576")).await.unwrap();
    assert_eq!(result.stdout.len(), 1 << 20);
}
