//! What the runtime answers: results of commands, sessions, managed processes, its own state.
//!
//! Field order is the order on the wire.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{DEFAULT_PROCESS_ID, MountMode, NetworkMode, Timestamp};

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecStatus {
    Completed,
    TimedOut,
}

/// The outcome of one command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecResult {
    pub session_id: String,
    pub backend_name: String,
    pub status: ExecStatus,
    /// Absent when the command timed out.
    pub exit_code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    pub duration_ms: u64,
}

/// A session as its callers see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionInfo {
    pub session_id: String,
    pub backend_name: String,
    pub backend_session_id: String,
    pub image: String,
    pub network: NetworkMode,
    pub host_path: Option<String>,
    pub host_path_mode: MountMode,
    pub mount_path: String,
    pub persistent: bool,
    pub cpus: f64,
    pub memory_mb: u64,
    pub pids_limit: u64,
    pub read_only_rootfs: bool,
    pub workspace_quota_mb: u64,
    pub created_at: Timestamp,
    pub last_used_at: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessStatus {
    Running,
    Exited,
}

/// A managed process as its callers see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessInfo {
    pub session_id: String,
    pub process_id: String,
    pub status: ProcessStatus,
    pub command: String,
    pub args: Vec<String>,
    pub cwd: String,
    /// Sorted names; values are never given back.
    pub env_keys: Vec<String>,
    /// Whether a relay is connected.
    pub attached: bool,
    pub started_at: Timestamp,
    pub exited_at: Option<Timestamp>,
    pub exit_code: Option<i32>,
    /// The last lines of standard error.
    pub stderr_preview: String,
}

/// A session with its managed processes, for whoever asks for that one session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionDetails {
    #[serde(flatten)]
    pub session: SessionInfo,
    /// By id, ended ones included; absent on the wire when there are none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub managed_processes: BTreeMap<String, ProcessInfo>,
    /// The one called `default` once more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed_process: Option<ProcessInfo>,
}

impl SessionDetails {
    pub fn new(session: SessionInfo, processes: impl IntoIterator<Item = ProcessInfo>) -> Self {
        let managed_processes: BTreeMap<_, _> =
            processes.into_iter().map(|process| (process.process_id.clone(), process)).collect();
        let managed_process = managed_processes.get(DEFAULT_PROCESS_ID).cloned();
        Self { session, managed_processes, managed_process }
    }
}

/// Which backend serves, if any.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendStatus {
    pub name: Option<String>,
    pub available: bool,
}

/// The runtime at a glance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeStatus {
    pub backend: BackendStatus,
    pub active_sessions: u64,
    /// Running ones only.
    pub managed_processes: u64,
    pub session_ttl_sec: u64,
}
