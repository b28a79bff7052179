//! `sandcrate mcp serve --url`: a client on stdin and stdout, and the server's `/mcp/box` behind it.
//!
//! Messages pass as they are, a line here and a request there. Requests are answered in the order in which the
//! server has answers; what opens the conversation, and notifications, keep theirs.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use bytes::{Bytes, BytesMut};
use hyper::Response;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::address::Target;
use super::http::Client;
use super::problem::{self, ClientError};
use crate::args::OutputFormat;
use crate::run::signals::Signals;

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");
/// As much as the server takes in one message.
const LONGEST_LINE: usize = 8 << 20;
/// Answers that wait for a client that does not read; beyond it nothing more is read from the server.
const WAITING: usize = 64;
/// Requests of the client under way.
const IN_FLIGHT: usize = 64;
/// For the goodbye to the server, which ends the box.
const GOODBYE: Duration = Duration::from_secs(5);

pub(crate) fn main(url: String, token_file: Option<PathBuf>, session: Option<&str>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime.context("starting the runtime") {
        Ok(runtime) => runtime,
        Err(error) => return problem::report(&error, OutputFormat::Raw),
    };
    let done = runtime.block_on(run(Target::at(url, token_file), session));
    // A read of stdin may never return; it ends with the process.
    runtime.shutdown_background();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => problem::report(&error, OutputFormat::Raw),
    }
}

async fn run(target: Target, session: Option<&str>) -> anyhow::Result<()> {
    let mut signals = Signals::install().context("installing signal handlers")?;
    let client = Client::new(&target)?;
    // A server that is not there is said at once, not by the first message.
    client.get::<Value>("/v1/tools").await?;
    let path = match session {
        Some(name) => format!("/mcp/box?session={}", escaped(name)),
        None => "/mcp/box".to_owned(),
    };
    let (answers, waiting) = mpsc::channel(WAITING);
    let bridge =
        Arc::new(Bridge { client, path, session: Mutex::default(), version: Mutex::default(), answers });
    let mut writing = tokio::spawn(write(waiting));
    tokio::select! {
        read = read(&bridge) => read?,
        // The reader of our stdout is gone.
        _ = &mut writing => {}
        _ = signals.ending() => {}
    }
    if tokio::time::timeout(GOODBYE, bridge.goodbye()).await.is_err() {
        tracing::warn!("the server did not take the goodbye; it ends the box when it is idle");
    }
    writing.abort();
    Ok(())
}

struct Bridge {
    client: Client,
    path: String,
    session: Mutex<Option<String>>,
    version: Mutex<Option<String>>,
    answers: mpsc::Sender<String>,
}

fn locked(mutex: &Mutex<Option<String>>) -> std::sync::MutexGuard<'_, Option<String>> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads lines until there are no more. Dropping it ends the requests under way.
async fn read(bridge: &Arc<Bridge>) -> anyhow::Result<()> {
    let mut input = BufReader::new(tokio::io::stdin());
    let mut under_way = JoinSet::new();
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut limited = tokio::io::AsyncReadExt::take(&mut input, LONGEST_LINE as u64 + 1);
        if limited.read_until(b'\n', &mut line).await.context("reading stdin")? == 0 {
            return Ok(());
        }
        if line.len() > LONGEST_LINE {
            anyhow::bail!("a message of the client has more than {LONGEST_LINE} bytes");
        }
        let text = line.trim_ascii();
        if text.is_empty() {
            continue;
        }
        let message: Value = match serde_json::from_slice(text) {
            Ok(message) => message,
            Err(error) => {
                bridge.say(&failure(&Value::Null, -32700, &format!("not JSON: {error}"))).await;
                continue;
            }
        };
        let is_request = message.get("id").is_some() && message.get("method").is_some();
        if is_request && message["method"] != "initialize" {
            while under_way.len() >= IN_FLIGHT {
                under_way.join_next().await;
            }
            while under_way.try_join_next().is_some() {}
            let bridge = Arc::clone(bridge);
            under_way.spawn(async move { bridge.pass(&message).await });
        } else {
            bridge.pass(&message).await;
        }
    }
}

async fn write(mut waiting: mpsc::Receiver<String>) {
    let mut output = tokio::io::stdout();
    while let Some(mut line) = waiting.recv().await {
        line.push('\n');
        if output.write_all(line.as_bytes()).await.is_err() || output.flush().await.is_err() {
            return;
        }
    }
}

impl Bridge {
    async fn say(&self, message: &Value) {
        // Nobody reads us any more: `run` ends by that.
        let _ = self.answers.send(message.to_string()).await;
    }

    /// One message to the server, and what it answers to the client.
    async fn pass(&self, message: &Value) {
        let Err(error) = self.exchange(message).await else { return };
        let id = message.get("id");
        match id {
            Some(id) if message.get("method").is_some() => {
                self.say(&failure(id, -32000, &format!("{:#}", anyhow::Error::new(error)))).await;
            }
            _ => tracing::warn!(error = &error as &dyn std::error::Error, "a message was not passed on"),
        }
    }

    async fn exchange(&self, message: &Value) -> Result<(), ClientError> {
        let named = version_of(message);
        let (session, version) =
            (locked(&self.session).clone(), named.or_else(|| locked(&self.version).clone()));
        let method = message["method"].as_str().filter(|text| HeaderValue::from_str(text).is_ok());
        let name = message.pointer("/params/name").or_else(|| message.pointer("/params/uri"));
        let name = name
            .and_then(Value::as_str)
            .filter(|text| text.is_ascii() && HeaderValue::from_str(text).is_ok());
        let mut headers =
            vec![(ACCEPT, "application/json, text/event-stream"), (CONTENT_TYPE, "application/json")];
        headers.extend(session.as_deref().map(|id| (SESSION, id)));
        headers.extend(version.as_deref().map(|version| (VERSION, version)));
        headers.extend(method.map(|method| (METHOD, method)));
        headers.extend(name.map(|name| (NAME, name)));
        let answer = self.client.post_as(&self.path, message.to_string().into(), &headers).await?;
        if let Some(id) = answer.headers().get(SESSION).and_then(|id| id.to_str().ok()) {
            *locked(&self.session) = Some(id.to_owned());
        }
        self.forward(answer).await
    }

    /// Events, or one document, as lines.
    async fn forward(&self, answer: Response<Incoming>) -> Result<(), ClientError> {
        let kind = answer.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let events = kind.starts_with("text/event-stream");
        let mut body = answer.into_body();
        if !events {
            let whole = self.client.collect(body).await?;
            return match whole.trim_ascii() {
                [] => Ok(()),
                text => self.pass_back(text).await,
            };
        }
        let mut reader = Events::default();
        while let Some(piece) = self.client.piece(&mut body).await? {
            for data in reader.push(&piece).map_err(|why| self.client.garbled(why))? {
                self.pass_back(&data).await?;
            }
        }
        Ok(())
    }

    async fn pass_back(&self, text: &[u8]) -> Result<(), ClientError> {
        let message: Value =
            serde_json::from_slice(text).map_err(|error| self.client.garbled(error.to_string()))?;
        if let Some(version) = message.pointer("/result/protocolVersion").and_then(Value::as_str) {
            *locked(&self.version) = Some(version.to_owned());
        }
        // Written again: a line must be one line.
        self.say(&message).await;
        Ok(())
    }

    /// Ends the session, and its box with it unless that has a name.
    async fn goodbye(&self) {
        let Some(id) = locked(&self.session).take() else { return };
        let version = locked(&self.version).clone();
        let mut headers = vec![(SESSION, id.as_str())];
        headers.extend(version.as_deref().map(|version| (VERSION, version)));
        if let Err(error) = self.client.delete_as(&self.path, &headers).await {
            tracing::debug!(error = &error as &dyn std::error::Error, "the session was not ended");
        }
    }
}

/// The revision that a message names for itself.
fn version_of(message: &Value) -> Option<String> {
    let own = message.pointer("/params/_meta/io.modelcontextprotocol~1protocolVersion");
    own.and_then(Value::as_str).map(str::to_owned)
}

fn failure(id: &Value, code: i64, message: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
}

/// Event streams, as far as MCP uses them: the data of each event.
#[derive(Debug, Default)]
struct Events {
    rest: BytesMut,
    data: BytesMut,
}

impl Events {
    fn push(&mut self, piece: &[u8]) -> Result<Vec<Bytes>, &'static str> {
        self.rest.extend_from_slice(piece);
        let mut found = Vec::new();
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line = self.rest.split_to(end + 1);
            let line = line[..end].strip_suffix(b"\r").unwrap_or(&line[..end]);
            if line.is_empty() {
                let data = self.data.split().freeze();
                if !data.trim_ascii().is_empty() {
                    found.push(data);
                }
            } else if let Some(data) = line.strip_prefix(b"data:") {
                if !self.data.is_empty() {
                    self.data.extend_from_slice(b"\n");
                }
                self.data.extend_from_slice(data.strip_prefix(b" ").unwrap_or(data));
            }
            if self.data.len() > MOST_EVENT_BYTES {
                return Err("an event is too long");
            }
        }
        if self.rest.len() > MOST_EVENT_BYTES {
            return Err("a line of an event is too long");
        }
        Ok(found)
    }
}

/// A part of a file as base64, its copy as text, and a good deal more.
const MOST_EVENT_BYTES: usize = 16 << 20;

fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_put_together_wherever_they_are_cut() {
        let text = b"id: 0\nretry: 3000\ndata:\n\n: ping\n\ndata: {\"a\":\r\ndata: 1}\r\n\r\nevent: message\ndata:{}\n\n";
        for cut in 1..text.len() {
            let mut events = Events::default();
            let mut found = Vec::new();
            for piece in text.chunks(cut) {
                found.extend(events.push(piece).unwrap());
            }
            assert_eq!(found, [&b"{\"a\":\n1}"[..], b"{}"], "in pieces of {cut}");
        }
        assert!(Events::default().push(&vec![b'x'; MOST_EVENT_BYTES + 1]).is_err());
    }

    #[test]
    fn a_name_is_fit_for_a_query() {
        assert_eq!(escaped("a b&c=ä"), "a%20b%26c%3D%C3%A4");
    }
}
