//! A runtime that only remembers what it was asked, and a connection that only counts.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use sandcrate_host::{Client, Connection, FileMeta, HostError, Link, Result};
use sandcrate_protocol::{BoxSpec, ExecResult, ExecStatus, ProcessInfo, ProcessSpec};
use serde_json::{Value, json};
use tokio::sync::watch;

#[derive(Debug)]
pub(crate) struct MockClient {
    pub(crate) specs: Mutex<Vec<BoxSpec>>,
    pub(crate) calls: Mutex<Vec<String>>,
    pub(crate) output: (String, String),
    pub(crate) status: Result<Value>,
    pub(crate) failure: Option<HostError>,
    pub(crate) pings: Option<HostError>,
}

impl Default for MockClient {
    fn default() -> Self {
        Self {
            specs: Mutex::default(),
            calls: Mutex::default(),
            output: (String::new(), String::new()),
            status: Ok(json!({"backend": {"name": "docker", "available": true}, "active_sessions": 2})),
            failure: None,
            pings: None,
        }
    }
}

impl MockClient {
    pub(crate) fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }

    pub(crate) fn last_spec(&self) -> BoxSpec {
        self.specs.lock().unwrap().last().unwrap().clone()
    }

    fn called(&self, name: &str) {
        self.calls.lock().unwrap().push(name.to_owned());
    }
}

#[async_trait]
impl Client for MockClient {
    async fn ping(&self) -> Result<()> {
        self.called("ping");
        self.pings.clone().map_or(Ok(()), Err)
    }

    async fn execute(&self, spec: &BoxSpec) -> Result<ExecResult> {
        self.called("execute");
        self.specs.lock().unwrap().push(spec.clone());
        if let Some(error) = &self.failure {
            return Err(error.clone());
        }
        Ok(ExecResult {
            session_id: spec.session_id.clone(),
            backend_name: "mock".to_owned(),
            status: ExecStatus::Completed,
            exit_code: Some(0),
            stdout: self.output.0.clone(),
            stderr: self.output.1.clone(),
            duration_ms: 3,
        })
    }

    async fn create_session(&self, spec: &BoxSpec) -> Result<Value> {
        self.called("create_session");
        self.specs.lock().unwrap().push(spec.clone());
        Ok(json!({"session_id": spec.session_id}))
    }

    async fn delete_session(&self, session: &str) -> Result<()> {
        self.called(&format!("delete_session {session}"));
        Ok(())
    }

    async fn sessions(&self) -> Result<Vec<Value>> {
        self.called("sessions");
        Ok(vec![json!({"session_id": "s1"})])
    }

    async fn session(&self, _: &str) -> Result<Value> {
        Ok(json!({}))
    }

    async fn status(&self) -> Result<Value> {
        self.status.clone()
    }

    async fn backend_info(&self) -> Result<Value> {
        Ok(json!({}))
    }

    async fn start_process(&self, _: &str, _: &ProcessSpec) -> Result<ProcessInfo> {
        Err(HostError::invalid("the mock runs nothing"))
    }

    async fn process(&self, _: &str, _: &str) -> Result<ProcessInfo> {
        Err(HostError::invalid("the mock runs nothing"))
    }

    async fn stop_process(&self, _: &str, _: &str) -> Result<()> {
        Err(HostError::invalid("the mock runs nothing"))
    }

    async fn skill(&self, _: &str, _: Value) -> Result<Value> {
        Ok(json!({}))
    }

    async fn stat(&self, _: &BoxSpec, _: &str) -> Result<Option<FileMeta>> {
        Ok(None)
    }

    async fn list(&self, _: &BoxSpec, _: &str) -> Result<Vec<FileMeta>> {
        Ok(Vec::new())
    }

    async fn read(&self, _: &BoxSpec, _: &str, _: u64) -> Result<Bytes> {
        Ok(Bytes::new())
    }

    async fn write(&self, _: &BoxSpec, _: &str, _: Bytes) -> Result<()> {
        Ok(())
    }

    async fn shutdown(&self) {
        self.called("shutdown");
    }
}

#[derive(Debug)]
pub(crate) struct MockConnection {
    pub(crate) client: Arc<MockClient>,
    pub(crate) link: watch::Sender<Link>,
    pub(crate) connects: AtomicU32,
    pub(crate) fails: Option<String>,
}

impl Default for MockConnection {
    fn default() -> Self {
        Self {
            client: Arc::default(),
            link: watch::Sender::new(Link::Idle),
            connects: AtomicU32::new(0),
            fails: None,
        }
    }
}

#[async_trait]
impl Connection for MockConnection {
    fn client(&self) -> Arc<dyn Client> {
        Arc::clone(&self.client) as _
    }

    async fn connect(&self) -> Result<()> {
        self.connects.fetch_add(1, Ordering::Relaxed);
        match &self.fails {
            Some(reason) => {
                self.link.send_replace(Link::Down(reason.clone()));
                Err(HostError::unavailable(reason.clone()))
            }
            None => {
                self.link.send_replace(Link::Up);
                Ok(())
            }
        }
    }

    async fn dispose(&self) {
        self.client.called("dispose");
    }

    fn shares_filesystem(&self) -> bool {
        true
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.link.subscribe()
    }

    fn attach_url(&self, _: &str, _: &str) -> Option<String> {
        None
    }
}
