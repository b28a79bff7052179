//! From the service over RPC to a box. What only a real box can show is held by every backend's own suite.

use sandcrate_backend::{Network, SessionId};
use sandcrate_host::{Query, Service};
use sandcrate_protocol::{BoxSpec, ErrorKind, ExecStatus, MountMode};
use serde_json::json;

use crate::support::{Server, path};

fn spec(cmd: &str) -> BoxSpec {
    BoxSpec { cmd: cmd.to_owned(), workdir: "/tmp".to_owned(), ..BoxSpec::new("int") }
}

#[tokio::test]
async fn test_exec_simple_command() {
    let server = Server::start().await;
    let spec = BoxSpec { host_path_mode: MountMode::None, ..spec("echo hello") };
    let result = server.connect().await.execute(&spec).await.unwrap();
    assert_eq!((result.status, result.exit_code), (ExecStatus::Completed, Some(0)));
    assert_eq!(result.stdout, "hello");
}

#[tokio::test]
async fn test_session_persists_files() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.execute(&spec("echo first")).await.unwrap();
    client.write(&spec(""), "/tmp/kept.txt", "kept".into()).await.unwrap();
    client.execute(&spec("echo second")).await.unwrap();
    assert_eq!(client.read(&spec(""), "/tmp/kept.txt", 100).await.unwrap(), "kept");
    assert_eq!(server.bench.backend.calls().start, 1);
}

#[tokio::test]
async fn test_timeout_kills_command() {
    let server = Server::start().await;
    let client = server.connect().await;
    let result = client.execute(&BoxSpec { timeout_sec: 1, ..spec("sleep 60") }).await.unwrap();
    assert_eq!((result.status, result.exit_code), (ExecStatus::TimedOut, None));
    assert_eq!(client.session("int").await.unwrap_err().kind, ErrorKind::SessionNotFound);
    assert!(server.bench.backend.sessions().is_empty(), "the box is gone");
}

#[tokio::test]
async fn test_offline_cannot_reach_network() {
    let server = Server::start().await;
    let client = server.connect().await;
    let result = client.execute(&spec("exit 7")).await.unwrap();
    assert_eq!(result.exit_code, Some(7), "what fails in the box fails here");
    let made = server.bench.backend.spec(&SessionId::new("int".to_owned()).unwrap()).unwrap();
    assert!(matches!(made.network, Network::Off), "the box was made without a network");
}

/// With the keys of earlier versions, as the reference's own test has them.
#[tokio::test]
async fn test_full_service_to_remote_runtime() {
    let server = Server::start().await;
    let workspace = server.bench.directory("ws");
    let mut config = server.config();
    config["box"]["profile"] = json!("default");
    config["box"]["allowed_host_mount_roots"] = json!([path(&workspace)]);
    config["box"]["default_host_workspace"] = json!(path(&workspace));
    let service = Service::builder().config(&config).build().unwrap();
    service.initialize().await;
    assert!(service.is_available(), "{:?}", service.availability().borrow());
    let query = Query { query_id: Some(42.into()), ..Query::default() };
    let result = service.execute_tool(&json!({"command": "echo hi"}), &query).await.unwrap();
    assert_eq!((&result["ok"], &result["stdout"]), (&json!(true), &json!("hi")));
    assert_eq!(result["session_id"], "query_42");
    let session = &service.sessions().await[0];
    assert_eq!(session["host_path"], path(&workspace).as_str());
    service.dispose().await;
    assert!(server.bench.runtime.sessions().is_empty(), "B3: the runtime was told to end");
    server.stop().await;
}
