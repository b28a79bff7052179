//! Boxes as an MCP server: the agent's tools in a session, and its workspace as resources.
//!
//! [`BoxServer`] speaks the protocol for one session and knows nothing of how boxes are made: that is behind
//! [`Boxes`], which [`LocalBoxes`] is for a runtime in this process. The same server is spoken to over stdio
//! ([`serve_lines`]) and over HTTP ([`HttpFace`]).

mod handler;
mod http;
mod instructions;
mod lines;
mod local;
mod outcome;
mod page;
mod resources;
mod tools;
mod uri;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod handler_tests;

use std::fmt::Debug;

use async_trait::async_trait;
use bytes::Bytes;
use sandcrate_host::tools::ToolDefinition;
use sandcrate_host::{FileMeta, HostError};
use serde::Serialize;
use serde_json::Value;

pub use handler::BoxServer;
pub use http::{HttpFace, HttpLimits, NoPlace};
pub use lines::{LinesError, serve_lines};
pub use local::{Blueprint, LocalBoxes};

/// What a box of this place is, for the words that a model is told.
#[derive(Debug, Clone, PartialEq)]
pub struct BoxFacts {
    /// As a request for a network is written: `off`, `on`, a policy.
    pub network: String,
    pub memory_mb: u64,
    pub cpus: f64,
    pub pids_limit: u64,
    /// Of a command that names none, and the most that one may name.
    pub timeout_sec: u64,
    pub max_timeout_sec: u64,
    pub workspace: Workspace,
}

/// Whose files /workspace holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workspace {
    /// The box's own; they go with the session.
    Private,
    /// The session's, kept for the next time.
    Kept,
    /// A directory of the host.
    Mounted,
    /// The same, read-only.
    MountedReadOnly,
}

/// A session as its client is shown it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SessionFacts {
    pub session: String,
    /// `none` before the first call; else what the runtime says: `idle`, `running`, `dormant`.
    pub state: String,
    pub backend: Option<String>,
    pub network: String,
    pub memory_mb: u64,
    pub cpus: f64,
    pub pids_limit: u64,
    pub created_at: Option<String>,
    pub last_used_at: Option<String>,
}

/// What the server needs of boxes. A session that is not there is made by the first call that needs it.
///
/// Every method is safe to cancel: a dropped call ends what it runs, and nothing else.
#[async_trait]
pub trait Boxes: Send + Sync + Debug {
    fn facts(&self) -> BoxFacts;
    /// The tools that may be called.
    fn tools(&self) -> Vec<ToolDefinition>;
    /// Runs one of them. What a model can act upon is a value with `ok: false`.
    async fn call(&self, session: &str, tool: &str, arguments: &Value) -> Result<Value, HostError>;
    async fn session(&self, session: &str) -> Result<SessionFacts, HostError>;
    /// Ends the session with all that runs in it and its private files. Whether there was one.
    async fn reset(&self, session: &str) -> Result<bool, HostError>;
    /// What is at a path of the box, a final link not followed.
    async fn stat(&self, session: &str, path: &str) -> Result<Option<FileMeta>, HostError>;
    /// Entries of a directory, in no order; none in a session that has no files yet.
    async fn list(&self, session: &str, path: &str) -> Result<Vec<FileMeta>, HostError>;
    /// At most `limit` bytes from `offset`, and the size of the whole file.
    async fn read(
        &self,
        session: &str,
        path: &str,
        offset: u64,
        limit: u64,
    ) -> Result<(Bytes, u64), HostError>;
}
