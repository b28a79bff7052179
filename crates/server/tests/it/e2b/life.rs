//! How long a sandbox lives: its time, pauses, what survives a server.

use std::time::Duration;

use reqwest::Method;
use sandcrate_server::ServerConfig;
use serde_json::json;

use super::{LONG, Made, Server, answer, refusal};
use crate::support::{PATIENCE, until as eventually};

/// Waits until the sandbox is in this state; `None` until it is gone.
async fn until(server: &Server, made: &Made, state: Option<&str>) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let (status, found) = server.get(&format!("/sandboxes/{}", made.id)).await;
        let reached = match state {
            Some(state) => found["state"] == state,
            None => status == 404,
        };
        if reached {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "still {status} {found}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_sandbox_ends_when_its_time_is_over_though_it_is_used() {
    let server = Server::start().await;
    let made = server.make(json!({"templateID": "base", "timeout": 1})).await;
    let mut stream = server.run(&made, "hang").await;
    stream.pid().await;
    until(&server, &made, None).await;
    let (last, end) = stream.next().await;
    assert!(last && end["error"]["message"].as_str().unwrap().contains("was not found"), "{end}");
    eventually("its box is gone", || server.backend.sessions().is_empty()).await;
    let (status, message) = refusal(answer(server.envd(&made, Method::GET, "/health")).await);
    assert!(status == 502 && message.contains("was not found"), "{message}");
    server.stop().await;
}

#[tokio::test]
async fn time_is_given_and_taken() {
    let server = Server::start().await;
    let made = server.make(json!({"templateID": "base", "timeout": LONG})).await;
    let ends = async || {
        let (_, found) = server.get(&format!("/sandboxes/{}", made.id)).await;
        found["endAt"].as_str().unwrap().to_owned()
    };
    let path = |what: &str| format!("/sandboxes/{}/{what}", made.id);
    let before = ends().await;
    assert_eq!(server.post(&path("timeout"), json!({"timeout": 60})).await.0, 204);
    let shorter = ends().await;
    assert!(shorter < before, "{shorter} {before}");
    // A connect gives, and never takes.
    assert_eq!(server.post(&path("connect"), json!({"timeout": 1})).await.0, 200);
    assert_eq!(ends().await, shorter);
    assert_eq!(server.post(&path("refreshes"), json!({"duration": 600})).await.0, 204);
    assert!(ends().await > shorter);
    let (status, found) = server.post(&format!("/v2{}", path("connect")), json!({"timeout": 700})).await;
    assert_eq!((status, found["envdAccessToken"].as_str()), (200, made.token.as_deref()));
    for (what, body) in [("timeout", json!({"timeout": 999_999})), ("connect", json!({"timeout": 999_999}))] {
        assert_eq!(refusal(server.post(&path(what), body).await).0, 400);
    }
    assert_eq!(refusal(server.post("/sandboxes/inone/timeout", json!({"timeout": 1})).await).0, 404);
    assert_eq!(server.post(&path("timeout"), json!({"timeout": 0})).await.0, 204);
    until(&server, &made, None).await;
    server.stop().await;
}

#[tokio::test]
async fn a_pause_ends_the_box_and_a_connect_makes_another() {
    let server = Server::start().await;
    let made = server.sandbox().await;
    let path = format!("/sandboxes/{}/pause", made.id);
    let (status, message) = refusal(server.post(&path, json!({"memory": true})).await);
    assert!(status == 501 && message.contains("not its memory"), "{message}");
    assert_eq!(server.post(&path, json!({})).await.0, 204);
    assert_eq!(refusal(server.post(&path, json!({})).await).0, 409, "paused already");
    assert!(server.backend.sessions().is_empty(), "its box is gone");
    let (_, found) = server.get(&format!("/sandboxes/{}", made.id)).await;
    assert_eq!((&found["state"], &found["pauseMode"]), (&json!("paused"), &json!("filesystem")));
    assert_eq!(
        refusal(answer(server.envd(&made, Method::GET, "/health")).await).0,
        502,
        "and nothing wakes it"
    );
    assert!(server.backend.sessions().is_empty());
    assert_eq!(
        refusal(server.post(&format!("/sandboxes/{}/timeout", made.id), json!({"timeout": 5})).await).0,
        404
    );
    let (status, found) =
        server.post(&format!("/v2/sandboxes/{}/connect", made.id), json!({"timeout": LONG})).await;
    assert_eq!((status, found["envdAccessToken"].as_str()), (201, made.token.as_deref()), "{found}");
    let (written, ended, _) = server.run(&made, "hello").await.rest().await;
    assert_eq!((written.as_str(), &ended["exited"]), ("hello\n", &json!(true)));
    assert_eq!(
        refusal(server.post(&format!("/sandboxes/{}/resume", made.id), json!({})).await).0,
        409,
        "it runs"
    );
    server.stop().await;
}

#[tokio::test]
async fn a_sandbox_that_pauses_at_its_end_survives_its_server_and_a_running_one_does_not() {
    let state = tempfile::tempdir().unwrap();
    let server = Server::on(state.path(), ServerConfig::default()).await;
    let kept = server
        .make(json!({"templateID": "base", "timeout": 1, "autoPause": true, "metadata": {"a": "b"}}))
        .await;
    let running = server.sandbox().await;
    until(&server, &kept, Some("paused")).await;
    server.stop().await;
    let again = Server::on(state.path(), ServerConfig::default()).await;
    until(&again, &kept, Some("paused")).await;
    until(&again, &running, None).await;
    let (_, found) = again.get(&format!("/sandboxes/{}", kept.id)).await;
    assert_eq!(
        (&found["metadata"], found["envdAccessToken"].as_str()),
        (&json!({"a": "b"}), kept.token.as_deref())
    );
    let (status, _) = again.post(&format!("/sandboxes/{}/connect", kept.id), json!({"timeout": LONG})).await;
    assert_eq!(status, 201);
    assert_eq!(answer(again.envd(&kept, Method::GET, "/health")).await.0, 204);
    // What the server before left of the running one is gone too.
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while again.get(&format!("/v1/sessions/{}", running.id)).await.0 != 404 {
        assert!(tokio::time::Instant::now() < deadline, "the session is still there");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    again.stop().await;
}

#[tokio::test]
async fn a_session_that_another_face_ends_is_no_sandbox_any_more() {
    let server = Server::start().await;
    let made = server.sandbox().await;
    let path = format!("/v1/sessions/{}", made.id);
    assert_eq!(answer(server.request(Method::DELETE, &path)).await.0, 200);
    assert_eq!(refusal(answer(server.envd(&made, Method::GET, "/health")).await).0, 502);
    assert_eq!(refusal(server.get(&format!("/sandboxes/{}", made.id)).await).0, 404);
    assert_eq!(server.get("/v2/sandboxes").await.1, json!([]));
    server.stop().await;
}

#[tokio::test]
async fn a_sandbox_whose_maker_leaves_is_one_and_ends_in_time() {
    let server = Server::slow(Duration::from_millis(500)).await;
    let body = json!({"templateID": "base", "timeout": 2});
    let request =
        server.request(Method::POST, "/v2/sandboxes").json(&body).timeout(Duration::from_millis(100));
    assert!(request.send().await.unwrap_err().is_timeout());
    let listed = async || server.get("/v2/sandboxes").await.1.as_array().unwrap().len();
    for (what, count) in [("made", 1), ("ended", 0)] {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while listed().await != count {
            assert!(tokio::time::Instant::now() < deadline, "it is not {what}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    eventually("its box is gone", || server.backend.sessions().is_empty()).await;
    server.stop().await;
}
