//! Messages over WebSocket text frames.
//!
//! Clients of the 0.4 series cut a request of more than 65,536 bytes into successive text messages of
//! exactly that many bytes (their JSON is ASCII, so no character is cut) and the rest; they join what they
//! receive until it is valid JSON, and give up the connection over a message of more than 1 MiB. Newer ones
//! send and expect every message whole: whether a reply may be split depends on the client.

use std::fmt;

use super::MAX_MESSAGE_BYTES;
use crate::json::Scanner;
use crate::rpc::{BadFrame, SeqId, peek_seq_id};

/// How many bytes a client puts into each piece but the last.
pub const REQUEST_PIECE_BYTES: usize = 65_536;

/// How many bytes of a reply go into one text message: half of what a client takes. With pieces of 64 KiB a
/// reply of 3 MB took it twice as long.
pub const REPLY_PIECE_BYTES: usize = 512 << 10;

/// Cuts a reply into text messages of at most [`REPLY_PIECE_BYTES`]. They must be sent one after the other,
/// with no other reply in between.
pub fn split_reply(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest.take()?;
        let (piece, after) = text.split_at(text.floor_char_boundary(REPLY_PIECE_BYTES));
        rest = (!after.is_empty()).then_some(after);
        Some(piece)
    })
}

/// Joins the pieces of requests. One for each connection.
#[derive(Debug, Default)]
pub struct SplitRequests(State);

#[derive(Debug, Default)]
enum State {
    #[default]
    Idle,
    Joining {
        text: String,
        scanner: Scanner,
    },
    /// The rest of a request that grew too long is let pass.
    Skipping(Scanner),
}

/// What one text message gave.
#[derive(Debug, Clone, PartialEq)]
pub enum Joined {
    /// A whole message, to be parsed.
    Message(String),
    /// More pieces have to come.
    Pending,
    /// What was collected is thrown away. When the text message was a message of its own it is here too.
    Broken { error: SplitError, message: Option<String> },
}

/// A request in pieces that cannot be put together.
#[derive(Debug, Clone, PartialEq)]
pub struct SplitError {
    /// From the first piece; [`SeqId::UNKNOWN`] if it is not there.
    pub seq_id: SeqId,
    pub reason: SplitReason,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SplitReason {
    /// The last piece came, and the JSON is not complete.
    Incomplete,
    /// More than [`MAX_MESSAGE_BYTES`].
    TooLong,
}

impl SplitRequests {
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes one text message as it came from the socket.
    pub fn push(&mut self, piece: String) -> Joined {
        match std::mem::take(&mut self.0) {
            State::Idle => self.start(piece),
            State::Joining { text, scanner } => self.join(text, scanner, piece),
            State::Skipping(scanner) => self.skip(scanner, piece),
        }
    }

    /// A piece of the telling length starts a sequence if it is an object that does not end in it.
    fn start(&mut self, piece: String) -> Joined {
        if piece.len() != REQUEST_PIECE_BYTES || !opens_object(&piece) {
            return Joined::Message(piece);
        }
        let mut scanner = Scanner::default();
        scanner.feed(&piece);
        if scanner.complete() || scanner.excess() {
            return Joined::Message(piece);
        }
        self.0 = State::Joining { text: piece, scanner };
        Joined::Pending
    }

    fn join(&mut self, mut text: String, mut scanner: Scanner, piece: String) -> Joined {
        let is_last = piece.len() != REQUEST_PIECE_BYTES;
        if text.len() + piece.len() > MAX_MESSAGE_BYTES {
            return self.overflow(&text, scanner, piece, is_last);
        }
        scanner.feed(&piece);
        if scanner.complete() {
            text.push_str(&piece);
            return Joined::Message(text);
        }
        if is_last {
            let error = SplitError::new(&text, SplitReason::Incomplete);
            return Joined::Broken { error, message: is_whole(&piece).then_some(piece) };
        }
        text.push_str(&piece);
        self.0 = State::Joining { text, scanner };
        Joined::Pending
    }

    fn overflow(&mut self, text: &str, mut scanner: Scanner, piece: String, is_last: bool) -> Joined {
        let error = SplitError::new(text, SplitReason::TooLong);
        if is_whole(&piece) {
            return Joined::Broken { error, message: Some(piece) };
        }
        scanner.feed(&piece);
        if !is_last && !scanner.complete() {
            self.0 = State::Skipping(scanner);
        }
        Joined::Broken { error, message: None }
    }

    fn skip(&mut self, mut scanner: Scanner, piece: String) -> Joined {
        if is_whole(&piece) {
            return Joined::Message(piece);
        }
        scanner.feed(&piece);
        if piece.len() == REQUEST_PIECE_BYTES && !scanner.complete() {
            self.0 = State::Skipping(scanner);
        }
        Joined::Pending
    }
}

fn opens_object(text: &str) -> bool {
    text.trim_start().starts_with('{')
}

/// The last piece of a sequence closes what an earlier one opened, so it is never balanced by itself.
fn is_whole(piece: &str) -> bool {
    let mut scanner = Scanner::default();
    opens_object(piece) && {
        scanner.feed(piece);
        scanner.complete() && !scanner.excess()
    }
}

impl SplitError {
    fn new(text: &str, reason: SplitReason) -> Self {
        Self { seq_id: peek_seq_id(text).unwrap_or(SeqId::UNKNOWN), reason }
    }
}

impl fmt::Display for SplitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason {
            SplitReason::Incomplete => f.write_str("request in pieces is incomplete"),
            SplitReason::TooLong => write!(f, "request in pieces is longer than {MAX_MESSAGE_BYTES} bytes"),
        }
    }
}

impl std::error::Error for SplitError {}

impl From<SplitError> for BadFrame {
    fn from(error: SplitError) -> Self {
        let message = format!("ValueError: {error}");
        Self { seq_id: error.seq_id, message }
    }
}

#[cfg(test)]
#[path = "ws_tests.rs"]
mod tests;
