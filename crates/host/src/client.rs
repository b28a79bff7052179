//! The runtime as the service and the tools see it, whichever way it is reached.

use std::pin::Pin;

use async_trait::async_trait;
use bytes::Bytes;
use sandcrate_protocol::network::NetworkRequest;
use sandcrate_protocol::{BoxSpec, ErrorKind, ExecResult, NetworkMode, ProcessInfo, ProcessSpec};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{HostError, Result};

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

/// The standard input and output of a managed process, whose messages are lines. Dropping both detaches.
///
/// The reader ends with the process; it fails when output was lost on the way. Shutting the writer down is end of
/// file for the process where it is in ours, and only detaches where a wire is between.
pub struct ProcessStreams {
    pub reader: Pin<Box<dyn AsyncRead + Send>>,
    pub writer: Pin<Box<dyn AsyncWrite + Send>>,
}

impl std::fmt::Debug for ProcessStreams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProcessStreams").finish_non_exhaustive()
    }
}

/// A connected runtime. Paths are paths in the box; nothing here touches the host's files.
#[async_trait]
pub trait Client: Send + Sync + std::fmt::Debug {
    /// Fails when the runtime does not answer.
    async fn ping(&self) -> Result<()>;
    /// Runs `spec.cmd`; makes the session first if there is none.
    async fn execute(&self, spec: &BoxSpec) -> Result<ExecResult>;
    async fn create_session(&self, spec: &BoxSpec) -> Result<Value>;
    /// The same with a network of its own, which is more than the words of a specification can say. A client that
    /// has no more than those refuses.
    async fn create_session_on(&self, spec: &BoxSpec, network: &NetworkRequest) -> Result<Value> {
        let network = match network {
            NetworkRequest::Off => NetworkMode::Off,
            NetworkRequest::On { deny } if deny.is_empty() => NetworkMode::On,
            other => {
                let message = format!("network `{other}`: this way to a runtime knows `on` and `off` alone");
                return Err(HostError::new(ErrorKind::Unsupported, message));
            }
        };
        self.create_session(&BoxSpec { network, ..spec.clone() }).await
    }
    async fn delete_session(&self, session: &str) -> Result<()>;
    async fn sessions(&self) -> Result<Vec<Value>>;
    async fn session(&self, session: &str) -> Result<Value>;
    async fn status(&self) -> Result<Value>;
    async fn backend_info(&self) -> Result<Value>;
    async fn start_process(&self, session: &str, spec: &ProcessSpec) -> Result<ProcessInfo>;
    async fn process(&self, session: &str, process: &str) -> Result<ProcessInfo>;
    async fn stop_process(&self, session: &str, process: &str) -> Result<()>;
    /// The exclusive line to a process; a conflict while somebody else has it.
    async fn attach(&self, session: &str, process: &str) -> Result<ProcessStreams> {
        let message = format!("process {process} of session {session} cannot be attached to on this way");
        Err(HostError::new(ErrorKind::Unsupported, message))
    }
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
