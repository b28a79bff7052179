//! What was refused, in a form that a program and a language model can act on.
//!
//! The record also serves refusals of paths and system calls where the kernel tells of them.

use std::collections::VecDeque;
use std::fmt;

use serde::{Deserialize, Serialize};

/// What kind of thing was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DenialKind {
    /// A TCP connection.
    Connect,
    /// A datagram.
    Datagram,
    /// An echo request.
    Echo,
    /// A name was not resolved, or not to the address it has.
    Resolve,
    /// A connection was open, and its first bytes named another host than it may reach.
    Name,
    /// A bound on connections or their rate.
    Limit,
    /// The network itself went away: what was open is gone.
    Outage,
    Path,
    Syscall,
}

impl DenialKind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Datagram => "datagram",
            Self::Echo => "echo",
            Self::Resolve => "resolve",
            Self::Name => "name",
            Self::Limit => "limit",
            Self::Outage => "outage",
            Self::Path => "path",
            Self::Syscall => "syscall",
        }
    }
}

/// One refusal; equal ones in a row are counted, not repeated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial {
    pub kind: DenialKind,
    /// What was wanted, such as `tcp 10.0.0.1:5432 (db.corp)`.
    pub target: String,
    /// The rule that refused it, as the policy has it.
    pub rule: String,
    /// What could be done about it.
    pub hint: String,
    pub count: u32,
}

impl Denial {
    pub fn new(
        kind: DenialKind,
        target: impl Into<String>,
        rule: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self { kind, target: target.into(), rule: rule.into(), hint: hint.into(), count: 1 }
    }

    fn same_as(&self, other: &Self) -> bool {
        self.kind == other.kind && self.target == other.target && self.rule == other.rule
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, target, rule, hint, count } = self;
        write!(f, "denied {}: {target} by `{rule}`: {hint}", kind.name())?;
        if *count > 1 { write!(f, " ({count} times)") } else { Ok(()) }
    }
}

/// The latest denials, oldest out first.
#[derive(Debug, Clone)]
pub struct DenialLog {
    kept: VecDeque<Denial>,
    capacity: usize,
    /// Pushed out before anyone took them.
    lost: u64,
}

impl DenialLog {
    pub fn new(capacity: usize) -> Self {
        Self { kept: VecDeque::new(), capacity, lost: 0 }
    }

    pub fn push(&mut self, denial: Denial) {
        // A program that retries in a loop fills a counter, not the log. Eight back: retries often alternate
        // between addresses of one name.
        if let Some(known) = self.kept.iter_mut().rev().take(8).find(|known| known.same_as(&denial)) {
            known.count = known.count.saturating_add(denial.count);
            return;
        }
        if self.kept.len() >= self.capacity {
            self.kept.pop_front();
            self.lost += 1;
        }
        self.kept.push_back(denial);
    }

    /// Takes up to `max` denials, oldest first, and the number lost before them.
    pub fn take(&mut self, max: usize) -> (Vec<Denial>, u64) {
        let count = max.min(self.kept.len());
        (self.kept.drain(..count).collect(), std::mem::take(&mut self.lost))
    }

    /// How many were pushed out and not yet told by [`take`](Self::take).
    pub fn lost(&self) -> u64 {
        self.lost
    }

    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Denial> {
        self.kept.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denial(target: &str) -> Denial {
        Denial::new(DenialKind::Connect, target, "never: private", "ask the operator")
    }

    #[test]
    fn repeats_are_counted_and_the_oldest_go_first() {
        let mut log = DenialLog::new(2);
        for target in ["a", "b", "a", "a"] {
            log.push(denial(target));
        }
        assert_eq!(
            log.iter().map(|d| (d.target.as_str(), d.count)).collect::<Vec<_>>(),
            [("a", 3), ("b", 1)]
        );
        log.push(denial("c"));
        let (taken, lost) = log.take(10);
        assert_eq!(taken.iter().map(|d| d.target.as_str()).collect::<Vec<_>>(), ["b", "c"]);
        assert_eq!(lost, 1);
        assert!(log.is_empty());
    }

    #[test]
    fn the_record_has_the_promised_fields() {
        let json = serde_json::to_value(denial("tcp 10.0.0.1:80")).unwrap();
        for field in ["kind", "target", "rule", "hint"] {
            assert!(json[field].is_string(), "{field}");
        }
        assert_eq!(json["kind"], DenialKind::Connect.name());
    }
}
