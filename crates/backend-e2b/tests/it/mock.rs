//! A mock of an E2B endpoint: it records what it is asked for, and its programs do what a test says. It runs nothing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use sandcrate_e2b_wire::connect::{self, CallError, Code, Decoder, Envelope};
use sandcrate_e2b_wire::process::{
    Ended, EventResponse, Output, ProcessEvent, StartRequest, Started, status_of_code, status_of_signal,
};
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};

/// What a program of the mock does.
#[derive(Debug, Clone)]
pub(crate) enum Play {
    /// Writes, and ends with a code.
    Ends { stdout: Vec<u8>, stderr: Vec<u8>, code: i32 },
    /// Runs until it is killed.
    Hangs,
    /// Writes, its stream is cut, and whoever comes back hears the rest.
    IsCut { before: &'static str, after: &'static str },
    /// Does not start.
    Fails(Code, &'static str),
}

impl Play {
    pub(crate) fn says(stdout: impl Into<Vec<u8>>) -> Self {
        Self::Ends { stdout: stdout.into(), stderr: Vec::new(), code: 0 }
    }
}

type Script = dyn Fn(&StartRequest) -> Option<Play> + Send + Sync;

/// What all requests share.
pub(crate) struct Endpoint {
    /// Method, path and body of every request, in order.
    calls: Mutex<Vec<(String, String, Value)>>,
    keys: Mutex<Vec<String>>,
    script: Mutex<Arc<Script>>,
    pub(crate) files: Mutex<BTreeMap<String, Bytes>>,
    pub(crate) listed: Mutex<Vec<Value>>,
    alive: AtomicBool,
    /// Only the addresses of before.
    pub(crate) old: AtomicBool,
    next_pid: AtomicU32,
    running: Mutex<BTreeMap<u32, (Arc<Notify>, Play)>>,
}

#[derive(Clone)]
pub(crate) struct Mock {
    pub(crate) url: String,
    pub(crate) endpoint: Arc<Endpoint>,
}

impl Mock {
    /// Serves for as long as the test's runtime does.
    pub(crate) async fn start() -> Self {
        let endpoint = Arc::new(Endpoint {
            calls: Mutex::default(),
            keys: Mutex::default(),
            script: Mutex::new(Arc::new(|_: &StartRequest| None)),
            files: Mutex::default(),
            listed: Mutex::default(),
            alive: AtomicBool::new(true),
            old: AtomicBool::new(false),
            next_pid: AtomicU32::new(100),
            running: Mutex::default(),
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new()
            .route("/v2/sandboxes", post(create).get(list))
            .route("/sandboxes", post(create))
            .route("/sandboxes/{id}", delete(kill).get(detail))
            .route("/sandboxes/{id}/timeout", post(keep))
            .route("/sandboxes/{id}/network", put(keep))
            .route("/health", get(health))
            .route("/files", get(read).post(write))
            .route("/process.Process/{method}", post(process))
            .route("/filesystem.Filesystem/{method}", post(filesystem))
            .with_state(Arc::clone(&endpoint));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url, endpoint }
    }

    /// What programs do that are not the backend's own small scripts.
    pub(crate) fn play(&self, script: impl Fn(&StartRequest) -> Option<Play> + Send + Sync + 'static) {
        *self.endpoint.script.lock().unwrap() = Arc::new(script);
    }

    pub(crate) fn calls(&self, method: &str, path: &str) -> Vec<Value> {
        let calls = self.endpoint.calls.lock().unwrap();
        let of = calls.iter().filter(|(by, to, _)| by == method && to == path);
        of.map(|(_, _, body)| body.clone()).collect()
    }

    /// Programs that were started, but for the backend's own scripts.
    pub(crate) fn commands(&self) -> Vec<Value> {
        let all = self.calls("POST", "/process.Process/Start");
        all.into_iter().filter(|start| !is_own(&serde_json::from_value(start.clone()).unwrap())).collect()
    }

    pub(crate) fn last_key(&self) -> Option<String> {
        self.endpoint.keys.lock().unwrap().last().cloned()
    }

    pub(crate) fn die(&self) {
        self.endpoint.alive.store(false, Ordering::Release);
    }
}

impl Endpoint {
    fn note(&self, method: &str, path: &str, body: &[u8]) -> Value {
        let body = serde_json::from_slice(body).unwrap_or(Value::Null);
        self.calls.lock().unwrap().push((method.to_owned(), path.to_owned(), body.clone()));
        body
    }
}

type Shared = State<Arc<Endpoint>>;

fn sandbox() -> Value {
    json!({
        "templateID": "tpl", "sandboxID": "sbx-1", "clientID": "mock", "envdVersion": "0.6.6",
        "envdAccessToken": "its-token",
    })
}

async fn create(State(endpoint): Shared, uri: axum::http::Uri, headers: HeaderMap, body: Bytes) -> Response {
    let key = headers.get("x-api-key").and_then(|key| key.to_str().ok()).unwrap_or_default().to_owned();
    if key == "refused" {
        return (StatusCode::UNAUTHORIZED, axum::Json(json!({"code": 401, "message": "no such key"})))
            .into_response();
    }
    if uri.path() == "/v2/sandboxes" && endpoint.old.load(Ordering::Acquire) {
        return StatusCode::NOT_FOUND.into_response();
    }
    endpoint.keys.lock().unwrap().push(key);
    endpoint.alive.store(true, Ordering::Release);
    endpoint.note("POST", uri.path(), &body);
    (StatusCode::CREATED, axum::Json(sandbox())).into_response()
}

async fn list(State(endpoint): Shared, headers: HeaderMap) -> Response {
    if headers.get("x-api-key").is_some_and(|key| key == "refused") {
        return (StatusCode::UNAUTHORIZED, axum::Json(json!({"code": 401, "message": "no such key"})))
            .into_response();
    }
    let listed = endpoint.listed.lock().unwrap().clone();
    endpoint.note("GET", "/v2/sandboxes", b"");
    axum::Json(listed).into_response()
}

async fn detail(State(endpoint): Shared) -> Response {
    if !endpoint.alive.load(Ordering::Acquire) {
        return (StatusCode::NOT_FOUND, axum::Json(json!({"code": 404, "message": "gone"}))).into_response();
    }
    axum::Json(json!({
        "templateID": "tpl", "sandboxID": "sbx-1", "clientID": "mock", "envdVersion": "0.6.6", "state": "running",
        "startedAt": "2026-01-01T00:00:00Z", "endAt": "2026-01-01T00:05:00Z", "cpuCount": 2, "memoryMB": 512,
        "diskSizeMB": 1024, "allowInternetAccess": false,
    }))
    .into_response()
}

async fn keep(
    State(endpoint): Shared,
    method: axum::http::Method,
    uri: axum::http::Uri,
    body: Bytes,
) -> StatusCode {
    endpoint.note(method.as_str(), uri.path(), &body);
    StatusCode::NO_CONTENT
}

async fn kill(State(endpoint): Shared, Path(id): Path<String>) -> StatusCode {
    endpoint.note("DELETE", &format!("/sandboxes/{id}"), b"");
    endpoint.listed.lock().unwrap().retain(|listed| listed["sandboxID"] != id.as_str());
    StatusCode::NO_CONTENT
}

async fn health(State(endpoint): Shared) -> StatusCode {
    match endpoint.alive.load(Ordering::Acquire) {
        true => StatusCode::NO_CONTENT,
        false => StatusCode::BAD_GATEWAY,
    }
}

async fn read(State(endpoint): Shared, Query(query): Query<BTreeMap<String, String>>) -> Response {
    endpoint.note("GET", &format!("/files {}", query["path"]), b"");
    let found = endpoint.files.lock().unwrap().get(&query["path"]).cloned();
    found.map_or(StatusCode::NOT_FOUND.into_response(), IntoResponse::into_response)
}

async fn write(
    State(endpoint): Shared,
    Query(query): Query<BTreeMap<String, String>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    assert_eq!(headers["x-access-token"], "its-token");
    endpoint.note("POST", &format!("/files {}", query["path"]), b"");
    endpoint.files.lock().unwrap().insert(query["path"].clone(), body);
    axum::Json(json!([])).into_response()
}

async fn filesystem(State(endpoint): Shared, Path(method): Path<String>, body: Bytes) -> Response {
    endpoint.note("POST", &format!("/filesystem.Filesystem/{method}"), &body);
    axum::Json(json!({})).into_response()
}

/// Whether a program is one of the backend's own scripts.
fn is_own(start: &StartRequest) -> bool {
    let own = ["id -un", "-printf", "xargs -0", "chmod -R", "kill -9", "mkdir -p -- \"$@\"", "kill -s"];
    start.process.args.get(1).is_some_and(|script| own.iter().any(|word| script.contains(word)))
}

/// What the backend's own scripts would say in a sandbox in which everything can be made.
fn own_play(endpoint: &Endpoint, start: &StartRequest) -> Play {
    let arguments = &start.process.args;
    if arguments[1].contains("id -un") {
        let made = arguments[4..].iter().map(|_| "yes\n").collect::<String>();
        return Play::says(format!("/home/user\nuser\n{made}"));
    }
    if arguments[1].contains("-printf") {
        let below = format!("{}/", arguments[3]);
        let files = endpoint.files.lock().unwrap();
        let shared = files.iter().filter_map(|(path, data)| Some((path.strip_prefix(&below)?, data)));
        // Times stand for versions: a file of another size is another.
        let lines = shared.map(|(path, data)| format!("f\0{}\x001.0\x001.0\x00644\0\0{path}\0", data.len()));
        return Play::says(lines.collect::<String>());
    }
    Play::says("")
}

async fn process(State(endpoint): Shared, Path(method): Path<String>, body: Bytes) -> Response {
    let path = format!("/process.Process/{method}");
    if !matches!(method.as_str(), "Start" | "Connect") {
        let message = endpoint.note("POST", &path, &body);
        if method == "SendSignal"
            && let Some(pid) = message["process"]["pid"].as_u64()
            && let Some((stopped, _)) = endpoint.running.lock().unwrap().get(&u32::try_from(pid).unwrap())
        {
            stopped.notify_one();
        }
        return axum::Json(json!({})).into_response();
    }
    let mut decoder = Decoder::new(64 << 20);
    decoder.push(&body);
    let Ok(Some(Envelope::Message(json))) = decoder.next_envelope() else { panic!("no message in {body:?}") };
    let message = endpoint.note("POST", &path, &json);
    let (sender, receiver) = mpsc::channel::<Bytes>(16);
    if method == "Connect" {
        let pid = u32::try_from(message["process"]["pid"].as_u64().unwrap()).unwrap();
        let running = endpoint.running.lock().unwrap().remove(&pid);
        let Some((_, Play::IsCut { after, .. })) = running else {
            let refused = json!({"code": "not_found", "message": "no such process"});
            return (StatusCode::NOT_FOUND, axum::Json(refused)).into_response();
        };
        tokio::spawn(perform(sender, pid, Play::says(after), Arc::default()));
        return stream(receiver);
    }
    let start: StartRequest = serde_json::from_value(message).unwrap();
    let play = if is_own(&start) {
        own_play(&endpoint, &start)
    } else {
        let script = Arc::clone(&endpoint.script.lock().unwrap());
        script(&start).unwrap_or_else(|| Play::says(""))
    };
    let pid = endpoint.next_pid.fetch_add(1, Ordering::Relaxed);
    let stopped = Arc::new(Notify::new());
    endpoint.running.lock().unwrap().insert(pid, (Arc::clone(&stopped), play.clone()));
    tokio::spawn(perform(sender, pid, play, stopped));
    stream(receiver)
}

fn stream(receiver: mpsc::Receiver<Bytes>) -> Response {
    let pieces = futures_util::stream::unfold(receiver, |mut receiver| async {
        Some((Ok::<_, std::io::Error>(receiver.recv().await?), receiver))
    });
    ([("content-type", connect::STREAM)], Body::from_stream(pieces)).into_response()
}

async fn perform(sender: mpsc::Sender<Bytes>, pid: u32, play: Play, stopped: Arc<Notify>) {
    let event = |event| connect::message(&EventResponse { event }).unwrap();
    let say = async |bytes: Bytes| drop(sender.send(bytes).await);
    let end = |code: i32| {
        event(ProcessEvent::End(Ended {
            exit_code: code,
            exited: true,
            status: status_of_code(code),
            ..Ended::default()
        }))
    };
    if let Play::Fails(code, message) = play {
        return say(connect::end(Some(CallError::new(code, message)))).await;
    }
    say(event(ProcessEvent::Start(Started { pid }))).await;
    match play {
        Play::Ends { stdout, stderr, code } => {
            for piece in stdout.chunks(32 << 10) {
                say(event(ProcessEvent::Data(Output::Stdout(piece.to_vec().into())))).await;
            }
            if !stderr.is_empty() {
                say(event(ProcessEvent::Data(Output::Stderr(stderr.into())))).await;
            }
            say(end(code)).await;
        }
        Play::Hangs => {
            let _ = tokio::time::timeout(Duration::from_secs(60), stopped.notified()).await;
            let killed = Ended { exit_code: -1, status: status_of_signal(9), ..Ended::default() };
            say(event(ProcessEvent::End(killed))).await;
        }
        Play::IsCut { before, .. } => {
            say(event(ProcessEvent::Data(Output::Stdout(before.as_bytes().to_vec().into())))).await;
            // Without the last message of a stream.
            return;
        }
        Play::Fails(..) => unreachable!("it did not start"),
    }
    say(connect::end(None)).await;
}
