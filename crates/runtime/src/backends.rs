//! Which backend sessions are made on, now.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandcrate_backend::Backend;
use sandcrate_protocol::BackendStatus;
use serde::Serialize;

use crate::config::BackendChoice;
use crate::session::locked;
use crate::{LangbotConfig, RuntimeError};

/// Backends of this machine, in the order in which `local` tries them.
const LOCAL: [&str; 4] = ["native", "docker", "podman", "nsjail"];

/// A backend that does not say within this time whether it is there is not.
const PROBE_LIMIT: Duration = Duration::from_secs(10);

/// A backend as an operator sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BackendView {
    pub name: &'static str,
    pub available: bool,
    /// Why it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Backends {
    all: Vec<Arc<dyn Backend>>,
    /// With the wish that it was chosen by: whoever looked for another while the wish changed decides nothing.
    chosen: Mutex<Option<(BackendChoice, Arc<dyn Backend>)>>,
    /// How each stood when it was last looked at.
    seen: Mutex<Vec<BackendView>>,
}

impl Backends {
    pub(crate) fn new(all: Vec<Arc<dyn Backend>>) -> Self {
        Self { all, chosen: Mutex::default(), seen: Mutex::default() }
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
        if let Some((by, chosen)) = &*locked(&self.chosen)
            && by == choice
        {
            return Ok(Arc::clone(chosen));
        }
        if *choice == BackendChoice::Given
            && let Some(given) = self.all.first()
        {
            return Ok(Arc::clone(given));
        }
        let mut reasons = Vec::new();
        for candidate in self.candidates(choice) {
            match look_at(candidate.as_ref()).await {
                Ok(()) => {
                    // Two choosers come to the same end: the order is fixed.
                    *locked(&self.chosen) = Some((choice.clone(), Arc::clone(&candidate)));
                    tracing::info!(backend = candidate.name(), "backend chosen");
                    return Ok(candidate);
                }
                Err(why) => reasons.push(why),
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
        look_at(backend.as_ref()).await.map_err(|why| RuntimeError::NoBackend { why })?;
        Ok(backend)
    }

    fn candidates(&self, choice: &BackendChoice) -> Vec<Arc<dyn Backend>> {
        let rank = |backend: &Arc<dyn Backend>| {
            LOCAL.iter().position(|name| *name == backend.name()).unwrap_or(LOCAL.len())
        };
        let mut found: Vec<_> = match choice {
            BackendChoice::Auto | BackendChoice::Given => self.all.clone(),
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
        let up = |backend: &Arc<dyn Backend>| BackendStatus {
            name: Some(backend.name().to_owned()),
            available: true,
        };
        let lost = match self.choose(choice).await {
            Ok(backend) if look_at(backend.as_ref()).await.is_ok() => return up(&backend),
            Ok(backend) => backend,
            Err(_) => return BackendStatus { name: None, available: false },
        };
        if *choice == BackendChoice::Given {
            return BackendStatus { name: Some(lost.name().to_owned()), available: false };
        }
        // Another may do, where the choice is ours.
        self.forget();
        match self.choose(choice).await {
            Ok(backend) => up(&backend),
            Err(_) => BackendStatus { name: Some(lost.name().to_owned()), available: false },
        }
    }

    /// Looks at all of them. A choice that is gone is forgotten: the next request chooses again.
    pub(crate) async fn look(&self) -> Vec<BackendView> {
        let looks = self.all.iter().map(|backend| async move {
            let why = look_at(backend.as_ref()).await.err();
            BackendView { name: backend.name(), available: why.is_none(), why }
        });
        let views = futures_util::future::join_all(looks).await;
        let chosen = locked(&self.chosen).as_ref().map(|(_, chosen)| chosen.name());
        if views.iter().any(|view| Some(view.name) == chosen && !view.available) {
            self.forget();
        }
        let before = std::mem::replace(&mut *locked(&self.seen), views.clone());
        for view in &views {
            let known = before.iter().find(|before| before.name == view.name);
            match (known.map(|known| known.available), view.available) {
                (Some(true), false) => {
                    tracing::warn!(backend = view.name, why = view.why, "backend lost");
                }
                (Some(false), true) => tracing::info!(backend = view.name, "backend is back"),
                _ => {}
            }
        }
        views
    }
}

/// Why a backend cannot be used now, if so.
async fn look_at(backend: &dyn Backend) -> Result<(), String> {
    match tokio::time::timeout(PROBE_LIMIT, backend.probe()).await {
        Ok(looked) => looked.map_err(|error| error.to_string()),
        Err(_) => {
            Err(format!("backend `{}` does not answer within {} s", backend.name(), PROBE_LIMIT.as_secs()))
        }
    }
}

/// The operator's word, then LangBot's, then whatever there is.
pub(crate) fn effective_choice(operator: Option<&BackendChoice>, langbot: &LangbotConfig) -> BackendChoice {
    operator.or(langbot.backend.as_ref()).cloned().unwrap_or_default()
}
