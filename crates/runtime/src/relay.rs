//! The exclusive line to a managed process: its stdout by lines, its stdin by lines.
//!
//! What a process says while nobody listens waits in its log. A line counts as delivered when the next one is
//! asked for, so one that was cut off by a broken connection comes again with the next attachment.

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
    partial: BytesMut,
    /// So much of it is known to hold no newline.
    scanned: usize,
    /// Handed out, not yet known to be delivered.
    in_hand: Option<RelayEvent>,
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
    handed_out: bool,
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
        let reader = RelayReader { state, log, process, handed_out: false, _lease: lease };
        Self { reader, writer }
    }
}

impl RelayReader {
    /// The next line. The one before counts as delivered now. Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> RelayEvent {
        if std::mem::take(&mut self.handed_out) {
            self.state.in_hand = None;
            self.process.touch();
        }
        if let Some(event) = self.state.in_hand.clone() {
            self.handed_out = true;
            return event;
        }
        loop {
            if let Some(line) = self.state.take_line() {
                return self.hand_out(line);
            }
            if self.state.ended {
                return RelayEvent::Exited { exit_code: self.process.exit_code() };
            }
            let event = self.log.next().await;
            self.state.position = self.log.position();
            match event {
                Some(LogEvent::Output { stream: Stream::Stdout, data, .. }) => {
                    self.state.partial.extend_from_slice(&data);
                }
                Some(LogEvent::Output { .. } | LogEvent::Denied { .. }) => {}
                Some(LogEvent::Gap { bytes }) => {
                    // Half a line is worse than none.
                    self.state.partial.clear();
                    self.state.scanned = 0;
                    tracing::warn!(bytes, "output of a process was lost before it was attached");
                    return RelayEvent::Lost { bytes };
                }
                Some(LogEvent::Exit { .. } | LogEvent::Failed { .. }) | None => {
                    self.state.ended = true;
                    let rest = self.state.partial.split().freeze();
                    self.state.scanned = 0;
                    if !rest.is_empty() {
                        return self.hand_out(RelayEvent::Piece(rest));
                    }
                }
            }
        }
    }

    fn hand_out(&mut self, event: RelayEvent) -> RelayEvent {
        self.state.in_hand = Some(event.clone());
        self.handed_out = true;
        event
    }
}

impl RelayState {
    /// True when nothing of an ended process's output is left to hand out.
    pub(crate) fn is_drained(&self, log: &Arc<OutputLog>) -> bool {
        self.in_hand.is_none() && self.partial.is_empty() && log.written() <= self.position
    }

    /// Cuts the first line off, or a piece of the allowed size when there is no end in sight.
    fn take_line(&mut self) -> Option<RelayEvent> {
        let end = memchr::memchr(b'\n', &self.partial[self.scanned..]).map(|end| self.scanned + end);
        let line = match end {
            Some(end) => {
                let mut line = self.partial.split_to(end + 1);
                line.truncate(end);
                RelayEvent::Line(line.freeze())
            }
            None if self.partial.len() >= MAX_LINE => {
                RelayEvent::Piece(self.partial.split_to(MAX_LINE).freeze())
            }
            None => {
                self.scanned = self.partial.len();
                return None;
            }
        };
        self.scanned = 0;
        Some(line)
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

    #[test]
    fn lines_are_cut_at_newlines_and_keep_everything_else() {
        let mut state = RelayState { partial: BytesMut::from(&b"a\r\n\nlast"[..]), ..RelayState::default() };
        let line = |text: &'static str| Some(RelayEvent::Line(Bytes::from_static(text.as_bytes())));
        assert_eq!(state.take_line(), line("a\r"));
        assert_eq!(state.take_line(), line(""));
        assert_eq!(state.take_line(), None);
        state.partial.extend_from_slice(b" one\nx");
        assert_eq!(state.take_line(), line("last one"));
        let mut endless =
            RelayState { partial: BytesMut::from(&vec![b'x'; MAX_LINE + 1][..]), ..RelayState::default() };
        let Some(RelayEvent::Piece(piece)) = endless.take_line() else { panic!("a piece comes") };
        assert_eq!(piece.len(), MAX_LINE);
        assert_eq!(endless.partial, "x");
    }
}
