//! Sessions that this launcher made: ended when their last server is, whoever gives up on the way.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sandcrate_protocol::ErrorKind;

use super::Launcher;
use super::project::StagedCopy;

/// What was made for the servers that were started, by session and process.
#[derive(Debug, Default)]
pub(super) struct Made(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    processes: HashMap<String, BTreeSet<String>>,
    copies: HashMap<(String, String), StagedCopy>,
}

impl Made {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, session: &str, process: &str, copy: Option<StagedCopy>) {
        let mut state = self.state();
        state.processes.entry(session.to_owned()).or_default().insert(process.to_owned());
        let old = match copy {
            Some(copy) => state.copies.insert((session.to_owned(), process.to_owned()), copy),
            None => None,
        };
        drop(state);
        // Removes files: not under the lock.
        drop(old);
    }

    /// Forgets a server. True when its session has no other one of ours.
    pub(super) fn remove(&self, session: &str, process: &str) -> (bool, Option<StagedCopy>) {
        let mut state = self.state();
        let copy = state.copies.remove(&(session.to_owned(), process.to_owned()));
        let Some(processes) = state.processes.get_mut(session) else { return (false, copy) };
        processes.remove(process);
        let last = processes.is_empty();
        if last {
            state.processes.remove(session);
        }
        (last, copy)
    }
}

/// Ends a session when it is dropped, as when whoever waited for it gave up.
#[derive(Debug)]
pub(super) struct SessionGuard<'a> {
    launcher: &'a Launcher,
    session: Option<String>,
}

impl<'a> SessionGuard<'a> {
    pub(super) fn new(launcher: &'a Launcher, session: String) -> Self {
        Self { launcher, session: Some(session) }
    }

    /// Ends it now, and waits.
    pub(super) async fn end(mut self) {
        if let Some(session) = &self.session {
            delete(&*self.launcher.client, session).await;
        }
        self.session = None;
    }
}

impl Drop for SessionGuard<'_> {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            let client = std::sync::Arc::clone(&self.launcher.client);
            self.launcher.tasks.spawn(async move { delete(&*client, &session).await });
        }
    }
}

async fn delete(client: &dyn sandcrate_host::Client, session: &str) {
    match client.delete_session(session).await {
        Ok(()) => {}
        Err(error) if error.kind == ErrorKind::SessionNotFound => {}
        Err(error) => tracing::warn!(session.id = session, %error, "an install box could not be ended"),
    }
}
