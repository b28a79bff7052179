//! The runtime over RPC, on whatever line there is at the moment.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use sandcrate_protocol::{BoxSpec, ErrorKind, ExecResult, ProcessInfo, ProcessSpec};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::line::Line;
use super::{Endpoint, relay};
use crate::{Client, FileMeta, HostError, ProcessStreams, Result};

/// For all that does not say otherwise.
const USUAL: Duration = Duration::from_secs(15);
/// What making a box can take: its image may have to be fetched first.
pub(super) const START: Duration = Duration::from_secs(300);

/// A client over the action RPC. It is connected by a [`super::Connector`].
#[derive(Debug, Default)]
pub struct RpcClient {
    line: Mutex<Option<Arc<Line>>>,
    /// Where processes are attached to.
    relay: Option<Endpoint>,
}

impl RpcClient {
    pub(super) fn with_relay(relay: Endpoint) -> Self {
        Self { relay: Some(relay), ..Self::default() }
    }

    pub(super) fn take_line(&self, line: Arc<Line>) {
        *self.line.lock().unwrap_or_else(PoisonError::into_inner) = Some(line);
    }

    pub(super) fn drop_line(&self) {
        self.line.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    pub(super) fn line(&self) -> Result<Arc<Line>> {
        let line = self.line.lock().unwrap_or_else(PoisonError::into_inner).clone();
        line.ok_or_else(|| HostError::unavailable("box runtime not connected"))
    }

    async fn call(&self, action: &str, data: Value) -> Result<Value> {
        self.line()?.call(action, data, time_for(action)).await
    }

    /// Any action by its name, with its data; the data of the reply.
    ///
    /// # Errors
    /// As the runtime answers.
    pub async fn action(&self, action: &str, data: Value) -> Result<Value> {
        self.call(action, data).await
    }
}

/// How long an action may take. Commands have their own time on top of the box's.
fn time_for(action: &str) -> Duration {
    match action {
        "box_create_session" => START,
        "box_delete_session" | "box_start_managed_process" | "box_stop_managed_process" => {
            Duration::from_secs(30)
        }
        "box_preview_skill_zip" => Duration::from_secs(60),
        "box_install_skill_zip" => Duration::from_secs(120),
        _ => USUAL,
    }
}

pub(super) fn read<T: DeserializeOwned>(what: &str, data: Value) -> Result<T> {
    serde_json::from_value(data).map_err(|error| {
        HostError::new(ErrorKind::Internal, format!("the runtime's {what} cannot be read: {error}"))
    })
}

pub(super) fn encoded<T: serde::Serialize>(spec: &T) -> Result<Value> {
    serde_json::to_value(spec)
        .map_err(|error| HostError::new(ErrorKind::Internal, format!("request cannot be encoded: {error}")))
}

#[async_trait]
impl Client for RpcClient {
    async fn ping(&self) -> Result<()> {
        let line = self.line().map_err(|_| HostError::unavailable("Box runtime is not connected"))?;
        line.call("__ping", json!({}), USUAL).await.map(drop)
    }

    async fn execute(&self, spec: &BoxSpec) -> Result<ExecResult> {
        // The runtime ends the command in its time; until then it is not given up.
        let time = START.saturating_add(Duration::from_secs(spec.timeout_sec));
        let data = self.line()?.call("box_exec", encoded(spec)?, time).await?;
        read("result", data)
    }

    async fn create_session(&self, spec: &BoxSpec) -> Result<Value> {
        self.call("box_create_session", encoded(spec)?).await
    }

    async fn delete_session(&self, session: &str) -> Result<()> {
        self.call("box_delete_session", json!({"session_id": session})).await.map(drop)
    }

    async fn sessions(&self) -> Result<Vec<Value>> {
        let mut data = self.call("box_get_sessions", json!({})).await?;
        read("list of sessions", data["sessions"].take())
    }

    async fn session(&self, session: &str) -> Result<Value> {
        self.call("box_get_session", json!({"session_id": session})).await
    }

    async fn status(&self) -> Result<Value> {
        self.call("box_status", json!({})).await
    }

    async fn backend_info(&self) -> Result<Value> {
        self.call("box_get_backend_info", json!({})).await
    }

    async fn start_process(&self, session: &str, spec: &ProcessSpec) -> Result<ProcessInfo> {
        let data = json!({"session_id": session, "spec": encoded(spec)?});
        read("process", self.call("box_start_managed_process", data).await?)
    }

    async fn process(&self, session: &str, process: &str) -> Result<ProcessInfo> {
        let data = json!({"session_id": session, "process_id": process});
        read("process", self.call("box_get_managed_process", data).await?)
    }

    async fn stop_process(&self, session: &str, process: &str) -> Result<()> {
        let data = json!({"session_id": session, "process_id": process});
        self.call("box_stop_managed_process", data).await.map(drop)
    }

    async fn attach(&self, session: &str, process: &str) -> Result<ProcessStreams> {
        let relay = self.relay.as_ref();
        let relay = relay.ok_or_else(|| HostError::unavailable("box runtime not connected"))?;
        relay::attach(relay, session, process).await
    }

    async fn skill(&self, action: &str, data: Value) -> Result<Value> {
        self.call(action, data).await
    }

    async fn stat(&self, spec: &BoxSpec, path: &str) -> Result<Option<FileMeta>> {
        self.file_stat(spec, path).await
    }

    async fn list(&self, spec: &BoxSpec, path: &str) -> Result<Vec<FileMeta>> {
        self.file_list(spec, path).await
    }

    async fn read(&self, spec: &BoxSpec, path: &str, limit: u64) -> Result<Bytes> {
        self.file_read(spec, path, limit).await
    }

    async fn write(&self, spec: &BoxSpec, path: &str, data: Bytes) -> Result<()> {
        self.file_write(spec, path, &data).await
    }

    async fn shutdown(&self) {
        if let Err(error) = self.call("box_shutdown", json!({})).await {
            tracing::debug!(%error, "the Box runtime did not confirm its shutdown");
        }
    }
}
