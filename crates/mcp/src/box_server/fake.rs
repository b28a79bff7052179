//! Boxes that are a tree of files in memory, for tests. The only command is what a test says it is.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use sandcrate_host::tools::{ToolDefinition, native_definitions};
use sandcrate_host::{FileKind, FileMeta, HostError};
use serde_json::{Value, json};

use super::{BoxFacts, Boxes, SessionFacts, Workspace};

#[derive(Debug, Default)]
pub(crate) struct FakeBoxes {
    /// `None`: a directory.
    tree: Mutex<BTreeMap<String, Option<Bytes>>>,
    pub(crate) running: AtomicUsize,
    pub(crate) resets: Mutex<Vec<String>>,
}

/// Counts a call down, however it ends.
struct Running<'a>(&'a AtomicUsize);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FakeBoxes {
    pub(crate) fn new() -> Self {
        let boxes = Self::default();
        boxes.put_directory("/workspace");
        boxes
    }

    pub(crate) fn put(&self, path: &str, content: &[u8]) {
        for (at, _) in path.match_indices('/').skip(1) {
            locked(&self.tree).entry(path[..at].to_owned()).or_insert(None);
        }
        locked(&self.tree).insert(path.to_owned(), Some(Bytes::copy_from_slice(content)));
    }

    pub(crate) fn put_directory(&self, path: &str) {
        locked(&self.tree).insert(path.to_owned(), None);
    }

    fn meta(path: &str, node: Option<&Bytes>) -> FileMeta {
        FileMeta {
            name: path.rsplit('/').next().unwrap_or_default().to_owned(),
            kind: if node.is_some() { FileKind::File } else { FileKind::Directory },
            size: node.map_or(0, |content| content.len() as u64),
            modified_ms: 0,
        }
    }
}

#[async_trait]
impl Boxes for FakeBoxes {
    fn facts(&self) -> BoxFacts {
        BoxFacts {
            network: "off".to_owned(),
            memory_mb: 512,
            cpus: 1.0,
            pids_limit: 128,
            timeout_sec: 30,
            max_timeout_sec: 120,
            workspace: Workspace::Private,
        }
    }

    fn tools(&self) -> Vec<ToolDefinition> {
        native_definitions()
    }

    async fn call(&self, session: &str, tool: &str, arguments: &Value) -> Result<Value, HostError> {
        match (tool, arguments["command"].as_str()) {
            ("exec", Some("forever")) => {
                self.running.fetch_add(1, Ordering::SeqCst);
                let _running = Running(&self.running);
                std::future::pending().await
            }
            ("exec", Some(command)) => {
                let code = command.strip_prefix("exit ").and_then(|code| code.parse().ok()).unwrap_or(0);
                Ok(json!({
                    "session_id": session, "status": "completed", "ok": code == 0, "exit_code": code,
                    "stdout": command, "stderr": "", "stdout_truncated": false, "stderr_truncated": false,
                }))
            }
            ("exec", None) => Err(HostError::invalid("argument `command` of `exec` is required")),
            _ => Ok(json!({"ok": true})),
        }
    }

    async fn session(&self, session: &str) -> Result<SessionFacts, HostError> {
        Ok(SessionFacts {
            session: session.to_owned(),
            state: "none".to_owned(),
            backend: None,
            network: "off".to_owned(),
            memory_mb: 512,
            cpus: 1.0,
            pids_limit: 128,
            created_at: None,
            last_used_at: None,
        })
    }

    async fn reset(&self, session: &str) -> Result<bool, HostError> {
        locked(&self.resets).push(session.to_owned());
        Ok(true)
    }

    async fn stat(&self, _session: &str, path: &str) -> Result<Option<FileMeta>, HostError> {
        Ok(locked(&self.tree).get(path).map(|node| Self::meta(path, node.as_ref())))
    }

    async fn list(&self, _session: &str, path: &str) -> Result<Vec<FileMeta>, HostError> {
        let prefix = format!("{path}/");
        let tree = locked(&self.tree);
        let below = tree
            .iter()
            .filter(|(path, _)| path.strip_prefix(&prefix).is_some_and(|rest| !rest.contains('/')));
        Ok(below.map(|(path, node)| Self::meta(path, node.as_ref())).collect())
    }

    async fn read(
        &self,
        _session: &str,
        path: &str,
        offset: u64,
        limit: u64,
    ) -> Result<(Bytes, u64), HostError> {
        let tree = locked(&self.tree);
        let content = tree.get(path).cloned().flatten().unwrap_or_default();
        let size = content.len();
        let start = usize::try_from(offset).unwrap_or(size).min(size);
        let end = start.saturating_add(usize::try_from(limit).unwrap_or(size)).min(size);
        Ok((content.slice(start..end), size as u64))
    }
}
