//! What a manager refuses, and why.

use std::time::Duration;

use sandcrate_protocol::ErrorKind;

use crate::config::{Denied, StoreError};
use crate::{Phase, PhaseError};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManagerError {
    #[error("Server not found: {name}")]
    NotFound { name: String },
    #[error("{field} {problem}")]
    Invalid { field: String, problem: String },
    #[error("there is an MCP server `{name}` already")]
    Exists { name: String },
    /// A client cannot change what the operator wrote.
    #[error("the MCP server `{name}` is in the operator's file: change it there")]
    OperatorOwned { name: String },
    #[error("there are {most} MCP servers already, the most that are kept")]
    TooMany { most: usize },
    #[error("as many configurations as can be tested at once are being tested: try again")]
    TooManyTests,
    #[error("the server is being stopped")]
    Ending,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl ManagerError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound { .. } => ErrorKind::ProcessNotFound,
            Self::Invalid { .. } => ErrorKind::Validation,
            Self::Exists { .. } => ErrorKind::ProcessConflict,
            Self::OperatorOwned { .. } => ErrorKind::Denied,
            Self::TooMany { .. } | Self::TooManyTests => ErrorKind::CapacityExceeded,
            Self::Ending => ErrorKind::RuntimeUnavailable,
            Self::Store(_) => ErrorKind::Internal,
        }
    }

    pub fn field(&self) -> Option<&str> {
        match self {
            Self::Invalid { field, .. } => Some(field),
            Self::Exists { .. } | Self::OperatorOwned { .. } => Some("name"),
            _ => None,
        }
    }
}

/// Why a call of a tool has no result of the server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    #[error("Server not found: {name}")]
    ServerNotFound { name: String },
    #[error("Tool not found: {name}")]
    ToolNotFound { name: String },
    #[error(transparent)]
    Denied(#[from] Denied),
    #[error("MCP session is not connected")]
    NotConnected { error: Option<PhaseError> },
    #[error("the call took longer than {} seconds and was cancelled", limit.as_secs())]
    Timeout { limit: Duration },
    #[error("the call was cancelled by the client")]
    Cancelled,
    /// The server answered with an error of the protocol, or with nothing that can be used.
    #[error("{message}")]
    Failed { code: Option<i32>, message: String },
}

impl CallError {
    /// A stable word.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::ServerNotFound { .. } => "server_not_found",
            Self::ToolNotFound { .. } => "tool_not_found",
            Self::Denied(_) => "denied",
            Self::NotConnected { .. } => "not_connected",
            Self::Timeout { .. } => "timeout",
            Self::Cancelled => "cancelled",
            Self::Failed { .. } => "failed",
        }
    }

    /// Where a server's life the call failed: always in the call, unless the server is not there.
    pub fn phase(&self) -> Phase {
        match self {
            Self::NotConnected { error: Some(error) } => error.phase,
            _ => Phase::ToolCall,
        }
    }
}

impl From<CallError> for PhaseError {
    fn from(error: CallError) -> Self {
        Self::new(error.phase(), error.to_string())
    }
}
