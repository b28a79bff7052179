//! Which backend sessions are made on, now.

use std::sync::{Arc, Mutex};

use sandcrate_backend::Backend;
use sandcrate_protocol::BackendStatus;

use crate::config::BackendChoice;
use crate::session::locked;
use crate::{LangbotConfig, RuntimeError};

/// Backends of this machine, in the order in which `local` tries them.
const LOCAL: [&str; 4] = ["native", "docker", "podman", "nsjail"];

#[derive(Debug)]
pub(crate) struct Backends {
    all: Vec<Arc<dyn Backend>>,
    chosen: Mutex<Option<Arc<dyn Backend>>>,
}

impl Backends {
    pub(crate) fn new(all: Vec<Arc<dyn Backend>>) -> Self {
        Self { all, chosen: Mutex::default() }
    }

    /// Forgets the choice; the next use makes it anew.
    pub(crate) fn forget(&self) {
        *locked(&self.chosen) = None;
    }

    pub(crate) fn all(&self) -> &[Arc<dyn Backend>] {
        &self.all
    }

    /// The backend in use, chosen when there is none yet.
    pub(crate) async fn choose(&self, choice: &BackendChoice) -> Result<Arc<dyn Backend>, RuntimeError> {
        if let Some(chosen) = locked(&self.chosen).clone() {
            return Ok(chosen);
        }
        let mut reasons = Vec::new();
        for candidate in self.candidates(choice) {
            match candidate.probe().await {
                Ok(()) => {
                    // Two choosers come to the same end: the order is fixed.
                    *locked(&self.chosen) = Some(Arc::clone(&candidate));
                    tracing::info!(backend = candidate.name(), "backend chosen");
                    return Ok(candidate);
                }
                Err(error) => reasons.push(error.to_string()),
            }
        }
        Err(RuntimeError::NoBackend { why: self.why_none(choice, &reasons) })
    }

    pub(crate) fn find(&self, name: &str) -> Option<Arc<dyn Backend>> {
        self.all.iter().find(|backend| backend.name() == name).cloned()
    }

    /// The backend that has a session's files.
    pub(crate) async fn named(&self, name: &str) -> Result<Arc<dyn Backend>, RuntimeError> {
        let missing = || self.why_none(&BackendChoice::Named(name.to_owned()), &[]);
        let backend = self.find(name).ok_or_else(|| RuntimeError::NoBackend { why: missing() })?;
        backend.probe().await.map_err(|error| RuntimeError::NoBackend { why: error.to_string() })?;
        Ok(backend)
    }

    fn candidates(&self, choice: &BackendChoice) -> Vec<Arc<dyn Backend>> {
        let rank = |backend: &Arc<dyn Backend>| {
            LOCAL.iter().position(|name| *name == backend.name()).unwrap_or(LOCAL.len())
        };
        let mut found: Vec<_> = match choice {
            BackendChoice::Auto => self.all.clone(),
            BackendChoice::Local => {
                self.all.iter().filter(|backend| backend.name() != "e2b").cloned().collect()
            }
            BackendChoice::Named(name) => {
                self.all.iter().filter(|backend| backend.name() == name).cloned().collect()
            }
        };
        found.sort_by_key(rank);
        found
    }

    fn why_none(&self, choice: &BackendChoice, reasons: &[String]) -> String {
        let known: Vec<_> = self.all.iter().map(|backend| backend.name()).collect();
        match (choice, reasons) {
            (BackendChoice::Named(name), []) => {
                format!("`{name}` is not a backend of this runtime; it has: {}", known.join(", "))
            }
            (_, []) => "This runtime was built without any.".to_owned(),
            (_, reasons) => reasons.join("; "),
        }
    }

    /// Asks the backend in use whether it still is there.
    pub(crate) async fn status(&self, choice: &BackendChoice) -> BackendStatus {
        match self.choose(choice).await {
            Ok(backend) => {
                let available = backend.probe().await.is_ok();
                BackendStatus { name: Some(backend.name().to_owned()), available }
            }
            Err(_) => BackendStatus { name: None, available: false },
        }
    }
}

/// The operator's word, then LangBot's, then whatever there is.
pub(crate) fn effective_choice(operator: Option<&BackendChoice>, langbot: &LangbotConfig) -> BackendChoice {
    operator.or(langbot.backend.as_ref()).cloned().unwrap_or_default()
}
