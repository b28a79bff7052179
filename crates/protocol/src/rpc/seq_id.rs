//! The number that ties a reply to its request. Clients may use any JSON value; it comes back unchanged.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;
use serde_json::value::RawValue;

/// The longest `seq_id` that is echoed, in bytes of its JSON text. Clients count in small integers; Python
/// stops at 4300 digits.
pub const MAX_SEQ_ID_BYTES: usize = 4096;

/// A `seq_id` as the peer sent it. Numbers keep their digits, however many; other values are written anew,
/// so that no line break of theirs gets into a reply.
#[derive(Clone, PartialEq, Eq)]
pub struct SeqId(Repr);

#[derive(Clone, PartialEq, Eq)]
enum Repr {
    Integer(i64),
    /// Valid JSON for a number outside `i64`.
    Literal(Box<str>),
    Other(Value),
}

impl SeqId {
    /// Stands for a `seq_id` that is absent or could not be read.
    pub const UNKNOWN: Self = Self(Repr::Integer(-1));

    /// The value, if it is an integer of ordinary size.
    pub fn as_i64(&self) -> Option<i64> {
        match self.0 {
            Repr::Integer(value) => Some(value),
            _ => None,
        }
    }

    /// Reads a valid JSON value; nothing when it is too long or nested too deeply.
    pub(super) fn from_raw(raw: &RawValue) -> Option<Self> {
        let text = raw.get();
        if text.len() > MAX_SEQ_ID_BYTES {
            return None;
        }
        if !text.starts_with(['-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9']) {
            return serde_json::from_str(text).ok().map(|value| Self(Repr::Other(value)));
        }
        let repr = match text.parse() {
            // `-0` is the one integer whose text does not come back.
            Ok(value) if text != "-0" => Repr::Integer(value),
            _ => Repr::Literal(text.into()),
        };
        Some(Self(repr))
    }
}

impl From<i64> for SeqId {
    fn from(value: i64) -> Self {
        Self(Repr::Integer(value))
    }
}

impl fmt::Debug for SeqId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Repr::Integer(value) => write!(f, "SeqId({value})"),
            Repr::Literal(text) => write!(f, "SeqId({text})"),
            Repr::Other(value) => write!(f, "SeqId({value})"),
        }
    }
}

impl Serialize for SeqId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Repr::Integer(value) => serializer.serialize_i64(*value),
            Repr::Literal(text) => {
                let raw: &RawValue = serde_json::from_str(text).map_err(serde::ser::Error::custom)?;
                raw.serialize(serializer)
            }
            Repr::Other(value) => value.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for SeqId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Self::from_raw(&raw).ok_or_else(|| de::Error::custom("seq_id is too long or too deep"))
    }
}
