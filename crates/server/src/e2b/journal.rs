//! What happened in a sandbox, for `GET …/logs`: starts and ends of its programs, and changes of its life. What
//! programs write is not in it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;

use jiff::Timestamp;
use sandcrate_e2b_wire::control::{LogEntry, LogLevel};

use super::sandbox::locked;

/// Entries of one sandbox; older ones go.
const KEPT: usize = 1000;

#[derive(Debug, Default)]
pub(crate) struct Journal(Mutex<VecDeque<LogEntry>>);

impl Journal {
    pub(crate) fn note(&self, level: LogLevel, message: impl Into<String>, fields: &[(&str, String)]) {
        let fields: BTreeMap<_, _> =
            fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        let entry = LogEntry { timestamp: Timestamp::now(), message: message.into(), level, fields };
        let mut entries = locked(&self.0);
        if entries.len() == KEPT {
            entries.pop_front();
        }
        entries.push_back(entry);
    }

    /// Oldest first.
    pub(crate) fn entries(&self) -> Vec<LogEntry> {
        locked(&self.0).iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_entries_are_kept() {
        let journal = Journal::default();
        for number in 0..=KEPT {
            journal.note(LogLevel::Info, number.to_string(), &[("n", number.to_string())]);
        }
        let entries = journal.entries();
        assert_eq!((entries.len(), entries[0].message.as_str()), (KEPT, "1"));
        assert_eq!(entries[KEPT - 1].fields["n"], KEPT.to_string());
    }
}
