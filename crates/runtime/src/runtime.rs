//! The handle to everything: sessions, commands, processes, files.
//!
//! Methods are grouped as their callers think of them. What happens under the table's lock, at a session's gate
//! and outside both is decided here; nothing else takes two of them.

mod managed;
mod tenants;

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use sandcrate_backend::{Backend, ExecControl, ExecRequest, FileReply, FileRequest, SessionId, StartNotice};
use sandcrate_protocol::{BackendStatus, BoxSpec, MountMode, RuntimeStatus};
use sandcrate_skills::Skills;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admission::{self, Admission};
use crate::artifacts::Artifacts;
use crate::backends::{BackendView, Backends, effective_choice};
use crate::config::{BackendChoice, InitSource, LangbotConfig, RuntimeConfig};
use crate::error::RuntimeError;
use crate::exec::{ExecOutcome, OnTimeout, Target, is_gone};
use crate::langbot;
use crate::lookout;
use crate::metrics::Metrics;
use crate::output_log::{LogEnd, Subscription};
use crate::reaper;
use crate::records::{Records, RecordsError};
use crate::session::{Session, SessionOptions, SessionView, locked};
use crate::streams::{CommandId, CommandView, Followed, Started};
use crate::table::Table;
use crate::tenant::owner;

pub use tenants::{Capacity, TenantStatus};

/// How often the end of running work is looked for during a shutdown.
const SHUTDOWN_LOOKS: Duration = Duration::from_millis(20);

/// Notices that a slow listener may be behind.
const KEPT_NOTICES: usize = 256;

type Result<T> = std::result::Result<T, RuntimeError>;

/// A runtime. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Runtime {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) config: RuntimeConfig,
    pub(crate) table: Table,
    pub(crate) backends: Backends,
    pub(crate) records: Records,
    pub(crate) metrics: Metrics,
    pub(crate) langbot: Mutex<LangbotConfig>,
    pub(crate) skills: Skills,
    pub(crate) artifacts: Arc<Artifacts>,
    pub(crate) admission: Arc<Admission>,
    /// What starts have to tell, with the session's id.
    pub(crate) notices: broadcast::Sender<(String, StartNotice)>,
    shutting_down: AtomicBool,
    /// Ends of sessions.
    pub(crate) tasks: TaskTracker,
    reaper_end: CancellationToken,
}

/// Why an operation has no result.
#[derive(Debug)]
pub(crate) enum Lost {
    /// The session is on its way out, or its box is; another may do.
    SessionGone,
    Failed(RuntimeError),
}

impl From<RuntimeError> for Lost {
    fn from(error: RuntimeError) -> Self {
        Self::Failed(error)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.reaper_end.cancel();
    }
}

impl Runtime {
    /// Takes the state directory and brings persistent sessions back to mind.
    pub async fn open(config: RuntimeConfig, backends: Vec<Arc<dyn Backend>>) -> Result<Self> {
        let state_dir = config.state_dir.clone();
        let opened = tokio::task::spawn_blocking(move || {
            let records = Records::open(&state_dir)?;
            let kept = records.load();
            // Behind the lock: what lies there is nobody's now.
            Ok::<_, RecordsError>((records, kept, Arc::new(Artifacts::open(&state_dir))))
        });
        let (records, kept, artifacts) = opened
            .await
            .map_err(|error| {
                RuntimeError::failed("opening the state directory", std::io::Error::other(error))
            })?
            .map_err(|error| {
                // A caller may wait for the other one to end.
                let kind = match error {
                    RecordsError::InUse { .. } => std::io::ErrorKind::ResourceBusy,
                    RecordsError::Unusable { .. } => std::io::ErrorKind::Other,
                };
                RuntimeError::failed("opening the state directory", std::io::Error::new(kind, error))
            })?;
        let inner = Arc::new(Inner {
            table: Table::default(),
            backends: Backends::new(backends),
            records,
            metrics: Metrics::new(),
            langbot: Mutex::default(),
            skills: crate::skills::open(&config),
            artifacts,
            admission: Arc::default(),
            notices: broadcast::channel(KEPT_NOTICES).0,
            shutting_down: AtomicBool::new(false),
            tasks: TaskTracker::new(),
            reaper_end: CancellationToken::new(),
            config,
        });
        for record in kept {
            inner.restore(&record);
        }
        let (weak, ttl) = (Arc::downgrade(&inner), inner.config.session_ttl);
        inner.tasks.spawn(inner.reaper_end.clone().run_until_cancelled_owned(reaper::run(weak, ttl)));
        let weak = Arc::downgrade(&inner);
        inner.tasks.spawn(inner.reaper_end.clone().run_until_cancelled_owned(lookout::run(weak)));
        let grants = admission::run(Arc::downgrade(&inner), Arc::clone(&inner.admission));
        inner.tasks.spawn(inner.reaper_end.clone().run_until_cancelled_owned(grants));
        Ok(Self { inner })
    }

    /// Whether a request may mount this directory of the host. It looks at the disk: not for an async thread.
    ///
    /// # Errors
    /// The rule that forbids it.
    pub fn check_mount_source(&self, path: &str) -> Result<()> {
        let policy = self.inner.mount_policy("");
        policy.admit(path, "/workspace", MountMode::Ro, None).map(drop)
    }

    pub fn config(&self) -> &RuntimeConfig {
        &self.inner.config
    }

    /// The skills. They need no session, and no session needs them.
    pub fn skills(&self) -> &Skills {
        &self.inner.skills
    }

    pub fn metrics(&self) -> &Metrics {
        self.inner.refresh_gauges();
        &self.inner.metrics
    }

    /// Takes LangBot's `box` section. Unknown keys are no error; the same again changes nothing.
    pub fn init(&self, config: &serde_json::Value, source: &InitSource) -> Result<()> {
        let sent = langbot::parse(config, source)?;
        let skills_root = match sent.skills_root.filter(|_| source.known) {
            Some(root) => self.inner.admitted_skills_root(root)?,
            None => None,
        };
        self.configure_backends(config, source);
        let mut known = locked(&self.inner.langbot);
        let before = effective_choice(self.inner.config.backend.as_ref(), &known);
        if sent.backend.is_some() {
            known.backend = sent.backend;
        }
        if !sent.mount_roots.is_empty() {
            if source.known {
                known.mount_roots = sent.mount_roots;
            } else {
                tracing::warn!(
                    "mount roots of a client that is not known are ignored; list them in [mounts] roots"
                );
            }
        }
        if sent.limits.is_some() {
            known.limits = sent.limits;
        }
        if source.known && sent.default_workspace.is_some() {
            known.default_workspace = sent.default_workspace;
        }
        if skills_root.is_some() {
            known.skills_root = skills_root;
        }
        self.inner.place_skills(&known);
        if self.inner.admission.change(admission::Rule::read(config)) {
            self.inner.end_all_workspaces();
        }
        if effective_choice(self.inner.config.backend.as_ref(), &known) != before {
            // Sessions keep the backend they are on; new ones take the new choice.
            self.inner.backends.forget();
        }
        Ok(())
    }

    /// Only of a client that is known: whoever says where boxes are made sees what is in them.
    fn configure_backends(&self, config: &serde_json::Value, source: &InitSource) {
        for backend in self.inner.backends.all() {
            match langbot::of_backend(config, backend.name()) {
                Some(section) if source.known => backend.configure(&section),
                Some(section) if section.values().any(|value| !value.trim().is_empty()) => tracing::warn!(
                    backend = backend.name(),
                    "what a client that is not known says of a backend is ignored; set it in the server's own configuration"
                ),
                _ => {}
            }
        }
    }

    pub async fn backend_status(&self) -> BackendStatus {
        let status = self.inner.backends.status(&self.inner.choice()).await;
        if let Some(name) = &status.name {
            self.inner.metrics.set_backend(name, status.available);
        }
        status
    }

    /// The name by which LangBot is told of a backend.
    pub fn reported_backend(&self, name: String) -> String {
        self.inner.config.report_backend_as.map_or(name, |reported| reported.name().to_owned())
    }

    /// Every backend there is, looked at now.
    pub async fn backends(&self) -> Vec<BackendView> {
        self.inner.look_at_backends().await
    }

    /// What starts of sessions have to tell, from now on; whoever reads too slowly misses some.
    pub fn start_notices(&self) -> broadcast::Receiver<(String, StartNotice)> {
        self.inner.notices.subscribe()
    }

    pub async fn status(&self) -> RuntimeStatus {
        let backend = self.backend_status().await;
        let sessions = self.sessions();
        let processes: usize = self.inner.table.all().iter().map(|session| session.processes.running()).sum();
        RuntimeStatus {
            backend,
            active_sessions: sessions.len() as u64,
            managed_processes: processes as u64,
            session_ttl_sec: self.inner.config.session_ttl.as_secs(),
        }
    }

    /// The session of this specification, made when it is not there. The command is not looked at.
    pub async fn create_session(&self, spec: &BoxSpec, options: SessionOptions) -> Result<SessionView> {
        for port in &options.ports {
            self.inner.check_port(port)?;
        }
        loop {
            let session = self.inner.session_for(spec, &options).await?;
            let _busy = session.use_now();
            match self.inner.ensure_live(&session, Some(&spec.extra_mounts)).await {
                Ok(_) => {}
                Err(Lost::SessionGone) => continue,
                Err(Lost::Failed(error)) => return Err(error),
            }
            self.inner.place_artifacts(&session, &spec.extra_mounts).await?;
            for port in &options.ports {
                self.inner.publish(&session, *port).await?;
            }
            drop(_busy);
            if let Some(view) = session.view(self.inner.config.session_ttl) {
                return Ok(view);
            }
        }
    }

    pub fn session(&self, id: &str) -> Result<SessionView> {
        let view = self.inner.existing(id)?.view(self.inner.config.session_ttl);
        view.ok_or_else(|| RuntimeError::SessionNotFound { session: id.to_owned() })
    }

    /// In order of creation.
    pub fn sessions(&self) -> Vec<SessionView> {
        let ttl = self.inner.config.session_ttl;
        self.inner.table.all().iter().filter_map(|session| session.view(ttl)).collect()
    }

    /// Ends a session, whatever runs in it, and forgets its files.
    pub async fn delete_session(&self, id: &str) -> Result<()> {
        let session = self.inner.existing(id)?;
        self.inner.close(session).await;
        Ok(())
    }

    /// Ends the box of a persistent session and whatever runs in it. Its files stay; its next use makes another box.
    pub async fn sleep_session(&self, id: &str) -> Result<()> {
        let session = self.inner.existing(id)?;
        if !session.spec.persistent {
            return Err(RuntimeError::invalid("session", "is not persistent: its files end with its box"));
        }
        self.inner.put_away(session).await;
        Ok(())
    }

    /// Makes the box of a session that has none at the moment.
    pub async fn wake_session(&self, id: &str) -> Result<()> {
        let session = self.inner.existing(id)?;
        let _busy = session.use_now();
        self.inner.live_or_gone(&session).await.map(drop)
    }

    /// Runs `spec.cmd` by the box's shell, in a session that is made when it is not there.
    pub async fn exec(&self, spec: &BoxSpec, on_timeout: OnTimeout) -> Result<ExecOutcome> {
        if spec.cmd.trim().is_empty() {
            return Err(RuntimeError::invalid("cmd", "must not be empty"));
        }
        let mut request = ExecRequest::shell(spec.cmd.clone())
            .cwd(spec.workdir.clone())
            .timeout(Duration::from_secs(spec.timeout_sec));
        request.env = spec.env.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
        self.inner.exec(Target::Spec(spec), &request, &Bytes::new(), on_timeout).await
    }

    /// Runs a command in its turn, in a session that is there. A timeout ends the command alone.
    pub async fn exec_in(&self, session: &str, request: ExecRequest, input: Bytes) -> Result<ExecOutcome> {
        self.inner.exec(Target::Existing(session), &request, &input, OnTimeout::EndCommand).await
    }

    /// Starts a command whose output is followed. It waits for nobody, and goes on when nobody follows.
    pub async fn start_command(&self, session: &str, request: ExecRequest) -> Result<CommandId> {
        let session = self.inner.existing(session)?;
        let limits = &self.inner.config.limits;
        session.streams.check_room(limits.commands)?;
        let _busy = session.use_now();
        let started = Started::of(&request);
        let execution = self.inner.start_in(&session, request).await?;
        let (id, driver) = session.streams.add(started, execution, limits.log_bytes);
        let runtime = Arc::downgrade(&self.inner);
        session.tasks.spawn(async move {
            let end = driver.await;
            let Some(runtime) = runtime.upgrade() else { return };
            match end {
                (LogEnd::Exit(exit), bytes) => runtime.metrics.command_ended(&exit, exit.usage.wall, bytes),
                (LogEnd::Failed(_), _) => runtime.metrics.exec_failed(),
            }
        });
        Ok(id)
    }

    pub fn commands(&self, session: &str) -> Result<Vec<CommandView>> {
        let session = self.inner.existing(session)?;
        Ok(session.streams.all().iter().map(|command| command.view()).collect())
    }

    pub fn command(&self, session: &str, command: &CommandId) -> Result<CommandView> {
        self.followed(session, command).map(|command| command.view())
    }

    /// Events after the one with the id `after`; `None` from the oldest kept.
    pub fn follow_command(
        &self,
        session: &str,
        command: &CommandId,
        after: Option<u64>,
    ) -> Result<Subscription> {
        self.followed(session, command).map(|command| command.follow(after))
    }

    /// Waits while the command does not read.
    pub async fn write_command(&self, session: &str, command: &CommandId, data: Bytes) -> Result<()> {
        let followed = self.followed(session, command)?;
        if followed.write(data).await { Ok(()) } else { Err(not_running(session, command)) }
    }

    pub fn close_command_stdin(&self, session: &str, command: &CommandId) -> Result<()> {
        self.followed(session, command).map(|command| command.close_stdin())
    }

    pub async fn control_command(
        &self,
        session: &str,
        command: &CommandId,
        control: ExecControl,
    ) -> Result<()> {
        let followed = self.followed(session, command)?;
        if followed.control(control).await { Ok(()) } else { Err(not_running(session, command)) }
    }

    fn followed(&self, session: &str, command: &CommandId) -> Result<Arc<Followed>> {
        let found = self.inner.existing(session)?.streams.get(command);
        found.ok_or_else(|| RuntimeError::CommandNotFound {
            session: session.to_owned(),
            command: command.to_string(),
        })
    }

    /// Works on files of the box, with the identity of its commands.
    pub async fn files(&self, session: &str, request: FileRequest) -> Result<FileReply> {
        let session = self.inner.existing(session)?;
        let _busy = session.use_now();
        let live = self.inner.live_or_gone(&session).await?;
        live.backend
            .files(&session.id, request)
            .await
            .map_err(|error| if is_gone(&error) { self.inner.ended(&session, &error) } else { error.into() })
    }

    /// LangBot's `box_shutdown`: ends all but persistent sessions, and but those of workspaces. The runtime goes on.
    pub async fn end_sessions(&self) {
        self.end_all(|session| !session.spec.persistent && owner(session.id.as_str()).is_none()).await;
    }

    async fn end_all(&self, which: impl Fn(&Session) -> bool) {
        let ends = self.inner.table.all().into_iter().filter(|session| which(session));
        futures_util::future::join_all(ends.map(|session| self.inner.close(session))).await;
    }

    /// Refuses new work, gives what runs `grace` to end, and ends the rest. Persistent sessions keep their files.
    pub async fn shutdown(&self, grace: Duration) {
        let inner = &self.inner;
        inner.shutting_down.store(true, Ordering::Release);
        inner.reaper_end.cancel();
        let deadline = tokio::time::Instant::now() + grace;
        while tokio::time::Instant::now() < deadline
            && inner.table.all().iter().any(|session| session.has_commands())
        {
            tokio::time::sleep(SHUTDOWN_LOOKS).await;
        }
        let all = inner.table.all();
        futures_util::future::join_all(all.into_iter().map(|session| inner.put_away(session))).await;
        inner.tasks.close();
        inner.tasks.wait().await;
        inner.skills.close().await;
        for backend in inner.backends.all() {
            backend.shutdown().await;
        }
    }
}

fn not_running(session: &str, command: &CommandId) -> RuntimeError {
    RuntimeError::ProcessNotRunning { session: session.to_owned(), process: command.to_string() }
}

impl Inner {
    pub(crate) fn choice(&self) -> BackendChoice {
        effective_choice(self.config.backend.as_ref(), &locked(&self.langbot))
    }

    /// The name that LangBot is told for a backend.
    pub(crate) fn reported(&self, name: Option<String>) -> Option<String> {
        match self.config.report_backend_as {
            Some(reported) => name.map(|_| reported.name().to_owned()),
            None => name,
        }
    }

    pub(crate) async fn look_at_backends(&self) -> Vec<BackendView> {
        let views = self.backends.look().await;
        for view in &views {
            self.metrics.set_backend(view.name, view.available);
        }
        views
    }

    /// Whether a request may choose its backend.
    fn check_backend(&self, options: &SessionOptions) -> Result<()> {
        match &options.backend {
            Some(name) if !self.config.request_backends.contains(name) => Err(RuntimeError::BackendDenied {
                backend: name.clone(),
                allowed: self.config.request_backends.clone(),
            }),
            _ => Ok(()),
        }
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if self.shutting_down.load(Ordering::Acquire) { Err(RuntimeError::ShuttingDown) } else { Ok(()) }
    }

    /// The open session of that id.
    pub(crate) fn existing(&self, id: &str) -> Result<Arc<Session>> {
        self.check_open()?;
        self.table.get(id).ok_or_else(|| RuntimeError::SessionNotFound { session: id.to_owned() })
    }

    /// The session a specification means; one that is closing is waited for.
    pub(crate) async fn session_for(&self, spec: &BoxSpec, options: &SessionOptions) -> Result<Arc<Session>> {
        let id = SessionId::new(spec.session_id.clone())?;
        self.check_backend(options)?;
        loop {
            self.check_open()?;
            match self.table.get_or_insert(&id, spec, options, self.caps())? {
                crate::table::Found::Open(session) => return Ok(session),
                crate::table::Found::Closing(session) => session.closed().await,
            }
        }
    }

    pub(crate) fn refresh_gauges(&self) {
        let sessions = self.table.all();
        let processes = sessions.iter().map(|session| session.processes.running()).sum();
        self.metrics.set_counts(self.table.len(), processes);
    }
}
