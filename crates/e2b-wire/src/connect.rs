//! Connect with JSON: media types, error codes, and the envelopes of a stream.
//!
//! A message of a stream is one byte of flags, its length as 32 bits big-endian, and its JSON. The last one has
//! a bit of its own among its flags and says how the stream ended.

use std::fmt;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

/// Of a call with one message each way.
pub const UNARY: &str = "application/json";
/// Of a call in which either side streams.
pub const STREAM: &str = "application/connect+json";
/// For the whole call, in milliseconds.
pub const TIMEOUT_HEADER: &str = "connect-timeout-ms";
pub const VERSION_HEADER: &str = "connect-protocol-version";

const COMPRESSED: u8 = 1;
const END: u8 = 2;
const HEAD_BYTES: usize = 5;

/// Why a call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    Canceled,
    Unknown,
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Aborted,
    OutOfRange,
    Unimplemented,
    Internal,
    Unavailable,
    DataLoss,
    Unauthenticated,
}

impl Code {
    pub const ALL: [Self; 16] = [
        Self::Canceled,
        Self::Unknown,
        Self::InvalidArgument,
        Self::DeadlineExceeded,
        Self::NotFound,
        Self::AlreadyExists,
        Self::PermissionDenied,
        Self::ResourceExhausted,
        Self::FailedPrecondition,
        Self::Aborted,
        Self::OutOfRange,
        Self::Unimplemented,
        Self::Internal,
        Self::Unavailable,
        Self::DataLoss,
        Self::Unauthenticated,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Canceled => "canceled",
            Self::Unknown => "unknown",
            Self::InvalidArgument => "invalid_argument",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::PermissionDenied => "permission_denied",
            Self::ResourceExhausted => "resource_exhausted",
            Self::FailedPrecondition => "failed_precondition",
            Self::Aborted => "aborted",
            Self::OutOfRange => "out_of_range",
            Self::Unimplemented => "unimplemented",
            Self::Internal => "internal",
            Self::Unavailable => "unavailable",
            Self::DataLoss => "data_loss",
            Self::Unauthenticated => "unauthenticated",
        }
    }

    /// The status of a unary answer with this code.
    pub fn http_status(self) -> u16 {
        match self {
            Self::Canceled => 499,
            Self::InvalidArgument | Self::FailedPrecondition | Self::OutOfRange => 400,
            Self::DeadlineExceeded => 504,
            Self::NotFound => 404,
            Self::AlreadyExists | Self::Aborted => 409,
            Self::PermissionDenied => 403,
            Self::ResourceExhausted => 429,
            Self::Unimplemented => 501,
            Self::Unavailable => 503,
            Self::Unauthenticated => 401,
            Self::Unknown | Self::Internal | Self::DataLoss => 500,
        }
    }

    /// What an answer means that has no error of its own: a proxy's, usually.
    pub fn from_http_status(status: u16) -> Self {
        match status {
            400 => Self::Internal,
            401 => Self::Unauthenticated,
            403 => Self::PermissionDenied,
            404 => Self::Unimplemented,
            429 | 502 | 503 | 504 => Self::Unavailable,
            _ => Self::Unknown,
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A failed call, as it travels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{code}: {message}")]
pub struct CallError {
    pub code: Code,
    #[serde(default)]
    pub message: String,
}

impl CallError {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// The last message of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndOfStream {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<CallError>,
}

/// What a stream is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Envelope {
    /// JSON.
    Message(Bytes),
    End(EndOfStream),
}

/// Bytes that are no stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    #[error("a message of {bytes} bytes is larger than the {limit} that are taken")]
    TooLarge { bytes: u64, limit: usize },
    #[error("a message is compressed, which was not agreed on")]
    Compressed,
    #[error("the stream's end is not readable: {problem}")]
    End { problem: String },
}

/// One message.
pub fn message<T: Serialize>(message: &T) -> Result<Bytes, serde_json::Error> {
    Ok(envelope(0, &serde_json::to_vec(message)?))
}

/// The end of a stream.
pub fn end(error: Option<CallError>) -> Bytes {
    // Text and a word: this cannot fail, and an end without its reason is still an end.
    envelope(END, &serde_json::to_vec(&EndOfStream { error }).unwrap_or_else(|_| b"{}".to_vec()))
}

fn envelope(flags: u8, json: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(HEAD_BYTES + json.len());
    bytes.put_u8(flags);
    // No message of ours comes near four gigabytes: output is cut where it is read.
    bytes.put_u32(u32::try_from(json.len()).unwrap_or(u32::MAX));
    bytes.put_slice(json);
    bytes.freeze()
}

/// Takes a stream apart as it arrives.
#[derive(Debug)]
pub struct Decoder {
    buffer: BytesMut,
    limit: usize,
}

impl Decoder {
    /// A message may have `limit` bytes; so many and a piece are held.
    pub fn new(limit: usize) -> Self {
        Self { buffer: BytesMut::new(), limit }
    }

    pub fn push(&mut self, piece: &[u8]) {
        self.buffer.extend_from_slice(piece);
    }

    /// The next one that is whole.
    pub fn next_envelope(&mut self) -> Result<Option<Envelope>, StreamError> {
        let Some((head, _)) = self.buffer.split_at_checked(HEAD_BYTES) else { return Ok(None) };
        let flags = head[0];
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        let bytes = usize::try_from(length).unwrap_or(usize::MAX);
        if bytes > self.limit {
            return Err(StreamError::TooLarge { bytes: length.into(), limit: self.limit });
        }
        if flags & COMPRESSED != 0 {
            return Err(StreamError::Compressed);
        }
        if self.buffer.len() - HEAD_BYTES < bytes {
            return Ok(None);
        }
        self.buffer.advance(HEAD_BYTES);
        let json = self.buffer.split_to(bytes).freeze();
        if flags & END == 0 {
            return Ok(Some(Envelope::Message(json)));
        }
        let end = serde_json::from_slice(&json);
        end.map(|end| Some(Envelope::End(end)))
            .map_err(|error| StreamError::End { problem: error.to_string() })
    }

    /// Whether a message is there in part: a stream that ends so was cut.
    pub fn is_partial(&self) -> bool {
        !self.buffer.is_empty()
    }
}

#[cfg(test)]
#[path = "connect_tests.rs"]
mod tests;
