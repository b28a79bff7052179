//! The line to a runtime: made, lost, and made again.

use std::sync::Arc;
use std::time::Duration;

use sandcrate_host::{
    BoxConfig, ChildCommand, Connection as _, Connector, Deployment, Link, Service, Timing,
};
use serde_json::json;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;

use crate::support::{PATIENCE, Server, connector, quick, until};

/// A runtime for pipes.
fn child(script: &str) -> Connector {
    let child = ChildCommand { program: "sh".into(), args: vec!["-c".into(), script.into()] };
    let config = BoxConfig::from_section(&json!({"backend": "local"})).unwrap();
    Connector::new(&config, Deployment { child, ..Deployment::default() }).unwrap().with_timing(quick())
}

/// Reads a request a line and answers it, with the number that stands in it.
const ANSWERING: &str = r#"while read -r line; do id=${line#*seq_id\": }; id=${id%%,*}; echo "{\"seq_id\": $id, \"code\": 0, \"message\": \"success\", \"data\": {}}"; "#;

#[test]
fn addresses_are_chosen_by_where_the_application_runs() {
    let urls = |endpoint: &str, deployment: Deployment| {
        let config = BoxConfig::from_section(&json!({"runtime": {"endpoint": endpoint}})).unwrap();
        let connector = Connector::new(&config, deployment).unwrap();
        (connector.rpc_url(), connector.relay_url(), connector.uses_websocket())
    };
    let docker = || Deployment { in_docker: true, ..Deployment::default() };
    let standalone = || Deployment { standalone_box: true, ..Deployment::default() };
    let ws = |rpc: &str, relay: &str| (Some(rpc.to_owned()), relay.to_owned(), true);
    assert_eq!(urls("https://b", docker()), ws("wss://b:5410/rpc/ws", "https://b:5410"));
    assert_eq!(urls("", docker()), ws("ws://langbot_box:5410/rpc/ws", "http://langbot_box:5410"));
    assert_eq!(urls("", standalone()), ws("ws://localhost:5410/rpc/ws", "http://127.0.0.1:5410"));
    assert_eq!(urls("", Deployment::default()), (None, "http://127.0.0.1:5410".to_owned(), false));
}

#[tokio::test]
async fn a_runtime_is_told_the_configuration_and_nothing_of_the_way_to_it() {
    let place = tempfile::tempdir().unwrap();
    let seen = place.path().join("seen");
    let shown = seen.display();
    let script =
        format!("echo \"$LANGBOT_BOX_CONFIG\" > {shown}; {ANSWERING} echo \"$line\" >> {shown}; done");
    let connector = child(&script);
    connector.connect().await.unwrap();
    // A line is written after its answer.
    until("both requests are written", || std::fs::read_to_string(&seen).unwrap().lines().count() >= 3).await;
    connector.dispose().await;
    let seen = std::fs::read_to_string(&seen).unwrap();
    let lines: Vec<&str> = seen.lines().take(3).collect();
    assert_eq!(
        lines,
        [
            r#"{"backend":"local"}"#,
            r#"{"seq_id": 1, "action": "__ping", "data": {}, "error_kind": true}"#,
            r#"{"seq_id": 2, "action": "box_init", "data": {"backend": "local"}, "error_kind": true}"#,
        ]
    );
}

/// B1: the end of a child is seen at once, the service says so, and another child is started.
#[tokio::test]
async fn b1_a_child_that_ends_is_replaced() {
    let connector = Arc::new(child(&format!("n=0; {ANSWERING} n=$((n+1)); [ $n -ge 4 ] && exit 3; done")));
    let service = Service::builder().connection(Arc::clone(&connector) as _).build().unwrap();
    let mut told = service.availability();
    service.initialize().await;
    assert!(service.is_available(), "{:?}", told.borrow());
    // Two answers for the handshake, two for pings; then it is gone.
    let lost = told.wait_for(|now| !now.available && !now.reason.is_empty());
    let lost = tokio::time::timeout(PATIENCE, lost).await.unwrap().unwrap().clone();
    assert!(lost.reconnecting);
    assert_eq!(lost.reason, "Disconnected from Box runtime");
    until("another child answers", || service.is_available()).await;
    service.dispose().await;
}

/// B1: a child that cannot start costs no time, and is told with its reason.
#[tokio::test]
async fn b1_a_child_that_ends_at_once_is_no_matter_of_time() {
    let began = std::time::Instant::now();
    // The second cannot be written to for a while before it ends.
    for script in ["exit 9", "exec <&-; sleep 0.3; exit 9"] {
        let error = child(script).connect().await.unwrap_err();
        assert!(error.message.contains("`sh` ended (exit status: 9)"), "{error}");
    }
    assert!(began.elapsed() < Duration::from_secs(15));
    let none = ChildCommand { program: "/no/such/program".into(), args: Vec::new() };
    let config = BoxConfig::default();
    let connector = Connector::new(&config, Deployment { child: none, ..Deployment::default() }).unwrap();
    let error = connector.connect().await.unwrap_err();
    assert!(error.message.contains("`/no/such/program` cannot be started"), "{error}");
    assert_eq!(error.class(), "BoxRuntimeUnavailableError");
}

#[tokio::test]
async fn a_child_that_says_nothing_is_given_up_in_time() {
    let timing = Timing { connect: Duration::from_millis(100), ..quick() };
    let error = child("cat >/dev/null").with_timing(timing).connect().await.unwrap_err();
    assert_eq!(error.message, "box runtime subprocess did not connect in time");
}

/// A listener that takes connections and says nothing.
#[tokio::test]
async fn a_server_that_says_nothing_is_given_up_in_time() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let config = json!({"box": {"runtime": {"endpoint": format!("ws://u:secret@{address}/x")}}});
    let timing = Timing { connect: Duration::from_millis(200), ..quick() };
    let connector = connector(&config, timing);
    let taken = async {
        let (mut socket, _) = silent.accept().await.unwrap();
        let mut head = vec![0; 4096];
        let length = socket.read(&mut head).await.unwrap();
        let head = String::from_utf8_lossy(&head[..length]).to_lowercase();
        assert!(head.starts_with("get /x/rpc/ws ") && head.contains("authorization: basic "), "{head}");
        std::future::pending::<()>().await;
    };
    let error = tokio::select! {
        outcome = connector.connect() => outcome.unwrap_err(),
        () = taken => unreachable!(),
    };
    assert_eq!(error.message, format!("box runtime ws connection timed out (ws://{address}/x/rpc/ws)"));
}

#[tokio::test]
async fn a_refused_connection_is_told_with_its_cause() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let config = json!({"box": {"runtime": {"endpoint": format!("ws://{free}")}}});
    let error = connector(&config, quick()).connect().await.unwrap_err();
    assert!(error.message.starts_with("box runtime connection failed: "), "{error}");
}

#[tokio::test]
async fn a_server_that_comes_back_is_found_again() {
    let server = Server::start().await;
    let address = server.address;
    let connector = Arc::new(connector(&server.config(), quick()));
    let service = Service::builder().connection(Arc::clone(&connector) as _).build().unwrap();
    service.initialize().await;
    assert!(service.is_available());
    server.stop().await;
    until("the loss is seen", || !service.is_available()).await;
    let error = service.client().status().await.unwrap_err();
    assert_eq!(
        (error.class(), error.message.as_str()),
        ("BoxRuntimeUnavailableError", "box runtime not connected")
    );
    let error = service.client().ping().await.unwrap_err();
    assert_eq!(error.message, "Box runtime is not connected");
    let again = Server::listening(address).await;
    until("it is found again", || service.is_available()).await;
    service.client().ping().await.unwrap();
    service.dispose().await;
    again.stop().await;
}

/// B2: a runtime that does not answer any more is as good as gone.
#[tokio::test]
async fn b2_missed_pings_end_the_line() {
    // Two answers for the handshake, and then silence with the pipes open.
    let script = format!("n=0; {ANSWERING} n=$((n+1)); [ $n -ge 2 ] && exec cat >/dev/null; done");
    let timing = Timing { ping: Duration::from_millis(50), first_delay: PATIENCE * 10, ..quick() };
    let connector = child(&script).with_timing(timing);
    let mut link = connector.link();
    connector.connect().await.unwrap();
    let down = link.wait_for(|link| matches!(link, Link::Down(_)));
    let down = tokio::time::timeout(PATIENCE, down).await.unwrap().unwrap().clone();
    assert_eq!(down, Link::Down("Disconnected from Box runtime".to_owned()));
    connector.dispose().await;
}

#[tokio::test]
async fn a_disposed_connector_leaves_no_child() {
    let place = tempfile::tempdir().unwrap();
    let pid = place.path().join("pid");
    let script = format!("echo $$ > {}; {ANSWERING} done; exec sleep 600", pid.display());
    let connector = child(&script);
    connector.connect().await.unwrap();
    let pid = std::fs::read_to_string(&pid).unwrap();
    let there = std::path::PathBuf::from(format!("/proc/{}", pid.trim()));
    assert!(there.exists());
    connector.dispose().await;
    assert!(!there.exists(), "the child was waited for");
    assert_eq!(*connector.link().borrow(), Link::Idle);
}
