//! Output kept for readers that come, go and come back.
//!
//! A log holds the newest bytes of a command, up to a bound. Its positions are byte offsets over both streams, so
//! a reader that names where it stopped learns how much it missed. A paced reader slows the writer down for
//! [`PATIENCE`]; whoever is slower than that, or not there, loses the oldest output and is told so.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use sandcrate_backend::{ExecExit, Stream};
use sandcrate_protocol::network::Denial;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::RuntimeError;

/// How long a reader may hold its command up.
const PATIENCE: Duration = Duration::from_secs(10);
/// Denials kept with the output; the session's own record has more.
const DENIALS: usize = 64;

/// One event of a log. Ids grow; a reader that comes back names the last one it has seen.
#[derive(Debug, Clone)]
pub enum LogEvent {
    Output {
        id: u64,
        stream: Stream,
        data: Bytes,
    },
    /// The box was refused something about here. A reader that comes back may see one again.
    Denied {
        denial: Denial,
    },
    /// So many bytes are gone before the next event.
    Gap {
        bytes: u64,
    },
    Exit {
        id: u64,
        exit: ExecExit,
    },
    Failed {
        id: u64,
        error: RuntimeError,
    },
}

/// Whether a reader may slow the command down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    Waited,
    Lossy,
}

#[derive(Debug, Clone)]
pub(crate) enum LogEnd {
    Exit(ExecExit),
    Failed(RuntimeError),
}

#[derive(Debug)]
pub(crate) struct OutputLog {
    state: Mutex<LogState>,
    /// Wakes readers.
    grown: Notify,
    /// Wakes the writer.
    read: Notify,
    bound: usize,
}

#[derive(Debug, Default)]
struct LogState {
    entries: VecDeque<Entry>,
    held: usize,
    /// Offset after everything written.
    written: u64,
    end: Option<LogEnd>,
    /// Each with what had been written when it came.
    denials: VecDeque<(u64, Denial)>,
    denials_gone: u64,
    /// Where each waited reader is, by its number.
    readers: HashMap<u64, u64>,
    next_reader: u64,
    hurried: bool,
}

#[derive(Debug)]
struct Entry {
    start: u64,
    stream: Stream,
    data: Bytes,
}

impl LogState {
    /// Drops the oldest entries until `more` bytes fit; with `spare`, none that a waited reader has not seen.
    fn make_room(&mut self, more: usize, bound: usize, spare: bool) -> bool {
        let seen = self.readers.values().min().copied().filter(|_| spare).unwrap_or(u64::MAX);
        while self.held + more > bound {
            match self.entries.front() {
                Some(oldest) if oldest.start + oldest.data.len() as u64 <= seen => {
                    self.held -= oldest.data.len();
                    self.entries.pop_front();
                }
                Some(_) => return false,
                // One piece larger than the bound is kept alone.
                None => return true,
            }
        }
        true
    }

    fn push(&mut self, stream: Stream, data: Bytes) {
        self.held += data.len();
        let start = self.written;
        self.written += data.len() as u64;
        self.entries.push_back(Entry { start, stream, data });
    }
}

impl OutputLog {
    pub(crate) fn new(bound: usize) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), grown: Notify::new(), read: Notify::new(), bound })
    }

    fn state(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds output, and waits for slow readers as long as they deserve.
    pub(crate) async fn append(&self, stream: Stream, data: Bytes) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let woken = self.read.notified();
            {
                let mut state = self.state();
                let patient = !state.hurried && Instant::now() < deadline;
                if state.make_room(data.len(), self.bound, patient) {
                    state.push(stream, data);
                    break;
                }
            }
            let _ = timeout_at(deadline, woken).await;
        }
        self.grown.notify_waiters();
    }

    /// Adds output at once, whoever has not read it.
    pub(crate) fn append_now(&self, stream: Stream, data: Bytes) {
        {
            let mut state = self.state();
            state.make_room(data.len(), self.bound, false);
            state.push(stream, data);
        }
        self.grown.notify_waiters();
    }

    /// Notes what the box was refused meanwhile.
    pub(crate) fn deny(&self, denial: Denial) {
        {
            let mut state = self.state();
            let at = state.written;
            state.denials.push_back((at, denial));
            if state.denials.len() > DENIALS {
                state.denials.pop_front();
                state.denials_gone += 1;
            }
        }
        self.grown.notify_waiters();
    }

    pub(crate) fn finish(&self, end: LogEnd) {
        self.state().end.get_or_insert(end);
        self.grown.notify_waiters();
    }

    /// The offset after everything written so far.
    pub(crate) fn written(&self) -> u64 {
        self.state().written
    }

    /// From now on nobody is waited for: the command is being ended.
    pub(crate) fn hurry(&self) {
        self.state().hurried = true;
        self.read.notify_one();
    }

    /// A reader of everything after `after`; `None` from the oldest kept.
    pub(crate) fn reader(self: &Arc<Self>, after: Option<u64>, pace: Pace) -> Subscription {
        let mut state = self.state();
        let oldest = state.entries.front().map_or(state.written, |entry| entry.start);
        let position = after.unwrap_or(oldest).min(state.written + 1);
        let seen = state.denials.partition_point(|(at, _)| after.is_some_and(|after| *at < after));
        let denied = state.denials_gone + seen as u64;
        let number = state.next_reader;
        state.next_reader += 1;
        if pace == Pace::Waited {
            state.readers.insert(number, position);
        }
        drop(state);
        let ended =
            after.is_some_and(|after| after > position.saturating_sub(1) && after > self.state().written);
        Subscription { log: Arc::clone(self), number, position, denied, ended }
    }
}

/// A reader of a log. Dropping it detaches.
#[derive(Debug)]
pub struct Subscription {
    log: Arc<OutputLog>,
    number: u64,
    position: u64,
    /// The number of the next denial.
    denied: u64,
    ended: bool,
}

impl Subscription {
    /// The next event; `None` after the last. Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<LogEvent> {
        let log = Arc::clone(&self.log);
        loop {
            let grown = log.grown.notified();
            tokio::pin!(grown);
            // Before the look: what is written between the two would be slept through.
            grown.as_mut().enable();
            if self.ended {
                return None;
            }
            if let Some(event) = self.try_next() {
                return Some(event);
            }
            grown.await;
        }
    }

    /// Goes on behind what was written so far.
    pub fn skip_written(&mut self) {
        let mut state = self.log.state();
        self.position = self.position.max(state.written);
        self.denied = state.denials_gone + state.denials.len() as u64;
        let position = self.position;
        if let Some(seen) = state.readers.get_mut(&self.number) {
            *seen = position;
        }
        drop(state);
        self.log.read.notify_one();
    }

    /// The next event that is there already.
    pub fn try_next(&mut self) -> Option<LogEvent> {
        let mut state = self.log.state();
        if self.ended {
            return None;
        }
        let oldest = state.entries.front().map_or(state.written, |entry| entry.start);
        let event = if self.position < oldest {
            let bytes = oldest - self.position;
            self.position = oldest;
            LogEvent::Gap { bytes }
        } else if let Some(denial) = self.due(&state) {
            self.denied = self.denied.max(state.denials_gone) + 1;
            LogEvent::Denied { denial }
        } else if self.position < state.written {
            // Entries are in order of their start: the one before the first that starts later holds the position.
            let after = state.entries.partition_point(|entry| entry.start <= self.position);
            let entry = &state.entries[after - 1];
            let skip = usize::try_from(self.position - entry.start).unwrap_or(usize::MAX);
            let data = entry.data.slice(skip.min(entry.data.len())..);
            self.position += data.len() as u64;
            LogEvent::Output { id: self.position, stream: entry.stream, data }
        } else {
            let id = state.written + 1;
            let event = match state.end.clone()? {
                LogEnd::Exit(exit) => LogEvent::Exit { id, exit },
                LogEnd::Failed(error) => LogEvent::Failed { id, error },
            };
            self.ended = true;
            event
        };
        if let Some(known) = state.readers.get_mut(&self.number) {
            *known = self.position;
            self.log.read.notify_one();
        }
        Some(event)
    }

    /// The next denial, once the output before it was read.
    fn due(&self, state: &LogState) -> Option<Denial> {
        let next = usize::try_from(self.denied.saturating_sub(state.denials_gone)).ok()?;
        let (at, denial) = state.denials.get(next)?;
        (*at <= self.position).then(|| denial.clone())
    }

    /// The offset after what was read.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if self.log.state().readers.remove(&self.number).is_some() {
            self.log.read.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(event: Option<LogEvent>) -> String {
        match event {
            Some(LogEvent::Output { data, .. }) => String::from_utf8(data.to_vec()).unwrap(),
            Some(LogEvent::Gap { bytes }) => format!("gap {bytes}"),
            Some(LogEvent::Denied { denial }) => format!("denied {}", denial.target),
            Some(LogEvent::Exit { .. }) => "exit".to_owned(),
            other => format!("{other:?}"),
        }
    }

    fn exit() -> LogEnd {
        LogEnd::Exit(ExecExit::new(sandcrate_backend::ExitStatus::Code(0), false))
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_comes_back_goes_on_where_it_stopped() {
        let log = OutputLog::new(100);
        log.append(Stream::Stdout, Bytes::from_static(b"one")).await;
        log.append(Stream::Stderr, Bytes::from_static(b"two")).await;
        let mut first = log.reader(None, Pace::Waited);
        let Some(LogEvent::Output { id, .. }) = first.next().await else { panic!("no output") };
        drop(first);
        let mut second = log.reader(Some(id), Pace::Waited);
        assert_eq!(text(second.next().await), "two");
        log.finish(exit());
        let Some(LogEvent::Exit { id, .. }) = second.next().await else { panic!("no end") };
        assert!(second.next().await.is_none());
        assert!(log.reader(Some(id), Pace::Waited).next().await.is_none(), "the end is told once");
        assert_eq!(text(log.reader(Some(4), Pace::Waited).next().await), "wo", "in the middle of a piece");
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_may_pass_over_what_was_written_before_it_came() {
        let log = OutputLog::new(3);
        log.append(Stream::Stdout, Bytes::from_static(b"old")).await;
        let mut late = log.reader(None, Pace::Waited);
        late.skip_written();
        let began = Instant::now();
        log.append(Stream::Stdout, Bytes::from_static(b"new")).await;
        assert_eq!(began.elapsed(), Duration::ZERO, "it holds nobody up for what it will not read");
        assert_eq!(text(late.next().await), "new");
        log.finish(exit());
        late.skip_written();
        assert_eq!(text(late.next().await), "exit", "an end is not passed over");
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_reader_the_oldest_goes_and_the_gap_is_told() {
        let log = OutputLog::new(6);
        for piece in ["aaa", "bbb", "ccc"] {
            log.append(Stream::Stdout, Bytes::from(piece)).await;
        }
        assert_eq!(text(log.reader(None, Pace::Waited).next().await), "bbb");
        let mut resumed = log.reader(Some(1), Pace::Waited);
        assert_eq!(text(resumed.next().await), "gap 2");
        assert_eq!(text(resumed.next().await), "bbb");
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_holds_the_writer_up_for_ten_seconds_only() {
        let log = OutputLog::new(3);
        let mut reader = log.reader(None, Pace::Waited);
        log.append(Stream::Stdout, Bytes::from_static(b"abc")).await;
        let began = Instant::now();
        log.append(Stream::Stdout, Bytes::from_static(b"def")).await;
        assert_eq!(began.elapsed(), PATIENCE);
        assert_eq!(text(reader.next().await), "gap 3");
        let writer = {
            let log = Arc::clone(&log);
            tokio::spawn(async move { log.append(Stream::Stdout, Bytes::from_static(b"ghi")).await })
        };
        assert_eq!(text(reader.next().await), "def");
        writer.await.unwrap();
        assert_eq!(text(reader.next().await), "ghi", "a reader in time loses nothing");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lossy_reader_holds_nobody_up() {
        let log = OutputLog::new(3);
        let _reader = log.reader(None, Pace::Lossy);
        let began = Instant::now();
        log.append(Stream::Stdout, Bytes::from_static(b"abc")).await;
        log.append(Stream::Stdout, Bytes::from_static(b"def")).await;
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    #[tokio::test]
    async fn denials_stand_where_they_happened_and_are_not_lost_to_who_comes_back() {
        use sandcrate_protocol::network::{Denial, DenialKind};

        let log = OutputLog::new(100);
        log.append_now(Stream::Stdout, Bytes::from_static(b"one"));
        log.deny(Denial::new(DenialKind::Connect, "a", "rule", "hint"));
        log.append_now(Stream::Stdout, Bytes::from_static(b"two"));
        log.finish(LogEnd::Failed(RuntimeError::ShuttingDown));
        let mut reader = log.reader(None, Pace::Lossy);
        assert_eq!(text(reader.next().await), "one");
        assert_eq!(text(reader.next().await), "denied a");
        assert_eq!(text(reader.next().await), "two");
        assert_eq!(text(log.reader(Some(3), Pace::Lossy).next().await), "denied a");
        assert_eq!(text(log.reader(Some(4), Pace::Lossy).next().await), "wo");
        for number in 0..2 * DENIALS {
            log.deny(Denial::new(DenialKind::Connect, number.to_string(), "rule", "hint"));
        }
        assert_eq!(text(reader.next().await), format!("denied {DENIALS}"), "the newest are kept");
    }
}
