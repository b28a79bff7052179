//! From the text of one message to a request, or to the reason why it is none.
//!
//! The reference answers nothing to a malformed frame and its caller waits for a timeout. Here every bad
//! frame has an answer, under its own `seq_id` whenever that stands before the fault.

use std::fmt;

use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::{Response, SeqId};
use crate::json::Scanner;
use crate::python;
use crate::without_class_marks;

/// How deeply lists and objects may be nested in `data`.
pub const MAX_JSON_DEPTH: usize = 127;

/// How many values `data` may hold. A parsed value takes 32 bytes and can be written in two, so without a
/// bound a message of 16 MiB could grow to a quarter of a gigabyte and more. Requests have tens of values;
/// their bulk is in strings.
pub const MAX_JSON_NODES: usize = 1 << 18;

/// A call of an action.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    pub seq_id: SeqId,
    pub action: String,
    /// An object for every action that takes something; what else a peer sends is for the action to refuse.
    pub data: Value,
    /// Whom the call is for, in the dialects that say it; see [`super::Context`].
    pub context: Option<Value>,
    /// The caller wants the kind of a failure beside its words: hosts of ours do, by an envelope key that others
    /// pass over.
    pub wants_kind: bool,
}

impl Request {
    /// The answer to a call of an action that does not exist.
    pub fn unknown_action(self) -> BadFrame {
        BadFrame::new(Some(self.seq_id), &format!("ValueError: Action {} not found", self.action))
    }
}

/// One message of a peer that is well-formed.
#[derive(Debug, Clone, PartialEq)]
pub enum Frame {
    Request(Request),
    /// An answer to a call that nobody made: to be ignored.
    Response,
}

/// A message that cannot be served, and what to tell the peer.
#[derive(Debug, Clone, PartialEq)]
pub struct BadFrame {
    /// [`SeqId::UNKNOWN`] when it could not be read.
    pub seq_id: SeqId,
    /// A class name, a colon and the problem.
    pub message: String,
}

impl BadFrame {
    pub(crate) fn new(seq_id: Option<SeqId>, message: &str) -> Self {
        Self { seq_id: seq_id.unwrap_or(SeqId::UNKNOWN), message: without_class_marks(message).into_owned() }
    }

    /// The answer to send.
    pub fn into_response(self) -> Response {
        Response::failure(self.seq_id, self.message)
    }
}

impl fmt::Display for BadFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for BadFrame {}

impl Frame {
    /// Reads one message. Of repeated keys the last counts, unknown ones are ignored, and a frame with an
    /// `action` is a request whatever else it has.
    ///
    /// # Errors
    /// The answer for a message that is neither a request nor a response.
    pub fn parse(text: &str) -> Result<Self, BadFrame> {
        let mut envelope = Envelope::default();
        if let Err(message) = envelope.read(text) {
            return Err(BadFrame::new(envelope.seq_id, &message));
        }
        let Envelope { seq_id, seq_id_refused, action, data, context, has_code, wants_kind } = envelope;
        if seq_id_refused {
            return Err(BadFrame::new(None, "ValueError: seq_id is too long or nested too deeply"));
        }
        let bad = |message: String| BadFrame::new(seq_id.clone(), &message);
        let Some(action) = action else {
            return match has_code {
                true => Ok(Self::Response),
                false => Err(bad("ValueError: frame has neither an action nor a code".to_owned())),
            };
        };
        let action = read_action(action).map_err(bad)?;
        let data = data
            .ok_or_else(|| bad("KeyError: 'data'".to_owned()))
            .and_then(|data| read_data(data).map_err(|problem| bad(format!("ValueError: data {problem}"))))?;
        let context = context.map(read_data).transpose();
        let context = context.map_err(|problem| bad(format!("ValidationError: context {problem}")))?;
        let context = context.filter(|context| !context.is_null());
        let seq_id = seq_id.unwrap_or(SeqId::UNKNOWN);
        Ok(Self::Request(Request { seq_id, action, data, context, wants_kind }))
    }
}

/// The `seq_id` of a message of which only the beginning is known or valid.
pub(crate) fn peek_seq_id(text: &str) -> Option<SeqId> {
    let mut envelope = Envelope::default();
    // The fault is known to the caller already.
    let _ = envelope.read(text);
    envelope.seq_id
}

fn read_action(raw: &RawValue) -> Result<String, String> {
    let shown = match serde_json::from_str(raw.get()) {
        Ok(Value::String(action)) => return Ok(action),
        Ok(Value::Array(_)) => return Err("TypeError: unhashable type: 'list'".to_owned()),
        Ok(Value::Object(_)) => return Err("TypeError: unhashable type: 'dict'".to_owned()),
        Ok(scalar) => python::shown(&scalar),
        Err(error) => return Err(format!("ValueError: action is not valid: {error}")),
    };
    Err(format!("ValueError: Action {shown} not found"))
}

fn read_data(raw: &RawValue) -> Result<Value, String> {
    let mut scanner = Scanner::default();
    scanner.feed(raw.get());
    if scanner.nodes() > MAX_JSON_NODES {
        return Err(format!("holds more than {MAX_JSON_NODES} values"));
    }
    serde_json::from_str(raw.get()).map_err(|error| format!("is not valid: {error}"))
}

/// The keys of the envelope, as far as they were read.
#[derive(Default)]
struct Envelope<'a> {
    seq_id: Option<SeqId>,
    seq_id_refused: bool,
    action: Option<&'a RawValue>,
    data: Option<&'a RawValue>,
    context: Option<&'a RawValue>,
    has_code: bool,
    wants_kind: bool,
}

impl<'a> Envelope<'a> {
    fn read(&mut self, text: &'a str) -> Result<(), String> {
        if text.trim_start().is_empty() {
            return Err("ValueError: frame is empty".to_owned());
        }
        let mut deserializer = serde_json::Deserializer::from_str(text);
        deserializer.deserialize_any(EnvelopeVisitor(self)).and_then(|()| deserializer.end()).map_err(
            |error| {
                if error.is_data() {
                    "ValueError: frame is not a JSON object".to_owned()
                } else {
                    format!("ValueError: frame is not valid JSON: {error}")
                }
            },
        )
    }
}

struct EnvelopeVisitor<'e, 'a>(&'e mut Envelope<'a>);

impl<'a> Visitor<'a> for EnvelopeVisitor<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<(), A::Error> {
        let envelope = self.0;
        while let Some(key) = map.next_key::<std::borrow::Cow<'a, str>>()? {
            match &*key {
                "seq_id" => {
                    envelope.seq_id = SeqId::from_raw(map.next_value()?);
                    envelope.seq_id_refused = envelope.seq_id.is_none();
                }
                "action" => envelope.action = Some(map.next_value()?),
                "data" => envelope.data = Some(map.next_value()?),
                "context" => envelope.context = Some(map.next_value()?),
                "error_kind" => {
                    envelope.wants_kind = map.next_value::<&RawValue>()?.get() == "true";
                }
                "code" => {
                    map.next_value::<IgnoredAny>()?;
                    envelope.has_code = true;
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
