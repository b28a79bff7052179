//! A log as server-sent events: `stdout`, `stderr`, `denial`, `gap`, and `exit` or `error` as the last.
//!
//! Output is text where it is UTF-8. A code point that a read cut in two waits for its rest, so the id of an
//! event says both how far the log was read and which bytes are still owed; a client that comes back with it
//! gets every byte once.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{Stream as EventStream, StreamExt, stream};
use sandcrate_backend::Stream;
use sandcrate_runtime::{LogEvent, Subscription};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::error::ApiError;
use super::outcome::{ExitBody, base64};

/// Below the idle time-outs of common proxies.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Where a reader stands. Positions are those of the log: bytes over both streams.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// Everything up to here was read.
    last: u64,
    owed: Option<Owed>,
}

/// The last bytes of each stream that were read and not given: less than a code point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Owed {
    /// Before the first of them.
    from: u64,
    stdout: usize,
    stderr: usize,
}

impl Cursor {
    /// Where the log has to be read from.
    pub(crate) fn after(&self) -> u64 {
        self.owed.map_or(self.last, |owed| owed.from)
    }

    /// Refuses a place that the log has not come to: what is written up to there would be left out in silence.
    pub(crate) fn check(&self, newest: u64, after: Option<&str>) -> Result<(), ApiError> {
        if self.last <= newest {
            return Ok(());
        }
        Err(ApiError::invalid(source(after), format!("is ahead of the newest event, which is {newest}")))
    }

    /// From the header that a browser sends by itself, or from the query.
    pub(crate) fn of_request(headers: &HeaderMap, after: Option<&str>) -> Result<Self, ApiError> {
        let header = headers.get("last-event-id").map(|value| value.to_str().unwrap_or("?"));
        match after.or(header) {
            None | Some("") => Ok(Self::default()),
            Some(text) => {
                let problem = "is not an id of an event of this stream";
                text.parse().map_err(|()| ApiError::invalid(source(after), problem))
            }
        }
    }
}

/// What of a request names a place.
fn source(after: Option<&str>) -> &'static str {
    if after.is_some() { "after" } else { "Last-Event-ID" }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.last)?;
        match self.owed {
            Some(Owed { from, stdout, stderr }) => write!(f, "-{from}.{stdout}.{stderr}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Cursor {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let number = |text: &str| text.parse::<u64>().map_err(|_| ());
        // A code point has four bytes, so at most three wait.
        let few = |text: &str| text.parse::<usize>().ok().filter(|few| *few <= 3).ok_or(());
        let Some((last, owed)) = text.split_once('-') else {
            return Ok(Self { last: number(text)?, owed: None });
        };
        let mut parts = owed.split('.');
        let mut part = || parts.next().ok_or(());
        let owed = Owed { from: number(part()?)?, stdout: few(part()?)?, stderr: few(part()?)? };
        if part().is_ok() || owed.from > number(last)? {
            return Err(());
        }
        Ok(Self { last: number(last)?, owed: Some(owed) })
    }
}

#[derive(Debug, PartialEq)]
pub(crate) struct Record {
    pub(crate) name: &'static str,
    pub(crate) id: String,
    pub(crate) data: Value,
}

/// Bytes of one stream that wait for the rest of their code point.
#[derive(Debug, Default)]
struct Held {
    from: u64,
    bytes: Vec<u8>,
}

/// Turns a log into records.
#[derive(Debug, Default)]
pub(crate) struct Encoder {
    last: u64,
    held: [Held; 2],
    /// Set while the log is read again to find the bytes that a cursor owes.
    replay: Option<Cursor>,
}

impl Encoder {
    pub(crate) fn new(cursor: Cursor) -> Self {
        Self { last: cursor.after(), held: Default::default(), replay: cursor.owed.map(|_| cursor) }
    }

    pub(crate) fn encode(&mut self, event: LogEvent) -> Vec<Record> {
        match event {
            LogEvent::Output { id, stream, data } => self.output(id, stream, data),
            LogEvent::Denied { denial } => {
                let data = serde_json::to_value(denial).unwrap_or_default();
                // While bytes are looked for again, whoever leaves here owes them still.
                let id = self.replay.unwrap_or_else(|| self.cursor()).to_string();
                vec![Record { name: "denial", id, data }]
            }
            LogEvent::Gap { bytes } => {
                let mut records = self.flush();
                self.replay = None;
                self.last += bytes;
                records.push(self.record("gap", json!({ "bytes": bytes })));
                records
            }
            LogEvent::Exit { id, exit } => {
                let data = serde_json::to_value(ExitBody::from(&exit)).unwrap_or_default();
                self.end(id, "exit", data)
            }
            LogEvent::Failed { id, error } => self.end(id, "error", ApiError::from(error).to_value()),
        }
    }

    fn end(&mut self, id: u64, name: &'static str, data: Value) -> Vec<Record> {
        if id <= self.last {
            return Vec::new();
        }
        let mut records = self.flush();
        self.last = id;
        records.push(self.record(name, data));
        records
    }

    fn output(&mut self, id: u64, stream: Stream, mut data: Bytes) -> Vec<Record> {
        let start = id.saturating_sub(data.len() as u64);
        let mut records = Vec::new();
        if start > self.last {
            // A log that is read from its oldest entry does not tell the gap before it.
            records = self.encode(LogEvent::Gap { bytes: start - self.last });
        }
        // Nor does it know what this reader has seen.
        let seen = usize::try_from(self.last - start).unwrap_or(usize::MAX).min(data.len());
        bytes::Buf::advance(&mut data, seen);
        let start = start + seen as u64;
        if data.is_empty() {
            return records;
        }
        self.last = id;
        let held = &mut self.held[index(stream)];
        if held.bytes.is_empty() {
            held.from = start;
        }
        held.bytes.extend_from_slice(&data);
        if let Some(cursor) = self.replay {
            if id <= cursor.last {
                let owed = cursor.owed.map_or(0, |owed| match stream {
                    Stream::Stdout => owed.stdout,
                    Stream::Stderr => owed.stderr,
                });
                let surplus = held.bytes.len().saturating_sub(owed);
                held.bytes.drain(..surplus);
                held.from = cursor.after();
                return records;
            }
            self.replay = None;
        }
        let (given, kept) = match std::str::from_utf8(&held.bytes) {
            Ok(text) => (json!({ "data": text }), Vec::new()),
            Err(error) => match (error.error_len(), held.bytes.split_at(error.valid_up_to())) {
                (None, (whole, rest)) => (json!({ "data": String::from_utf8_lossy(whole) }), rest.to_vec()),
                (Some(_), _) => (json!({ "base64": base64(&held.bytes) }), Vec::new()),
            },
        };
        let empty = held.bytes.len() == kept.len();
        // What waits is younger than this piece unless it began before it.
        if kept.len() <= data.len() {
            held.from = id - kept.len() as u64;
        }
        held.bytes = kept;
        if !empty {
            records.push(self.record(name(stream), given));
        }
        records
    }

    /// Gives what waits: its rest will not come.
    fn flush(&mut self) -> Vec<Record> {
        let mut records = Vec::new();
        for stream in [Stream::Stdout, Stream::Stderr] {
            let bytes = std::mem::take(&mut self.held[index(stream)].bytes);
            if !bytes.is_empty() {
                records.push(self.record(name(stream), json!({ "base64": base64(&bytes) })));
            }
        }
        records
    }

    fn cursor(&self) -> Cursor {
        let [stdout, stderr] = &self.held;
        let waiting = self.held.iter().filter(|held| !held.bytes.is_empty());
        let owed = waiting.map(|held| held.from).min();
        let owed = owed.map(|from| Owed { from, stdout: stdout.bytes.len(), stderr: stderr.bytes.len() });
        Cursor { last: self.last, owed }
    }

    pub(crate) fn record(&self, name: &'static str, data: Value) -> Record {
        Record { name, id: self.cursor().to_string(), data }
    }
}

const fn index(stream: Stream) -> usize {
    match stream {
        Stream::Stdout => 0,
        Stream::Stderr => 1,
    }
}

const fn name(stream: Stream) -> &'static str {
    match stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
    }
}

struct Reading {
    log: Subscription,
    encoder: Encoder,
    ready: VecDeque<Record>,
    ended: bool,
}

impl Reading {
    async fn next(mut self) -> Option<(Record, Self)> {
        loop {
            if let Some(record) = self.ready.pop_front() {
                return Some((record, self));
            }
            if self.ended {
                return None;
            }
            match self.log.next().await {
                Some(event) => {
                    self.ended = matches!(event, LogEvent::Exit { .. } | LogEvent::Failed { .. });
                    self.ready.extend(self.encoder.encode(event));
                }
                None => self.ended = true,
            }
        }
    }
}

/// The records of a log, to its end.
fn records(log: Subscription, encoder: Encoder) -> impl EventStream<Item = Record> + Send {
    let reading = Reading { log, encoder, ready: VecDeque::new(), ended: false };
    stream::unfold(reading, Reading::next)
}

/// The answer that carries them, behind `first`; it ends when the server does.
pub(crate) fn answer(
    first: Option<Record>,
    log: Subscription,
    encoder: Encoder,
    abort: CancellationToken,
) -> Response {
    let records = stream::iter(first).chain(records(log, encoder));
    answer_with(records.map(|record| Ok(event(&record))), abort)
}

/// An answer that carries events until they or the server end.
pub(crate) fn answer_with(
    events: impl EventStream<Item = Result<Event, Infallible>> + Send + 'static,
    abort: CancellationToken,
) -> Response {
    let events = events.take_until(abort.cancelled_owned());
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
    // Proxies of the nginx family hold small pieces back unless told not to.
    ([("x-accel-buffering", "no")], Sse::new(events).keep_alive(keep_alive)).into_response()
}

fn event(record: &Record) -> Event {
    Event::default().event(record.name).id(&record.id).data(record.data.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(id: u64, stream: Stream, data: &[u8]) -> LogEvent {
        LogEvent::Output { id, stream, data: Bytes::copy_from_slice(data) }
    }

    fn pairs(records: &[Record]) -> Vec<(&str, &str, String)> {
        records.iter().map(|record| (record.name, record.id.as_str(), record.data.to_string())).collect()
    }

    #[test]
    fn a_cut_code_point_waits_for_its_rest_and_is_owed_to_who_leaves() {
        let mut encoder = Encoder::default();
        let first = encoder.encode(output(3, Stream::Stdout, b"a\xe2\x82"));
        assert_eq!(pairs(&first), [("stdout", "3-1.2.0", r#"{"data":"a"}"#.to_owned())]);
        let between = encoder.encode(output(5, Stream::Stderr, b"ok"));
        assert_eq!(pairs(&between), [("stderr", "5-1.2.0", r#"{"data":"ok"}"#.to_owned())]);
        let rest = encoder.encode(output(7, Stream::Stdout, b"\xac!"));
        assert_eq!(pairs(&rest), [("stdout", "7", r#"{"data":"€!"}"#.to_owned())]);

        let cursor: Cursor = between[0].id.parse().unwrap();
        assert_eq!(cursor.after(), 1);
        let mut resumed = Encoder::new(cursor);
        assert_eq!(resumed.encode(output(3, Stream::Stdout, b"\xe2\x82")), []);
        assert_eq!(resumed.encode(output(5, Stream::Stderr, b"ok")), []);
        assert_eq!(resumed.encode(output(7, Stream::Stdout, b"\xac!")), rest);
    }

    #[test]
    fn bytes_that_are_no_text_travel_as_base64() {
        let mut encoder = Encoder::default();
        let records = encoder.encode(output(3, Stream::Stdout, b"\xff\xfea"));
        assert_eq!(pairs(&records), [("stdout", "3", r#"{"base64":"//5h"}"#.to_owned())]);
        assert_eq!(encoder.encode(output(4, Stream::Stderr, b"\xe2")), []);
        let gap = encoder.encode(LogEvent::Gap { bytes: 6 });
        let expected =
            [("stderr", "4", r#"{"base64":"4g=="}"#.to_owned()), ("gap", "10", r#"{"bytes":6}"#.to_owned())];
        assert_eq!(pairs(&gap), expected);
    }

    #[test]
    fn output_that_begins_later_than_expected_tells_a_gap() {
        let mut encoder = Encoder::new("4".parse().unwrap());
        let records = encoder.encode(output(8, Stream::Stdout, b"ab"));
        let names: Vec<_> = records.iter().map(|record| record.name).collect();
        assert_eq!(names, ["gap", "stdout"]);
        assert_eq!(records[0].data, json!({"bytes": 2}));
    }

    #[test]
    fn cursors_survive_their_text_and_nonsense_does_not_pass() {
        for text in ["0", "17", "17-10.2.0", "9-9.0.3"] {
            assert_eq!(text.parse::<Cursor>().unwrap().to_string(), text);
        }
        for text in ["", "x", "-1", "5-", "5-1", "5-1.2", "5-1.4.0", "5-6.1.0", "5-1.2.0.0", "5-1.2.0x"] {
            assert_eq!(text.parse::<Cursor>(), Err(()), "{text}");
        }
    }
}
