//! The REST face over real HTTP: a server on loopback, the real runtime, commands by script.

mod commands;
mod document;
mod files;
mod mcp;
mod network;
mod processes;
mod proxy;
mod sessions;
mod skills;
mod terminal;
mod tools;
mod upload;

use std::sync::Arc;
use std::time::Duration;

use reqwest::{Client, Method, RequestBuilder, Response};
use sandcrate_backend::fake::{FakeBackend, FakeScript};
use sandcrate_backend::{Backend, BackendError, Command, ExecRequest, SessionId};
use sandcrate_protocol::network::{Counters, Denial, DenialKind};
use sandcrate_runtime::{Runtime, RuntimeConfig};
use sandcrate_server::{Listener, ServerConfig, serve};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::support::plain_client;

/// A running server; dropping it tells it to end.
struct Server {
    base: String,
    client: Client,
    shutdown: CancellationToken,
    _state: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl Server {
    async fn start() -> Self {
        Self::over(Arc::new(FakeBackend::new(script))).await
    }

    async fn over(backend: Arc<dyn Backend>) -> Self {
        Self::with(backend, ServerConfig { insecure_no_auth: true, ..ServerConfig::default() }).await
    }

    async fn with(backend: Arc<dyn Backend>, config: ServerConfig) -> Self {
        let state = tempfile::tempdir().unwrap();
        let mut settings = RuntimeConfig::new(state.path());
        settings.limits.log_bytes = 256 << 10;
        let runtime = Runtime::open(settings, vec![backend]).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let shutdown = CancellationToken::new();
        let config = ServerConfig { shutdown_grace: Duration::from_millis(10), ..config };
        tokio::spawn(serve(vec![Listener::Tcp(listener)], runtime, config, shutdown.clone()));
        Self { base, client: plain_client(), shutdown, _state: state }
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.base)).timeout(Duration::from_secs(60))
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        answer(self.request(Method::GET, path)).await
    }

    async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        answer(self.request(Method::POST, path).json(&body)).await
    }

    async fn delete(&self, path: &str) -> (u16, Value) {
        answer(self.request(Method::DELETE, path)).await
    }

    /// A session of this name, with everything by default.
    async fn session(&self, id: &str) {
        let (status, body) = self.post(&format!("/v1/sessions/{id}"), serde_json::json!({})).await;
        assert_eq!(status, 201, "{body}");
    }

    /// Asserts that the request is refused like this; gives the message back.
    async fn refused(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
        status: u16,
        code: &str,
    ) -> String {
        let mut request = self.request(method.clone(), path);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let (got, body) = answer(request).await;
        assert_eq!((got, body["error"]["code"].as_str()), (status, Some(code)), "{method} {path}: {body}");
        body["error"]["message"].as_str().unwrap().to_owned()
    }
}

async fn answer(request: RequestBuilder) -> (u16, Value) {
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    let body = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{status} {text:?}: {error}"));
    (status, body)
}

/// What commands do here, by their text.
fn script(_: &SessionId, request: &ExecRequest) -> FakeScript {
    let new = FakeScript::new;
    let text = match &request.command {
        Command::Shell(text) => text.clone(),
        Command::Argv(argv) => argv.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>().join(" "),
    };
    match text.as_str() {
        "hello" => new().stdout("hello\n"),
        "both" => new().stdout("  out \n").stderr("err\n").exit(3),
        "binary" => new().stdout(&b"\xff\xfe\x00a"[..]),
        "euro" => new().stdout(&b"1\xe2\x82"[..]).stderr("e").stdout(&b"\xac2"[..]),
        "killed" => new().signalled(9),
        "hang" => new().stdout("up\n").hang(),
        "stubborn" => new().stdout("up\n").ignoring_signals().hang(),
        "cat" => new().echo_stdin(),
        // Four times what the log keeps here.
        "flood" => (0..16).fold(new(), |script, _| script.stdout(vec![b'x'; 64 << 10])).stdout("end\n"),
        "refused" => new()
            .stdout("trying\n")
            .denied(Denial::new(DenialKind::Connect, "tcp 10.0.0.1:80", "never: private", "ask the operator"))
            .carrying(Counters { bytes_sent: 7, ..Counters::default() })
            .exit(1),
        "show" => new().stdout(format!("{:?} {:?} {:?}", request.env, request.cwd, request.timeout)),
        "/bin/bash -l" => FakeScript::refused(BackendError::CommandNotFound { program: "/bin/bash".into() }),
        "sh" => new().stdout("$ ").echo_stdin().exit(5),
        "nowhere" => FakeScript::refused(BackendError::CommandNotFound { program: "nowhere".into() }),
        "server --port 1" => new().stdout("one\ntwo\n").stderr("warned\n").hang(),
        other => new().stderr(format!("no script for {other}\n")).exit(99),
    }
}

/// One server-sent event.
#[derive(Debug, Clone, PartialEq)]
struct Event {
    name: String,
    id: String,
    data: Value,
}

/// Reads events until `enough` says so, or the stream ends.
async fn events(mut response: Response, enough: impl Fn(&[Event]) -> bool) -> Vec<Event> {
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let (mut text, mut events) = (Vec::new(), Vec::new());
    while !enough(&events) {
        let Some(piece) = response.chunk().await.unwrap() else { break };
        text.extend_from_slice(&piece);
        while let Some(at) = text.windows(2).position(|two| two == b"\n\n") {
            let block = String::from_utf8(text.drain(..at + 2).collect()).unwrap();
            let field = |name: &str| {
                let line = block.lines().find_map(|line| line.strip_prefix(name));
                line.map(|value| value.trim_start().to_owned())
            };
            if let (Some(name), Some(id), Some(data)) = (field("event:"), field("id:"), field("data:")) {
                events.push(Event { name, id, data: serde_json::from_str(&data).unwrap() });
            }
        }
    }
    events
}

fn names(events: &[Event]) -> Vec<&str> {
    events.iter().map(|event| event.name.as_str()).collect()
}

fn ended(events: &[Event]) -> bool {
    events.iter().any(|event| event.name == "exit" || event.name == "error")
}
