//! Where in its life a server failed.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The stations of a server on its way to being used, in order, and what may end it after that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Boxes are switched off or cannot be made: nothing is tried, and never on the host instead.
    BoxUnavailable,
    SessionCreate,
    Staging,
    DepInstall,
    ProcessStart,
    RelayConnect,
    McpInit,
    /// It was ready, and ended.
    Runtime,
    ToolCall,
}

impl Phase {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BoxUnavailable => "box_unavailable",
            Self::SessionCreate => "session_create",
            Self::Staging => "staging",
            Self::DepInstall => "dep_install",
            Self::ProcessStart => "process_start",
            Self::RelayConnect => "relay_connect",
            Self::McpInit => "mcp_init",
            Self::Runtime => "runtime",
            Self::ToolCall => "tool_call",
        }
    }

    /// Another attempt may do better. A project that is not there, or not for this server, does not come by itself.
    pub const fn is_worth_a_retry(self) -> bool {
        !matches!(self, Self::BoxUnavailable | Self::Staging | Self::ToolCall)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A failure that says where it happened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct PhaseError {
    pub phase: Phase,
    pub message: String,
}

impl PhaseError {
    pub fn new(phase: Phase, message: impl Into<String>) -> Self {
        Self { phase, message: message.into() }
    }
}
