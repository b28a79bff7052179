//! The runtime in the application's own process: the same calls, without a wire.

mod skills;
mod streams;

use std::path::PathBuf;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use sandcrate_backend::{FileEntry, FileKind as EntryKind, FileReply, FileRequest};
use sandcrate_protocol::network::NetworkRequest;
use sandcrate_protocol::{
    BoxSpec, ErrorKind, ExecResult, ProcessInfo, ProcessSpec, SessionDetails, with_causes,
};
use sandcrate_runtime::{OnTimeout, Runtime, RuntimeError, SessionOptions, SessionView};
use serde::Serialize;
use serde_json::Value;

use crate::{Client, FileKind, FileMeta, HostError, ProcessStreams, Result};

/// Bytes of a file that are moved at once.
const PIECE: usize = 8 << 20;

/// A client over a [`Runtime`] of ours. Ending the service ends the runtime's sessions, not the runtime.
#[derive(Debug, Clone)]
pub struct EmbeddedClient {
    runtime: Runtime,
    on_timeout: OnTimeout,
    /// With these a session is made for its files; without, it must be as the request says too.
    files_of: Option<SessionOptions>,
    own_root: Option<PathBuf>,
}

impl EmbeddedClient {
    pub fn new(runtime: Runtime) -> Self {
        Self { runtime, on_timeout: OnTimeout::EndSession, files_of: None, own_root: None }
    }

    /// Files are those of the session as it is, whoever made it. One that is not there is made with these options.
    #[must_use]
    pub fn with_files_of_sessions(self, options: SessionOptions) -> Self {
        Self { files_of: Some(options), ..self }
    }

    /// A command that runs too long ends alone. Without this its session ends with it, as in LangBot's runtime.
    #[must_use]
    pub fn keeping_sessions(self) -> Self {
        Self { on_timeout: OnTimeout::EndCommand, ..self }
    }

    /// Sessions that are made by this client may mount what lies in directories below this one of the application's
    /// own, beside what the runtime lets everybody mount.
    #[must_use]
    pub fn with_own_root(self, root: impl Into<PathBuf>) -> Self {
        Self { own_root: Some(root.into()), ..self }
    }

    fn options(&self) -> SessionOptions {
        SessionOptions { own_root: self.own_root.clone(), ..SessionOptions::default() }
    }

    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    async fn files(&self, session: &str, request: FileRequest) -> Result<FileReply> {
        self.runtime.files(session, request).await.map_err(failed)
    }

    /// The session for file operations, made when it is not there.
    async fn ensure(&self, spec: &BoxSpec) -> Result<()> {
        let options = match &self.files_of {
            Some(_) if self.runtime.session(&spec.session_id).is_ok() => return Ok(()),
            Some(options) => options.clone(),
            None => self.options(),
        };
        self.runtime.create_session(spec, options).await.map(drop).map_err(failed)
    }

    fn details(&self, view: SessionView) -> Result<Value> {
        encoded(&SessionDetails::new(view.info, view.processes))
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it is handed to map_err")]
fn failed(error: RuntimeError) -> HostError {
    HostError::new(error.kind(), with_causes(&error))
}

fn encoded<T: Serialize>(value: &T) -> Result<Value> {
    serde_json::to_value(value).map_err(|error| HostError::new(ErrorKind::Internal, error.to_string()))
}

fn unexpected() -> HostError {
    HostError::new(ErrorKind::Internal, "the runtime answered something else than was asked")
}

fn meta(entry: FileEntry) -> FileMeta {
    let kind = match entry.kind {
        EntryKind::File => FileKind::File,
        EntryKind::Directory => FileKind::Directory,
        EntryKind::Symlink => FileKind::Symlink,
        EntryKind::Other => FileKind::Other,
    };
    let modified_ms = entry.modified.saturating_mul(1000);
    FileMeta { name: entry.name, kind, size: entry.bytes, modified_ms }
}

#[async_trait]
impl Client for EmbeddedClient {
    async fn ping(&self) -> Result<()> {
        Ok(())
    }

    async fn execute(&self, spec: &BoxSpec) -> Result<ExecResult> {
        if spec.cmd.is_empty() {
            return Err(HostError::invalid("cmd must not be empty"));
        }
        let outcome = self.runtime.exec(spec, self.on_timeout).await.map_err(failed)?;
        // As on the wire: an application sees the same whichever way it reaches a runtime.
        Ok(outcome.presented(spec.timeout_sec))
    }

    async fn create_session(&self, spec: &BoxSpec) -> Result<Value> {
        let view = self.runtime.create_session(spec, self.options()).await.map_err(failed)?;
        encoded(&SessionDetails::new(view.info, []))
    }

    async fn create_session_on(&self, spec: &BoxSpec, network: &NetworkRequest) -> Result<Value> {
        let options = SessionOptions { network: Some(network.clone()), ..self.options() };
        let view = self.runtime.create_session(spec, options).await.map_err(failed)?;
        encoded(&SessionDetails::new(view.info, []))
    }

    async fn delete_session(&self, session: &str) -> Result<()> {
        self.runtime.delete_session(session).await.map_err(failed)
    }

    async fn sessions(&self) -> Result<Vec<Value>> {
        self.runtime.sessions().iter().map(|view| encoded(&view.info)).collect()
    }

    async fn session(&self, session: &str) -> Result<Value> {
        self.details(self.runtime.session(session).map_err(failed)?)
    }

    async fn status(&self) -> Result<Value> {
        encoded(&self.runtime.status().await)
    }

    async fn backend_info(&self) -> Result<Value> {
        encoded(&self.runtime.backend_status().await)
    }

    async fn start_process(&self, session: &str, spec: &ProcessSpec) -> Result<ProcessInfo> {
        self.runtime.start_process(session, spec).await.map_err(failed)
    }

    async fn process(&self, session: &str, process: &str) -> Result<ProcessInfo> {
        self.runtime.process(session, process).map_err(failed)
    }

    async fn stop_process(&self, session: &str, process: &str) -> Result<()> {
        self.runtime.stop_process(session, process).await.map_err(failed)
    }

    async fn attach(&self, session: &str, process: &str) -> Result<ProcessStreams> {
        let attachment = self.runtime.attach_process(session, process, false).await.map_err(failed)?;
        Ok(streams::streams(attachment))
    }

    async fn skill(&self, action: &str, data: Value) -> Result<Value> {
        skills::act(self.runtime.skills(), action, data).await
    }

    async fn stat(&self, spec: &BoxSpec, path: &str) -> Result<Option<FileMeta>> {
        self.ensure(spec).await?;
        match self.files(&spec.session_id, FileRequest::Stat { path: path.to_owned() }).await {
            Ok(FileReply::Entry(entry)) => Ok(Some(meta(entry))),
            Ok(_) => Err(unexpected()),
            Err(error) if error.kind == ErrorKind::FileNotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn list(&self, spec: &BoxSpec, path: &str) -> Result<Vec<FileMeta>> {
        self.ensure(spec).await?;
        match self.files(&spec.session_id, FileRequest::List { path: path.to_owned() }).await? {
            FileReply::Entries(entries) => Ok(entries.into_iter().map(meta).collect()),
            _ => Err(unexpected()),
        }
    }

    async fn read(&self, spec: &BoxSpec, path: &str, limit: u64) -> Result<Bytes> {
        self.ensure(spec).await?;
        let mut content = BytesMut::new();
        loop {
            let offset = content.len() as u64;
            let ask = (limit - offset).min(PIECE as u64);
            let request = FileRequest::Read { path: path.to_owned(), offset, limit: ask };
            let FileReply::Data { data, .. } = self.files(&spec.session_id, request).await? else {
                return Err(unexpected());
            };
            content.extend_from_slice(&data);
            if (data.len() as u64) < ask || content.len() as u64 >= limit {
                return Ok(content.freeze());
            }
        }
    }

    async fn write(&self, spec: &BoxSpec, path: &str, mut data: Bytes) -> Result<()> {
        self.ensure(spec).await?;
        let first = data.split_to(data.len().min(PIECE));
        self.files(&spec.session_id, FileRequest::Write { path: path.to_owned(), data: first }).await?;
        while !data.is_empty() {
            let next = data.split_to(data.len().min(PIECE));
            let request = FileRequest::Append { path: path.to_owned(), data: next };
            self.files(&spec.session_id, request).await?;
        }
        Ok(())
    }

    async fn shutdown(&self) {
        self.runtime.end_sessions().await;
    }
}
