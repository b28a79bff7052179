//! Server-sent events of a command or a process, followed across dropped connections.
//!
//! Every event has an id; after a connection is lost the stream is asked for from the last one on, so that no
//! byte comes twice and none is missing.

use std::collections::VecDeque;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::StatusCode;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, HeaderName};
use sandcrate_backend::Stream;
use sandcrate_protocol::network::Denial;
use serde::Deserialize;
use serde_json::Value;

use super::http::Client;
use super::problem::{ClientError, ServerError};

/// How long we wait before each further try: a server that restarts or a network that blinks is back by then.
const PATIENCE: [Duration; 4] =
    [Duration::from_millis(100), Duration::from_millis(300), Duration::from_secs(1), Duration::from_secs(2)];
/// One event of output is at most a few pieces of 64 KiB, base64 included.
const MAX_EVENT_BYTES: usize = 16 << 20;

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct Exit {
    /// As a shell shows it; absent after a timeout.
    pub(super) exit_code: Option<i32>,
    pub(super) signal: Option<i32>,
    pub(super) timed_out: bool,
    #[serde(default)]
    pub(super) usage: Value,
    #[serde(default)]
    pub(super) limits_hit: Vec<Value>,
    #[serde(default)]
    pub(super) dropped_bytes: u64,
    #[serde(default)]
    pub(super) denials: Vec<Denial>,
    /// What the box's network carried meanwhile.
    #[serde(default)]
    pub(super) network: Value,
}

#[derive(Debug, PartialEq)]
pub(super) enum Event {
    Output(Stream, Bytes),
    /// So many bytes are no longer kept.
    Gap(u64),
    Exit(Exit),
    Failed(ServerError),
}

/// A stream of events that is being followed.
#[derive(Debug)]
pub(super) struct Follower<'a> {
    client: &'a Client,
    path: String,
    last_id: Option<String>,
    body: Option<Incoming>,
    parser: Parser,
    ready: VecDeque<Raw>,
    /// Since the last event.
    tries: usize,
}

impl<'a> Follower<'a> {
    pub(super) fn new(client: &'a Client, path: String) -> Self {
        Self {
            client,
            path,
            last_id: None,
            body: None,
            parser: Parser::default(),
            ready: VecDeque::new(),
            tries: 0,
        }
    }

    /// Up to where the stream was read, in bytes of output.
    pub(super) fn position(&self) -> u64 {
        let id = self.last_id.as_deref().unwrap_or_default();
        id.split('-').next().and_then(|last| last.parse().ok()).unwrap_or(0)
    }

    /// The next event; `None` when the stream ended before, and has nothing more. Safe to cancel.
    pub(super) async fn next(&mut self) -> Result<Option<Event>, ClientError> {
        loop {
            while let Some(raw) = self.ready.pop_front() {
                if raw.id.is_some() {
                    self.last_id = raw.id.clone();
                }
                self.tries = 0;
                if let Some(event) = raw.read().map_err(|why| self.client.garbled(why))? {
                    return Ok(Some(event));
                }
            }
            let Some(body) = &mut self.body else {
                match self.connect().await {
                    Ok(true) => continue,
                    Ok(false) => return Ok(None),
                    Err(error) => {
                        self.wait_or(error).await?;
                        continue;
                    }
                }
            };
            match self.client.piece(body).await {
                Ok(Some(piece)) => {
                    let events = self.parser.push(&piece).map_err(|why| self.client.garbled(why))?;
                    self.ready.extend(events);
                }
                // A whole stream ends with an event that says so, after which nobody asks for the next.
                Ok(None) => self.drop_connection("it ended the stream before the command ended").await?,
                Err(error) => {
                    self.body = None;
                    self.wait_or(error).await?;
                }
            }
        }
    }

    async fn drop_connection(&mut self, why: &str) -> Result<(), ClientError> {
        self.body = None;
        self.wait_or(self.client.lost(why)).await
    }

    /// Waits before another try, if one may help and some are left.
    async fn wait_or(&mut self, error: ClientError) -> Result<(), ClientError> {
        match PATIENCE.get(self.tries) {
            Some(pause) if error.is_connection() => {
                tracing::info!(error = &error as &dyn std::error::Error, "following again");
                self.tries += 1;
                tokio::time::sleep(*pause).await;
                Ok(())
            }
            _ => Err(error),
        }
    }

    /// False when the server has nothing more.
    async fn connect(&mut self) -> Result<bool, ClientError> {
        let mut headers = vec![(ACCEPT, "text/event-stream")];
        if let Some(id) = &self.last_id {
            headers.push((HeaderName::from_static("last-event-id"), id));
        }
        let answer = self.client.open(&self.path, &headers).await?;
        if answer.status() == StatusCode::NO_CONTENT {
            return Ok(false);
        }
        self.parser = Parser::default();
        self.body = Some(answer.into_body());
        Ok(true)
    }
}

/// An event as it came.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Raw {
    pub(super) name: String,
    id: Option<String>,
    pub(super) data: String,
}

impl Raw {
    /// `None` for an event of a kind that we do not know.
    fn read(&self) -> Result<Option<Event>, String> {
        let problem = |error: serde_json::Error| format!("event `{}`: {error}", self.name);
        Ok(Some(match self.name.as_str() {
            "stdout" => Event::Output(Stream::Stdout, self.output()?),
            "stderr" => Event::Output(Stream::Stderr, self.output()?),
            "gap" => {
                #[derive(Deserialize)]
                struct Gap {
                    bytes: u64,
                }
                Event::Gap(serde_json::from_str::<Gap>(&self.data).map_err(problem)?.bytes)
            }
            "exit" => Event::Exit(serde_json::from_str(&self.data).map_err(problem)?),
            "error" => {
                #[derive(Deserialize)]
                struct Failed {
                    error: ServerError,
                }
                Event::Failed(serde_json::from_str::<Failed>(&self.data).map_err(problem)?.error)
            }
            _ => return Ok(None),
        }))
    }

    /// Text, or bytes as base64.
    fn output(&self) -> Result<Bytes, String> {
        #[derive(Deserialize)]
        #[serde(rename_all = "snake_case")]
        enum Output {
            Data(String),
            Base64(String),
        }
        match serde_json::from_str(&self.data) {
            Ok(Output::Data(text)) => Ok(text.into()),
            Ok(Output::Base64(text)) => STANDARD
                .decode(text)
                .map(Bytes::from)
                .map_err(|error| format!("event `{}`: {error}", self.name)),
            Err(error) => Err(format!("event `{}`: {error}", self.name)),
        }
    }
}

/// Puts events together from pieces that are cut anywhere.
#[derive(Debug, Default)]
pub(super) struct Parser {
    line: Vec<u8>,
    event: Raw,
}

impl Parser {
    pub(super) fn push(&mut self, piece: &[u8]) -> Result<Vec<Raw>, String> {
        let mut events = Vec::new();
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if self.line.len() + self.event.data.len() > MAX_EVENT_BYTES {
                return Err("an event is too long".to_owned());
            }
            if self.line.last() == Some(&b'\n') {
                let line = std::mem::take(&mut self.line);
                let line = String::from_utf8_lossy(&line);
                if let Some(event) = self.take_line(line.trim_end_matches(['\n', '\r'])) {
                    events.push(event);
                }
            }
        }
        Ok(events)
    }

    fn take_line(&mut self, line: &str) -> Option<Raw> {
        if line.is_empty() {
            let event = std::mem::take(&mut self.event);
            return (!event.name.is_empty()).then_some(event);
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.event.name),
            "id" => self.event.id = Some(value.to_owned()),
            "data" => {
                if !self.event.data.is_empty() {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
            }
            // Comments keep the connection alive.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = ": hello\n\nevent: start\nid: 0\ndata: {\"command_id\":\"c1\"}\n\n\
        event: stdout\nid: 7-5.2.0\ndata: {\"data\":\"a\\u00e4\\n\"}\n\n:\n\n\
        event:stderr\r\nid:9\r\ndata:{\"base64\":\"//4=\"}\r\n\r\n\
        event: gap\nid: 12\ndata: {\"bytes\":3}\n\n\
        event: exit\nid: 13\ndata: {\"exit_code\":null,\"signal\":9,\"timed_out\":true}\n\n";

    fn events(pieces: &[&[u8]]) -> Vec<(Option<String>, Option<Event>)> {
        let mut parser = Parser::default();
        let raw = pieces.iter().flat_map(|piece| parser.push(piece).unwrap()).collect::<Vec<_>>();
        raw.iter().map(|raw| (raw.id.clone(), raw.read().unwrap())).collect()
    }

    #[test]
    fn events_are_read_however_they_are_cut() {
        let whole = events(&[STREAM.as_bytes()]);
        let exit = Exit {
            exit_code: None,
            signal: Some(9),
            timed_out: true,
            usage: Value::Null,
            limits_hit: Vec::new(),
            dropped_bytes: 0,
            denials: Vec::new(),
            network: Value::Null,
        };
        let id = |text: &str| Some(text.to_owned());
        assert_eq!(
            whole,
            [
                (id("0"), None),
                (id("7-5.2.0"), Some(Event::Output(Stream::Stdout, "aä\n".into()))),
                (id("9"), Some(Event::Output(Stream::Stderr, Bytes::from_static(b"\xff\xfe")))),
                (id("12"), Some(Event::Gap(3))),
                (id("13"), Some(Event::Exit(exit))),
            ]
        );
        for length in 1..20 {
            let pieces: Vec<_> = STREAM.as_bytes().chunks(length).collect();
            assert_eq!(events(&pieces), whole, "in pieces of {length}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let raw = |name: &str, data: &str| Raw { name: name.to_owned(), id: None, data: data.to_owned() };
        for (name, data) in [("stdout", "{}"), ("stdout", "{\"base64\":\"?\"}"), ("exit", "x"), ("gap", "{}")]
        {
            let why = raw(name, data).read().unwrap_err();
            assert!(why.contains(name), "{name} {data}: {why}");
        }
        let failed =
            raw("error", r#"{"error":{"code":"command_not_found","message":"no x"}}"#).read().unwrap();
        assert!(matches!(failed, Some(Event::Failed(error)) if error.code == "command_not_found"));
    }
}
