//! The runtime below a service, in the same process.

use std::time::Duration;

use sandcrate_host::{Client as _, EmbeddedClient, HostMounts};
use sandcrate_protocol::{BoxSpec, ErrorKind, ProcessSpec, ProcessStatus};
use serde_json::{Value, json};

use crate::support::{Bench, path, query};

fn spec(id: &str, cmd: &str) -> BoxSpec {
    BoxSpec { cmd: cmd.to_owned(), ..BoxSpec::new(id) }
}

#[tokio::test]
async fn test_box_runtime_reuses_request_session() {
    let bench = Bench::new().await;
    let client = bench.client();
    for word in ["first", "second"] {
        let result = client.execute(&spec("req", &format!("echo {word}"))).await.unwrap();
        assert_eq!(result.stdout, word);
    }
    let calls = bench.backend.calls();
    assert_eq!((calls.start, calls.exec), (1, 2));
}

#[tokio::test]
async fn test_box_service_fails_closed_when_backend_unavailable() {
    let bench = Bench::new().await;
    bench.backend.set_unavailable(Some("it is not installed"));
    let service = bench.service(json!({})).await;
    let error = service.execute_tool(&json!({"command": "echo hi"}), &query(1)).await.unwrap_err();
    assert_eq!((error.kind, error.class()), (ErrorKind::BackendUnavailable, "BoxBackendUnavailableError"));
    assert_eq!(bench.backend.calls().exec, 0);
}

#[tokio::test]
async fn test_box_runtime_rejects_host_mount_conflict_in_same_session() {
    let bench = Bench::new().await;
    let (first, second) = (path(&bench.directory("a")), path(&bench.directory("b")));
    let client = bench.client();
    let with = |host_path: String| BoxSpec { host_path: Some(host_path), ..spec("s", "echo hi") };
    client.execute(&with(first)).await.unwrap();
    let error = client.execute(&with(second)).await.unwrap_err();
    assert_eq!(error.class(), "BoxSessionConflictError");
    assert!(error.message.contains("host_path="), "{error}");
}

#[tokio::test]
async fn test_box_runtime_rejects_resource_limit_conflict_in_same_session() {
    let bench = Bench::new().await;
    let client = bench.client();
    client.execute(&spec("s", "echo hi")).await.unwrap();
    let error = client.execute(&BoxSpec { cpus: 2.0, ..spec("s", "echo hi") }).await.unwrap_err();
    assert_eq!(error.message, "Box session s already exists with cpus=1.0");
    assert_eq!(error.class(), "BoxSessionConflictError");
}

#[tokio::test]
async fn test_runtime_get_status_reports_backend_and_sessions() {
    let bench = Bench::new().await;
    let client = bench.client();
    let status = client.status().await.unwrap();
    assert_eq!(status["backend"], json!({"name": "fake", "available": true}));
    assert_eq!(status["active_sessions"], 0);
    client.execute(&spec("s", "echo hi")).await.unwrap();
    assert_eq!(client.status().await.unwrap()["active_sessions"], 1);
}

#[tokio::test]
async fn test_runtime_get_sessions_returns_session_info() {
    let bench = Bench::new().await;
    let client = bench.client();
    client.execute(&spec("s", "echo hi")).await.unwrap();
    let sessions = client.sessions().await.unwrap();
    assert_eq!(sessions.len(), 1);
    let session = &sessions[0];
    assert_eq!((&session["session_id"], &session["backend_name"]), (&json!("s"), &json!("fake")));
    assert_eq!((&session["network"], &session["cpus"]), (&json!("off"), &json!(1.0)));
    for time in ["created_at", "last_used_at"] {
        assert!(session[time].as_str().unwrap().ends_with('Z'), "{session}");
    }
}

#[tokio::test]
async fn test_runtime_get_backend_info_when_no_backend() {
    let place = tempfile::tempdir().unwrap();
    let config = sandcrate_runtime::RuntimeConfig::new(place.path());
    let runtime = sandcrate_runtime::Runtime::open(config, Vec::new()).await.unwrap();
    let info = EmbeddedClient::new(runtime).backend_info().await.unwrap();
    assert_eq!(info, json!({"name": null, "available": false}));
}

#[tokio::test]
async fn test_runtime_start_managed_process_tracks_status() {
    let bench = Bench::new().await;
    let service = bench.service(json!({})).await;
    service.create_session(&json!({"session_id": "mp"}), HostMounts::Check).await.unwrap();
    let payload = json!({"command": " cat ", "args": ["-u"]});
    let info = service.start_managed_process("mp", &payload).await.unwrap();
    assert_eq!((info.session_id.as_str(), info.status), ("mp", ProcessStatus::Running));
    assert_eq!((info.command.as_str(), info.args), ("cat", vec!["-u".to_owned()]));
    let again = service.managed_process("mp", None).await.unwrap();
    assert_eq!((again.process_id.as_str(), again.status), ("default", ProcessStatus::Running));
    service.stop_managed_process("mp", None).await.unwrap();
    let error = service.managed_process("mp", None).await.unwrap_err();
    assert_eq!(error.class(), "BoxManagedProcessNotFoundError");
    let error = service.start_managed_process("mp", &json!({"command": " "})).await.unwrap_err();
    assert!(error.message.contains("command must not be empty"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn test_runtime_does_not_reap_session_with_running_managed_process() {
    let bench = Bench::with(|config| config.session_ttl = Duration::from_secs(10)).await;
    let client = bench.client();
    for id in ["busy", "idle"] {
        client.create_session(&spec(id, "")).await.unwrap();
    }
    client.start_process("busy", &ProcessSpec::new("cat")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let left: Vec<Value> = client.sessions().await.unwrap();
    let left: Vec<&str> = left.iter().filter_map(|session| session["session_id"].as_str()).collect();
    assert_eq!(left, ["busy"]);
}

#[tokio::test]
async fn a_command_that_does_not_end_is_a_result() {
    let bench = Bench::new().await;
    let service = bench.service(json!({})).await;
    let result =
        service.execute_tool(&json!({"command": "hang", "timeout_sec": 1}), &query(1)).await.unwrap();
    assert_eq!((&result["status"], &result["ok"]), (&json!("timed_out"), &json!(false)));
    assert_eq!(
        (&result["exit_code"], &result["stderr"]),
        (&json!(null), &json!("Command timed out after 1 seconds."))
    );
}
