//! HTTP and WebSockets through the server into a box.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::extract::ws::{Message, WebSocketUpgrade};
use axum::http::{HeaderMap, Method as AxumMethod, Uri};
use axum::routing::{any, get};
use futures_util::{SinkExt, StreamExt};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use reqwest::Method;
use sandcrate_backend::fake::FakeBackend;
use sandcrate_server::ServerConfig;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite;

use super::{Server, answer, script};
use crate::support::{TOKEN, connect, request};

/// A server in the box, on port 80; behind every other port nobody listens.
fn in_box(port: u16, stream: tokio::net::UnixStream) {
    if port != 80 {
        return;
    }
    let app = axum::Router::new()
        .route("/ws", get(|upgrade: WebSocketUpgrade| async { upgrade.on_upgrade(parrot) }))
        .route("/drip", get(drip))
        .fallback(any(tell));
    tokio::spawn(async move {
        let service = TowerToHyperService::new(app);
        let served =
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        let _ = served.with_upgrades().await;
    });
}

async fn tell(
    method: AxumMethod,
    uri: Uri,
    headers: HeaderMap,
    request: Request,
) -> axum::response::Response {
    use axum::response::IntoResponse;
    let body = axum::body::to_bytes(request.into_body(), 1 << 24).await.unwrap();
    let headers: std::collections::BTreeMap<_, _> =
        headers.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect();
    let told =
        json!({"method": method.as_str(), "uri": uri.to_string(), "headers": headers, "bytes": body.len()});
    ([("set-cookie", "stolen=1"), ("x-from-box", "yes")], Json(told)).into_response()
}

/// Two pieces, the second when the first was long gone.
async fn drip() -> Body {
    let pieces = futures_util::stream::iter(["one", "two"]).then(|piece| async move {
        if piece == "two" {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        Ok::<_, std::convert::Infallible>(Bytes::from(piece))
    });
    Body::from_stream(pieces)
}

async fn parrot(mut socket: axum::extract::ws::WebSocket) {
    while let Some(Ok(message)) = socket.recv().await {
        if let Message::Text(text) = message {
            let _ = socket.send(Message::Text(format!("{text}!").into())).await;
        }
    }
}

async fn server() -> Server {
    let config = ServerConfig { token: Some(TOKEN.parse().unwrap()), ..ServerConfig::default() };
    let backend = FakeBackend::new(script).with_network().with_ports(in_box);
    let server = Server::with(Arc::new(backend), config).await;
    let made = server.request(Method::POST, "/v1/sessions/a").bearer_auth(TOKEN);
    assert_eq!(answer(made.json(&json!({"network": "on"}))).await.0, 201);
    server
}

#[tokio::test]
async fn requests_pass_with_their_path_and_body_and_without_our_credentials() {
    let server = server().await;
    let path = "/v1/sessions/a/proxy/80/a%2Fb//c?q=%20x&q";
    let sent =
        server.request(Method::PATCH, path).bearer_auth(TOKEN).header("cookie", "a=b").header("x-mine", "1");
    let response = sent.body(vec![7; 1 << 20]).send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["x-from-box"], "yes");
    assert!(!response.headers().contains_key("set-cookie"));
    assert!(response.headers()["content-security-policy"].to_str().unwrap().starts_with("sandbox"));
    let told: Value = response.json().await.unwrap();
    assert_eq!(
        (&told["method"], &told["uri"], &told["bytes"]),
        (&json!("PATCH"), &json!("/a%2Fb//c?q=%20x&q"), &json!(1 << 20))
    );
    let headers = told["headers"].as_object().unwrap();
    for gone in ["authorization", "cookie", "x-api-key"] {
        assert!(!headers.contains_key(gone), "{headers:?}");
    }
    assert_eq!((&headers["host"], &headers["x-mine"]), (&json!("localhost:80"), &json!("1")));
    assert_eq!(headers["x-forwarded-prefix"], "/v1/sessions/a/proxy/80");
    let root = answer(server.request(Method::GET, "/v1/sessions/a/proxy/80/").bearer_auth(TOKEN)).await.1;
    assert_eq!(root["uri"], "/");
}

#[tokio::test]
async fn answers_stream() {
    let server = server().await;
    let sent = server.request(Method::GET, "/v1/sessions/a/proxy/80/drip").bearer_auth(TOKEN);
    let mut response = sent.send().await.unwrap();
    assert_eq!(response.chunk().await.unwrap().unwrap(), "one", "before the rest is there");
    assert_eq!(response.chunk().await.unwrap().unwrap(), "two");
    assert!(response.chunk().await.unwrap().is_none());
}

#[tokio::test]
async fn websockets_pass() {
    let server = server().await;
    let url = format!("{}/v1/sessions/a/proxy/80/ws", server.base.replace("http", "ws"));
    let bearer = format!("Bearer {TOKEN}");
    let mut client = connect(request(url.clone(), &[("authorization", &bearer)])).await.unwrap();
    client.send(tungstenite::Message::text("hello")).await.unwrap();
    assert_eq!(client.next().await.unwrap().unwrap().into_text().unwrap().as_str(), "hello!");
    client.close(None).await.unwrap();
    assert!(connect(request(url, &[])).await.is_err(), "not without the token");
}

#[tokio::test]
async fn who_is_not_admitted_or_not_answered_is_told_so() {
    let server = server().await;
    let (status, _) = answer(server.request(Method::GET, "/v1/sessions/a/proxy/80/")).await;
    assert_eq!(status, 401);
    for (path, status, code) in [
        ("/v1/sessions/a/proxy/81/", 502, "bad_gateway"),
        ("/v1/sessions/none/proxy/80/", 404, "session_not_found"),
        ("/v1/sessions/a/proxy/0/", 400, "validation_error"),
        ("/v1/sessions/a/proxy/http/", 400, "validation_error"),
    ] {
        let (got, said) = answer(server.request(Method::GET, path).bearer_auth(TOKEN)).await;
        assert_eq!((got, said["error"]["code"].as_str()), (status, Some(code)), "{path}: {said}");
    }
    let foreign =
        server.request(Method::POST, "/v1/sessions/a/proxy/80/").bearer_auth(TOKEN).header("origin", "null");
    assert_eq!(answer(foreign).await.0, 403, "a sandboxed page is not of our origin");
}
