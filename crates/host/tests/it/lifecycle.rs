//! Construction, start and end of a service.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sandcrate_host::{Link, Service};
use serde_json::json;

use crate::mock::{MockClient, MockConnection};
use crate::support::{Bench, path, query, service, until};

fn connected(connection: &Arc<MockConnection>) -> Service {
    Service::builder().connection(Arc::clone(connection) as _).build().unwrap()
}

#[tokio::test]
async fn test_box_service_without_explicit_client_initializes_internal_connector() {
    let connection = Arc::new(MockConnection::default());
    let service = connected(&connection);
    assert!(!service.is_available());
    service.initialize().await;
    assert!(service.is_available());
    assert_eq!(connection.connects.load(Ordering::Relaxed), 1);
    service.execute_tool(&json!({"command": "x"}), &query(1)).await.unwrap();
    assert_eq!(connection.client.calls(), ["execute"], "the connection's client is the service's");
}

#[tokio::test]
async fn test_box_service_get_sessions_delegates_to_client() {
    let client = Arc::new(MockClient::default());
    let service = service(Arc::clone(&client) as _, &json!({})).await;
    assert_eq!(service.sessions().await, [json!({"session_id": "s1"})]);
    assert_eq!(client.calls(), ["ping", "sessions"]);
}

#[tokio::test]
async fn sessions_are_none_while_there_is_no_runtime() {
    let client = Arc::new(MockClient::default());
    let service = Service::builder().client(Arc::clone(&client) as _).build().unwrap();
    assert!(service.sessions().await.is_empty());
    assert!(client.calls().is_empty());
}

#[tokio::test]
async fn test_box_service_dispose_delegates_to_internal_connector() {
    let connection = Arc::new(MockConnection::default());
    let service = connected(&connection);
    service.initialize().await;
    service.dispose().await;
    assert_eq!(connection.client.calls().iter().filter(|call| *call == "dispose").count(), 1);
    assert!(!service.is_available());
}

/// B3: whoever is told to end must still have a line to answer on.
#[tokio::test]
async fn test_box_service_dispose_schedules_shutdown_on_event_loop() {
    let connection = Arc::new(MockConnection::default());
    let service = connected(&connection);
    service.initialize().await;
    service.dispose().await;
    assert_eq!(connection.client.calls(), ["shutdown", "dispose"]);
}

#[tokio::test]
async fn test_box_service_creates_default_workspace_on_initialize() {
    let bench = Bench::new().await;
    let root = bench.directory("root");
    let workspace = root.join("a/b");
    let local = json!({"default_workspace": path(&workspace), "allowed_mount_roots": [path(&root)]});
    bench.service(local).await;
    assert!(workspace.is_dir());
}

#[tokio::test]
async fn test_box_service_derives_workspace_and_allowed_root_from_host_root() {
    let bench = Bench::new().await;
    let root = bench.directory("root");
    let service = bench.service(json!({"host_root": path(&root)})).await;
    assert_eq!(service.default_workspace(), Some(root.join("default").as_path()));
    assert_eq!(service.config().allowed_mount_roots, std::slice::from_ref(&root));
    assert_eq!(service.config().skills_root, root.join("skills"));
    assert!(root.join("default").is_dir());
}

#[tokio::test]
async fn test_initialize_skips_connector_when_disabled() {
    let connection = Arc::new(MockConnection::default());
    let config = json!({"box": {"enabled": false}});
    let service =
        Service::builder().config(&config).connection(Arc::clone(&connection) as _).build().unwrap();
    service.initialize().await;
    assert!(!service.is_available() && !service.is_enabled());
    assert_eq!(connection.connects.load(Ordering::Relaxed), 0);
    assert!(connection.client.calls().is_empty());
    assert!(service.availability().borrow().reason.to_lowercase().contains("disabled"));
}

#[tokio::test]
async fn test_disconnect_callback_is_no_op_when_disabled() {
    let config = json!({"box": {"enabled": false}});
    let client = Arc::new(MockClient::default());
    let service = Service::builder().config(&config).client(client).build().unwrap();
    service.initialize().await;
    let before = service.availability().borrow().clone();
    service.disconnected("gone");
    assert_eq!(*service.availability().borrow(), before);
    assert!(!before.reconnecting);
}

/// B5: whatever depends on the Box hears of its end and its return.
#[tokio::test]
async fn b5_every_change_of_availability_is_told() {
    let connection = Arc::new(MockConnection::default());
    let service = connected(&connection);
    let mut told = service.availability();
    service.initialize().await;
    assert!(told.has_changed().unwrap() && told.borrow_and_update().available);
    connection.link.send_replace(Link::Down("Disconnected from Box runtime".to_owned()));
    told.changed().await.unwrap();
    let now = told.borrow_and_update().clone();
    assert_eq!((now.available, now.reconnecting), (false, true));
    assert_eq!(now.reason, "Disconnected from Box runtime");
    connection.link.send_replace(Link::Up);
    told.changed().await.unwrap();
    assert!(told.borrow().available);
}

#[tokio::test]
async fn a_service_that_starts_before_its_runtime_heals() {
    let connection = Arc::new(MockConnection {
        fails: Some("box runtime connection failed: x".to_owned()),
        ..Default::default()
    });
    let service = connected(&connection);
    service.initialize().await;
    assert!(!service.is_available());
    connection.link.send_replace(Link::Up);
    until("the service is available", || service.is_available()).await;
}
