//! A server of its own for each test, and small clients for it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use sandcrate_backend::fake::{FakeBackend, FakeScript};
use sandcrate_backend::{Command, ExecRequest};
use sandcrate_runtime::{Runtime, RuntimeConfig};
use sandcrate_server::{App, Listener, ServeError, ServerConfig, serve_app};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::{Request, StatusCode};
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};
use tokio_util::sync::CancellationToken;

pub(crate) const TOKEN: &str = "0123456789abcdef0123456789abcdef";
/// Nothing here takes so long, however busy the machine is.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A client by plain HTTP. One that could speak TLS is part of the same build, and wants a provider all the same.
pub(crate) fn plain_client() -> reqwest::Client {
    let provider = tokio_rustls::rustls::crypto::ring::default_provider();
    // Another test may have been first.
    let _ = provider.install_default();
    reqwest::Client::new()
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) socket: std::path::PathBuf,
    pub(crate) backend: Arc<FakeBackend>,
    pub(crate) app: App,
    shutdown: CancellationToken,
    serving: JoinHandle<Result<(), ServeError>>,
    state: tempfile::TempDir,
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::with(ServerConfig::default()).await
    }

    pub(crate) async fn with(config: ServerConfig) -> Self {
        Self::with_runtime(config, |_| {}).await
    }

    pub(crate) async fn with_runtime(config: ServerConfig, change: impl FnOnce(&mut RuntimeConfig)) -> Self {
        let state = tempfile::tempdir().unwrap();
        let backend = Arc::new(FakeBackend::new({
            let turns = AtomicUsize::new(0);
            move |_, request| play(turns.fetch_add(1, Ordering::Relaxed), request)
        }));
        let mut runtime_config = RuntimeConfig::new(state.path().join("state"));
        change(&mut runtime_config);
        let runtime = Runtime::open(runtime_config, vec![backend.clone()]).await.unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = tcp.local_addr().unwrap();
        let socket = state.path().join("socket");
        let unix = UnixListener::bind(&socket).unwrap();
        let shutdown = CancellationToken::new();
        // Processes that never end by themselves must not hold every test's end for the usual ten seconds.
        let config = ServerConfig { shutdown_grace: Duration::from_secs(1), ..config };
        let app = App::new(runtime, config, shutdown.clone());
        let serving = tokio::spawn(serve_app(vec![Listener::Tcp(tcp), Listener::Unix(unix)], app.clone()));
        Self { address, socket, backend, app, shutdown, serving, state }
    }

    /// Ends the server, which must leave nothing behind.
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        tokio::time::timeout(PATIENCE, self.serving).await.expect("the server ends").unwrap().unwrap();
        assert!(self.app.tasks.is_empty(), "tasks are left");
        drop(self.state);
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("ws://{}{path}", self.address)
    }

    pub(crate) async fn rpc(&self) -> Rpc {
        Rpc(connect(self.url("/rpc/ws")).await.unwrap())
    }

    /// One plain request with these headers; the status and the body.
    pub(crate) async fn http(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> (u16, String) {
        http(TcpStream::connect(self.address).await.unwrap(), method, path, headers).await
    }

    /// The status of an upgrade, 101 when it is granted.
    pub(crate) async fn upgrade(&self, path: &str, headers: &[(&str, &str)]) -> u16 {
        let mut all = vec![
            ("upgrade", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ];
        all.extend(headers);
        let stream = TcpStream::connect(self.address).await.unwrap();
        send_head(stream, "GET", path, "upgrade", &all).await.0
    }
}

/// What commands of the fake do, told by their first word and how many came before.
fn play(turn: usize, request: &ExecRequest) -> FakeScript {
    let words: Vec<String> = match &request.command {
        Command::Shell(script) => script.split_whitespace().map(str::to_owned).collect(),
        Command::Argv(argv) => argv.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
    };
    let number = || words.get(1).and_then(|word| word.parse::<usize>().ok()).unwrap_or(0);
    match words.first().map_or("", String::as_str) {
        "echo" => FakeScript::new().stdout(format!("{}\n", words[1..].join(" "))),
        "turn" => FakeScript::new().stdout(turn.to_string()),
        "exit" => FakeScript::new().exit(i32::try_from(number()).unwrap()),
        "fill" => FakeScript::new().stdout("x".repeat(number())),
        "wait" => FakeScript::new().wait(Duration::from_millis(number() as u64)).stdout("waited\n"),
        "cat" => FakeScript::new().echo_stdin(),
        "line" => FakeScript::new().stdout(format!("{}\n", "y".repeat(number()))).echo_stdin(),
        "bye" => FakeScript::new().stdout("last words").exit(7),
        "hang" => FakeScript::new().hang(),
        other => panic!("the fake knows no `{other}`"),
    }
}

type Client = WebSocketStream<MaybeTlsStream<TcpStream>>;

pub(crate) async fn connect(request: impl IntoClientRequest + Unpin) -> Result<Client, Error> {
    let config = WebSocketConfig::default().max_message_size(None).max_frame_size(None);
    tokio_tungstenite::connect_async_with_config(request, Some(config), true).await.map(|(client, _)| client)
}

/// An upgrade request with more headers.
pub(crate) fn request(url: String, headers: &[(&'static str, &str)]) -> Request<()> {
    let mut request = url.into_client_request().unwrap();
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }
    request
}

/// The status and body of an upgrade that was refused.
pub(crate) fn refused(error: Error) -> (StatusCode, Value) {
    match error {
        Error::Http(response) => {
            let body = response.body().as_deref().unwrap_or_default();
            (response.status(), serde_json::from_slice(body).unwrap_or(Value::Null))
        }
        other => panic!("not refused: {other}"),
    }
}

/// The next data or close message.
pub(crate) async fn next(client: &mut Client) -> Option<Message> {
    loop {
        let message = tokio::time::timeout(PATIENCE, client.next()).await.expect("something comes");
        match message {
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
            Some(Ok(message)) => return Some(message),
            Some(Err(_)) | None => return None,
        }
    }
}

pub(crate) async fn next_text(client: &mut Client) -> String {
    match next(client).await {
        Some(Message::Text(text)) => text.as_str().to_owned(),
        other => panic!("not a text message: {other:?}"),
    }
}

pub(crate) async fn close_frame(client: &mut Client) -> CloseFrame {
    match next(client).await {
        Some(Message::Close(Some(frame))) => frame,
        other => panic!("not a close: {other:?}"),
    }
}

/// A client of the action RPC, which joins the pieces of replies as LangBot's does.
pub(crate) struct Rpc(pub(crate) Client);

impl Rpc {
    pub(crate) async fn send(&mut self, text: impl Into<String>) {
        self.0.send(Message::text(text.into())).await.unwrap();
    }

    pub(crate) async fn request(&mut self, seq_id: i64, action: &str, data: Value) {
        self.send(json!({"seq_id": seq_id, "action": action, "data": data}).to_string()).await;
    }

    /// The next reply, in as many pieces as it comes.
    pub(crate) async fn reply(&mut self) -> Value {
        let mut text = String::new();
        loop {
            text.push_str(&next_text(&mut self.0).await);
            if let Ok(reply) = serde_json::from_str(&text) {
                return reply;
            }
        }
    }

    pub(crate) async fn call(&mut self, action: &str, data: Value) -> Value {
        self.request(1, action, data).await;
        self.reply().await
    }

    /// The data of a call that has to succeed.
    pub(crate) async fn ok(&mut self, action: &str, data: Value) -> Value {
        let mut reply = self.call(action, data).await;
        assert_eq!(reply["code"], 0, "{action}: {reply}");
        reply["data"].take()
    }

    /// The message of a call that has to fail.
    pub(crate) async fn err(&mut self, action: &str, data: Value) -> String {
        let reply = self.call(action, data).await;
        assert_eq!((&reply["code"], &reply["data"]), (&json!(1), &json!({})), "{action}: {reply}");
        reply["message"].as_str().unwrap().to_owned()
    }
}

pub(crate) async fn http(
    stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> (u16, String) {
    send_head(stream, method, path, "close", headers).await
}

async fn send_head(
    mut stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    method: &str,
    path: &str,
    connection: &str,
    headers: &[(&str, &str)],
) -> (u16, String) {
    let mut head = format!("{method} {path} HTTP/1.1\r\nconnection: {connection}\r\n");
    if !headers.iter().any(|(name, _)| *name == "host") {
        head.push_str("host: localhost\r\n");
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let length = tokio::time::timeout(PATIENCE, stream.read(&mut buffer)).await.unwrap().unwrap_or(0);
        answer.extend_from_slice(&buffer[..length]);
        // Only `close` ends a connection; of an upgrade the head is enough.
        let head_is_enough = connection == "upgrade" && answer.windows(4).any(|end| end == b"\r\n\r\n");
        if length == 0 || head_is_enough {
            break;
        }
    }
    let answer = String::from_utf8(answer).unwrap();
    let status = answer.get(9..12).and_then(|status| status.parse().ok()).unwrap_or(0);
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status, body.to_owned())
}

/// Waits until `done` holds.
pub(crate) async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !done() {
        assert!(tokio::time::Instant::now() < deadline, "{what}: waited in vain");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
