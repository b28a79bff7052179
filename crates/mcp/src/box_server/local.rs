//! Boxes of a runtime in this process.
//!
//! A session that is there is worked in as it is, whoever made it and with whatever mounts and network; one that is
//! not is made by a blueprint. Commands go to the runtime itself rather than through the host's service, whose
//! result does not say which limits fired and what was refused.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use sandcrate_backend::{ExecRequest, FileReply, FileRequest};
use sandcrate_host::policy::Policy;
use sandcrate_host::skills::{Filesystem, SkillsView};
use sandcrate_host::tools::{Executor, ToolDefinition, Toolbox, native_definitions};
use sandcrate_host::{Client, EmbeddedClient, FileMeta, HostError, Query, presented};
use sandcrate_protocol::{BoxSpec, ErrorKind, MountMode, with_causes};
use sandcrate_runtime::{ExecOutcome, Runtime, RuntimeError, SessionOptions, SessionState};
use serde_json::{Value, json};

use super::{BoxFacts, Boxes, SessionFacts, Workspace};

/// The most that one message to a box may carry.
const PIECE: u64 = 4 << 20;

/// How sessions are made, and what may be done in them.
#[derive(Debug, Clone)]
pub struct Blueprint {
    /// Of every session; its id and its command do not count.
    pub spec: BoxSpec,
    pub options: SessionOptions,
    /// Longer timeouts are cut to this.
    pub max_timeout_sec: u64,
    /// Characters of each stream that a model is shown.
    pub output_limit_chars: usize,
    pub policy: Policy,
}

/// See the module.
#[derive(Debug)]
pub struct LocalBoxes {
    toolbox: Toolbox,
    sessions: Arc<Sessions>,
}

#[derive(Debug)]
struct Sessions {
    runtime: Runtime,
    blueprint: Blueprint,
    client: Arc<dyn Client>,
}

impl LocalBoxes {
    pub fn new(runtime: Runtime, blueprint: Blueprint) -> Self {
        let client = EmbeddedClient::new(runtime.clone()).with_files_of_sessions(blueprint.options.clone());
        let policy = blueprint.policy.clone();
        let sessions = Arc::new(Sessions { runtime, blueprint, client: Arc::new(client) });
        let executor: Arc<dyn Executor> = Arc::clone(&sessions) as _;
        let skills = Arc::new(SkillsView::new(Filesystem::Shared));
        Self { toolbox: Toolbox::new(executor, skills, policy).with_box_workspace(), sessions }
    }
}

impl Sessions {
    fn spec(&self, session: &str) -> BoxSpec {
        BoxSpec { session_id: session.to_owned(), cmd: String::new(), ..self.blueprint.spec.clone() }
    }

    /// Makes the session when it is not there.
    async fn ensure(&self, session: &str) -> Result<(), RuntimeError> {
        if self.runtime.session(session).is_ok() {
            return Ok(());
        }
        let options = self.blueprint.options.clone();
        self.runtime.create_session(&self.spec(session), options).await.map(drop)
    }

    /// Whether the session has files although it has no box yet.
    fn has_files_without_box(&self) -> bool {
        self.blueprint.spec.host_path.is_some() || self.blueprint.spec.persistent
    }

    async fn exec(&self, session: &str, request: &ExecRequest) -> Result<ExecOutcome, RuntimeError> {
        self.ensure(session).await?;
        match self.runtime.exec_in(session, request.clone(), Bytes::new()).await {
            // It went between the two.
            Err(RuntimeError::SessionNotFound { .. }) => {
                self.ensure(session).await?;
                self.runtime.exec_in(session, request.clone(), Bytes::new()).await
            }
            other => other,
        }
    }

    fn presented(&self, outcome: &ExecOutcome, timeout_sec: u64) -> Value {
        let mut shown = presented(&outcome.presented(timeout_sec), self.blueprint.output_limit_chars);
        shown["limits_hit"] = json!(outcome.collected.exit.limits_hit);
        shown["denials"] = json!(outcome.collected.exit.denials);
        shown
    }
}

#[async_trait]
impl Executor for Sessions {
    async fn execute_tool(&self, parameters: Value, query: &Query) -> Result<Value, HostError> {
        let command = parameters["command"].as_str().unwrap_or_default();
        if command.trim().is_empty() {
            return Err(HostError::invalid("argument `command` of `exec` must not be empty"));
        }
        let blueprint = &self.blueprint;
        let asked = parameters["timeout_sec"].as_u64().unwrap_or(blueprint.spec.timeout_sec);
        let timeout_sec = asked.min(blueprint.max_timeout_sec);
        let mut request = ExecRequest::shell(command).timeout(Duration::from_secs(timeout_sec));
        let workdir = parameters["workdir"].as_str().unwrap_or(&blueprint.spec.workdir);
        request = request.cwd(workdir);
        // Those of every command, and over them those of this one.
        let mut env = blueprint.spec.env.clone();
        let own = parameters["env"].as_object().into_iter().flatten();
        env.extend(own.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned())));
        request.env = env.into_iter().collect();
        let outcome = self.exec(&session_of(query), &request).await.map_err(|error| failed(&error))?;
        Ok(self.presented(&outcome, timeout_sec))
    }

    async fn spec_for(&self, query: &Query) -> Result<BoxSpec, HostError> {
        Ok(self.spec(&session_of(query)))
    }

    fn client(&self) -> Arc<dyn Client> {
        Arc::clone(&self.client)
    }
}

/// The session stands in the query, which is made here.
fn session_of(query: &Query) -> String {
    query.query_id.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// The error with its causes, as one sentence.
fn failed(error: &RuntimeError) -> HostError {
    HostError::new(error.kind(), with_causes(error))
}

#[async_trait]
impl Boxes for LocalBoxes {
    fn facts(&self) -> BoxFacts {
        let Blueprint { spec, options, max_timeout_sec, .. } = &self.sessions.blueprint;
        let workspace = match (&spec.host_path, spec.host_path_mode) {
            (Some(_), MountMode::Ro) => Workspace::MountedReadOnly,
            (Some(_), _) => Workspace::Mounted,
            (None, _) if spec.persistent => Workspace::Kept,
            (None, _) => Workspace::Private,
        };
        BoxFacts {
            network: options.network(spec).to_string(),
            memory_mb: spec.memory_mb,
            cpus: spec.cpus,
            pids_limit: spec.pids_limit,
            timeout_sec: spec.timeout_sec.min(*max_timeout_sec),
            max_timeout_sec: *max_timeout_sec,
            workspace,
        }
    }

    fn tools(&self) -> Vec<ToolDefinition> {
        let allowed = |tool: &ToolDefinition| self.toolbox.policy().check_tool(tool.name).is_ok();
        native_definitions().into_iter().filter(allowed).collect()
    }

    async fn call(&self, session: &str, tool: &str, arguments: &Value) -> Result<Value, HostError> {
        let mut query = Query { query_id: Some(session.into()), ..Query::default() };
        self.toolbox.call(tool, arguments, &mut query).await
    }

    async fn session(&self, session: &str) -> Result<SessionFacts, HostError> {
        let Blueprint { spec, options, .. } = &self.sessions.blueprint;
        let Ok(view) = self.sessions.runtime.session(session) else {
            return Ok(SessionFacts {
                session: session.to_owned(),
                state: "none".to_owned(),
                backend: None,
                network: options.network(spec).to_string(),
                memory_mb: spec.memory_mb,
                cpus: spec.cpus,
                pids_limit: spec.pids_limit,
                created_at: None,
                last_used_at: None,
            });
        };
        let state = match view.state {
            SessionState::Idle => "idle",
            SessionState::Running => "running",
            SessionState::Dormant => "dormant",
        };
        let info = view.info;
        Ok(SessionFacts {
            session: info.session_id,
            state: state.to_owned(),
            backend: Some(info.backend_name),
            network: view.network.to_string(),
            memory_mb: info.memory_mb,
            cpus: info.cpus,
            pids_limit: info.pids_limit,
            created_at: Some(info.created_at.to_string()),
            last_used_at: Some(info.last_used_at.to_string()),
        })
    }

    async fn reset(&self, session: &str) -> Result<bool, HostError> {
        match self.sessions.runtime.delete_session(session).await {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::SessionNotFound => Ok(false),
            Err(error) => Err(failed(&error)),
        }
    }

    async fn stat(&self, session: &str, path: &str) -> Result<Option<FileMeta>, HostError> {
        if self.sessions.runtime.session(session).is_err() && !self.sessions.has_files_without_box() {
            return Ok(None);
        }
        self.sessions.client.stat(&self.sessions.spec(session), path).await
    }

    async fn list(&self, session: &str, path: &str) -> Result<Vec<FileMeta>, HostError> {
        // Looking around is no reason to make a box.
        if self.sessions.runtime.session(session).is_err() && !self.sessions.has_files_without_box() {
            return Ok(Vec::new());
        }
        self.sessions.client.list(&self.sessions.spec(session), path).await
    }

    async fn read(
        &self,
        session: &str,
        path: &str,
        offset: u64,
        limit: u64,
    ) -> Result<(Bytes, u64), HostError> {
        let request = FileRequest::Read { path: path.to_owned(), offset, limit: limit.min(PIECE) };
        match self.sessions.runtime.files(session, request).await.map_err(|error| failed(&error))? {
            FileReply::Data { data, file_bytes } => Ok((data, file_bytes)),
            _ => {
                Err(HostError::new(ErrorKind::Internal, "the runtime answered something else than was asked"))
            }
        }
    }
}
