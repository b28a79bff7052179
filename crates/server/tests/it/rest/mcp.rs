//! MCP servers by REST, and the gateway over real HTTP. Servers are scripts here; real ones are in the program's tests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::{Method, Response};
use sandcrate_backend::fake::FakeBackend;
use sandcrate_server::{McpConfig, ServerConfig};
use serde_json::{Value, json};

use super::{Server, script};

fn config(mcp: Value) -> ServerConfig {
    let mcp: McpConfig = serde_json::from_value(mcp).unwrap();
    ServerConfig { insecure_no_auth: true, mcp, ..ServerConfig::default() }
}

async fn server(mcp: Value) -> Server {
    Server::with(Arc::new(FakeBackend::new(script)), config(mcp)).await
}

async fn until_status(server: &Server, name: &str, wanted: &str) -> Value {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let (_, body) = server.get(&format!("/v1/mcp/servers/{name}")).await;
        if body["runtime_info"]["status"] == wanted {
            return body;
        }
        assert!(Instant::now() < deadline, "{name} is never {wanted}: {body}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn servers_are_added_looked_at_and_removed() {
    let own = json!({"own": {"command": "hang"}, "off": {"command": "hang", "enabled": false}});
    let server = server(json!({"servers": own})).await;
    let own = until_status(&server, "own", "connecting").await;
    assert_eq!((&own["origin"], &own["runtime_info"]["box_session_id"]), (&json!("file"), &json!("mcp-own")));
    let off = until_status(&server, "off", "disabled").await;
    assert_eq!(off["runtime_info"]["box_enabled"], Value::Null);
    let body = json!({"name": "added", "command": "hang", "env": {"KEY": "secret"}, "deny": ["beta"]});
    let (status, added) = server.post("/v1/mcp/servers", body.clone()).await;
    assert_eq!(
        (status, &added["env"], &added["origin"]),
        (201, &json!(["KEY"]), &json!("stored")),
        "{added}"
    );
    assert!(!added.to_string().contains("secret"));
    let (_, list) = server.get("/v1/mcp/servers").await;
    let names: Vec<_> = list["servers"].as_array().unwrap().iter().map(|server| &server["name"]).collect();
    assert_eq!(names, ["added", "off", "own"]);

    server.refused(Method::POST, "/v1/mcp/servers", Some(body.clone()), 409, "mcp_server_conflict").await;
    assert_eq!(server.post("/v1/mcp/servers?replace=1", body).await.0, 201);
    server.refused(Method::DELETE, "/v1/mcp/servers/own", None, 403, "denied").await;
    server.refused(Method::POST, "/v1/mcp/servers/off/restart", None, 400, "validation_error").await;
    assert_eq!(server.post("/v1/mcp/servers/added/restart", json!({})).await.0, 200);
    for path in ["", "/restart", "/test", "/logs"] {
        let method = if matches!(path, "" | "/logs") { Method::GET } else { Method::POST };
        let path = format!("/v1/mcp/servers/nope{path}");
        let message = server.refused(method, &path, None, 404, "mcp_server_not_found").await;
        assert_eq!(message, "Server not found: nope");
    }
    assert_eq!(server.delete("/v1/mcp/servers/added").await, (200, json!({"removed": "added"})));
    server.refused(Method::GET, "/v1/mcp/servers/added", None, 404, "mcp_server_not_found").await;
}

#[tokio::test]
async fn what_is_not_acceptable_names_the_field() {
    let server = server(json!({})).await;
    for (body, field) in [
        (json!({"command": "x"}), "name"),
        (json!({"name": "box", "command": "x"}), "name"),
        (json!({"name": "a b", "command": "x"}), "name"),
        (json!({"name": "a", "command": ""}), "command"),
        (json!({"name": "a", "command": "x", "args": "y"}), "args"),
        (json!({"name": "a", "command": "x", "arg": []}), "arg"),
        (json!({"name": "a", "command": "x", "box": {"memory": 1}}), "box"),
        (json!({"name": "a", "command": "x", "box": {"network": "banana"}}), "box.network"),
        (json!({"name": "a", "command": "x", "box": {"install_network": "banana"}}), "box.install_network"),
        (json!({"name": "a", "command": "x", "call_timeout_sec": 0}), "call_timeout_sec"),
    ] {
        let (status, answer) = server.post("/v1/mcp/servers", body.clone()).await;
        assert_eq!((status, answer["error"]["field"].as_str()), (400, Some(field)), "{body}: {answer}");
    }
}

#[tokio::test]
async fn a_server_that_dies_is_reported_with_its_phase() {
    let server = server(json!({})).await;
    for (command, phase) in [("nowhere", "process_start"), ("killed", "mcp_init")] {
        let began = Instant::now();
        let (_, report) = server.post("/v1/mcp/test", json!({"command": command})).await;
        let info = &report["runtime_info"];
        assert_eq!((&report["ok"], info["error_phase"].as_str()), (&json!(false), Some(phase)), "{report}");
        assert!(info["error_message"].as_str().unwrap().starts_with("Failed after 4 attempts: "), "{info}");
        assert!(began.elapsed() >= Duration::from_secs(14));
    }
}

/// Whoever may add servers is given no files of the host by that.
#[tokio::test]
async fn a_project_outside_the_mount_roots_is_no_ones() {
    let server = server(json!({})).await;
    let place = tempfile::tempdir().unwrap();
    for mode in ["ro", "rw", "copy"] {
        let settings = json!({"host_path": place.path(), "host_path_mode": mode});
        let (_, report) = server.post("/v1/mcp/test", json!({"command": "hang", "box": settings})).await;
        let info = &report["runtime_info"];
        assert_eq!(info["error_phase"], "staging", "{report}");
        let said = info["error_message"].as_str().unwrap();
        assert!(said.contains(if mode == "copy" { "host_path_mode" } else { "mount" }), "{said}");
    }
}

/// The message of an answer of the gateway, and the id of its session.
async fn message(response: Response) -> (Value, String) {
    let session = response.headers().get("mcp-session-id").map(|id| id.to_str().unwrap().to_owned());
    let status = response.status();
    let text = response.text().await.unwrap();
    let data = text.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim);
    let message = data.filter_map(|data| serde_json::from_str(data).ok()).next_back();
    (message.unwrap_or_else(|| panic!("{status}: {text}")), session.unwrap_or_default())
}

async fn send(server: &Server, path: &str, session: Option<&str>, body: Value) -> Response {
    let mut request = server
        .request(Method::POST, path)
        .header("accept", "application/json, text/event-stream")
        .json(&body);
    if let Some(session) = session {
        request = request.header("mcp-session-id", session);
    }
    request.send().await.unwrap()
}

fn initialize() -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18",
        "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}})
}

#[tokio::test]
async fn the_gateway_has_sessions_and_a_bound_on_them() {
    let server = server(json!({"servers": {"one": {"command": "hang"}}, "max_sessions": 2})).await;
    for path in ["/mcp", "/mcp/one"] {
        let (hello, session) = message(send(&server, path, None, initialize()).await).await;
        assert_eq!(hello["result"]["serverInfo"]["name"], "sandcrate", "{hello}");
        assert_eq!(hello["result"]["capabilities"]["tools"]["listChanged"], true, "{hello}");
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        assert_eq!(send(&server, path, Some(&session), ready).await.status(), 202);
        let list = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"});
        let (listed, _) = message(send(&server, path, Some(&session), list).await).await;
        assert_eq!(listed["result"]["tools"], json!([]), "what is not connected offers nothing");
        let call = json!({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "one__x"}});
        let (answered, _) = message(send(&server, path, Some(&session), call).await).await;
        assert_eq!(answered["result"]["_meta"]["sandcrate/failure"]["kind"], "not_connected", "{answered}");
    }
    let full = send(&server, "/mcp", None, initialize()).await;
    assert_eq!(full.status(), 503);
    let full: Value = full.json().await.unwrap();
    assert_eq!(full["error"]["code"], "capacity_exceeded", "{full}");
    let message = server.refused(Method::POST, "/mcp/three", None, 404, "mcp_server_not_found").await;
    assert_eq!(message, "Server not found: three");
    let unknown = send(&server, "/mcp", Some("no-such-session"), initialize()).await;
    assert_eq!(unknown.status(), 404);
}

/// Clients that follow the protocol's own SDK warn of an end that is neither 200 nor 204.
#[tokio::test]
async fn a_session_that_is_ended_is_gone_and_says_so() {
    let server = server(json!({"servers": {"one": {"command": "hang"}}})).await;
    for path in ["/mcp", "/mcp/one", "/mcp/box"] {
        let (_, session) = message(send(&server, path, None, initialize()).await).await;
        let end = async || {
            let request = server.request(Method::DELETE, path).header("mcp-session-id", &session);
            request.send().await.unwrap().status()
        };
        assert_eq!((end().await.as_u16(), end().await.as_u16()), (204, 404), "{path}");
        let list = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"});
        assert_eq!(send(&server, path, Some(&session), list).await.status(), 404, "{path}");
        let nameless = server.request(Method::DELETE, path).send().await.unwrap();
        assert_eq!(nameless.status(), 400, "{path}");
    }
}

#[tokio::test]
async fn a_stranger_is_not_let_in() {
    let mut config = config(json!({}));
    config.insecure_no_auth = false;
    config.token = Some("0123456789abcdef0123456789abcdef".parse().unwrap());
    let server = Server::with(Arc::new(FakeBackend::new(script)), config).await;
    for path in ["/mcp", "/mcp/x", "/v1/mcp/servers"] {
        assert_eq!(send(&server, path, None, initialize()).await.status(), 401, "{path}");
    }
}
