//! The network by REST: policies, denials, usage, ports.

use std::sync::Arc;

use reqwest::{Method, header};
use sandcrate_backend::fake::FakeBackend;
use sandcrate_backend::{NetworkReport, SessionId};
use sandcrate_protocol::network::{Counters, Denial, DenialKind};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Server, answer, ended, events, names, script};

async fn networked() -> (Server, Arc<FakeBackend>) {
    let backend = Arc::new(FakeBackend::new(script).with_network());
    (Server::over(backend.clone()).await, backend)
}

#[tokio::test]
async fn a_policy_is_created_shown_changed_and_in_conflict_with_others() {
    let (server, _) = networked().await;
    let (status, made) = server.post("/v1/sessions/a", json!({"network": "allow x.example:443"})).await;
    assert_eq!(
        (status, &made["network"], &made["network_policy"]),
        (201, &json!("on"), &json!("allow x.example:443"))
    );
    assert_eq!(made["network_usage"]["bytes_sent"], 0);
    let long = json!({"network": {"allow": ["x.example:443"]}});
    assert_eq!(server.post("/v1/sessions/a", long).await.0, 201, "the long form means the same");
    let other = Some(json!({"network": "on"}));
    let said = server.refused(Method::POST, "/v1/sessions/a", other, 409, "session_conflict").await;
    assert!(said.contains("network=allow x.example:443"), "{said}");
    // A command that says nothing of the box fits it.
    assert_eq!(server.post("/v1/sessions/a/exec", json!({"cmd": "hello"})).await.0, 200);
    let change =
        server.request(Method::PUT, "/v1/sessions/a/network").json(&json!({"network": "on, deny y.example"}));
    let (status, now) = answer(change).await;
    assert_eq!(
        (status, &now["network"], &now["policy"]),
        (200, &json!("on, deny y.example"), &json!("public, deny y.example"))
    );
    assert_eq!(server.get("/v1/sessions/a/network").await.1["policy"], "public, deny y.example");
    assert_eq!(server.post("/v1/sessions/a/exec", json!({"cmd": "hello"})).await.0, 200);
    let (_, listed) = server.get("/v1/sessions").await;
    assert_eq!(listed["sessions"][0]["network_policy"], "public, deny y.example");
}

#[tokio::test]
async fn what_is_not_acceptable_names_the_field_and_the_fix() {
    let (server, _) = networked().await;
    for (network, status, code, part) in [
        (json!("allow *"), 400, "validation_error", "write `public`"),
        (json!("full"), 400, "validation_error", "`off`, `public`"),
        (json!({"alow": []}), 400, "validation_error", "alow"),
        (json!("allow 10.0.0.1"), 403, "denied", "network.allow"),
        (json!("host"), 403, "denied", "host = \"allow\""),
    ] {
        let body = json!({"network": network});
        let (got, said) = server.post("/v1/sessions/x", body).await;
        assert_eq!(
            (got, &said["error"]["code"], &said["error"]["field"]),
            (status, &json!(code), &json!("network")),
            "{said}"
        );
        assert!(said["error"]["message"].as_str().unwrap().contains(part), "{said}");
    }
    let plain = Server::start().await;
    let said = plain
        .refused(Method::POST, "/v1/sessions/x", Some(json!({"network": "on"})), 501, "unsupported")
        .await;
    assert!(said.contains("sandcrate doctor"), "{said}");
}

#[tokio::test]
async fn denials_come_with_the_result_in_the_stream_and_by_session() {
    let (server, backend) = networked().await;
    let (_, made) = server.post("/v1/sessions/a", json!({"network": "on"})).await;
    let (_, document) = server.get("/openapi.json").await;
    assert!(document["components"]["schemas"]["DenialFacts"]["properties"]["hint"].is_object());
    assert!(made["enforcement"].is_array());
    let denial = json!({"kind": "connect", "target": "tcp 10.0.0.1:80", "rule": "never: private",
        "hint": "ask the operator", "count": 1});
    let (_, result) = server.post("/v1/sessions/a/exec", json!({"cmd": "refused"})).await;
    assert_eq!((&result["denials"], &result["network"]["bytes_sent"]), (&json!([denial]), &json!(7)));
    let (_, result) = server.post("/v1/sessions/a/exec", json!({"cmd": "refused", "stdin": "x"})).await;
    assert_eq!(result["denials"], json!([denial]));
    let (_, quiet) = server.post("/v1/sessions/a/exec", json!({"cmd": "hello"})).await;
    assert_eq!((&quiet["denials"], &quiet["network"]), (&json!([]), &json!(null)));

    let request =
        server.request(Method::POST, "/v1/sessions/a/exec").header(header::ACCEPT, "text/event-stream");
    let seen = events(request.json(&json!({"cmd": "refused"})).send().await.unwrap(), ended).await;
    assert_eq!(names(&seen), ["start", "stdout", "denial", "exit"]);
    assert_eq!((&seen[2].data, &seen[3].data["denials"]), (&denial, &json!([denial])));

    let report = NetworkReport {
        counters: Counters { bytes_received: 9, connections_now: 2, ..Counters::default() },
        denials: vec![Denial::new(DenialKind::Resolve, "x.example", "public", "check the name")],
        lost: 4,
    };
    backend.set_report(&SessionId::new("a").unwrap(), report);
    let (_, listed) = server.get("/v1/sessions/a/denials").await;
    assert_eq!((&listed["lost"], &listed["denials"][0]["kind"]), (&json!(4), &json!("resolve")));
    let (_, usage) = server.get("/v1/usage").await;
    let figures = &usage["sessions"][0];
    assert_eq!((&figures["session_id"], &figures["network"]["bytes_received"]), (&json!("a"), &json!(9)));
    assert_eq!(server.get("/v1/sessions/a").await.1["network_usage"]["connections_now"], 2);
    let metrics = server.request(Method::GET, "/metrics").send().await.unwrap().text().await.unwrap();
    assert!(metrics.contains("sandcrate_denials_total{kind=\"resolve\"} 1"), "{metrics}");
    assert!(metrics.contains("sandcrate_network_connections_open 2"), "{metrics}");
}

#[tokio::test]
async fn ports_are_published_listed_and_closed() {
    let (server, _) = networked().await;
    let (status, made) = server.post("/v1/sessions/a", json!({"ports": ["0:80"]})).await;
    assert_eq!(
        (status, &made["network_policy"], made["ports"].as_array().unwrap().len()),
        (201, &json!("off"), 1)
    );
    let (status, port) = server.post("/v1/sessions/a/ports", json!({"port": {"box_port": 81}})).await;
    assert_eq!((status, &port["address"], &port["box_port"]), (201, &json!("127.0.0.1"), &json!(81)));
    let host_port = port["host_port"].as_u64().unwrap();
    let mut stream = tokio::net::TcpStream::connect(format!("127.0.0.1:{host_port}")).await.unwrap();
    stream.write_all(b"hi").await.unwrap();
    let mut back = [0; 2];
    stream.read_exact(&mut back).await.unwrap();
    assert_eq!(&back, b"hi");
    assert_eq!(server.get("/v1/sessions/a/ports").await.1["ports"].as_array().unwrap().len(), 2);
    let (status, closed) = server.delete(&format!("/v1/sessions/a/ports?host_port={host_port}")).await;
    assert_eq!((status, closed), (200, json!({"closed": 1})));
    assert_eq!(server.delete("/v1/sessions/a/ports").await.1, json!({"closed": 1}));
    for (port, status, code) in
        [("0.0.0.0:0:80", 403, "denied"), ("22:22", 400, "validation_error"), ("x", 400, "validation_error")]
    {
        server.refused(Method::POST, "/v1/sessions/a/ports", Some(json!({"port": port})), status, code).await;
    }
    server.session("off").await;
    server
        .refused(Method::POST, "/v1/sessions/off/ports", Some(json!({"port": "0:80"})), 501, "unsupported")
        .await;
}
