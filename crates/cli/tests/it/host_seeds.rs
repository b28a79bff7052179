//! The tests of the reference that need a real box, by their names: our host, our server, native boxes.
//! `sandcrate-host` counts them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use sandcrate_host::{BoxConfig, Client, Connection as _, Connector, Deployment, Query, Service};
use sandcrate_protocol::{BoxSpec, ErrorKind, ExecStatus, MountMode, ProcessSpec, ProcessStatus};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::Message;

use crate::golden::peer;
use crate::skip::{Feature, skip_without};

const PATIENCE: Duration = Duration::from_secs(30);

/// A server, and a host that is connected to it.
struct Host {
    client: Arc<dyn Client>,
    connector: Connector,
    server: peer::Server,
}

impl Host {
    async fn connect() -> Self {
        let server = peer::Server::start(&[]);
        let section = BoxConfig::from_section(&section(&server)["box"]).unwrap();
        let connector = Connector::new(&section, Deployment::default()).unwrap();
        connector.connect().await.unwrap();
        Self { client: connector.client(), connector, server }
    }

    async fn with_process(command: &str, args: &[&str]) -> Self {
        let host = Self::connect().await;
        host.client.create_session(&spec("")).await.unwrap();
        let mut process = ProcessSpec::new(command);
        process.args = args.iter().map(|arg| (*arg).to_owned()).collect();
        host.client.start_process("int", &process).await.unwrap();
        host
    }
}

fn section(server: &peer::Server) -> Value {
    json!({"box": {"runtime": {"endpoint": format!("ws://127.0.0.1:{}", server.port)}}})
}

fn spec(cmd: &str) -> BoxSpec {
    BoxSpec { cmd: cmd.to_owned(), workdir: "/tmp".to_owned(), ..BoxSpec::new("int") }
}

#[tokio::test]
async fn test_exec_simple_command() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let host = Host::connect().await;
    let spec = BoxSpec { host_path_mode: MountMode::None, ..spec("echo hello") };
    let result = host.client.execute(&spec).await.unwrap();
    assert_eq!((result.status, result.exit_code), (ExecStatus::Completed, Some(0)));
    assert_eq!(result.stdout, "hello");
}

#[tokio::test]
async fn test_session_persists_files() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let host = Host::connect().await;
    host.client.execute(&spec("echo kept > /tmp/kept.txt")).await.unwrap();
    assert_eq!(host.client.execute(&spec("cat /tmp/kept.txt")).await.unwrap().stdout, "kept");
    assert_eq!(host.client.read(&spec(""), "/tmp/kept.txt", 100).await.unwrap(), "kept\n");
}

#[tokio::test]
async fn test_timeout_kills_command() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let host = Host::connect().await;
    let late = BoxSpec { timeout_sec: 1, ..spec("sleep 600") };
    let result = host.client.execute(&late).await.unwrap();
    assert_eq!((result.status, result.exit_code), (ExecStatus::TimedOut, None));
    assert_eq!(host.client.session("int").await.unwrap_err().kind, ErrorKind::SessionNotFound);
}

#[tokio::test]
async fn test_offline_cannot_reach_network() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let host = Host::connect().await;
    // Our own server listens there: without a network of the box it could be reached.
    let port = host.server.port;
    let reach = |address: &str| {
        format!("python3 -c 'import socket; socket.create_connection((\"{address}\", {port}), 5)'")
    };
    for address in ["127.0.0.1", "192.0.2.1"] {
        let result = host.client.execute(&spec(&reach(address))).await.unwrap();
        assert_eq!((result.status, result.exit_code), (ExecStatus::Completed, Some(1)), "{result:?}");
        assert!(result.stderr.contains("Error"), "{result:?}");
    }
}

/// With the keys of earlier versions, as the reference's own test has them.
#[tokio::test]
async fn test_full_service_to_remote_runtime() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let server = peer::Server::start(&[]);
    let place = tempfile::tempdir().unwrap();
    let workspace = place.path().canonicalize().unwrap();
    let mut config = section(&server);
    config["box"]["profile"] = json!("default");
    config["box"]["allowed_host_mount_roots"] = json!([workspace]);
    config["box"]["default_host_workspace"] = json!(workspace);
    let service = Service::builder().config(&config).build().unwrap();
    service.initialize().await;
    assert!(service.is_available(), "{:?}", service.availability().borrow());
    let query = Query { query_id: Some(42.into()), ..Query::default() };
    let command = json!({"command": "echo hi; echo there > /workspace/file"});
    let result = service.execute_tool(&command, &query).await.unwrap();
    assert_eq!((&result["ok"], &result["stdout"]), (&json!(true), &json!("hi")), "{result}");
    assert_eq!(result["session_id"], "query_42");
    assert_eq!(std::fs::read_to_string(workspace.join("file")).unwrap(), "there\n");
    assert_eq!(service.sessions().await[0]["host_path"], json!(workspace));
    service.dispose().await;
}

#[tokio::test]
async fn test_managed_process_start_and_query() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let host = Host::with_process("sh", &["-c", "cat"]).await;
    let info = host.client.process("int", "default").await.unwrap();
    assert_eq!((info.status, info.command.as_str()), (ProcessStatus::Running, "sh"));
}

#[tokio::test]
async fn test_ws_stdio_attach_echo() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let host = Host::with_process("cat", &[]).await;
    let url = host.connector.attach_url("int", "default").unwrap();
    let (mut socket, _) = tokio_tungstenite::connect_async(url).await.unwrap();
    socket.send(Message::text("{\"ping\": 1}")).await.unwrap();
    let echoed = async {
        loop {
            match socket.next().await.unwrap().unwrap() {
                Message::Text(text) => return text.as_str().to_owned(),
                Message::Ping(_) | Message::Pong(_) => {}
                other => panic!("not an echo: {other:?}"),
            }
        }
    };
    assert_eq!(tokio::time::timeout(PATIENCE, echoed).await.unwrap(), "{\"ping\": 1}");
}

#[tokio::test]
async fn test_delete_session_cleans_up() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let host = Host::with_process("sleep", &["7123.25"]).await;
    until_it_runs("7123.25").await;
    host.client.delete_session("int").await.unwrap();
    assert_eq!(host.client.session("int").await.unwrap_err().kind, ErrorKind::SessionNotFound);
    assert_eq!(host.client.process("int", "default").await.unwrap_err().kind, ErrorKind::SessionNotFound);
    assert!(!runs("7123.25"), "its process is gone");
}

async fn until_it_runs(argument: &str) {
    let deadline = Instant::now() + PATIENCE;
    while !runs(argument) {
        assert!(Instant::now() < deadline, "nothing with {argument} was started");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Whether some process of this machine has the argument.
fn runs(argument: &str) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let mut command_lines = processes.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    command_lines.any(|line| line.split(|byte| *byte == 0).any(|word| word == argument.as_bytes()))
}

#[tokio::test]
async fn test_get_session_returns_details() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let host = Host::connect().await;
    host.client.create_session(&spec("")).await.unwrap();
    let before = host.client.session("int").await.unwrap();
    assert_eq!(before["image"], BoxSpec::new("").image.as_str());
    assert!(before.get("managed_process").is_none());
    host.client.start_process("int", &ProcessSpec::new("cat")).await.unwrap();
    let after = host.client.session("int").await.unwrap();
    assert_eq!(after["managed_process"]["status"], "running");
}

#[tokio::test]
async fn test_process_exit_detected() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let host = Host::with_process("echo", &["bye"]).await;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let info = host.client.process("int", "default").await.unwrap();
        if info.status == ProcessStatus::Exited {
            assert_eq!(info.exit_code, Some(0));
            return;
        }
        assert!(Instant::now() < deadline, "{info:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Another server that starts on the machine, and another host that comes and goes, leave alone what is not theirs.
#[tokio::test]
async fn test_orphan_cleanup_preserves_own_containers() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let host = Host::with_process("cat", &[]).await;
    let other_server = peer::Server::start(&[]);
    for server in [&other_server, &host.server] {
        let other = Service::builder().config(&section(server)).build().unwrap();
        other.initialize().await;
        assert!(other.is_available());
        drop(other);
    }
    drop(other_server);
    assert!(host.client.status().await.unwrap()["active_sessions"].as_u64().unwrap() >= 1);
    assert_eq!(host.client.process("int", "default").await.unwrap().status, ProcessStatus::Running);
    assert_eq!(host.client.execute(&spec("echo alive")).await.unwrap().stdout, "alive");
}

/// B6: who gives up a command, or loses interest in it, ends it, and what follows does not wait for it.
#[tokio::test]
async fn b6_an_abandoned_command_ends() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let host = Host::connect().await;
    let spec = |cmd: &str| BoxSpec { timeout_sec: 600, ..spec(cmd) };
    host.client.execute(&spec("echo kept > /tmp/kept")).await.unwrap();
    let command = spec("sleep 7124.75");
    let execution = host.client.execute(&command);
    tokio::select! {
        result = execution => panic!("it does not end by itself: {result:?}"),
        () = until_it_runs("7124.75") => {}
    }
    let next = tokio::time::timeout(PATIENCE, host.client.execute(&spec("cat /tmp/kept"))).await;
    assert_eq!(next.unwrap().unwrap().stdout, "kept", "the session goes on");
    assert!(!runs("7124.75"));
}
