//! The sandboxes there are: what E2B knows of each beyond the session that it is, and when it ends.
//!
//! The table's lock and those of a sandbox are held for look-ups. A sandbox changes between running and paused
//! while its `turn` is held, so that a pause, a resume, a kill and the end of its time come one after the other.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use sandcrate_e2b_wire::control::{NetworkConfig, OnTimeout, SandboxState};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::envd::Processes;
use super::envd::Watchers;
use super::interpreter::Contexts;
use super::journal::Journal;
use super::usage::LastLook;

/// `i` and twenty of the 36 digits: a hundred bits that nobody guesses, in a form that host names take.
pub(crate) const ID_CHARS: usize = 21;
const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// Randomness that could not be had from the kernel.
#[derive(Debug, thiserror::Error)]
#[error("the kernel gives no randomness: {0}")]
pub(crate) struct NoRandomness(rustix::io::Errno);

pub(crate) fn new_id() -> Result<String, NoRandomness> {
    let mut id = String::with_capacity(ID_CHARS);
    id.push('i');
    while id.len() < ID_CHARS {
        // The bytes from 252 on would make the first digits more likely.
        let fair = random::<32>()?.into_iter().filter(|byte| *byte < 252);
        id.extend(fair.take(ID_CHARS - id.len()).map(|byte| char::from(DIGITS[usize::from(byte % 36)])));
    }
    Ok(id)
}

fn random<const N: usize>() -> Result<[u8; N], NoRandomness> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())
            .map_err(NoRandomness)?;
    }
    Ok(bytes)
}

/// A secret of one sandbox. Never printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn new() -> Result<Self, NoRandomness> {
        Ok(Self(format!("ea_{}", URL_SAFE_NO_PAD.encode(random::<32>()?))))
    }

    /// Takes the same time wherever the two differ.
    pub(crate) fn matches(&self, text: &str) -> bool {
        self.0.as_bytes().ct_eq(text.as_bytes()).into()
    }

    /// For its owner alone.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// What a sandbox was asked to be. Kept on disk while it is paused.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Facts {
    pub(crate) id: String,
    pub(crate) template: String,
    /// `None`: its maker wanted its data plane open.
    pub(crate) access: Option<Secret>,
    /// Asked for by its code contexts, and on its other ports where they are private; `None`: they are open.
    pub(crate) traffic: Option<Secret>,
    pub(crate) private_ports: bool,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) envs: BTreeMap<String, String>,
    pub(crate) started_at: Timestamp,
    pub(crate) on_timeout: OnTimeout,
    pub(crate) internet: Option<bool>,
    pub(crate) network: Option<NetworkConfig>,
}

/// How long it has, and whether it runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(crate) state: SandboxState,
    /// For people; when it was paused, for one that is.
    pub(crate) end_at: Timestamp,
    /// For the clock.
    pub(crate) deadline: Instant,
}

impl Span {
    pub(crate) fn running(time: Duration) -> Self {
        let now = Timestamp::now();
        let end_at = now.checked_add(time).unwrap_or(Timestamp::MAX);
        Self { state: SandboxState::Running, end_at, deadline: Instant::now() + time }
    }

    pub(crate) fn paused(since: Timestamp) -> Self {
        Self { state: SandboxState::Paused, end_at: since, deadline: Instant::now() }
    }
}

#[derive(Debug)]
pub(crate) struct Sandbox {
    pub(crate) facts: Facts,
    span: Mutex<Span>,
    network: Mutex<(Option<bool>, Option<NetworkConfig>)>,
    pub(crate) turn: tokio::sync::Mutex<()>,
    /// Its time is over and somebody sees to its end.
    pub(crate) ending: AtomicBool,
    pub(crate) processes: Processes,
    pub(crate) watchers: Watchers,
    pub(crate) contexts: Contexts,
    pub(crate) journal: Journal,
    pub(crate) last_look: LastLook,
}

impl Sandbox {
    pub(crate) fn new(facts: Facts, span: Span) -> Arc<Self> {
        let network = Mutex::new((facts.internet, facts.network.clone()));
        Arc::new(Self {
            facts,
            span: Mutex::new(span),
            network,
            turn: tokio::sync::Mutex::default(),
            ending: AtomicBool::new(false),
            processes: Processes::default(),
            watchers: Watchers::default(),
            contexts: Contexts::default(),
            journal: Journal::default(),
            last_look: LastLook::default(),
        })
    }

    pub(crate) fn id(&self) -> &str {
        &self.facts.id
    }

    pub(crate) fn span(&self) -> Span {
        *locked(&self.span)
    }

    pub(crate) fn is_running(&self) -> bool {
        self.span().state == SandboxState::Running
    }

    /// When somebody has to see to its end.
    pub(crate) fn due(&self) -> Option<Instant> {
        let span = self.span();
        let waits = span.state == SandboxState::Running && !self.ending.load(Ordering::Acquire);
        waits.then_some(span.deadline)
    }

    /// As it was asked for last: whether the Internet was named, and the rules.
    pub(crate) fn network(&self) -> (Option<bool>, Option<NetworkConfig>) {
        locked(&self.network).clone()
    }

    pub(crate) fn set_network(&self, internet: Option<bool>, rules: Option<NetworkConfig>) {
        *locked(&self.network) = (internet, rules);
    }
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What they guard is replaced whole, never left half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All of them, by their ids.
#[derive(Debug, Default)]
pub(crate) struct Sandboxes {
    by_id: Mutex<HashMap<String, Arc<Sandbox>>>,
    /// A deadline changed.
    pub(crate) changed: Notify,
}

impl Sandboxes {
    pub(crate) fn get(&self, id: &str) -> Option<Arc<Sandbox>> {
        locked(&self.by_id).get(id).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Sandbox>> {
        locked(&self.by_id).values().cloned().collect()
    }

    pub(crate) fn insert(&self, sandbox: Arc<Sandbox>) {
        locked(&self.by_id).insert(sandbox.id().to_owned(), sandbox);
        self.changed.notify_one();
    }

    pub(crate) fn remove(&self, id: &str) -> Option<Arc<Sandbox>> {
        locked(&self.by_id).remove(id)
    }

    pub(crate) fn set_span(&self, sandbox: &Sandbox, span: Span) {
        *locked(&sandbox.span) = span;
        self.changed.notify_one();
    }

    /// When the next running one has to end whose end nobody sees to yet.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let sandboxes = locked(&self.by_id);
        sandboxes.values().filter_map(|sandbox| sandbox.due()).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_of_the_form_that_is_recognised_and_never_the_same() {
        let (one, other) = (new_id().unwrap(), new_id().unwrap());
        assert!(crate::e2b::target::is_id(&one) && crate::e2b::target::is_id(&other), "{one} {other}");
        assert_ne!(one, other);
    }

    #[test]
    fn only_the_whole_secret_matches_and_it_is_not_printed() {
        let secret = Secret::new().unwrap();
        let text = secret.reveal().to_owned();
        assert!(secret.matches(&text) && text.len() > 40);
        assert!(!secret.matches(&text[1..]) && !secret.matches(""));
        assert_eq!(format!("{secret:?}"), "Secret(…)");
    }
}
