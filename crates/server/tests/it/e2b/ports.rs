//! Ports of a sandbox, reached by a host name of their own or by headers.

use futures_util::{SinkExt, StreamExt};
use reqwest::Method;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use super::{LONG, Made, Server, answer, config, refusal};
use crate::support::{connect, request};

async fn at(server: &Server, host: String, path: &str) -> reqwest::Response {
    let request = server.request(Method::GET, path).header("host", host);
    let request = request.header("cookie", "mine=1").header("x-access-token", "secret");
    request.send().await.unwrap()
}

fn online(server: &Server) -> impl Future<Output = Made> {
    server.make(json!({"templateID": "base", "timeout": LONG, "allow_internet_access": true}))
}

#[tokio::test]
async fn a_port_has_a_host_name_of_its_own() {
    let server = Server::with(config(json!({"domain": "box.localhost"}))).await;
    let made = online(&server).await;
    assert_eq!(made.answer["domain"], "box.localhost");
    let response = at(&server, format!("80-{}.box.localhost", made.id), "/a%20b?q=1").await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["set-cookie"], "own=1", "its cookies are its own");
    assert!(!response.headers().contains_key("content-security-policy"));
    let told: Value = response.json().await.unwrap();
    assert_eq!((&told["uri"], &told["headers"]["host"]), (&json!("/a%20b?q=1"), &json!("localhost:80")));
    assert_eq!(
        (&told["headers"]["cookie"], &told["headers"]["x-access-token"]),
        (&json!("mine=1"), &Value::Null)
    );
    // Its own `/health` is its own.
    let health = at(&server, format!("80-{}.box.localhost", made.id), "/health").await;
    assert_eq!(health.json::<Value>().await.unwrap()["uri"], "/health");
    // Envd's is envd's, and ours is ours.
    assert_eq!(at(&server, format!("49983-{}.box.localhost", made.id), "/health").await.status(), 204);
    assert_eq!(at(&server, "api.box.localhost".to_owned(), "/v2/sandboxes").await.status(), 200);
    assert_eq!(at(&server, format!("80-{}.elsewhere.localhost", made.id), "/healthz").await.status(), 200);
    server.stop().await;
}

#[tokio::test]
async fn a_websocket_goes_through() {
    let server = Server::start().await;
    let made = online(&server).await;
    let host = format!("80-{}.localhost", made.id);
    let url = format!("{}/ws", server.base.replace("http", "ws"));
    let mut socket = connect(request(url, &[("host", &host)])).await.unwrap();
    socket.send(Message::text("polly")).await.unwrap();
    assert_eq!(socket.next().await.unwrap().unwrap(), Message::text("polly"));
    drop(socket);
    server.stop().await;
}

#[tokio::test]
async fn what_does_not_listen_is_told_apart_from_what_is_gone() {
    let server = Server::start().await;
    let made = online(&server).await;
    let ask = |id: &str, port: &str| {
        let request = server.request(Method::GET, "/").header("E2b-Sandbox-Id", id);
        answer(request.header("E2b-Sandbox-Port", port))
    };
    assert_eq!(ask(&made.id, "80").await.0, 200);
    let (status, message) = refusal(ask(&made.id, "81").await);
    assert!(status == 502 && message.contains("port is not open"), "{message}");
    let (status, message) = refusal(ask("i0123456789abcdefghij", "80").await);
    assert!(status == 502 && message.contains("was not found"), "{message}");
    for (id, port) in [("no id", "80"), (made.id.as_str(), "0"), (made.id.as_str(), "http")] {
        assert_eq!(refusal(ask(id, port).await).0, 400, "{id} {port}");
    }
    // A box without a network has no ports, and is told to be there.
    let offline = json!({"templateID": "base", "timeout": LONG, "allow_internet_access": false});
    let offline = server.make(offline).await;
    let (status, message) = refusal(ask(&offline.id, "80").await);
    assert!(status != 502 || !message.contains("was not found"), "{status} {message}");
    server.stop().await;
}

#[tokio::test]
async fn traffic_that_is_not_public_needs_its_token() {
    let server = Server::start().await;
    let network = json!({"allowPublicTraffic": false});
    let body =
        json!({"templateID": "base", "timeout": LONG, "allow_internet_access": true, "network": network});
    let made = server.make(body).await;
    let token = made.answer["trafficAccessToken"].as_str().unwrap().to_owned();
    let ask = |token: Option<&str>| {
        let request = server.request(Method::GET, "/").header("host", format!("80-{}.localhost", made.id));
        answer(
            token.iter().fold(request, |request, token| request.header("e2b-traffic-access-token", *token)),
        )
    };
    assert_eq!(refusal(ask(None).await).0, 403);
    assert_eq!(refusal(ask(Some("wrong")).await).0, 403);
    let (status, told) = ask(Some(&token)).await;
    assert_eq!(
        (status, &told["headers"]["e2b-traffic-access-token"]),
        (200, &Value::Null),
        "and goes no further"
    );
    server.stop().await;
}

#[tokio::test]
async fn code_contexts_are_not_for_whoever_knows_the_id() {
    let server = Server::start().await;
    let made = server.make(json!({"templateID": "base", "timeout": LONG})).await;
    let token = made.answer["trafficAccessToken"].as_str().unwrap().to_owned();
    let ask = |token: Option<&str>| {
        let request =
            server.request(Method::GET, "/contexts").header("host", format!("49999-{}.localhost", made.id));
        answer(
            token.iter().fold(request, |request, token| request.header("e2b-traffic-access-token", *token)),
        )
    };
    assert_eq!(refusal(ask(None).await).0, 401);
    assert_eq!(refusal(ask(Some("wrong")).await).0, 401);
    assert_eq!(ask(Some(&token)).await.0, 200);
    server.stop().await;
}
