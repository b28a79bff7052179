//! What can fail, with the kind and the words that callers and models see.

use sandcrate_protocol::{ErrorKind, ExecResult};
use thiserror::Error;

/// A failure of the Box: its kind decides class, HTTP status and exit code.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct HostError {
    pub kind: ErrorKind,
    pub message: String,
    /// What the command gave all the same, when it ran and was refused for what it left behind.
    pub output: Option<Box<ExecResult>>,
}

impl HostError {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), output: None }
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Validation, message)
    }

    /// The runtime cannot be reached, or not now.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::RuntimeUnavailable, message)
    }

    /// The name of the error as LangBot's wire and error ring have it.
    pub fn class(&self) -> &'static str {
        self.kind.appearance().wire_class
    }
}
