//! The runtime as the service and the tools see it, whichever way it is reached.

use async_trait::async_trait;
use bytes::Bytes;
use sandcrate_protocol::{BoxSpec, ExecResult, ProcessInfo, ProcessSpec};
use serde_json::Value;

use crate::Result;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    File,
    Directory,
    Symlink,
    Other,
}

/// One entry of a box's file system, never followed when it is a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileMeta {
    pub name: String,
    pub kind: FileKind,
    pub size: u64,
    pub modified_ms: i64,
}

/// A connected runtime. Paths are paths in the box; nothing here touches the host's files.
#[async_trait]
pub trait Client: Send + Sync + std::fmt::Debug {
    /// Fails when the runtime does not answer.
    async fn ping(&self) -> Result<()>;
    /// Runs `spec.cmd`; makes the session first if there is none.
    async fn execute(&self, spec: &BoxSpec) -> Result<ExecResult>;
    async fn create_session(&self, spec: &BoxSpec) -> Result<Value>;
    async fn delete_session(&self, session: &str) -> Result<()>;
    async fn sessions(&self) -> Result<Vec<Value>>;
    async fn session(&self, session: &str) -> Result<Value>;
    async fn status(&self) -> Result<Value>;
    async fn backend_info(&self) -> Result<Value>;
    async fn start_process(&self, session: &str, spec: &ProcessSpec) -> Result<ProcessInfo>;
    async fn process(&self, session: &str, process: &str) -> Result<ProcessInfo>;
    async fn stop_process(&self, session: &str, process: &str) -> Result<()>;
    /// A skill action by its wire name (`box_list_skills`, …) with its data; the reply's data.
    async fn skill(&self, action: &str, data: Value) -> Result<Value>;

    /// What is at the path; `NotFound` kinds of error when nothing is. The session is made from `spec` if there is none.
    async fn stat(&self, spec: &BoxSpec, path: &str) -> Result<Option<FileMeta>>;
    /// Entries of a directory, in no order.
    async fn list(&self, spec: &BoxSpec, path: &str) -> Result<Vec<FileMeta>>;
    /// At most `limit` bytes from the start of a regular file.
    async fn read(&self, spec: &BoxSpec, path: &str, limit: u64) -> Result<Bytes>;
    /// Replaces or makes a regular file, missing parents too.
    async fn write(&self, spec: &BoxSpec, path: &str, data: Bytes) -> Result<()>;

    /// Tells the runtime to end; errors are of no interest.
    async fn shutdown(&self);
}
