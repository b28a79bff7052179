//! Our server, and raw peers that say to it exactly what a vector says.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use rustix::process::{Pid, Signal, kill_process};
use tokio::runtime::Runtime;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use crate::driver::{StateDir, until};

/// How long an answer may take on a loaded machine; one that does not come by then does not come.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

const NOWHERE: &str = "unix:///nowhere";

fn binary(args: &[&str], state: &Path, env: &[(&str, &str)]) -> Command {
    let built = || env!("CARGO_BIN_EXE_sandcrate").into();
    let mut command = Command::new(std::env::var_os("SANDCRATE_BIN").unwrap_or_else(built));
    // What was recorded knew of no nsjail, no engine and no endpoint, whatever this machine has.
    command.env("PATH", state).env("DOCKER_HOST", NOWHERE).env("CONTAINER_HOST", NOWHERE);
    for endpoint in ["E2B_API_KEY", "E2B_API_URL", "E2B_DOMAIN", "E2B_SANDBOX_URL"] {
        command.env_remove(endpoint);
    }
    command.args(args).env("SANDCRATE_STATE_DIR", state).envs(env.iter().copied()).current_dir(state);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// `sandcrate serve` on a port of its own. Killed when dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
    _state: StateDir,
}

impl Server {
    pub(crate) fn start(env: &[(&str, &str)]) -> Self {
        let port = free_port();
        let mut server = Self::start_on(port, env);
        until("the server to listen", || {
            assert!(server.ended().is_none(), "the server ended before it listened");
            TcpStream::connect(("127.0.0.1", port)).ok()
        });
        server
    }

    /// Without waiting for it to listen.
    pub(super) fn start_on(port: u16, env: &[(&str, &str)]) -> Self {
        let state = StateDir::new();
        let listen = format!("127.0.0.1:{port}");
        let dir = state.path().to_str().unwrap().to_owned();
        let child =
            binary(&["serve", "--listen", &listen, "--state-dir", &dir], state.path(), env).spawn().unwrap();
        Self { child, port, _state: state }
    }

    pub(super) fn ended(&mut self) -> Option<i32> {
        self.child.try_wait().unwrap().map(code)
    }

    /// The exit code after a signal, or minus the signal that ended it.
    pub(super) fn signal(mut self, signal: Signal) -> i32 {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        until("the server to end", || self.ended())
    }

    /// Status, content type and body of a plain request.
    pub(super) fn http(&self, method: &str, path: &str) -> (u16, String, String) {
        http(self.port, method, path)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn code(status: std::process::ExitStatus) -> i32 {
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    status.code().unwrap_or_else(|| -signal.unwrap_or_default())
}

pub(super) fn http(port: u16, method: &str, path: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let header = |name: &str| {
        let mut lines = head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map_or("", |(_, value)| value).to_owned()
    };
    let kind = if method == "GET" { header("content-type") } else { header("allow") };
    (status, kind, body.to_owned())
}

/// What came in on a connection.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Came {
    Text(String),
    Binary(usize),
    Close(u16, String),
    /// The connection ended without a word.
    Lost,
    Nothing,
}

/// A websocket client with nothing of its own.
pub(super) struct Socket {
    runtime: Runtime,
    stream: WebSocketStream<MaybeTlsStream<tokio::net::TcpStream>>,
    pub(super) protocol: Option<String>,
}

impl Socket {
    pub(super) fn rpc(port: u16) -> Self {
        Self::open(port, "/rpc/ws", None).unwrap_or_else(|(status, body)| panic!("refused: {status} {body}"))
    }

    /// As a host of the newer dialects.
    pub(super) fn rpc_of(port: u16, instance: &str) -> Self {
        Self::open_with(port, "/rpc/ws", &[("X-LangBot-Instance-Id", instance)])
            .unwrap_or_else(|(status, body)| panic!("refused: {status} {body}"))
    }

    /// The status and body of a refusal.
    pub(super) fn open(port: u16, path: &str, protocol: Option<&str>) -> Result<Self, (u16, String)> {
        let headers: Vec<_> = protocol.map(|value| ("Sec-WebSocket-Protocol", value)).into_iter().collect();
        Self::open_with(port, path, &headers)
    }

    fn open_with(port: u16, path: &str, headers: &[(&'static str, &str)]) -> Result<Self, (u16, String)> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut request = format!("ws://127.0.0.1:{port}{path}").into_client_request().unwrap();
        for (name, value) in headers {
            request.headers_mut().insert(*name, HeaderValue::from_str(value).unwrap());
        }
        let opened = runtime.block_on(async { tokio::time::timeout(PATIENCE, connect_async(request)).await });
        match opened.expect("an answer to the upgrade") {
            Ok((stream, response)) => {
                let chosen = response.headers().get("Sec-WebSocket-Protocol");
                let protocol = chosen.map(|value| value.to_str().unwrap().to_owned());
                Ok(Self { runtime, stream, protocol })
            }
            Err(Error::Http(response)) => {
                let body = response.body().as_deref().unwrap_or_default();
                Err((response.status().as_u16(), String::from_utf8_lossy(body).into_owned()))
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Whether it could be sent.
    pub(super) fn send(&mut self, text: &str) -> bool {
        let sent = self.stream.send(Message::text(text));
        self.runtime
            .block_on(async { tokio::time::timeout(PATIENCE, sent).await })
            .is_ok_and(|sent| sent.is_ok())
    }

    pub(super) fn send_binary(&mut self, bytes: &[u8]) -> bool {
        let sent = self.stream.send(Message::binary(bytes.to_vec()));
        self.runtime
            .block_on(async { tokio::time::timeout(PATIENCE, sent).await })
            .is_ok_and(|sent| sent.is_ok())
    }

    pub(super) fn next_within(&mut self, limit: Duration) -> Came {
        let stream = &mut self.stream;
        self.runtime.block_on(async {
            let came = async {
                loop {
                    return match stream.next().await {
                        Some(Ok(Message::Text(text))) => Came::Text(text.to_string()),
                        Some(Ok(Message::Binary(data))) => Came::Binary(data.len()),
                        Some(Ok(Message::Close(frame))) => frame
                            .map_or(Came::Close(1005, String::new()), |frame| {
                                Came::Close(frame.code.into(), frame.reason.to_string())
                            }),
                        Some(Ok(_)) => continue,
                        Some(Err(_)) | None => Came::Lost,
                    };
                }
            };
            tokio::time::timeout(limit, came).await.unwrap_or(Came::Nothing)
        })
    }

    pub(super) fn next(&mut self) -> Came {
        self.next_within(PATIENCE)
    }

    /// The next reply, put together from its pieces as LangBot's client does: until it is a document.
    #[track_caller]
    pub(super) fn reply(&mut self) -> String {
        self.reply_to("what was sent before")
    }

    #[track_caller]
    fn reply_to(&mut self, request: &str) -> String {
        let mut whole = String::new();
        loop {
            match self.next() {
                Came::Text(text) => whole.push_str(&text),
                other => panic!(
                    "{other:?} instead of a reply to {}, after {}",
                    super::shorten(request),
                    super::shorten(&whole)
                ),
            }
            if super::json::Json::try_parse(&whole).is_some() {
                return whole;
            }
        }
    }

    #[track_caller]
    pub(super) fn call(&mut self, request: &str) -> String {
        assert!(self.send(request), "the connection is gone");
        self.reply_to(request)
    }

    pub(super) fn close(mut self) {
        let closed = self.stream.close(None);
        let _ = self.runtime.block_on(async { tokio::time::timeout(PATIENCE, closed).await });
    }
}

/// `sandcrate box -s` as a child. Killed when dropped.
pub(super) struct StdioPeer {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    pub(super) port: u16,
    _state: StateDir,
}

impl StdioPeer {
    pub(super) fn start() -> Self {
        let state = StateDir::new();
        let port = free_port();
        let text = port.to_string();
        let args = ["box", "-s", "--host", "127.0.0.1", "--ws-control-port", &text];
        let mut command = binary(&args, state.path(), &[]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let mut line = Vec::new();
            while stdout.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                let text = String::from_utf8_lossy(&std::mem::take(&mut line)).into_owned();
                if sender.send(text).is_err() {
                    return;
                }
            }
        });
        let stdin = child.stdin.take();
        Self { child, stdin, lines, port, _state: state }
    }

    pub(super) fn send(&mut self, bytes: &[u8]) {
        let stdin = self.stdin.as_mut().expect("its input is open");
        // Whoever ended does not read: what comes back, or does not, tells.
        let _ = stdin.write_all(bytes).and_then(|()| stdin.flush());
    }

    pub(super) fn line_within(&self, limit: Duration) -> Option<String> {
        self.lines.recv_timeout(limit).ok()
    }

    pub(super) fn line(&self) -> Option<String> {
        self.line_within(PATIENCE)
    }

    /// The exit code after the end of input.
    pub(super) fn end(mut self) -> i32 {
        drop(self.stdin.take());
        self.wait()
    }

    pub(super) fn signal(mut self, signal: Signal) -> i32 {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        self.wait()
    }

    fn wait(&mut self) -> i32 {
        code(until("`box -s` to end", || self.child.try_wait().unwrap()))
    }
}

impl Drop for StdioPeer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
