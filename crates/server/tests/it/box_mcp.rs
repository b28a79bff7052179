//! `/mcp/box`: who is let in, what a client is offered, and what becomes of its box.

use std::time::Duration;

use sandcrate_server::{ServerConfig, ServerLimits, ToolsConfig};
use serde_json::{Value, json};

use crate::support::{PATIENCE, Server, TOKEN, plain_client, until};

/// A client with an MCP session.
struct Client {
    http: reqwest::Client,
    url: String,
    session: String,
    opened: Value,
}

struct Answer {
    status: u16,
    session: Option<String>,
    body: String,
}

impl Answer {
    /// The message with this id, out of the events.
    fn message(&self, id: u64) -> Value {
        let data = self.body.lines().filter_map(|line| line.strip_prefix("data:"));
        let mut messages = data.filter_map(|text| serde_json::from_str::<Value>(text.trim()).ok());
        messages.find(|message| message["id"] == id).unwrap_or_else(|| panic!("no {id} in {:?}", self.body))
    }
}

fn opening() -> Value {
    let params = json!({
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"},
    });
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
}

async fn post(http: &reqwest::Client, url: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
    let mut request = http
        .post(url)
        .header("accept", "application/json, text/event-stream")
        .header("content-type", "application/json")
        .timeout(PATIENCE)
        .body(body.to_string());
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let answer = request.send().await.unwrap();
    let session = answer.headers().get("mcp-session-id").map(|id| id.to_str().unwrap().to_owned());
    Answer { status: answer.status().as_u16(), session, body: answer.text().await.unwrap() }
}

impl Client {
    async fn open(server: &Server, query: &str) -> Self {
        let (http, url) = (plain_client(), format!("http://{}/mcp/box{query}", server.address));
        let answer = post(&http, &url, &[], &opening()).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let opened = answer.message(0)["result"].clone();
        let client = Self { http, url, session: answer.session.unwrap(), opened };
        let ready = client.post(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
        assert_eq!(ready.status, 202);
        client
    }

    async fn post(&self, body: &Value) -> Answer {
        post(&self.http, &self.url, &[("mcp-session-id", &self.session)], body).await
    }

    async fn ask(&self, id: u64, method: &str, params: Value) -> Value {
        let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let answer = self.post(&body).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.message(id)
    }

    async fn call(&self, tool: &str, arguments: Value) -> Value {
        self.ask(7, "tools/call", json!({"name": tool, "arguments": arguments})).await["result"].clone()
    }

    async fn delete(&self) -> u16 {
        let request = self.http.delete(&self.url).header("mcp-session-id", &self.session);
        request.send().await.unwrap().status().as_u16()
    }
}

fn sessions(server: &Server) -> Vec<String> {
    server.app.runtime.sessions().into_iter().map(|view| view.info.session_id).collect()
}

#[tokio::test]
async fn nobody_is_let_in_who_is_not_let_into_the_api() {
    let config = ServerConfig { token: Some(TOKEN.parse().unwrap()), ..ServerConfig::default() };
    let server = Server::with(config).await;
    let (http, url) = (plain_client(), format!("http://{}/mcp/box", server.address));
    assert_eq!(post(&http, &url, &[], &opening()).await.status, 401);
    assert_eq!(post(&http, &url, &[("authorization", "Bearer nonsense")], &opening()).await.status, 401);
    let right = format!("Bearer {TOKEN}");
    assert_eq!(post(&http, &url, &[("authorization", &right)], &opening()).await.status, 200);
    let page = [("authorization", right.as_str()), ("origin", "http://evil.example")];
    assert_eq!(post(&http, &url, &page, &opening()).await.status, 403, "a page of another site");
    let looks = http.get(&url).header("authorization", &right).header("origin", "http://evil.example");
    assert_eq!(looks.send().await.unwrap().status(), 403, "its stream too");
    server.stop().await;
}

#[tokio::test]
async fn without_a_token_a_strangers_name_is_refused() {
    let server = Server::start().await;
    let (http, url) = (plain_client(), format!("http://{}/mcp/box", server.address));
    let rebound = post(&http, &url, &[("host", "evil.example")], &opening()).await;
    assert_eq!(rebound.status, 403, "{}", rebound.body);
    server.stop().await;
}

#[tokio::test]
async fn a_client_has_a_box_of_its_own_that_goes_with_it() {
    let server = Server::start().await;
    let (one, other) = (Client::open(&server, "").await, Client::open(&server, "").await);
    assert!(sessions(&server).is_empty(), "nobody has used one yet");
    assert!(one.opened["instructions"].as_str().unwrap().contains("no network"));
    let tools = one.ask(1, "tools/list", json!({})).await;
    assert_eq!(tools["result"]["tools"].as_array().unwrap().len(), 8);
    assert!(
        one.ask(2, "resources/list", json!({})).await["result"]["resources"].as_array().unwrap().is_empty()
    );
    assert!(sessions(&server).is_empty(), "looking makes none");

    let written = one.call("write", json!({"path": "/workspace/a.txt", "content": "mine"})).await;
    assert_eq!(written["structuredContent"]["ok"], true, "{written}");
    let read = other.call("read", json!({"path": "/workspace/a.txt"})).await;
    assert_eq!((&read["isError"], &read["structuredContent"]["ok"]), (&json!(true), &json!(false)));
    assert_eq!(sessions(&server).len(), 2);
    let ran = one.call("exec", json!({"command": "echo hello"})).await;
    assert_eq!(ran["content"][0]["text"], "hello\n[exit code 0]");
    assert_eq!(ran["structuredContent"]["exit_code"], 0);
    assert_eq!(ran["structuredContent"]["limits_hit"], json!([]));

    let listed = one.ask(3, "resources/list", json!({})).await["result"]["resources"].clone();
    let uri = listed[0]["uri"].as_str().unwrap().to_owned();
    let contents = one.ask(4, "resources/read", json!({"uri": uri})).await["result"]["contents"][0].clone();
    assert_eq!(contents["text"], "mine");
    let foreign = other.ask(5, "resources/read", json!({"uri": uri})).await;
    assert_eq!(foreign["error"]["code"], -32002, "{foreign}");

    assert_eq!(one.delete().await, 204);
    until("its box goes", || sessions(&server).len() == 1).await;
    let gone = one.post(&json!({"jsonrpc": "2.0", "id": 9, "method": "tools/list"})).await;
    assert_eq!(gone.status, 404);
    assert_eq!(
        other.call("exec", json!({"command": "echo on"})).await["isError"],
        false,
        "the other goes on"
    );
    server.stop().await;
}

#[tokio::test]
async fn a_box_goes_when_its_client_is_idle() {
    let limits = ServerLimits { mcp_idle: Duration::from_millis(300), ..ServerLimits::default() };
    let server = Server::with(ServerConfig { limits, ..ServerConfig::default() }).await;
    let client = Client::open(&server, "").await;
    client.call("exec", json!({"command": "echo x"})).await;
    assert_eq!(sessions(&server).len(), 1);
    until("it goes by itself", || sessions(&server).is_empty()).await;
    server.stop().await;
}

#[tokio::test]
async fn a_named_box_is_shared_and_stays() {
    let server = Server::start().await;
    let (one, other) =
        (Client::open(&server, "?session=demo").await, Client::open(&server, "?session=demo").await);
    one.call("write", json!({"path": "/workspace/a", "content": "x"})).await;
    let read = other.call("read", json!({"path": "/workspace/a"})).await;
    assert_eq!(read["structuredContent"]["content"], "x");
    one.delete().await;
    assert_eq!(other.call("exec", json!({"command": "echo on"})).await["isError"], false);
    assert_eq!(sessions(&server), ["demo"]);
    let listed = other.call("session_list", json!({})).await;
    assert_eq!(listed["structuredContent"]["sessions"][0]["session"], "demo");
    let reset = other.call("session_reset", json!({})).await;
    assert_eq!(reset["structuredContent"], json!({"ok": true, "session": "demo", "existed": true}));
    assert!(sessions(&server).is_empty());
    server.stop().await;
}

#[tokio::test]
async fn what_the_operator_forbids_is_not_offered() {
    let tools = ToolsConfig { deny: vec!["exec".to_owned()], ..ToolsConfig::default() };
    let server = Server::with(ServerConfig { tools, ..ServerConfig::default() }).await;
    let client = Client::open(&server, "").await;
    let tools = client.ask(1, "tools/list", json!({})).await["result"]["tools"].clone();
    assert!(tools.as_array().unwrap().iter().all(|tool| tool["name"] != "exec"));
    let params = json!({"name": "exec", "arguments": {"command": "echo x"}});
    let refused = client.ask(2, "tools/call", params).await;
    assert_eq!(refused["error"]["code"], -32602);
    assert!(sessions(&server).is_empty());
    server.stop().await;
}

#[tokio::test]
async fn there_are_only_so_many_clients() {
    let limits = ServerLimits { mcp_sessions: 1, ..ServerLimits::default() };
    let server = Server::with(ServerConfig { limits, ..ServerConfig::default() }).await;
    let first = Client::open(&server, "").await;
    let (http, url) = (plain_client(), first.url.clone());
    let full = post(&http, &url, &[], &opening()).await;
    assert_eq!(full.status, 503, "{}", full.body);
    assert!(full.body.contains("1 MCP sessions already"), "{}", full.body);
    first.delete().await;
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while post(&http, &url, &[], &opening()).await.status != 200 {
        assert!(tokio::time::Instant::now() < deadline, "its place was not given back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    server.stop().await;
}

#[tokio::test]
async fn bad_input_is_refused_and_leaves_nothing() {
    let server = Server::start().await;
    let (http, url) = (plain_client(), format!("http://{}/mcp/box", server.address));
    assert_eq!(post(&http, &format!("{url}?sesion=x"), &[], &opening()).await.status, 400);
    assert_eq!(post(&http, &format!("{url}?session="), &[], &opening()).await.status, 400);
    let early = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    assert!(post(&http, &url, &[], &early).await.status >= 400, "no session yet");
    assert_eq!(post(&http, &url, &[("mcp-session-id", "nobody")], &early).await.status, 404);
    let large = json!({"jsonrpc": "2.0", "id": 1, "method": "x".repeat(9 << 20)});
    assert_eq!(post(&http, &url, &[], &large).await.status, 413);
    let garbled = http.post(&url).header("accept", "application/json, text/event-stream");
    let garbled = garbled.header("content-type", "application/json").body("{").send().await.unwrap();
    assert!(garbled.status().is_client_error());
    assert_eq!(http.put(&url).send().await.unwrap().status(), 405);
    // None of them holds a place, so that the end finds nothing.
    server.stop().await;
}

/// A revision without sessions has nothing to tell clients apart by, but for the name of the box.
#[tokio::test]
async fn revisions_without_sessions_are_spoken_about_named_boxes_only() {
    let server = Server::start().await;
    let http = plain_client();
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let call = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "exec", "arguments": {"command": "echo hi"}, "_meta": meta},
    });
    let headers =
        [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/call"), ("mcp-name", "exec")];
    let url = format!("http://{}/mcp/box", server.address);
    let plain = post(&http, &url, &headers, &call).await;
    assert!(plain.body.contains("rotocol version") || plain.body.contains("2025-11-25"), "{}", plain.body);
    assert!(sessions(&server).is_empty());
    let named = post(&http, &format!("{url}?session=n"), &headers, &call).await;
    assert!(named.status == 200 && named.body.contains("[exit code 0]"), "{} {}", named.status, named.body);
    assert_eq!(sessions(&server), ["n"]);
    server.stop().await;
}
