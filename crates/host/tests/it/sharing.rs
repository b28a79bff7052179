//! Whether the runtime's paths are the host's.

use std::sync::Arc;

use sandcrate_host::{Deployment, Service};
use serde_json::{Value, json};

use crate::mock::MockClient;

fn service(config: Value, deployment: Deployment) -> Service {
    Service::builder().config(&config).deployment(deployment).build().unwrap()
}

#[test]
fn test_true_for_stdio_connector() {
    assert!(service(json!({}), Deployment::default()).shares_filesystem());
}

#[test]
fn test_false_for_websocket_connector_via_endpoint() {
    let config = json!({"box": {"runtime": {"endpoint": "ws://pod-x-box:5410"}}});
    assert!(!service(config, Deployment::default()).shares_filesystem());
}

#[test]
fn test_false_for_websocket_connector_in_docker() {
    let deployment = Deployment { in_docker: true, ..Deployment::default() };
    assert!(!service(json!({}), deployment).shares_filesystem());
}

#[test]
fn a_runtime_that_somebody_else_starts_is_reached_by_its_port() {
    let deployment = Deployment { standalone_box: true, ..Deployment::default() };
    let service = service(json!({}), deployment);
    assert!(!service.shares_filesystem());
    let url = service.attach_url("a b", None).unwrap();
    assert_eq!(url, "ws://127.0.0.1:5410/v1/sessions/a%20b/managed-process/default/ws");
}

#[test]
fn test_false_when_client_injected_without_connector() {
    let service = Service::builder().client(Arc::new(MockClient::default())).build().unwrap();
    assert!(!service.shares_filesystem());
    let error = service.attach_url("s", None).unwrap_err();
    assert_eq!(error.message, "box runtime client does not support managed process websocket attach");
}

#[test]
fn test_explicit_override_wins() {
    let injected = Service::builder().client(Arc::new(MockClient::default()));
    assert!(injected.shares_filesystem(true).build().unwrap().shares_filesystem());
    let child = Service::builder().deployment(Deployment::default());
    assert!(!child.shares_filesystem(false).build().unwrap().shares_filesystem());
}
