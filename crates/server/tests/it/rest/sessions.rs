//! Sessions by REST.

use std::sync::Arc;

use reqwest::Method;
use sandcrate_backend::SessionId;
use sandcrate_backend::fake::FakeBackend;
use serde_json::json;

use super::{Server, answer, script};

#[tokio::test]
async fn a_session_is_made_looked_at_listed_and_deleted() {
    let server = Server::start().await;
    let asked = json!({"memory_mb": 256, "network": "off", "labels": {"user": "42"}, "ttl_sec": 60});
    let (status, made) = server.post("/v1/sessions/demo", asked).await;
    assert_eq!(status, 201, "{made}");
    assert_eq!(made["session_id"], "demo");
    assert_eq!(made["backend_name"], "fake");
    assert_eq!(made["memory_mb"], 256);
    assert_eq!(made["state"], "idle");
    assert_eq!(made["labels"], json!({"user": "42"}));
    assert_eq!(made["ttl_sec"], 60);
    assert_eq!(made["managed_process"], json!(null));
    assert_eq!(made["managed_processes"], json!({}));
    assert_eq!(made["enforcement"].as_array().unwrap().len(), 17);

    let (status, seen) = server.get("/v1/sessions/demo").await;
    assert_eq!((status, &seen["created_at"]), (200, &made["created_at"]));

    server.session("other").await;
    let ids = |list: &serde_json::Value| {
        let list = list["sessions"].as_array().unwrap();
        list.iter().map(|one| one["session_id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let (status, list) = server.get("/v1/sessions").await;
    assert_eq!((status, ids(&list)), (200, vec!["demo".to_owned(), "other".to_owned()]));
    let (_, list) = server.get("/v1/sessions?label=user=42").await;
    assert_eq!(ids(&list), ["demo"]);
    let (_, list) = server.get("/v1/sessions?label=user%3D42&label=user=43").await;
    assert!(ids(&list).is_empty());

    assert_eq!(server.delete("/v1/sessions/demo").await, (200, json!({"deleted": "demo"})));
    let message = server.refused(Method::GET, "/v1/sessions/demo", None, 404, "session_not_found").await;
    assert_eq!(message, "session demo not found");
    server.refused(Method::DELETE, "/v1/sessions/demo", None, 404, "session_not_found").await;
}

#[tokio::test]
async fn a_session_may_be_named_in_the_body_or_by_us() {
    let server = Server::start().await;
    let (status, made) = server.post("/v1/sessions", json!({"session_id": "named"})).await;
    assert_eq!((status, made["session_id"].as_str()), (201, Some("named")));
    let (status, first) = server.post("/v1/sessions", json!({})).await;
    // No body at all is an empty one.
    let (_, second) = answer(server.request(Method::POST, "/v1/sessions")).await;
    assert_eq!(status, 201);
    assert!(first["session_id"].as_str().unwrap().starts_with("s-"), "{first}");
    assert_ne!(first["session_id"], second["session_id"]);
    // A name with a slash stands percent-encoded in the path.
    let (status, made) = server.post("/v1/sessions/a%2Fb%20c", json!({"session_id": "a/b c"})).await;
    assert_eq!((status, made["session_id"].as_str()), (201, Some("a/b c")));
    assert_eq!(server.get("/v1/sessions/a%2Fb%20c").await.0, 200);
}

#[tokio::test]
async fn what_cannot_be_a_session_is_refused_with_the_field() {
    let server = Server::start().await;
    for (body, field) in [
        (json!({"memory_mb": 1}), "memory_mb"),
        (json!({"memroy_mb": 512}), "memroy_mb"),
        (json!({"cmd": "echo never run"}), "cmd"),
        (json!({"network": "maybe"}), "network"),
        (json!({"env": {"A": 1}}), "env.A"),
        (json!({"session_id": "another"}), "session_id"),
        (json!({"labels": ["a"]}), "labels"),
        (json!({"labels": {"a=b": "c"}}), "labels"),
        (json!({"ttl_sec": 0}), "ttl_sec"),
        (json!({"ttl_sec": -1}), "ttl_sec"),
        (json!([1]), "body"),
    ] {
        let (status, answer) = server.post("/v1/sessions/demo", body.clone()).await;
        assert_eq!((status, answer["error"]["code"].as_str()), (400, Some("validation_error")), "{body}");
        assert_eq!(answer["error"]["field"], field, "{body}: {answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(field) || field == "env.A", "{body}: {message}");
    }
    let broken = server.request(Method::POST, "/v1/sessions/demo").body("{\"memory_mb\": ");
    let (status, answer) = answer(broken).await;
    assert_eq!((status, answer["error"]["field"].as_str()), (400, Some("body")));
    server.refused(Method::GET, "/v1/sessions?lable=a=b", None, 400, "validation_error").await;
    server.refused(Method::GET, "/v1/sessions?label=a", None, 400, "validation_error").await;
    server.refused(Method::GET, "/v1/sessions/%ff", None, 400, "validation_error").await;
    assert!(server.get("/v1/sessions").await.1["sessions"].as_array().unwrap().is_empty());
}

#[tokio::test]
async fn a_box_that_does_not_fit_is_a_conflict() {
    let server = Server::start().await;
    assert_eq!(server.post("/v1/sessions/demo", json!({"cpus": 2, "cmd": ""})).await.0, 201);
    assert_eq!(server.post("/v1/sessions/demo", json!({"cpus": 2.0})).await.0, 201, "the same again");
    let (status, answer) = server.post("/v1/sessions/demo", json!({"cpus": 3})).await;
    assert_eq!((status, answer["error"]["code"].as_str()), (409, Some("session_conflict")));
    assert_eq!(answer["error"]["field"], "cpus", "{answer}");
    assert!(answer["error"]["existing"].is_string(), "{answer}");
}

#[tokio::test]
async fn bodies_have_a_bound_and_wrong_doors_say_so() {
    let server = Server::start().await;
    let large = "x".repeat((16 << 20) + 1);
    let (status, answer) = answer(server.request(Method::POST, "/v1/sessions/demo").body(large)).await;
    assert_eq!((status, answer["error"]["code"].as_str()), (413, Some("body_too_large")));
    server.refused(Method::GET, "/v1/nothing", None, 404, "not_found").await;
    server.refused(Method::PATCH, "/v1/sessions/demo", None, 405, "method_not_allowed").await;
}

#[tokio::test]
async fn status_health_and_version_are_told() {
    let fake = Arc::new(FakeBackend::new(script));
    let server = Server::over(fake.clone()).await;
    server.session("demo").await;
    let (status, health) = server.get("/v1/health").await;
    assert_eq!((status, health), (200, json!({"name": "fake", "available": true})));
    let (status, told) = server.get("/v1/status").await;
    let expected = json!({
        "backend": {"name": "fake", "available": true},
        "active_sessions": 1,
        "managed_processes": 0,
        "session_ttl_sec": 300,
        "backends": [{"name": "fake", "available": true}],
    });
    assert_eq!((status, told), (200, expected));
    let (status, version) = server.get("/v1/version").await;
    assert_eq!(
        (status, version["name"].as_str(), version["api"].as_str()),
        (200, Some("sandcrate"), Some("v1"))
    );

    fake.kill_box(&SessionId::new("demo").unwrap(), "test");
    fake.set_unavailable(Some("out of order"));
    assert_eq!(server.get("/v1/health").await.0, 200);
    server.refused(Method::POST, "/v1/sessions/new", None, 503, "backend_unavailable").await;
}

/// The events of an answer, by name and data.
fn events(text: &str) -> Vec<(String, serde_json::Value)> {
    let blocks = text.split("\n\n").filter(|block| block.contains("event: "));
    blocks
        .map(|block| {
            let field =
                |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("").trim();
            (field("event:").to_owned(), serde_json::from_str(field("data:")).unwrap())
        })
        .collect()
}

#[tokio::test]
async fn a_start_that_takes_long_is_followed_by_events() {
    let fake = Arc::new(FakeBackend::new(script));
    let server = Server::over(fake.clone()).await;
    let notice = |status: &str, done: Option<u64>| sandcrate_backend::StartNotice {
        image: "debian".to_owned(),
        layer: Some("a1".to_owned()),
        status: status.to_owned(),
        done_bytes: done,
        total_bytes: done.map(|_| 100),
    };
    fake.tell_at_start(vec![notice("Pulling", None), notice("Downloading", Some(40))]);
    let ask = |id: &str| {
        let request = server.request(Method::POST, &format!("/v1/sessions/{id}"));
        request.header("accept", "text/event-stream").send()
    };
    let text = ask("demo").await.unwrap().text().await.unwrap();
    let told = events(&text);
    let names: Vec<_> = told.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["progress", "progress", "session"], "{text}");
    assert_eq!((&told[1].1["status"], &told[1].1["done_bytes"]), (&json!("Downloading"), &json!(40)));
    assert_eq!(told[2].1["session_id"], "demo");

    let missing = sandcrate_backend::BackendError::ImageUnavailable {
        backend: "fake",
        image: "nowhere".to_owned(),
        why: "no registry answers".to_owned(),
    };
    fake.fail_next_start(missing);
    let told = events(&ask("other").await.unwrap().text().await.unwrap());
    let (name, data) = told.last().unwrap();
    assert_eq!((name.as_str(), data["error"]["code"].as_str()), ("error", Some("image_unavailable")));
}
