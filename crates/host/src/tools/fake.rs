//! A fake runtime: boxes that are trees in memory, and commands that are only written down.
//!
//! For tests. Like a kernel, and unlike the tools, it follows links wherever they lead.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use sandcrate_protocol::{BoxSpec, ErrorKind, ExecResult, ExecStatus, ProcessInfo, ProcessSpec};
use serde_json::{Value, json};

use super::Executor;
use crate::policy::SkillMounts;
use crate::{Client, FileKind, FileMeta, HostError, Query, Result};

#[derive(Debug, Clone)]
enum Node {
    File(Bytes),
    Directory,
    Link(String),
    Fifo,
}

/// One tree for all sessions.
#[derive(Debug)]
pub(crate) struct FakeClient {
    tree: Mutex<BTreeMap<String, (Node, i64)>>,
    clock: AtomicI64,
    pub(crate) backend: AtomicBool,
    /// Whether skill actions are answered.
    pub(crate) answers: AtomicBool,
    /// What `box_list_skills` answers.
    pub(crate) skills: Mutex<Vec<Value>>,
    /// Skill actions, and files read and written.
    pub(crate) calls: Mutex<Vec<String>>,
    /// The specs that file operations were asked with.
    pub(crate) specs: Mutex<Vec<BoxSpec>>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FakeClient {
    pub(crate) fn new() -> Self {
        let client = Self {
            tree: Mutex::default(),
            clock: AtomicI64::new(1),
            backend: AtomicBool::new(true),
            answers: AtomicBool::new(true),
            skills: Mutex::default(),
            calls: Mutex::default(),
            specs: Mutex::default(),
        };
        client.directory("/workspace");
        client
    }

    fn place(&self, path: &str, node: Node) {
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        let mut tree = lock(&self.tree);
        for (at, _) in path.match_indices('/').skip(1) {
            tree.entry(path[..at].to_owned()).or_insert((Node::Directory, now));
        }
        tree.insert(path.to_owned(), (node, now));
    }

    pub(crate) fn directory(&self, path: &str) {
        self.place(path, Node::Directory);
    }

    pub(crate) fn put(&self, path: &str, content: impl AsRef<[u8]>) {
        self.place(path, Node::File(Bytes::copy_from_slice(content.as_ref())));
    }

    pub(crate) fn link(&self, path: &str, target: &str) {
        self.place(path, Node::Link(target.to_owned()));
    }

    pub(crate) fn fifo(&self, path: &str) {
        self.place(path, Node::Fifo);
    }

    /// What a file holds, not followed.
    pub(crate) fn content(&self, path: &str) -> Option<Bytes> {
        match lock(&self.tree).get(path) {
            Some((Node::File(bytes), _)) => Some(bytes.clone()),
            _ => None,
        }
    }

    /// A skill with a package, listed and mounted.
    pub(crate) fn skill(&self, name: &str, description: &str) {
        self.put(&format!("/workspace/.skills/{name}/SKILL.md"), format!("# {name}"));
        let package_root = format!("/srv/skills/{name}");
        lock(&self.skills).push(json!({
            "name": name, "display_name": name, "description": description,
            "instructions": format!("How to use {name}."), "package_root": package_root,
        }));
    }

    /// The path without links; the last name is left as it is unless it is to be followed.
    fn resolve(&self, path: &str, follow: bool) -> String {
        let tree = lock(&self.tree);
        let mut done = String::new();
        let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
        for (n, name) in names.iter().enumerate() {
            if *name == ".." {
                done.truncate(done.rfind('/').unwrap_or(0));
                continue;
            }
            done = format!("{done}/{name}");
            let last = n + 1 == names.len();
            if let (Some((Node::Link(target), _)), true) = (tree.get(&done), follow || !last) {
                done = target.clone();
            }
        }
        done
    }

    fn meta(path: &str, node: &Node, modified_ms: i64) -> FileMeta {
        let (kind, size) = match node {
            Node::File(bytes) => (FileKind::File, bytes.len() as u64),
            Node::Directory => (FileKind::Directory, 0),
            Node::Link(_) => (FileKind::Symlink, 0),
            Node::Fifo => (FileKind::Other, 0),
        };
        FileMeta { name: path.rsplit('/').next().unwrap_or_default().to_owned(), kind, size, modified_ms }
    }

    fn note(&self, spec: &BoxSpec, what: String) {
        lock(&self.calls).push(what);
        lock(&self.specs).push(spec.clone());
    }
}

fn failed(kind: ErrorKind, what: &str) -> HostError {
    HostError::new(kind, what)
}

#[async_trait]
impl Client for FakeClient {
    async fn ping(&self) -> Result<()> {
        Ok(())
    }
    async fn execute(&self, spec: &BoxSpec) -> Result<ExecResult> {
        Ok(ExecResult {
            session_id: spec.session_id.clone(),
            backend_name: "fake".to_owned(),
            status: ExecStatus::Completed,
            exit_code: Some(0),
            stdout: format!("(fake) {}\n", spec.cmd),
            stderr: String::new(),
            duration_ms: 1,
        })
    }
    async fn create_session(&self, spec: &BoxSpec) -> Result<Value> {
        Ok(json!({"session_id": spec.session_id}))
    }
    async fn delete_session(&self, _session: &str) -> Result<()> {
        Ok(())
    }
    async fn sessions(&self) -> Result<Vec<Value>> {
        Ok(Vec::new())
    }
    async fn session(&self, session: &str) -> Result<Value> {
        Err(failed(ErrorKind::SessionNotFound, session))
    }
    async fn status(&self) -> Result<Value> {
        Ok(json!({}))
    }
    async fn backend_info(&self) -> Result<Value> {
        Ok(json!({"name": "fake", "available": self.backend.load(Ordering::Relaxed)}))
    }
    async fn start_process(&self, _session: &str, _spec: &ProcessSpec) -> Result<ProcessInfo> {
        Err(failed(ErrorKind::Unsupported, "the fake has no processes"))
    }
    async fn process(&self, _session: &str, process: &str) -> Result<ProcessInfo> {
        Err(failed(ErrorKind::ProcessNotFound, process))
    }
    async fn stop_process(&self, _session: &str, process: &str) -> Result<()> {
        Err(failed(ErrorKind::ProcessNotFound, process))
    }
    async fn skill(&self, action: &str, data: Value) -> Result<Value> {
        lock(&self.calls).push(format!("{action} {data}"));
        if !self.answers.load(Ordering::Relaxed) {
            return Err(failed(ErrorKind::RuntimeUnavailable, "the fake is silent"));
        }
        match action {
            "box_list_skills" => Ok(json!({"skills": *lock(&self.skills)})),
            "box_scan_skill_directory" => {
                Ok(json!({"name": "scanned", "description": "as found", "instructions": "text"}))
            }
            "box_create_skill" => {
                lock(&self.skills).push(data["skill"].clone());
                Ok(json!({"skill": data["skill"]}))
            }
            _ => Err(failed(ErrorKind::Unsupported, action)),
        }
    }
    async fn stat(&self, spec: &BoxSpec, path: &str) -> Result<Option<FileMeta>> {
        self.note(spec, format!("stat {path}"));
        let real = self.resolve(path, false);
        Ok(lock(&self.tree).get(&real).map(|(node, modified)| Self::meta(path, node, *modified)))
    }
    async fn list(&self, spec: &BoxSpec, path: &str) -> Result<Vec<FileMeta>> {
        self.note(spec, format!("list {path}"));
        let real = self.resolve(path, true);
        let tree = lock(&self.tree);
        if !matches!(tree.get(&real), Some((Node::Directory, _))) {
            return Err(failed(ErrorKind::FileFailed, "not a directory"));
        }
        let below = |name: &&String| {
            name.strip_prefix(&real)
                .and_then(|rest| rest.strip_prefix('/'))
                .is_some_and(|rest| !rest.contains('/'))
        };
        let names = tree.keys().filter(below);
        Ok(names.map(|name| Self::meta(name, &tree[name].0, tree[name].1)).collect())
    }
    async fn read(&self, spec: &BoxSpec, path: &str, limit: u64) -> Result<Bytes> {
        self.note(spec, format!("read {path}"));
        let real = self.resolve(path, true);
        match lock(&self.tree).get(&real) {
            Some((Node::File(bytes), _)) => {
                Ok(bytes.slice(..bytes.len().min(usize::try_from(limit).unwrap_or(usize::MAX))))
            }
            Some(_) => Err(failed(ErrorKind::FileFailed, "not a regular file")),
            None => Err(failed(ErrorKind::FileNotFound, path)),
        }
    }
    async fn write(&self, spec: &BoxSpec, path: &str, data: Bytes) -> Result<()> {
        self.note(spec, format!("write {path}"));
        let real = self.resolve(path, true);
        self.place(&real, Node::File(data));
        Ok(())
    }
    async fn shutdown(&self) {}
}

/// A fake service: a session per launcher, and the fake runtime behind it.
#[derive(Debug)]
pub(crate) struct FakeExecutor {
    pub(crate) client: Arc<FakeClient>,
    /// The box of every session, but for its id.
    pub(crate) spec: Mutex<BoxSpec>,
    pub(crate) skill_mounts: SkillMounts,
    pub(crate) executed: Mutex<Vec<Value>>,
}

impl FakeExecutor {
    pub(crate) fn new(client: Arc<FakeClient>) -> Self {
        let mut spec = BoxSpec::new("");
        spec.host_path = Some("/srv/box/default".to_owned());
        Self {
            client,
            spec: Mutex::new(spec),
            skill_mounts: SkillMounts::default(),
            executed: Mutex::default(),
        }
    }
}

#[async_trait]
impl Executor for FakeExecutor {
    async fn execute_tool(&self, parameters: Value, query: &Query) -> Result<Value> {
        let mut spec = self.spec_for(query).await?;
        spec.cmd = parameters["command"].as_str().unwrap_or_default().to_owned();
        lock(&self.executed).push(parameters);
        lock(&self.client.specs).push(spec.clone());
        let result = self.client.execute(&spec).await?;
        Ok(json!({"session_id": result.session_id, "ok": true, "exit_code": 0, "stdout": result.stdout}))
    }

    async fn spec_for(&self, query: &Query) -> Result<BoxSpec> {
        let id = query.launcher_id.as_ref().and_then(Value::as_str).unwrap_or("global");
        let mut spec = BoxSpec { session_id: id.to_owned(), ..lock(&self.spec).clone() };
        self.skill_mounts.apply(&mut spec, query);
        Ok(spec)
    }

    fn client(&self) -> Arc<dyn Client> {
        Arc::clone(&self.client) as Arc<dyn Client>
    }
}
