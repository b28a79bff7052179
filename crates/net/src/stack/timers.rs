//! Deadlines of flows. A flow has at most one that counts; older entries are skipped when they come up.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

/// Entries of flows that have ended stay until they come up: looking again this often bounds their number,
/// whatever the flows' own limits are.
const LONGEST: Duration = Duration::from_secs(15);

#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, u64)>>,
}

/// Kept by the flow: when its entry in the heap comes up.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Armed(Option<Instant>);

impl Timers {
    /// Wakes `token` at `at` or before. A later entry is not needed while an earlier one stands: the flow looks
    /// at its real deadline when woken, and arms again.
    pub(super) fn arm(&mut self, armed: &mut Armed, at: Instant, token: u64) {
        let at = at.min(Instant::now() + LONGEST);
        if armed.0.is_none_or(|known| at < known) {
            armed.0 = Some(at);
            self.heap.push(Reverse((at, token)));
        }
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    pub(super) fn pop(&mut self, now: Instant) -> Option<u64> {
        let Reverse((at, _)) = self.heap.peek()?;
        if *at > now {
            return None;
        }
        self.heap.pop().map(|Reverse((_, token))| token)
    }
}

impl Armed {
    /// The entry has come up.
    pub(super) fn fired(&mut self) {
        self.0 = None;
    }
}
