//! Managed processes by REST.

use reqwest::Method;
use serde_json::{Value, json};

use super::{Server, ended, events, names};

fn process() -> Value {
    json!({"command": "server", "args": ["--port", "1"], "env": {"KEY": "secret"}})
}

#[tokio::test]
async fn the_default_process_is_started_and_seen_in_its_session() {
    let server = Server::start().await;
    server.session("demo").await;
    let path = "/v1/sessions/demo/managed-process";
    server.refused(Method::GET, path, None, 404, "managed_process_not_found").await;
    let (status, made) = server.post(path, process()).await;
    assert_eq!(status, 201, "{made}");
    assert_eq!((&made["process_id"], &made["status"]), (&json!("default"), &json!("running")));
    assert_eq!(made["env_keys"], json!(["KEY"]));
    assert!(!made.to_string().contains("secret"));
    assert_eq!(server.get(path).await.0, 200);
    let (_, session) = server.get("/v1/sessions/demo").await;
    assert_eq!(session["managed_process"]["process_id"], "default");
    assert_eq!(session["managed_processes"]["default"]["command"], "server");
    assert_eq!(session["state"], "running");
}

#[tokio::test]
async fn processes_live_under_ids_of_their_own() {
    let server = Server::start().await;
    server.session("demo").await;
    let path = "/v1/sessions/demo/processes";
    let mut web = process();
    web["process_id"] = json!("web");
    assert_eq!(server.post(path, web).await.0, 201);
    assert_eq!(server.post(path, process()).await.0, 201);
    let (_, list) = server.get(path).await;
    assert_eq!(list["processes"].as_array().unwrap().len(), 2);
    assert_eq!(server.get(&format!("{path}/web")).await.1["process_id"], "web");
    let sent = server.post(&format!("{path}/web/signal"), json!({"signal": 15})).await;
    assert_eq!(sent, (200, json!({"signal": 15})));
    assert_eq!(server.delete(&format!("{path}/web")).await, (200, json!({"stopped": "web"})));
    for (method, tail, body) in [
        (Method::GET, "", None),
        (Method::DELETE, "", None),
        (Method::GET, "/logs", None),
        (Method::POST, "/signal", Some(json!({"signal": "TERM"}))),
    ] {
        let gone = format!("{path}/web{tail}");
        server.refused(method, &gone, body, 404, "managed_process_not_found").await;
    }
    server.refused(Method::GET, "/v1/sessions/none/processes", None, 404, "session_not_found").await;
    server
        .refused(Method::POST, "/v1/sessions/none/processes", Some(process()), 404, "session_not_found")
        .await;
    let bad = Some(json!({"command": "server", "arg": []}));
    let message = server.refused(Method::POST, path, bad, 400, "validation_error").await;
    assert!(message.starts_with("arg "), "{message}");
    server.refused(Method::POST, path, Some(json!({"args": []})), 400, "validation_error").await;
    let nameless = Some(json!({"command": "server", "process_id": ""}));
    let message = server.refused(Method::POST, path, nameless, 400, "validation_error").await;
    assert_eq!(message, "process_id must not be empty");
}

#[tokio::test]
async fn what_a_process_writes_is_kept_and_followed() {
    let server = Server::start().await;
    server.session("demo").await;
    server.post("/v1/sessions/demo/managed-process", process()).await;
    let path = "/v1/sessions/demo/processes/default/logs";
    let logs = loop {
        let (status, logs) = server.get(path).await;
        assert_eq!(status, 200);
        if logs["stderr"] != "" {
            break logs;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    };
    assert_eq!((&logs["stdout"], &logs["stderr"]), (&json!("one\ntwo\n"), &json!("warned\n")));
    assert_eq!((&logs["exit"], &logs["cursor"]), (&Value::Null, &json!("15")));
    assert_eq!(server.get(&format!("{path}?tail=1")).await.1["stdout"], "two\n");
    let plain = server.request(Method::GET, &format!("{path}?tail=2")).header("accept", "text/plain");
    let plain = plain.send().await.unwrap();
    assert_eq!(plain.headers()["content-type"], "text/plain; charset=utf-8");
    assert_eq!(plain.text().await.unwrap(), "two\nwarned\n");

    let response = server.request(Method::GET, &format!("{path}?follow=1")).send().await.unwrap();
    let seen = events(response, |seen| seen.len() == 2).await;
    assert_eq!(names(&seen), ["stdout", "stderr"]);
    let resumed =
        server.request(Method::GET, &format!("{path}?follow=1")).header("last-event-id", &seen[0].id);
    let response = resumed.send().await.unwrap();
    let signal = server.post("/v1/sessions/demo/processes/default/signal", json!({"signal": "KILL"})).await;
    assert_eq!(signal.0, 200);
    let rest = events(response, ended).await;
    assert_eq!(names(&rest), ["stderr", "exit"]);
    let after = server.request(Method::GET, &format!("{path}?follow=1")).header("last-event-id", &rest[1].id);
    assert_eq!(after.send().await.unwrap().status(), 204);
    server.refused(Method::GET, &format!("{path}?follow=1&tail=1"), None, 400, "validation_error").await;
    server.refused(Method::GET, &format!("{path}?follow=perhaps"), None, 400, "validation_error").await;
}
