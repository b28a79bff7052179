//! Carries the messages of a line: over a WebSocket, or over a child's standard input and output.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Sink, SinkExt as _, Stream, StreamExt as _};
use rustix::process::{Pid, Signal, kill_process};
use sandcrate_protocol::framing::stdio::{Decoder, Event, encode};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::handshake::client::Request;
use tokio_tungstenite::tungstenite::http::{HeaderValue, header};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_util::sync::CancellationToken;

use super::line::{Line, Replies};
use super::{ChildCommand, Endpoint};

/// The usual size of a pipe.
const READ_BYTES: usize = 64 << 10;
/// How long the end of a WebSocket may take.
const GOODBYE: Duration = Duration::from_secs(1);
/// How long a child may take to end by itself.
const CHILD_END: Duration = Duration::from_secs(5);
/// How long the exit of a child may come after the end of its pipes.
const EXIT_AFTER_PIPES: Duration = Duration::from_secs(1);

/// What carries one line. Dropped, it ends by itself, with the child if there is one.
#[derive(Debug)]
pub(super) struct Wire {
    end: CancellationToken,
    task: Option<JoinHandle<()>>,
}

impl Wire {
    /// Waits until everything is gone.
    pub(super) async fn close(mut self) {
        self.end.cancel();
        if let Some(task) = self.task.take() {
            let _ = task.await;
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

pub(super) async fn open_websocket(
    endpoint: &Endpoint,
    line: Arc<Line>,
    requests: mpsc::Receiver<String>,
) -> Result<Wire, String> {
    let request = request(&endpoint.rpc_url(), endpoint)?;
    let bounds = WebSocketConfig::default();
    let connected = tokio_tungstenite::connect_async_with_config(request, Some(bounds), true).await;
    let (socket, _) = connected.map_err(|error| error.to_string())?;
    let end = CancellationToken::new();
    let ended = end.clone();
    let task = tokio::spawn(async move {
        let (mut sink, stream) = socket.split();
        let reason = tokio::select! {
            reason = read_websocket(stream, &line) => reason,
            reason = write_websocket(&mut sink, requests, &line) => reason,
            () = ended.cancelled() => String::new(),
        };
        line.close(reason);
        // Whoever is still there hears that this was meant.
        let _ = tokio::time::timeout(GOODBYE, sink.close()).await;
    });
    Ok(Wire { end, task: Some(task) })
}

/// A request for an upgrade, with whatever the endpoint shows for its credentials.
pub(super) fn request(url: &str, endpoint: &Endpoint) -> Result<Request, String> {
    let mut request = url.into_client_request().map_err(|error| error.to_string())?;
    if let Some(authorization) = endpoint.authorization() {
        let mut value = HeaderValue::try_from(authorization).map_err(|error| error.to_string())?;
        value.set_sensitive(true);
        request.headers_mut().insert(header::AUTHORIZATION, value);
    }
    Ok(request)
}

async fn read_websocket(
    mut stream: impl Stream<Item = Result<Message, Error>> + Unpin,
    line: &Line,
) -> String {
    let mut replies = Replies::default();
    loop {
        match stream.next().await {
            Some(Ok(Message::Text(text))) => replies.take(text.as_str(), line),
            Some(Ok(Message::Close(_))) | None => return "the runtime closed the connection".to_owned(),
            Some(Ok(_)) => {}
            Some(Err(error)) => return format!("the connection broke: {error}"),
        }
    }
}

async fn write_websocket(
    mut sink: impl Sink<Message, Error = Error> + Unpin,
    mut requests: mpsc::Receiver<String>,
    line: &Line,
) -> String {
    while let Some(request) = line.next_request(&mut requests).await {
        if let Err(error) = sink.send(Message::text(request)).await {
            return format!("the connection broke: {error}");
        }
    }
    // Nobody is left who could ask; answers may still come.
    std::future::pending().await
}

/// Starts the program. What it says on standard error goes where ours goes.
pub(super) fn start_child(
    command: &ChildCommand,
    forwarded: &Value,
    line: Arc<Line>,
    requests: mpsc::Receiver<String>,
) -> Result<Wire, String> {
    let mut start = Command::new(&command.program);
    start.args(&command.args).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    if forwarded.as_object().is_some_and(|section| !section.is_empty()) {
        start.env("LANGBOT_BOX_CONFIG", forwarded.to_string());
    }
    let program = command.program.display().to_string();
    let mut child = start.spawn().map_err(|error| format!("`{program}` cannot be started: {error}"))?;
    let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(format!("`{program}` has no pipes"));
    };
    let end = CancellationToken::new();
    let ended = end.clone();
    let task = tokio::spawn(async move {
        let reason = tokio::select! {
            // Its children may hold the pipes: the exit is watched by itself.
            status = child.wait() => exited(&program, status),
            () = read_child(stdout, &line) => {
                exited_or(&mut child, &program, || format!("`{program}` closed its output")).await
            }
            error = write_child(stdin, requests, &line) => {
                let otherwise = || format!("`{program}` cannot be written to: {error}");
                exited_or(&mut child, &program, otherwise).await
            }
            () = ended.cancelled() => String::new(),
        };
        line.close(reason);
        finish(child).await;
    });
    Ok(Wire { end, task: Some(task) })
}

/// A pipe that has ended is most often a child that is about to.
async fn exited_or(child: &mut Child, program: &str, otherwise: impl FnOnce() -> String) -> String {
    match tokio::time::timeout(EXIT_AFTER_PIPES, child.wait()).await {
        Ok(status) => exited(program, status),
        Err(_) => otherwise(),
    }
}

fn exited(program: &str, status: std::io::Result<std::process::ExitStatus>) -> String {
    match status {
        Ok(status) => format!("`{program}` ended ({status})"),
        Err(error) => format!("`{program}` cannot be waited for: {error}"),
    }
}

async fn read_child(mut stdout: impl AsyncRead + Unpin, line: &Line) {
    let mut decoder = Decoder::new();
    let mut replies = Replies::default();
    let mut buffer = vec![0; READ_BYTES];
    while let Ok(length @ 1..) = stdout.read(&mut buffer).await {
        let mut bytes = &buffer[..length];
        while let Some(event) = decoder.next_event(&mut bytes) {
            match event {
                Event::Message(message) => replies.take(&message, line),
                Event::Broken(error) => tracing::warn!(%error, "a message of the Box runtime is lost"),
            }
        }
    }
}

async fn write_child(
    mut stdin: impl AsyncWrite + Unpin,
    mut requests: mpsc::Receiver<String>,
    line: &Line,
) -> std::io::Error {
    let mut bytes = Vec::new();
    while let Some(request) = line.next_request(&mut requests).await {
        bytes.clear();
        encode(&request, &mut bytes);
        let written = async {
            stdin.write_all(&bytes).await?;
            stdin.flush().await
        };
        if let Err(error) = written.await {
            return error;
        }
        bytes.shrink_to(READ_BYTES);
    }
    std::future::pending().await
}

/// Its input is closed by now, which is the word to end; the signal is for programs that do not read it.
async fn finish(mut child: Child) {
    if matches!(child.try_wait(), Ok(Some(_))) {
        return;
    }
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    if let Some(pid) = pid {
        let _ = kill_process(pid, Signal::TERM);
    }
    if tokio::time::timeout(CHILD_END, child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
}
