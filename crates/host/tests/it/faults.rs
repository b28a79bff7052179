//! Faults of the reference that must not come back, where no other module has them.

use std::sync::Arc;
use std::time::Duration;

use sandcrate_host::{HostError, Service};
use sandcrate_protocol::BoxSpec;
use serde_json::json;
use tokio::net::TcpListener;

use crate::mock::MockClient;
use crate::support::{connector, query, quick};

use sandcrate_host::Connection as _;

/// B6: the runtime ends a command in the command's own time, and a host waits for that.
#[tokio::test]
async fn b6_a_command_is_waited_for_longer_than_it_may_run() {
    use futures_util::{SinkExt as _, StreamExt as _};
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
        while let Some(Ok(message)) = socket.next().await {
            let Ok(text) = message.into_text() else { continue };
            let Ok(request) = serde_json::from_str::<serde_json::Value>(&text) else { continue };
            if request["action"] == "box_exec" {
                // Longer than the reference waits for anything, on a clock that does not wait for us.
                tokio::time::pause();
                tokio::time::advance(Duration::from_secs(400)).await;
                tokio::time::resume();
            }
            let data = json!({
                "session_id": "s", "backend_name": "b", "status": "timed_out", "exit_code": null, "stdout": "",
                "stderr": "", "duration_ms": 300_000,
            });
            let reply = json!({"seq_id": request["seq_id"], "code": 0, "message": "success", "data": data});
            socket.send(reply.to_string().into()).await.unwrap();
        }
    });
    let config = json!({"box": {"runtime": {"endpoint": format!("ws://{address}")}}});
    let timing = sandcrate_host::Timing { heartbeat: Duration::from_secs(100_000), ..quick() };
    let connector = connector(&config, timing);
    connector.connect().await.unwrap();
    let spec = BoxSpec { cmd: "x".to_owned(), timeout_sec: 300, ..BoxSpec::new("s") };
    let result = connector.client().execute(&spec).await.unwrap();
    assert_eq!(result.duration_ms, 300_000);
    connector.dispose().await;
    serving.abort();
}

/// B10: what keeps an agent from its sandbox is recorded, and names the backend that is missing.
#[tokio::test]
async fn b10_an_unavailable_box_is_recorded_and_names_its_backend() {
    for (backend, named) in [
        (json!("nsjail"), "the backend nsjail"),
        (json!("docker"), "Docker"),
        (json!("local"), "a sandbox backend (Docker or nsjail)"),
        (json!(null), "a sandbox backend (Docker or nsjail)"),
    ] {
        let client = MockClient { pings: Some(HostError::unavailable("no answer")), ..MockClient::default() };
        let config = json!({"box": {"backend": backend}});
        let service = Service::builder().config(&config).client(Arc::new(client)).build().unwrap();
        service.initialize().await;
        let error = service.execute_tool(&json!({"command": "x"}), &query(9)).await.unwrap_err();
        assert_eq!(
            error.message,
            format!(
                "Box runtime is not available (box runtime unavailable: no answer). Start it with {named} to use sandbox features."
            )
        );
        let recorded = service.recent_errors();
        assert_eq!((recorded.len(), recorded[0].query_id.as_str()), (1, "9"));
    }
}
