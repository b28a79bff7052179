//! What can go wrong in a backend.

use std::path::PathBuf;
use std::time::Duration;

use sandcrate_protocol::network::PolicyError;
use sandcrate_protocol::{Control, ErrorKind};

use crate::SessionId;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    #[error("{field} {problem}")]
    Invalid { field: String, problem: String },
    #[error(transparent)]
    Network(#[from] PolicyError),
    #[error("host path `{}` is refused: {rule}", path.display())]
    MountDenied { path: PathBuf, rule: String },
    #[error("{what} is not supported by the {backend} backend: {hint}")]
    Unsupported { backend: &'static str, what: String, hint: String },
    #[error("{control} cannot be enforced here: {why}")]
    Unenforceable { control: Control, why: String },
    #[error("backend `{backend}` is unavailable: {why}")]
    Unavailable { backend: &'static str, why: String },
    /// The backend is there; what the box is to be made of is not.
    #[error("image `{image}` is not here and cannot be pulled by {backend}: {why}")]
    ImageUnavailable { backend: &'static str, image: String, why: String },
    #[error("session {session} not found")]
    SessionNotFound { session: SessionId },
    #[error("session {session} already exists")]
    SessionExists { session: SessionId },
    /// The box died under the operation: its init is gone.
    #[error("session {session} ended: {why}")]
    SessionEnded { session: SessionId, why: String },
    #[error("command not found: {program}")]
    CommandNotFound { program: String },
    #[error("command cannot be executed: {program}: {why}")]
    CommandNotExecutable { program: String, why: String },
    #[error("{what} exceeds the limit of {limit}")]
    LimitExceeded { what: String, limit: String },
    #[error("no such file or directory in the box: {path}")]
    FileNotFound { path: String },
    #[error("{operation} {path}: {why}")]
    FileFailed { operation: &'static str, path: String, why: String },
    #[error("no image `{image}` is imported")]
    ImageNotFound { image: String },
    #[error(
        "image `{image}` is in use: end its sessions first, or remove it by force; they keep it until they end"
    )]
    ImageInUse { image: String },
    #[error("{what} did not end within {} s", limit.as_secs_f32())]
    Timeout { what: String, limit: Duration },
    /// A step below us failed; the chain says why.
    #[error("{step} failed")]
    Failed {
        step: String,
        #[source]
        source: std::io::Error,
    },
}

impl BackendError {
    pub fn invalid(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Invalid { field: field.into(), problem: problem.into() }
    }

    pub fn failed(step: impl Into<String>, source: std::io::Error) -> Self {
        Self::Failed { step: step.into(), source }
    }

    /// For a backend, or a machine, that cannot bound one command of a box.
    pub fn no_process_memory(why: impl std::fmt::Display) -> Self {
        let why =
            format!("{why}; leave out memory_mb of the process, that of the session holds for all of it");
        Self::Unenforceable { control: Control::Memory, why }
    }

    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Invalid { .. } => ErrorKind::Validation,
            Self::Network(error) => error.kind(),
            Self::MountDenied { .. } => ErrorKind::Denied,
            Self::Unsupported { .. } => ErrorKind::Unsupported,
            Self::Unenforceable { .. } => ErrorKind::Unenforceable,
            Self::Unavailable { .. } => ErrorKind::BackendUnavailable,
            Self::ImageUnavailable { .. } => ErrorKind::ImageUnavailable,
            Self::SessionNotFound { .. } | Self::SessionEnded { .. } => ErrorKind::SessionNotFound,
            Self::SessionExists { .. } | Self::ImageInUse { .. } => ErrorKind::SessionConflict,
            Self::CommandNotFound { .. } => ErrorKind::CommandNotFound,
            Self::CommandNotExecutable { .. } => ErrorKind::CommandNotExecutable,
            Self::LimitExceeded { .. } => ErrorKind::LimitExceeded,
            Self::FileNotFound { .. } | Self::ImageNotFound { .. } => ErrorKind::FileNotFound,
            Self::FileFailed { .. } => ErrorKind::FileFailed,
            Self::Timeout { .. } => ErrorKind::Timeout,
            Self::Failed { .. } => ErrorKind::Internal,
        }
    }
}
