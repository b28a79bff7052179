//! What an operator can set about the runtime, and what LangBot's own configuration may fill in.
//!
//! Typed and validated: files, environment and flags are the command line's business.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Which backend sessions are made on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendChoice {
    /// The first that is available, in the order given to the runtime.
    #[default]
    Auto,
    /// The same among those of this machine: LangBot's word.
    Local,
    #[serde(untagged)]
    Named(String),
}

/// Whether a session may use the host's own network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HostNetwork {
    #[default]
    Deny,
    Allow,
}

/// Bounds of what clients can make us hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RuntimeLimits {
    pub sessions: usize,
    /// Running managed processes of one session.
    pub processes: usize,
    /// Exited processes whose record is kept, per session.
    pub exited_processes: usize,
    /// Streams and terminals of one session.
    pub commands: usize,
    /// Collected commands waiting for their turn in one session.
    pub queued_commands: usize,
    /// Bytes kept of each stream of a collected command.
    pub output_bytes: usize,
    /// Output kept of a stream or process for a client that is away.
    pub log_bytes: usize,
}

impl Default for RuntimeLimits {
    fn default() -> Self {
        Self {
            sessions: 2000,
            processes: 32,
            exited_processes: 32,
            commands: 64,
            queued_commands: 256,
            output_bytes: 1 << 20,
            log_bytes: 1 << 20,
        }
    }
}

/// What LangBot's JSON may fill in where the operator's file is silent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LangbotConfig {
    pub backend: Option<BackendChoice>,
    pub mount_roots: Vec<PathBuf>,
}

/// Who sent a LangBot configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitSource {
    /// Known by token or by uid, so it may set mount roots that the operator left open.
    pub known: bool,
    /// Where its relative paths start.
    pub base_dir: PathBuf,
}

/// The whole configuration of a runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeConfig {
    /// Records and files of persistent sessions live below it, under a lock.
    pub state_dir: PathBuf,
    /// `None` leaves the choice to LangBot's configuration.
    pub backend: Option<BackendChoice>,
    /// Host directories that may be mounted; `None` leaves them to a known client's LangBot configuration.
    pub mount_roots: Option<Vec<PathBuf>>,
    pub host_network: HostNetwork,
    /// After this long without use a session ends, unless it is persistent.
    pub session_ttl: Duration,
    pub limits: RuntimeLimits,
}

impl RuntimeConfig {
    pub const DEFAULT_TTL: Duration = Duration::from_secs(300);

    pub fn new(state_dir: impl Into<PathBuf>) -> Self {
        Self {
            state_dir: state_dir.into(),
            backend: None,
            mount_roots: None,
            host_network: HostNetwork::Deny,
            session_ttl: Self::DEFAULT_TTL,
            limits: RuntimeLimits::default(),
        }
    }
}
