//! E2B's wire from outside: what its SDKs send, byte for byte where that matters, to a server on loopback over the
//! real runtime and the scripted backend.

mod control;
mod files;
mod life;
mod ports;
mod process;

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::Request;
use axum::extract::ws::WebSocketUpgrade;
use axum::routing::{any, get};
use bytes::Bytes;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use reqwest::{Client, Method, RequestBuilder, Response};
use sandcrate_backend::fake::{FakeBackend, FakeScript};
use sandcrate_backend::{Command, ExecRequest, SessionId};
use sandcrate_runtime::{Runtime, RuntimeConfig};
use sandcrate_server::{App, E2bConfig, Listener, ServeError, ServerConfig, serve_app};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::{PATIENCE, plain_client};

/// Far longer than a test.
const LONG: u64 = 3600;

struct Server {
    base: String,
    client: Client,
    backend: Arc<FakeBackend>,
    app: App,
    shutdown: CancellationToken,
    serving: JoinHandle<Result<(), ServeError>>,
    /// Unless the test has it.
    state: Option<tempfile::TempDir>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// A sandbox as its maker knows it.
#[derive(Debug, Clone)]
struct Made {
    id: String,
    token: Option<String>,
    answer: Value,
}

impl Server {
    async fn start() -> Self {
        Self::with(ServerConfig::default()).await
    }

    async fn with(config: ServerConfig) -> Self {
        let state = tempfile::tempdir().unwrap();
        let mut server = Self::on(state.path(), config).await;
        server.state = Some(state);
        server
    }

    /// One whose boxes take so long to be made.
    async fn slow(delay: Duration) -> Self {
        let state = tempfile::tempdir().unwrap();
        let backend = FakeBackend::new(play).with_network().with_start_delay(delay);
        let mut server = Self::over(state.path(), ServerConfig::default(), backend).await;
        server.state = Some(state);
        server
    }

    async fn on(state: &std::path::Path, config: ServerConfig) -> Self {
        Self::over(state, config, FakeBackend::new(play).with_network().with_ports(in_box)).await
    }

    async fn over(state: &std::path::Path, config: ServerConfig, backend: FakeBackend) -> Self {
        let backend = Arc::new(backend);
        let runtime = Runtime::open(RuntimeConfig::new(state), vec![backend.clone()]).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let shutdown = CancellationToken::new();
        let config = ServerConfig { shutdown_grace: Duration::from_millis(10), ..config };
        let app = App::new(runtime, config, shutdown.clone());
        let serving = tokio::spawn(serve_app(vec![Listener::Tcp(listener)], app.clone()));
        Self { base, client: plain_client(), backend, app, shutdown, serving, state: None }
    }

    /// Ends the server, which must leave nothing behind.
    async fn stop(mut self) {
        self.shutdown.cancel();
        let served = tokio::time::timeout(PATIENCE, &mut self.serving).await;
        served.expect("the server ends").unwrap().unwrap();
        assert!(self.app.tasks.is_empty(), "tasks are left");
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.base)).timeout(PATIENCE)
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        answer(self.request(Method::GET, path)).await
    }

    async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        answer(self.request(Method::POST, path).json(&body)).await
    }

    async fn make(&self, body: Value) -> Made {
        let (status, answer) = self.post("/v2/sandboxes", body).await;
        assert_eq!(status, 201, "{answer}");
        let token = answer["envdAccessToken"].as_str().map(str::to_owned);
        Made { id: answer["sandboxID"].as_str().unwrap().to_owned(), token, answer }
    }

    async fn sandbox(&self) -> Made {
        self.make(json!({"templateID": "base", "timeout": LONG})).await
    }

    /// To the sandbox's `envd`, as an SDK that was given one address for all sandboxes.
    fn envd(&self, made: &Made, method: Method, path: &str) -> RequestBuilder {
        let request =
            self.request(method, path).header("E2b-Sandbox-Id", &made.id).header("E2b-Sandbox-Port", "49983");
        match &made.token {
            Some(token) => request.header("X-Access-Token", token),
            None => request,
        }
    }

    async fn call(&self, made: &Made, method: &str, body: Value) -> (u16, Value) {
        answer(self.envd(made, Method::POST, &format!("/{method}")).json(&body)).await
    }

    /// A call whose answer streams.
    async fn open(&self, made: &Made, method: &str, body: &Value, headers: &[(&str, &str)]) -> Stream {
        let request = self
            .envd(made, Method::POST, &format!("/{method}"))
            .header("content-type", "application/connect+json")
            .body(envelope(body));
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200, "{method}");
        assert_eq!(response.headers()["content-type"], "application/connect+json");
        Stream { response, buffer: Vec::new() }
    }

    async fn run(&self, made: &Made, script: &str) -> Stream {
        let process = json!({"cmd": "/bin/bash", "args": ["-l", "-c", script]});
        self.open(made, "process.Process/Start", &json!({"process": process, "stdin": false}), &[]).await
    }
}

/// One message of a stream.
fn envelope(body: &Value) -> Vec<u8> {
    let json = body.to_string();
    let mut bytes = vec![0];
    bytes.extend_from_slice(&u32::try_from(json.len()).unwrap().to_be_bytes());
    bytes.extend_from_slice(json.as_bytes());
    bytes
}

/// A stream of Connect, taken apart by hand.
struct Stream {
    response: Response,
    buffer: Vec<u8>,
}

impl Stream {
    /// The next message, with whether it is the last.
    async fn next(&mut self) -> (bool, Value) {
        loop {
            if self.buffer.len() >= 5 {
                let length = u32::from_be_bytes(self.buffer[1..5].try_into().unwrap()) as usize;
                if self.buffer.len() >= 5 + length {
                    let rest = self.buffer.split_off(5 + length);
                    let message = std::mem::replace(&mut self.buffer, rest);
                    return (message[0] & 2 != 0, serde_json::from_slice(&message[5..]).unwrap());
                }
            }
            let piece = tokio::time::timeout(PATIENCE, self.response.chunk()).await.expect("something comes");
            let piece: Bytes = piece.unwrap().expect("a stream ends with its last message");
            self.buffer.extend_from_slice(&piece);
        }
    }

    async fn event(&mut self) -> Value {
        let (last, mut message) = self.next().await;
        assert!(!last, "{message}");
        message["event"].take()
    }

    /// The number of the process, which is the first event.
    async fn pid(&mut self) -> u64 {
        self.event().await["start"]["pid"].as_u64().unwrap()
    }

    /// Everything to the end: what was written, the `end` event, the stream's own end.
    async fn rest(mut self) -> (String, Value, Value) {
        let (mut written, mut ended) = (Vec::new(), Value::Null);
        loop {
            let (last, message) = self.next().await;
            if last {
                return (String::from_utf8(written).unwrap(), ended, message);
            }
            let event = &message["event"];
            let data = ["stdout", "stderr", "pty"].iter().find_map(|kind| event["data"][kind].as_str());
            written.extend(data.map(decoded).unwrap_or_default());
            if !event["end"].is_null() {
                ended = event["end"].clone();
            }
        }
    }
}

fn decoded(text: &str) -> Vec<u8> {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.decode(text).unwrap()
}

fn encoded(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(text)
}

async fn answer(request: RequestBuilder) -> (u16, Value) {
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// The status and message of a refusal, in E2B's form.
fn refusal((status, body): (u16, Value)) -> (u16, String) {
    assert_eq!(body["code"], status, "{body}");
    (status, body["message"].as_str().unwrap().to_owned())
}

/// What commands of the fake do. It has no bash, so the SDKs' shell is `sh`.
fn play(_: &SessionId, request: &ExecRequest) -> FakeScript {
    let Command::Argv(argv) = &request.command else { return FakeScript::new() };
    let words: Vec<String> = argv.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let script = match words.as_slice() {
        ["/bin/sh", "-l", "-c", script] => script,
        ["/bin/sh", "-i", "-l"] => return FakeScript::new().stdout("$ ").echo_stdin(),
        other => panic!("the fake knows no {other:?}"),
    };
    let variable = |name: &str| {
        let found = request.env.iter().rev().find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone()).unwrap_or_default()
    };
    match *script {
        "hello" => FakeScript::new().stdout("hello\n"),
        "both" => FakeScript::new().stdout("out").stderr("err"),
        "fail" => FakeScript::new().exit(9),
        "signalled" => FakeScript::new().signalled(9),
        "cat" => FakeScript::new().echo_stdin(),
        "hang" => FakeScript::new().hang(),
        "say and hang" => FakeScript::new().stdout("before").hang(),
        "where" => FakeScript::new().stdout(request.cwd.clone().unwrap_or_default()),
        "vars" => FakeScript::new().stdout(format!(
            "{} {} {} {}",
            variable("HOME"),
            variable("E2B_SANDBOX"),
            variable("SHARED"),
            variable("OWN")
        )),
        other => panic!("the fake knows no `{other}`"),
    }
}

/// A server in the box, on port 80; behind every other port nobody listens.
fn in_box(port: u16, stream: tokio::net::UnixStream) {
    if port != 80 {
        return;
    }
    let tell = |request: Request| async move {
        let headers: std::collections::BTreeMap<_, _> = request
            .headers()
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
            .collect();
        ([("set-cookie", "own=1")], Json(json!({"uri": request.uri().to_string(), "headers": headers})))
    };
    let app = axum::Router::new()
        .route("/ws", get(|upgrade: WebSocketUpgrade| async { upgrade.on_upgrade(parrot) }))
        .fallback(any(tell));
    tokio::spawn(async move {
        let served = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(app));
        let _ = served.with_upgrades().await;
    });
}

async fn parrot(mut socket: axum::extract::ws::WebSocket) {
    while let Some(Ok(message)) = socket.recv().await {
        if socket.send(message).await.is_err() {
            return;
        }
    }
}

fn config(e2b: Value) -> ServerConfig {
    ServerConfig { e2b: serde_json::from_value::<E2bConfig>(e2b).unwrap(), ..ServerConfig::default() }
}
