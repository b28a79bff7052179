//! The managed processes of one session, by their ids.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use sandcrate_protocol::ProcessInfo;
use tokio::time::Instant;

use crate::RuntimeError;
use crate::process::Process;
use crate::session::locked;

#[derive(Debug, Default)]
pub(crate) struct Processes {
    by_id: Mutex<BTreeMap<String, Entry>>,
    /// Starts and stops of one session happen one after the other.
    pub(crate) order: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Entry {
    process: Arc<Process>,
    number: u64,
}

impl Processes {
    pub(crate) fn get(&self, id: &str) -> Option<Arc<Process>> {
        locked(&self.by_id).get(id).map(|entry| Arc::clone(&entry.process))
    }

    pub(crate) fn remove(&self, id: &str) -> Option<Arc<Process>> {
        locked(&self.by_id).remove(id).map(|entry| entry.process)
    }

    /// Fails when as many run as may; one of the same id does not count, it is replaced.
    pub(crate) fn check_room(&self, id: &str, limit: usize) -> Result<(), RuntimeError> {
        let by_id = locked(&self.by_id);
        let running =
            by_id.iter().filter(|(known, entry)| known.as_str() != id && entry.process.is_running()).count();
        if running >= limit {
            return Err(RuntimeError::LimitExceeded {
                what: "another managed process in this session".to_owned(),
                limit: format!("{limit} (limits.processes)"),
            });
        }
        Ok(())
    }

    /// Adds a process, and forgets the oldest ended ones beyond `kept`.
    pub(crate) fn insert(&self, id: String, process: Arc<Process>, kept: usize) {
        let mut by_id = locked(&self.by_id);
        let number = by_id.values().map(|entry| entry.number + 1).max().unwrap_or(0);
        by_id.insert(id, Entry { process, number });
        let mut ended: Vec<(u64, String)> = by_id
            .iter()
            .filter(|(_, entry)| !entry.process.is_running())
            .map(|(id, entry)| (entry.number, id.clone()))
            .collect();
        ended.sort();
        for (_, id) in ended.iter().take(ended.len().saturating_sub(kept)) {
            by_id.remove(id);
        }
    }

    /// When those ended that have.
    pub(crate) fn ended_since(&self) -> Vec<Instant> {
        locked(&self.by_id).values().filter_map(|entry| entry.process.ended_since()).collect()
    }

    /// Forgets those that had ended by then.
    pub(crate) fn forget_ended_by(&self, time: Instant) {
        locked(&self.by_id).retain(|_, entry| entry.process.ended_since().is_none_or(|since| since > time));
    }

    pub(crate) fn any_running(&self) -> bool {
        locked(&self.by_id).values().any(|entry| entry.process.is_running())
    }

    pub(crate) fn running(&self) -> usize {
        locked(&self.by_id).values().filter(|entry| entry.process.is_running()).count()
    }

    /// In order of their start.
    pub(crate) fn infos(&self) -> Vec<ProcessInfo> {
        let by_id = locked(&self.by_id);
        let mut entries: Vec<_> = by_id.values().collect();
        entries.sort_by_key(|entry| entry.number);
        entries.into_iter().map(|entry| entry.process.info()).collect()
    }

    pub(crate) fn clear(&self) {
        locked(&self.by_id).clear();
    }
}
