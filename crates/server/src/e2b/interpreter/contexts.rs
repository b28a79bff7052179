//! The contexts of one sandbox: names for interpreters that keep what code leaves behind.

use std::sync::{Arc, Mutex};

use axum::http::StatusCode;
use sandcrate_protocol::ErrorKind;
use serde::Serialize;

use super::kernel::Kernel;
use crate::App;
use crate::e2b::HOME;
use crate::e2b::error::Refused;
use crate::e2b::sandbox::{Sandbox, locked, new_id};

/// Each is a process; a session has 32 managed ones, and these leave room for others.
const MAX_CONTEXTS: usize = 16;

/// What code may be written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Language {
    Python,
    Bash,
}

impl Language {
    pub(super) fn named(name: Option<&str>) -> Result<Self, Refused> {
        match name.map(str::to_ascii_lowercase).as_deref() {
            None | Some("" | "python" | "python3") => Ok(Self::Python),
            Some("bash" | "sh") => Ok(Self::Bash),
            Some(other) => {
                let shown: String = other.chars().take(32).collect();
                Err(Refused::invalid(format!("`language` is {shown}; code can be python or bash here")))
            }
        }
    }

    /// How the kernel calls it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Bash => "bash",
        }
    }
}

/// What a client is told of a context.
#[derive(Debug, Serialize)]
pub(super) struct ContextView {
    id: String,
    language: Language,
    cwd: String,
}

#[derive(Debug)]
pub(crate) struct Context {
    pub(super) id: String,
    pub(super) language: Language,
    pub(super) cwd: String,
    /// For code whose sender names no context.
    default: bool,
    /// Whoever runs code holds it; the others wait for their turn. `None`: not started, or ended.
    pub(super) kernel: Arc<tokio::sync::Mutex<Option<Kernel>>>,
}

impl Context {
    pub(super) fn unknown(id: &str) -> Refused {
        let shown: String = id.chars().take(64).collect();
        Refused::new(StatusCode::NOT_FOUND, format!("there is no context {shown}"))
    }

    pub(super) fn view(&self) -> ContextView {
        ContextView { id: self.id.clone(), language: self.language, cwd: self.cwd.clone() }
    }

    /// Of the process in the box.
    pub(super) fn process_id(&self) -> String {
        format!("e2b-code-{}", self.id)
    }

    /// Starts it now rather than with the first code, so that whoever asked learns what is wrong.
    pub(super) async fn begin(&self, app: &App, sandbox: &Sandbox) -> Result<(), Refused> {
        let mut kernel = self.kernel.lock().await;
        *kernel = Some(Kernel::start(app, sandbox, self).await?);
        Ok(())
    }

    /// Ends its process; code that runs learns of it as of a crash.
    pub(super) async fn stop(&self, app: &App, sandbox: &Sandbox) -> Result<(), Refused> {
        match app.runtime.stop_process(sandbox.id(), &self.process_id()).await {
            Err(error) if error.kind() != ErrorKind::ProcessNotFound => return Err(error.into()),
            _ => {}
        }
        *self.kernel.lock().await = None;
        Ok(())
    }
}

#[derive(Debug, Default)]
/// In the order they were made.
pub(crate) struct Contexts(Mutex<Vec<Arc<Context>>>);

impl Contexts {
    pub(super) fn get(&self, id: &str) -> Option<Arc<Context>> {
        locked(&self.0).iter().find(|context| context.id == id).cloned()
    }

    pub(super) fn all(&self) -> Vec<Arc<Context>> {
        locked(&self.0).clone()
    }

    pub(super) fn remove(&self, id: &str) -> Option<Arc<Context>> {
        let mut contexts = locked(&self.0);
        let at = contexts.iter().position(|context| context.id == id)?;
        Some(contexts.remove(at))
    }

    /// The one for code without a context; made when there is none yet.
    pub(super) fn default_of(&self, language: Language) -> Result<Arc<Context>, Refused> {
        let found =
            locked(&self.0).iter().find(|context| context.default && context.language == language).cloned();
        found.map_or_else(|| self.insert(language, HOME.to_owned(), true), Ok)
    }

    pub(super) fn create(&self, language: Language, cwd: Option<String>) -> Result<Arc<Context>, Refused> {
        self.insert(language, cwd.unwrap_or_else(|| HOME.to_owned()), false)
    }

    fn insert(&self, language: Language, cwd: String, default: bool) -> Result<Arc<Context>, Refused> {
        let id =
            new_id().map_err(|error| Refused::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
        let mut contexts = locked(&self.0);
        // Somebody else may have made it since it was looked for.
        let same = contexts.iter().find(|context| default && context.default && context.language == language);
        if let Some(context) = same {
            return Ok(Arc::clone(context));
        }
        if contexts.len() >= MAX_CONTEXTS {
            let message = format!("a sandbox has at most {MAX_CONTEXTS} contexts; remove one");
            return Err(Refused::new(StatusCode::TOO_MANY_REQUESTS, message));
        }
        let context = Arc::new(Context { id, language, cwd, default, kernel: Arc::default() });
        contexts.push(Arc::clone(&context));
        Ok(context)
    }
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse as _;

    use super::*;

    #[test]
    fn code_without_a_context_has_one_of_its_language() {
        let contexts = Contexts::default();
        let python = contexts.default_of(Language::Python).unwrap();
        assert_eq!(contexts.default_of(Language::Python).unwrap().id, python.id);
        assert_ne!(contexts.default_of(Language::Bash).unwrap().id, python.id);
        let own = contexts.create(Language::Python, Some("/tmp".to_owned())).unwrap();
        assert_ne!(contexts.default_of(Language::Python).unwrap().id, own.id);
        let listed: Vec<_> = contexts.all().iter().map(|context| context.id.clone()).collect();
        assert_eq!((listed.len(), &listed[0], &listed[2]), (3, &python.id, &own.id));
        contexts.remove(&python.id).unwrap();
        assert_ne!(contexts.default_of(Language::Python).unwrap().id, python.id);
    }

    #[test]
    fn a_sandbox_has_so_many_contexts_and_no_more() {
        let contexts = Contexts::default();
        for _ in 0..MAX_CONTEXTS {
            contexts.create(Language::Python, None).unwrap();
        }
        let refused = contexts.create(Language::Python, None).unwrap_err().into_response();
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    }

    #[test]
    fn a_language_that_is_not_here_is_named() {
        assert_eq!(Language::named(None).unwrap(), Language::Python);
        assert_eq!(Language::named(Some("Bash")).unwrap(), Language::Bash);
        let refused = format!("{:?}", Language::named(Some("r")).unwrap_err());
        assert!(refused.contains("`language` is r; code can be python or bash here"), "{refused}");
    }
}
