//! How the Box fares, and what went wrong lately.

use std::sync::Arc;

use sandcrate_host::{HostError, Service};
use sandcrate_protocol::ErrorKind;
use serde_json::{Value, json};

use crate::mock::MockClient;
use crate::support::{Bench, query, service};

async fn over(client: MockClient, config: Value) -> Service {
    service(Arc::new(client), &config).await
}

fn failing() -> MockClient {
    let failure =
        Some(HostError::new(ErrorKind::BackendUnavailable, "BoxBackendUnavailableError: no docker"));
    MockClient { failure, ..MockClient::default() }
}

#[tokio::test]
async fn test_service_records_errors_on_failure() {
    let service = over(failing(), json!({})).await;
    service.execute_tool(&json!({"command": "x"}), &query(42)).await.unwrap_err();
    let errors = serde_json::to_value(service.recent_errors()).unwrap();
    assert_eq!(errors.as_array().unwrap().len(), 1);
    let error = &errors[0];
    assert_eq!((&error["type"], &error["query_id"]), (&json!("BoxBackendUnavailableError"), &json!("42")));
    assert_eq!(error["message"], "BoxBackendUnavailableError: no docker");
    let time = error["timestamp"].as_str().unwrap();
    assert!(time.len() == 32 && time.ends_with("+00:00") && time.as_bytes()[10] == b'T', "{time}");
}

#[tokio::test]
async fn test_service_error_ring_buffer_capped() {
    let service = over(failing(), json!({})).await;
    for id in 100..160 {
        service.execute_tool(&json!({"command": "x"}), &query(id)).await.unwrap_err();
    }
    let ids: Vec<String> = service.recent_errors().into_iter().map(|error| error.query_id).collect();
    let expected: Vec<String> = (110..160).map(|id: u32| id.to_string()).collect();
    assert_eq!(ids, expected);
    assert_eq!(service.status().await["recent_error_count"], 50);
}

#[tokio::test]
async fn test_service_get_status_aggregates_runtime_and_profile() {
    let bench = Bench::new().await;
    let service = bench.service(json!({"profile": "offline_readonly"})).await;
    let status = service.status().await;
    assert_eq!(
        status,
        json!({
            "available": true, "enabled": true, "profile": "offline_readonly", "recent_error_count": 0,
            "backend": {"name": "fake", "available": true}, "active_sessions": 0, "managed_processes": 0,
            "session_ttl_sec": 300,
        })
    );
}

#[tokio::test]
async fn test_get_status_reports_disabled() {
    let service = over(MockClient::default(), json!({"box": {"enabled": false}})).await;
    assert_eq!(
        service.status().await,
        json!({
            "available": false, "enabled": false, "profile": "default", "recent_error_count": 0,
            "connector_error": "Box runtime is disabled in config (box.enabled = false)",
        })
    );
}

#[tokio::test]
async fn test_get_status_distinguishes_enabled_but_unavailable() {
    let pings = Some(HostError::unavailable("nobody answers"));
    let service = over(MockClient { pings, ..MockClient::default() }, json!({})).await;
    assert_eq!(
        service.status().await,
        json!({
            "available": false, "enabled": true, "profile": "default", "recent_error_count": 0,
            "connector_error": "box runtime unavailable: nobody answers",
        })
    );
    let unborn = Service::builder().client(Arc::new(MockClient::default())).build().unwrap();
    assert_eq!(unborn.status().await["connector_error"], "", "nobody has tried yet");
}

#[tokio::test]
async fn a_runtime_that_does_not_tell_its_status_is_shown_with_the_reason() {
    let status = Err(HostError::new(ErrorKind::Timeout, "Action box_status call timed out"));
    let service = over(MockClient { status, ..MockClient::default() }, json!({})).await;
    let shown = service.status().await;
    assert_eq!(shown["connector_error"], "Action box_status call timed out");
    assert_eq!((shown["available"].as_bool(), service.is_available()), (Some(false), true));
    assert_eq!(shown.as_object().unwrap().len(), 5);
}

#[tokio::test]
async fn test_get_status_downgrades_available_when_backend_dead() {
    for (runtime, reason) in [
        (
            json!({"backend": {"name": "docker", "available": false}, "active_sessions": 0}),
            "Configured sandbox backend \"docker\" is unavailable",
        ),
        (
            json!({"backend": {"name": null, "available": false}}),
            "No supported sandbox backend (Docker / nsjail / E2B) is available",
        ),
        (json!({}), "No supported sandbox backend (Docker / nsjail / E2B) is available"),
        (json!({"backend": null, "connector_error": "its own words"}), "its own words"),
    ] {
        let client = MockClient { status: Ok(runtime.clone()), ..MockClient::default() };
        let shown = over(client, json!({})).await.status().await;
        assert_eq!((&shown["available"], &shown["connector_error"]), (&json!(false), &json!(reason)));
        assert_eq!(shown.get("backend"), runtime.get("backend"), "the backend is shown as it is");
    }
}

#[tokio::test]
async fn test_get_status_keeps_available_true_when_backend_ok() {
    let runtime =
        json!({"backend": {"name": "docker", "available": true}, "enabled": "the host knows better"});
    let client = MockClient { status: Ok(runtime), ..MockClient::default() };
    let shown = over(client, json!({})).await.status().await;
    assert_eq!((&shown["available"], &shown["enabled"]), (&json!(true), &json!(true)));
    assert!(shown.get("connector_error").is_none());
}

#[tokio::test]
async fn a_model_is_told_of_its_workspace_when_there_is_one() {
    let bench = Bench::new().await;
    let without = bench.service(json!({})).await.system_guidance();
    let root = crate::support::path(&bench.directory("root"));
    let with = bench.service(json!({"host_root": root})).await.system_guidance();
    assert!(without.contains("`exec`") && !without.contains("/workspace"));
    assert!(with.starts_with(&without) && with.contains("/workspace"));
}
