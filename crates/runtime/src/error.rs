//! What can go wrong between a face and a backend.

use std::path::PathBuf;
use std::sync::Arc;

use sandcrate_backend::BackendError;
use sandcrate_protocol::ErrorKind;
use sandcrate_protocol::network::PolicyError;

/// Clones share their cause: everybody who waited for the same creation hears the same story.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    #[error("{field} {problem}")]
    Invalid { field: String, problem: String },
    #[error("session {session} not found")]
    SessionNotFound { session: String },
    #[error("Box session {session} already exists with {field}={existing}")]
    SessionConflict { session: String, field: &'static str, existing: String },
    /// The session was deleted, or its box ended, under the operation.
    #[error("session {session} ended while the command ran: {why}")]
    SessionEnded { session: String, why: String },
    #[error("session {session} has no managed process with process_id={process}")]
    ProcessNotFound { session: String, process: String },
    #[error("managed process {process} in session {session} is not running")]
    ProcessNotRunning { session: String, process: String },
    #[error("managed process {process} in session {session} is attached elsewhere")]
    ProcessAttached { session: String, process: String },
    #[error("session {session} has no command {command}")]
    CommandNotFound { session: String, command: String },
    #[error("host path `{}` is refused: {rule}", path.display())]
    MountDenied { path: PathBuf, rule: String },
    /// A network or a port that the operator does not let this caller have.
    #[error("network `{asked}` is refused: {why}")]
    NetworkDenied { asked: String, why: String },
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error("{what} exceeds the limit of {limit}")]
    LimitExceeded { what: String, limit: String },
    /// What a host's configuration lets all its workspaces have together.
    #[error("Box {what} capacity reached ({limit})")]
    CapacityReached { what: &'static str, limit: usize },
    /// In the words of LangBot since 4.11.1.
    #[error(
        "Box mounts differ from this session's immutable mount set; acquire a Box with a distinct reuse key for \
         different host mounts. The existing session was preserved."
    )]
    MountsDiffer,
    #[error("Immutable artifact preparation failed: {why}")]
    Artifact { why: String },
    #[error("{why}")]
    NotReady { why: String },
    /// A workspace that is held to grants has none for this.
    #[error("{why}")]
    Admission { why: String },
    #[error("{hint}")]
    Unsupported { hint: String },
    /// No backend could be chosen; `why` says what each of them lacks.
    #[error("LangBot Box backend unavailable. {why}")]
    NoBackend { why: String },
    #[error("backend `{backend}` is not open to requests; {}", open_backends(allowed))]
    BackendDenied { backend: String, allowed: Vec<String> },
    #[error("the runtime is shutting down")]
    ShuttingDown,
    #[error(transparent)]
    Backend(Arc<BackendError>),
    #[error("{step} failed: {source}")]
    Failed {
        step: String,
        #[source]
        source: Arc<std::io::Error>,
    },
}

impl RuntimeError {
    pub fn invalid(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Invalid { field: field.into(), problem: problem.into() }
    }

    pub(crate) fn admission(why: &str) -> Self {
        Self::Admission { why: why.to_owned() }
    }

    pub(crate) fn failed(step: impl Into<String>, source: std::io::Error) -> Self {
        Self::Failed { step: step.into(), source: Arc::new(source) }
    }

    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Invalid { .. } => ErrorKind::Validation,
            Self::SessionNotFound { .. } | Self::SessionEnded { .. } => ErrorKind::SessionNotFound,
            Self::SessionConflict { .. } | Self::MountsDiffer => ErrorKind::SessionConflict,
            Self::CapacityReached { .. } => ErrorKind::CapacityExceeded,
            Self::Artifact { .. } => ErrorKind::FileFailed,
            Self::NotReady { .. } => ErrorKind::Readiness,
            Self::Admission { .. } => ErrorKind::Admission,
            Self::ProcessNotFound { .. } | Self::CommandNotFound { .. } => ErrorKind::ProcessNotFound,
            Self::ProcessNotRunning { .. } | Self::ProcessAttached { .. } => ErrorKind::ProcessConflict,
            Self::MountDenied { .. } | Self::NetworkDenied { .. } | Self::BackendDenied { .. } => {
                ErrorKind::Denied
            }
            Self::Policy(error) => error.kind(),
            Self::LimitExceeded { .. } => ErrorKind::LimitExceeded,
            Self::Unsupported { .. } => ErrorKind::Unsupported,
            Self::NoBackend { .. } => ErrorKind::BackendUnavailable,
            Self::ShuttingDown => ErrorKind::RuntimeUnavailable,
            Self::Backend(error) => error.kind(),
            Self::Failed { .. } => ErrorKind::Internal,
        }
    }
}

fn open_backends(allowed: &[String]) -> String {
    match allowed {
        [] => "the operator lists those that are in runtime.request_backends".to_owned(),
        allowed => format!("these are: {} (runtime.request_backends)", allowed.join(", ")),
    }
}

impl From<BackendError> for RuntimeError {
    fn from(error: BackendError) -> Self {
        Self::Backend(Arc::new(error))
    }
}
