//! What a box's network refused and used: kept for the session, told to the commands that run.

use std::collections::HashMap;
use std::sync::Mutex;

use sandcrate_backend::{ExecEvent, NetworkReport};
use sandcrate_protocol::network::{Counters, Denial, DenialLog};
use tokio::sync::mpsc;

use crate::lock::lock;

/// The latest are kept, of a session and of a command alike.
const KEPT: usize = 256;

#[derive(Debug)]
pub(super) struct Ledger(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    log: DenialLog,
    /// Lost in the helper.
    lost: u64,
    /// Of helpers that are gone.
    earlier: Counters,
    /// As the present helper said last.
    current: Counters,
    listeners: HashMap<u32, Listener>,
    next: u32,
}

#[derive(Debug)]
struct Listener {
    log: DenialLog,
    events: mpsc::Sender<ExecEvent>,
}

impl Default for Ledger {
    fn default() -> Self {
        Self(Mutex::new(Inner {
            log: DenialLog::new(KEPT),
            lost: 0,
            earlier: Counters::default(),
            current: Counters::default(),
            listeners: HashMap::new(),
            next: 1,
        }))
    }
}

impl Ledger {
    pub(super) fn record(&self, denials: Vec<Denial>, lost: u64) {
        let mut inner = lock(&self.0);
        inner.lost = inner.lost.saturating_add(lost);
        for denial in denials {
            for listener in inner.listeners.values_mut() {
                let told = listener.log.iter().any(|known| {
                    known.kind == denial.kind && known.target == denial.target && known.rule == denial.rule
                });
                listener.log.push(denial.clone());
                if !told {
                    // A consumer that does not keep up reads it in the exit.
                    let _ = listener.events.try_send(ExecEvent::Denied(denial.clone()));
                }
            }
            inner.log.push(denial);
        }
    }

    pub(super) fn counted(&self, counters: Counters) -> Counters {
        let mut inner = lock(&self.0);
        inner.current = counters;
        inner.total()
    }

    /// The helper is gone, and the next one counts from zero.
    pub(super) fn begin_anew(&self) {
        let mut inner = lock(&self.0);
        inner.earlier = inner.total();
        inner.earlier.connections_now = 0;
        inner.current = Counters::default();
    }

    pub(super) fn total(&self) -> Counters {
        lock(&self.0).total()
    }

    pub(super) fn report(&self) -> NetworkReport {
        let inner = lock(&self.0);
        NetworkReport {
            counters: inner.total(),
            denials: inner.log.iter().cloned().collect(),
            lost: inner.lost.saturating_add(inner.log.lost()),
        }
    }

    /// A listener's number, and what is counted so far.
    pub(super) fn listen(&self, events: mpsc::Sender<ExecEvent>) -> (u32, Counters) {
        let mut inner = lock(&self.0);
        let number = inner.next;
        inner.next = number.wrapping_add(1);
        inner.listeners.insert(number, Listener { log: DenialLog::new(KEPT), events });
        (number, inner.total())
    }

    /// What a listener was told, and what was used since `before`.
    pub(super) fn conclude(&self, listener: u32, before: &Counters) -> (Vec<Denial>, Counters) {
        let mut inner = lock(&self.0);
        let denials =
            inner.listeners.remove(&listener).map_or(Vec::new(), |mut heard| heard.log.take(KEPT).0);
        let mut used = apply(&inner.total(), before, u64::saturating_sub);
        used.connections_now = inner.current.connections_now;
        (denials, used)
    }

    pub(super) fn forget(&self, listener: u32) {
        lock(&self.0).listeners.remove(&listener);
    }
}

impl Inner {
    fn total(&self) -> Counters {
        let mut total = apply(&self.current, &self.earlier, u64::saturating_add);
        total.connections_now = self.current.connections_now;
        total
    }
}

fn apply(one: &Counters, other: &Counters, act: fn(u64, u64) -> u64) -> Counters {
    Counters {
        bytes_sent: act(one.bytes_sent, other.bytes_sent),
        bytes_received: act(one.bytes_received, other.bytes_received),
        connections_opened: act(one.connections_opened, other.connections_opened),
        connections_failed: act(one.connections_failed, other.connections_failed),
        associations_opened: act(one.associations_opened, other.associations_opened),
        names_asked: act(one.names_asked, other.names_asked),
        denied: act(one.denied, other.denied),
        packets_dropped: act(one.packets_dropped, other.packets_dropped),
        connections_now: 0,
    }
}

#[cfg(test)]
mod tests {
    use sandcrate_protocol::network::DenialKind;

    use super::*;

    fn denial(target: &str) -> Denial {
        Denial::new(DenialKind::Connect, target, "never: private", "ask the operator")
    }

    #[test]
    fn commands_hear_each_refusal_once_and_have_all_of_them_at_the_end() {
        let ledger = Ledger::default();
        ledger.record(vec![denial("before")], 0);
        let (events, mut heard) = mpsc::channel(8);
        let (listener, before) = ledger.listen(events);
        ledger.record(vec![denial("a"), denial("a"), denial("b")], 2);
        let used = ledger.counted(Counters { denied: 3, bytes_sent: 7, ..Counters::default() });
        assert_eq!(used.denied, 3);
        let (denials, used) = ledger.conclude(listener, &before);
        assert_eq!(
            denials.iter().map(|d| (d.target.as_str(), d.count)).collect::<Vec<_>>(),
            [("a", 2), ("b", 1)]
        );
        assert_eq!((used.denied, used.bytes_sent), (3, 7));
        let mut told = Vec::new();
        while let Ok(ExecEvent::Denied(denial)) = heard.try_recv() {
            told.push(denial.target);
        }
        assert_eq!(told, ["a", "b"]);
        assert!(heard.is_closed(), "a command that is over is not told any more");
        let report = ledger.report();
        assert_eq!((report.denials.len(), report.lost), (3, 2));
    }

    #[test]
    fn a_new_helper_counts_on_from_the_old_one() {
        let ledger = Ledger::default();
        ledger.counted(Counters { bytes_sent: 10, connections_now: 3, ..Counters::default() });
        ledger.begin_anew();
        assert_eq!(ledger.total(), Counters { bytes_sent: 10, ..Counters::default() });
        let total = ledger.counted(Counters { bytes_sent: 5, connections_now: 1, ..Counters::default() });
        assert_eq!(total, Counters { bytes_sent: 15, connections_now: 1, ..Counters::default() });
    }

    #[test]
    fn a_session_keeps_the_latest_and_says_how_many_are_gone() {
        let ledger = Ledger::default();
        for number in 0..KEPT + 5 {
            ledger.record(vec![denial(&number.to_string())], 0);
        }
        let report = ledger.report();
        assert_eq!((report.denials.len(), report.lost), (KEPT, 5));
    }
}
