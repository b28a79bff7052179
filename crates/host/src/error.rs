//! What can fail, with the kind and the words that callers and models see.

use sandcrate_protocol::ErrorKind;
use thiserror::Error;

/// A failure of the Box: its kind decides class, HTTP status and exit code.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct HostError {
    pub kind: ErrorKind,
    pub message: String,
}

impl HostError {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Validation, message)
    }

    /// The name of the error as LangBot's wire and error ring have it.
    pub fn class(&self) -> &'static str {
        self.kind.appearance().wire_class
    }
}
