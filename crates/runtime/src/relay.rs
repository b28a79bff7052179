//! The exclusive line to a managed process: its stdout by lines, its stdin by lines.
//!
//! What a process says while nobody listens waits in its log. A line counts as delivered when the next one is
//! waited for, so one that was cut off by a broken connection comes again with the next attachment.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use sandcrate_backend::Stream;
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, mpsc};

use crate::RuntimeError;
use crate::output_log::{LogEnd, LogEvent, OutputLog, Pace, Subscription};
use crate::process::Process;
use crate::relay_stdin::RelayStdin;

/// A longer line is handed over in pieces of this size: what the other side takes in one message.
pub(crate) const MAX_LINE: usize = 16 << 20;

/// Lines that are delivered together: enough that a write for all costs little for each, and a process that says nothing
/// but newlines makes us remember no more.
const TOGETHER: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RelayEvent {
    /// One line, without its newline.
    Line(Bytes),
    /// A piece of a line without an end in sight, or what came after the last newline.
    Piece(Bytes),
    /// So many bytes were thrown away here, because nobody took them in time.
    Lost { bytes: u64 },
    /// No more lines come. Without an exit code, the process was stopped with its session.
    Exited { exit_code: Option<i32> },
}

/// Where the relay is in the process's stdout; outlives attachments.
#[derive(Debug, Default)]
pub(crate) struct RelayState {
    position: u64,
    /// What is left of the last output that was read.
    read: Bytes,
    /// The beginning of a line whose end has not come; before what is left.
    partial: BytesMut,
    /// Handed out, not yet known to be delivered; at most as many as are delivered together.
    in_hand: VecDeque<RelayEvent>,
    ended: bool,
}

/// Both halves of an attachment.
#[derive(Debug)]
pub struct Attachment {
    pub reader: RelayReader,
    pub writer: RelayWriter,
}

#[derive(Debug)]
pub struct RelayReader {
    state: OwnedMutexGuard<RelayState>,
    log: Subscription,
    process: Arc<Process>,
    /// How many of those in hand this attachment has seen.
    handed_out: usize,
    /// Nobody else is attached. After the state: the next one finds it free.
    _lease: OwnedSemaphorePermit,
}

#[derive(Debug)]
pub struct RelayWriter {
    stdin: Option<mpsc::Sender<Bytes>>,
    process: Arc<Process>,
}

impl Attachment {
    pub(crate) fn new(
        process: Arc<Process>,
        lease: OwnedSemaphorePermit,
        state: OwnedMutexGuard<RelayState>,
        log: &Arc<OutputLog>,
    ) -> Self {
        let log = log.reader(Some(state.position), Pace::Waited);
        let writer = RelayWriter { stdin: process.stdin(), process: Arc::clone(&process) };
        let reader = RelayReader { state, log, process, handed_out: 0, _lease: lease };
        Self { reader, writer }
    }
}

impl RelayReader {
    /// The next line. Those before count as delivered now. Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> RelayEvent {
        if self.handed_out > 0 {
            self.state.in_hand.drain(..self.handed_out);
            self.handed_out = 0;
            self.process.touch();
        }
        loop {
            if let Some(line) = self.another() {
                return line;
            }
            if self.state.ended {
                return RelayEvent::Exited { exit_code: self.process.exit_code() };
            }
            let event = self.log.next().await;
            self.state.position = self.log.position();
            match event {
                Some(LogEvent::Output { stream: Stream::Stdout, data, .. }) => self.state.read = data,
                Some(LogEvent::Output { .. } | LogEvent::Denied { .. }) => {}
                Some(LogEvent::Gap { bytes }) => {
                    // Half a line is worse than none.
                    self.state.partial.clear();
                    tracing::warn!(bytes, "output of a process was lost before it was attached");
                    return RelayEvent::Lost { bytes };
                }
                Some(LogEvent::Exit { .. } | LogEvent::Failed { .. }) | None => {
                    self.state.ended = true;
                    let rest = self.state.partial.split().freeze();
                    if !rest.is_empty() {
                        self.state.in_hand.push_back(RelayEvent::Piece(rest));
                    }
                }
            }
        }
    }

    /// A line or piece that is there already, to be delivered together with those before.
    pub fn another(&mut self) -> Option<RelayEvent> {
        if self.handed_out == TOGETHER {
            return None;
        }
        if self.handed_out == self.state.in_hand.len() {
            let line = self.state.take_line()?;
            self.state.in_hand.push_back(line);
        }
        let line = self.state.in_hand.get(self.handed_out).cloned();
        self.handed_out += 1;
        line
    }
}

impl RelayState {
    /// True when nothing of an ended process's output is left to hand out.
    pub(crate) fn is_drained(&self, log: &Arc<OutputLog>) -> bool {
        let none_left = self.in_hand.is_empty() && self.partial.is_empty() && self.read.is_empty();
        none_left && log.written() <= self.position
    }

    /// Cuts the first line off, or a piece of the allowed size when there is no end in sight. Afterwards what was read
    /// is used up, if there was none.
    fn take_line(&mut self) -> Option<RelayEvent> {
        let Some(end) = memchr::memchr(b'\n', &self.read) else {
            self.partial.extend_from_slice(&std::mem::take(&mut self.read));
            let endless = self.partial.len() >= MAX_LINE;
            return endless.then(|| RelayEvent::Piece(self.partial.split_to(MAX_LINE).freeze()));
        };
        let mut line = self.read.split_to(end + 1);
        line.truncate(end);
        if !self.partial.is_empty() {
            self.partial.extend_from_slice(&line);
            line = self.partial.split().freeze();
        }
        Some(RelayEvent::Line(line))
    }
}

impl RelayWriter {
    /// Writes the bytes and a newline to the process. Waits while it does not read.
    pub async fn send_line(&mut self, line: Bytes) -> Result<(), RuntimeError> {
        let mut data = BytesMut::with_capacity(line.len() + 1);
        data.extend_from_slice(&line);
        data.extend_from_slice(b"\n");
        let sent = match &self.stdin {
            Some(stdin) => stdin.send(data.freeze()).await.is_ok(),
            None => false,
        };
        self.process.touch();
        if sent { Ok(()) } else { Err(self.process.not_running()) }
    }

    /// The standard input as bytes, for whoever makes the lines.
    pub fn into_stdin(self) -> RelayStdin {
        RelayStdin::new(self.stdin, self.process)
    }
}

/// The end of a process as its log tells it.
pub(crate) fn exit_code(end: &LogEnd) -> Option<i32> {
    match end {
        LogEnd::Exit(exit) => Some(exit.status.shell_code()),
        LogEnd::Failed(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(text: &[u8]) -> RelayState {
        RelayState { read: Bytes::copy_from_slice(text), ..RelayState::default() }
    }

    #[test]
    fn lines_are_cut_at_newlines_and_keep_everything_else() {
        let mut state = state(b"a\r\n\nlast");
        let line = |text: &'static str| Some(RelayEvent::Line(Bytes::from_static(text.as_bytes())));
        assert_eq!(state.take_line(), line("a\r"));
        assert_eq!(state.take_line(), line(""));
        assert_eq!(state.take_line(), None);
        assert!(state.read.is_empty(), "what has no end is kept as such");
        state.read = Bytes::from_static(b" and");
        assert_eq!(state.take_line(), None);
        state.read = Bytes::from_static(b" least\nx\ny");
        assert_eq!(state.take_line(), line("last and least"));
        assert_eq!(state.take_line(), line("x"));
        assert_eq!(state.take_line(), None);
        assert_eq!(state.partial, "y");
    }

    #[test]
    fn a_line_without_end_comes_in_pieces() {
        let mut endless = state(&vec![b'x'; MAX_LINE - 1]);
        assert_eq!(endless.take_line(), None);
        endless.read = Bytes::from_static(b"xx");
        let Some(RelayEvent::Piece(piece)) = endless.take_line() else { panic!("a piece comes") };
        assert_eq!(piece.len(), MAX_LINE);
        assert_eq!(endless.take_line(), None);
        assert_eq!(endless.partial, "x");
    }
}
