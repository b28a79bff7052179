//! Clean-up that happens once per attempt, whatever ended it, and later when boxes are not there to be cleaned.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{Identity, Start};

/// A clean-up stops a process and removes files; one that takes longer is tried again later.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks whether boxes are back.
const AGAIN: Duration = Duration::from_secs(5);
/// What is owed is one entry for each server and each test while boxes are down. Beyond this the oldest are left to
/// the runtime's own sweep.
const MOST_OWED: usize = 1024;

#[derive(Debug)]
pub(crate) struct Cleaner {
    start: Arc<dyn Start>,
    /// By session and process, so that what is owed twice is done once.
    owed: Mutex<BTreeMap<(String, String), Identity>>,
    more: Notify,
}

impl Cleaner {
    pub(crate) fn new(start: Arc<dyn Start>) -> Self {
        Self { start, owed: Mutex::default(), more: Notify::new() }
    }

    fn owed(&self) -> MutexGuard<'_, BTreeMap<(String, String), Identity>> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cleans up after an attempt now, or notes that it has to be done.
    pub(crate) async fn clean(&self, identity: &Identity) {
        let key = (identity.session_id.clone(), identity.process_id.clone());
        if self.try_clean(identity).await {
            self.owed().remove(&key);
            return;
        }
        let mut owed = self.owed();
        owed.insert(key, identity.clone());
        while owed.len() > MOST_OWED {
            owed.pop_first();
        }
        drop(owed);
        self.more.notify_one();
    }

    async fn try_clean(&self, identity: &Identity) -> bool {
        if self.start.availability().await.is_err() {
            return false;
        }
        match tokio::time::timeout(PATIENCE, self.start.clean_up(identity)).await {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                tracing::warn!(session.id = identity.session_id, process.id = identity.process_id, %error,
                    "clean-up after an MCP server failed, and is tried again");
                false
            }
            Err(_) => {
                tracing::warn!(
                    session.id = identity.session_id,
                    process.id = identity.process_id,
                    "clean-up after an MCP server takes too long, and is tried again"
                );
                false
            }
        }
    }

    /// Does what is owed, once.
    pub(crate) async fn settle(&self) {
        let all: Vec<_> = self.owed().values().cloned().collect();
        for identity in all {
            if self.try_clean(&identity).await {
                self.owed().remove(&(identity.session_id, identity.process_id));
            }
        }
    }

    pub(crate) fn owes(&self) -> usize {
        self.owed().len()
    }

    /// Does what is owed as boxes come back, until told to end.
    pub(crate) async fn run(&self, end: CancellationToken) {
        loop {
            tokio::select! {
                () = end.cancelled() => return,
                () = self.more.notified(), if self.owes() == 0 => {}
                () = tokio::time::sleep(AGAIN), if self.owes() > 0 => self.settle().await,
            }
        }
    }
}
