//! Messages over standard input and output: one JSON object in a line, long ones in chunks.
//!
//! The reference ends when a line is too long or not UTF-8. Here such a line is reported and reading goes on
//! at the next one.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::MAX_MESSAGE_BYTES;
use crate::json::write_wire_json;
use crate::python;
use crate::rpc::{BadFrame, SeqId};

/// The longest message that is sent in one line, and the length of each chunk of a longer one.
pub const CHUNK_BYTES: usize = 16_384;

/// The longest line that is read. Clients send at most about 33,000 bytes and the reference reads 65,536;
/// the rest is for peers that do not cut.
pub const MAX_LINE_BYTES: usize = 1 << 20;

/// The most chunks of one message that a strict reader takes, as its peers do.
const MAX_CHUNKS: usize = 4096;

/// Appends the line or lines for `message` to `out`, each with its line feed.
pub fn encode(message: &str, out: &mut Vec<u8>) {
    // A line break inside would end the line; chunks carry it escaped.
    if message.len() <= CHUNK_BYTES && !message.contains('\n') {
        out.extend_from_slice(message.as_bytes());
        out.push(b'\n');
        return;
    }
    out.reserve(message.len() + message.len() / 8);
    out.extend_from_slice(
        format!("{{\"type\": \"chunk_start\", \"total_size\": {}}}\n", message.len()).as_bytes(),
    );
    let mut offset = 0;
    while offset < message.len() {
        let end = message.floor_char_boundary(offset + CHUNK_BYTES);
        out.extend_from_slice(b"{\"type\": \"chunk_data\", \"data\": ");
        if write_wire_json(out, &message[offset..end]).is_err() {
            unreachable!("a string is valid JSON and a Vec takes everything");
        }
        out.extend_from_slice(format!(", \"offset\": {offset}}}\n").as_bytes());
        offset = end;
    }
    out.extend_from_slice(b"{\"type\": \"chunk_end\"}\n");
}

/// What the bytes of a peer gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A whole message, to be parsed.
    Message(String),
    /// Something was lost; what follows is read as usual.
    Broken(LineError),
}

/// A line, or a sequence of chunks, that had to be thrown away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LineError {
    /// More than [`MAX_LINE_BYTES`].
    LineTooLong,
    NotUtf8,
    /// Chunks of more than [`MAX_MESSAGE_BYTES`].
    MessageTooLong,
    /// A chunk whose data is not a string.
    BadChunk,
    /// A new sequence of chunks began before the end of the last.
    Interrupted,
    /// Chunks whose offsets or total are not those of their data; told only by a strict reader.
    Torn,
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LineTooLong => write!(f, "line is longer than {MAX_LINE_BYTES} bytes"),
            Self::NotUtf8 => f.write_str("line is not UTF-8"),
            Self::MessageTooLong => write!(f, "message in chunks is longer than {MAX_MESSAGE_BYTES} bytes"),
            Self::BadChunk => f.write_str("data of a chunk is not a string"),
            Self::Interrupted => f.write_str("message in chunks was not finished"),
            Self::Torn => f.write_str("chunks do not have the offsets or the total that they announce"),
        }
    }
}

impl std::error::Error for LineError {}

impl From<LineError> for BadFrame {
    fn from(error: LineError) -> Self {
        Self { seq_id: SeqId::UNKNOWN, message: format!("ValueError: {error}") }
    }
}

/// Finds messages in a stream of bytes. Holds at most one line and one unfinished message.
#[derive(Debug, Default)]
pub struct Decoder {
    line: Vec<u8>,
    /// The line is too long already: wait for its end.
    skipping: bool,
    /// The message of the open sequence of chunks.
    chunks: Option<Chunks>,
    /// Whether offsets and totals of chunks must be right.
    strict: bool,
}

#[derive(Debug, Default)]
struct Chunks {
    text: String,
    /// As announced.
    total: Option<u64>,
    lines: usize,
}

impl Decoder {
    pub fn new() -> Self {
        Self::default()
    }

    /// Holds a peer to what its chunks announce, as LangBot does since 4.10.7 and as its peers keep to.
    pub fn strict() -> Self {
        Self { strict: true, ..Self::default() }
    }

    /// Reads from `input` up to the end of the next event, and moves `input` past it. Nothing means that all
    /// of `input` was taken.
    pub fn next_event(&mut self, input: &mut &[u8]) -> Option<Event> {
        while !input.is_empty() {
            let end = input.iter().position(|byte| *byte == b'\n');
            let (part, rest) = match end {
                Some(end) => (&input[..end], &input[end + 1..]),
                None => (*input, &input[..0]),
            };
            *input = rest;
            let event = self.take(part, end.is_some());
            if event.is_some() {
                return event;
            }
        }
        None
    }

    /// The end of the stream: a last line without a line feed counts.
    pub fn finish(&mut self) -> Option<Event> {
        let event = self.take(&[], true);
        self.chunks = None;
        event
    }

    fn take(&mut self, part: &[u8], ends: bool) -> Option<Event> {
        if self.skipping {
            self.skipping = !ends;
            return None;
        }
        if self.line.len() + part.len() > MAX_LINE_BYTES {
            self.line = Vec::new();
            self.skipping = !ends;
            return Some(Event::Broken(LineError::LineTooLong));
        }
        if !ends {
            self.line.extend_from_slice(part);
            return None;
        }
        if self.line.is_empty() {
            return self.take_line(part);
        }
        let mut line = std::mem::take(&mut self.line);
        line.extend_from_slice(part);
        let event = self.take_line(&line);
        // The buffer is kept, unless one long line made it large.
        if line.capacity() <= 4 * CHUNK_BYTES {
            line.clear();
            self.line = line;
        }
        event
    }

    fn take_line(&mut self, line: &[u8]) -> Option<Event> {
        let Ok(line) = std::str::from_utf8(line) else { return Some(Event::Broken(LineError::NotUtf8)) };
        let line = python::trim(line);
        if !(line.starts_with('{') && line.ends_with('}')) {
            return None;
        }
        let message = || Some(Event::Message(line.to_owned()));
        // What is not JSON gets its answer from the parser, unless it is noise between chunks.
        let Some(head) = Head::read(line) else {
            return if self.chunks.is_some() { None } else { message() };
        };
        match head.kind.as_deref() {
            Some("chunk_start") => {
                let chunks = Chunks { total: head.total_size, ..Chunks::default() };
                let interrupted = self.chunks.replace(chunks).is_some();
                interrupted.then_some(Event::Broken(LineError::Interrupted))
            }
            Some("chunk_data") => self.take_chunk(&head),
            Some("chunk_end") => {
                let Chunks { text, total, .. } = self.chunks.take()?;
                let torn = self.strict && total != Some(text.len() as u64);
                Some(if torn { Event::Broken(LineError::Torn) } else { Event::Message(text) })
            }
            // A sequence is sent in one go: a request inside one means that its sender gave it up.
            _ if self.chunks.is_none() || head.has_action => message(),
            _ => None,
        }
    }

    fn take_chunk(&mut self, head: &Head<'_>) -> Option<Event> {
        let chunks = self.chunks.as_mut()?;
        chunks.lines += 1;
        let follows = head.offset == Some(chunks.text.len() as u64) && chunks.lines <= MAX_CHUNKS;
        let error = match head.data.map(|data| serde_json::from_str::<Cow<'_, str>>(data.get())) {
            None => return None,
            Some(Ok(_)) if self.strict && !follows => LineError::Torn,
            Some(Ok(data)) if chunks.text.len() + data.len() <= MAX_MESSAGE_BYTES => {
                chunks.text.push_str(&data);
                return None;
            }
            Some(Ok(_)) => LineError::MessageTooLong,
            Some(Err(_)) => LineError::BadChunk,
        };
        // What is left of the sequence is outside of any, and dropped as such.
        self.chunks = None;
        Some(Event::Broken(error))
    }
}

/// What of a line decides where it goes.
#[derive(Default)]
struct Head<'a> {
    kind: Option<Cow<'a, str>>,
    data: Option<&'a RawValue>,
    offset: Option<u64>,
    total_size: Option<u64>,
    has_action: bool,
}

impl<'a> Head<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let mut deserializer = serde_json::Deserializer::from_str(line);
        let head = deserializer.deserialize_map(HeadVisitor).ok()?;
        deserializer.end().ok()?;
        Some(head)
    }
}

struct HeadVisitor;

impl<'a> Visitor<'a> for HeadVisitor {
    type Value = Head<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Head<'a>, A::Error> {
        let mut head = Head::default();
        while let Some(key) = map.next_key::<Cow<'a, str>>()? {
            match &*key {
                "type" => {
                    let raw: &RawValue = map.next_value()?;
                    head.kind = match serde_json::from_str(raw.get()) {
                        Ok(Value::String(kind)) => Some(Cow::Owned(kind)),
                        _ => None,
                    };
                }
                "data" => head.data = Some(map.next_value()?),
                "offset" => head.offset = number(map.next_value()?),
                "total_size" => head.total_size = number(map.next_value()?),
                key => {
                    map.next_value::<IgnoredAny>()?;
                    head.has_action |= key == "action";
                }
            }
        }
        Ok(head)
    }
}

fn number(raw: &RawValue) -> Option<u64> {
    serde_json::from_str(raw.get()).ok()
}

#[cfg(test)]
#[path = "stdio_tests.rs"]
mod tests;
