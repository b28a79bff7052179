//! A scripted backend in memory, for tests of the layers above.
//!
//! It starts no process: a [`FakeScript`] says what each command writes, when, and how it ends. Sessions,
//! files, timeouts, control, kill and stop behave as the trait's contract has it, on tokio's clock, so tests
//! run with paused time. It enforces nothing and its enforcement record says so.

mod files;
mod network;
mod script;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use network::Serve;
use sandcrate_protocol::{Control, Enforcement};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::{
    Backend, BackendError, Capabilities, Examination, Examined, ExecRequest, Execution, FileReply,
    FileRequest, Isolation, Network, NetworkReport, RootAccess, SessionId, SessionInfo, SessionSpec,
    StartNotice, StdinMode, Strictness, SweepReport,
};

use files::FakeFiles;
pub use script::FakeScript;

type Chooser = dyn Fn(&SessionId, &ExecRequest) -> FakeScript + Send + Sync;

/// How often each method was called, whatever came of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FakeCalls {
    pub probe: u32,
    pub examine: u32,
    pub start: u32,
    pub exec: u32,
    pub files: u32,
    pub set_network: u32,
    pub forward: u32,
    pub stop: u32,
    pub sweep: u32,
    pub shutdown: u32,
}

/// See the module.
pub struct FakeBackend {
    choose: Box<Chooser>,
    capabilities: Capabilities,
    start_delay: Duration,
    serve: Box<Serve>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    sessions: HashMap<SessionId, FakeSession>,
    calls: FakeCalls,
    unavailable: Option<String>,
    start_errors: VecDeque<BackendError>,
    start_notices: Vec<StartNotice>,
    /// What examinations find; a fake that holds nothing finds that.
    examined: Option<Examined>,
    next_box: u64,
}

struct FakeSession {
    spec: SessionSpec,
    files: FakeFiles,
    /// What its network is said to have done.
    report: NetworkReport,
    /// Told why the box ended; every running command listens.
    ended: watch::Sender<Option<String>>,
}

impl FakeBackend {
    /// A backend that asks `choose` what each command does.
    pub fn new(choose: impl Fn(&SessionId, &ExecRequest) -> FakeScript + Send + Sync + 'static) -> Self {
        let capabilities = Capabilities {
            pty: true,
            files: true,
            writable_root: true,
            host_network: false,
            isolated_network: false,
            host_mounts: true,
            hard_disk_quota: false,
            kept_storage: true,
            kill_one_command: true,
        };
        Self {
            choose: Box::new(choose),
            capabilities,
            start_delay: Duration::ZERO,
            serve: Box::new(|_, stream| drop(tokio::spawn(network::echo(stream)))),
            state: Mutex::default(),
        }
    }

    /// A backend whose commands take these scripts in order, and then just exit with 0.
    pub fn scripted(scripts: impl IntoIterator<Item = FakeScript>) -> Self {
        let scripts = Mutex::new(scripts.into_iter().collect::<VecDeque<_>>());
        Self::new(move |_, _| {
            let mut scripts = scripts.lock().unwrap_or_else(PoisonError::into_inner);
            scripts.pop_front().unwrap_or_default()
        })
    }

    #[must_use]
    pub fn with_capabilities(mut self, capabilities: Capabilities) -> Self {
        self.capabilities = capabilities;
        self
    }

    /// Makes every start take this long.
    #[must_use]
    pub fn with_start_delay(mut self, delay: Duration) -> Self {
        self.start_delay = delay;
        self
    }

    /// Makes the next start that is not yet spoken for fail.
    pub fn fail_next_start(&self, error: BackendError) {
        self.state().start_errors.push_back(error);
    }

    /// What every start tells before it goes on.
    pub fn tell_at_start(&self, notices: Vec<StartNotice>) {
        self.state().start_notices = notices;
    }

    /// From now on probe and start fail with this reason; `None` ends it.
    pub fn set_unavailable(&self, why: Option<&str>) {
        self.state().unavailable = why.map(str::to_owned);
    }

    /// From now on examinations find this, and starts that require controls are not refused, as if boxes of a fake
    /// held anything.
    pub fn pretend(&self, examined: Examined) {
        self.state().examined = Some(examined);
    }

    /// Lets a box die by itself, as if its init were gone.
    pub fn kill_box(&self, session: &SessionId, why: &str) {
        self.end(session, why);
    }

    pub fn calls(&self) -> FakeCalls {
        self.state().calls
    }

    /// What a live session was asked to be.
    pub fn spec(&self, session: &SessionId) -> Option<SessionSpec> {
        self.state().sessions.get(session).map(|live| live.spec.clone())
    }

    /// Live sessions, in order of their ids.
    pub fn sessions(&self) -> Vec<SessionId> {
        let mut ids: Vec<_> = self.state().sessions.keys().cloned().collect();
        ids.sort();
        ids
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, session: &SessionId, why: &str) {
        if let Some(gone) = self.state().sessions.remove(session) {
            gone.ended.send_replace(Some(why.to_owned()));
        }
    }

    fn unsupported(&self, what: &str) -> BackendError {
        let hint = "this fake was made without the capability".to_owned();
        BackendError::Unsupported { backend: self.name(), what: what.to_owned(), hint }
    }

    fn check_start(&self, spec: &SessionSpec) -> Result<(), BackendError> {
        spec.validate()?;
        let able = &self.capabilities;
        if spec.network == Network::Host && !able.host_network {
            return Err(self.unsupported("the host's network"));
        }
        if matches!(spec.network, Network::Isolated(_)) && !able.isolated_network {
            return Err(self.unsupported("an isolated network"));
        }
        if spec.root == RootAccess::Writable && !able.writable_root {
            return Err(self.unsupported("a writable root"));
        }
        if !spec.mounts.is_empty() && !able.host_mounts {
            return Err(self.unsupported("a mount of the host"));
        }
        if let Strictness::Require(controls) = &spec.strictness
            && let Some(control) = controls.first()
            && self.state().examined.is_none()
        {
            let why = "a fake enforces nothing".to_owned();
            return Err(BackendError::Unenforceable { control: *control, why });
        }
        Ok(())
    }
}

#[async_trait]
impl Backend for FakeBackend {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    async fn probe(&self) -> Result<(), BackendError> {
        let mut state = self.state();
        state.calls.probe += 1;
        match &state.unavailable {
            Some(why) => Err(BackendError::Unavailable { backend: "fake", why: why.clone() }),
            None => Ok(()),
        }
    }

    async fn start(&self, spec: SessionSpec) -> Result<SessionInfo, BackendError> {
        let begin = Instant::now();
        let (failure, notices) = {
            let mut state = self.state();
            state.calls.start += 1;
            if let Some(why) = &state.unavailable {
                return Err(BackendError::Unavailable { backend: "fake", why: why.clone() });
            }
            (state.start_errors.pop_front(), state.start_notices.clone())
        };
        self.check_start(&spec)?;
        notices.iter().for_each(|notice| spec.notices.tell(notice));
        tokio::time::sleep(self.start_delay).await;
        if let Some(error) = failure {
            return Err(error);
        }
        let id = spec.id.clone();
        let mut state = self.state();
        if state.sessions.contains_key(&id) {
            return Err(BackendError::SessionExists { session: id });
        }
        let files = FakeFiles::new(&spec.workdir);
        let ended = watch::Sender::new(None);
        state
            .sessions
            .insert(id.clone(), FakeSession { spec, files, report: NetworkReport::default(), ended });
        let mut enforcement = Enforcement::new();
        for control in Control::ALL {
            enforcement.absent(control, "a fake enforces nothing");
        }
        state.next_box += 1;
        let backend_id = format!("fake-{}", state.next_box);
        Ok(SessionInfo { id, backend: self.name(), backend_id, enforcement, start_time: begin.elapsed() })
    }

    async fn restart(&self, spec: SessionSpec) -> Result<SessionInfo, BackendError> {
        let files = {
            let mut state = self.state();
            let old = state.sessions.remove(&spec.id);
            old.map(|old| {
                old.ended.send_replace(Some("restarted".to_owned()));
                old.files
            })
        };
        let Some(files) = files else {
            return Err(BackendError::SessionNotFound { session: spec.id });
        };
        let id = spec.id.clone();
        let info = self.start(spec).await?;
        if let Some(live) = self.state().sessions.get_mut(&id) {
            live.files = files;
        }
        Ok(info)
    }

    async fn exec(&self, session: &SessionId, request: ExecRequest) -> Result<Execution, BackendError> {
        let ended = {
            let mut state = self.state();
            state.calls.exec += 1;
            let Some(live) = state.sessions.get(session) else {
                return Err(BackendError::SessionNotFound { session: session.clone() });
            };
            live.ended.subscribe()
        };
        request.validate()?;
        if request.pty.is_some() && !self.capabilities.pty {
            return Err(self.unsupported("a terminal"));
        }
        if request.memory_bytes.is_some() {
            return Err(BackendError::no_process_memory("nothing is bounded here"));
        }
        let script = (self.choose)(session, &request);
        let stdin = if request.pty.is_some() { StdinMode::Piped } else { request.stdin };
        let (execution, ends) = Execution::channel(stdin);
        // Owned by the execution and the box: the task ends when either does.
        tokio::spawn(script.play(session.clone(), request.timeout, ends, ended));
        Ok(execution)
    }

    async fn files(&self, session: &SessionId, request: FileRequest) -> Result<FileReply, BackendError> {
        let mut state = self.state();
        state.calls.files += 1;
        let Some(live) = state.sessions.get_mut(session) else {
            return Err(BackendError::SessionNotFound { session: session.clone() });
        };
        if !self.capabilities.files {
            return Err(self.unsupported("a file operation"));
        }
        request.validate()?;
        live.files.serve(request)
    }

    async fn set_network(&self, session: &SessionId, isolation: Isolation) -> Result<(), BackendError> {
        let mut state = self.state();
        state.calls.set_network += 1;
        network::isolated(&mut state.sessions, session, self)?.spec.network =
            Network::Isolated(Box::new(isolation));
        Ok(())
    }

    async fn network(&self, session: &SessionId) -> Result<NetworkReport, BackendError> {
        let mut state = self.state();
        Ok(network::isolated(&mut state.sessions, session, self)?.report.clone())
    }

    async fn forward(&self, session: &SessionId, port: u16, stream: OwnedFd) -> Result<(), BackendError> {
        {
            let mut state = self.state();
            state.calls.forward += 1;
            network::isolated(&mut state.sessions, session, self)?;
        }
        (self.serve)(port, network::stream(stream)?);
        Ok(())
    }

    async fn examine(&self, _: Examination) -> Result<Examined, BackendError> {
        let mut state = self.state();
        state.calls.examine += 1;
        let found = state.examined.clone();
        Ok(found.unwrap_or_else(|| Examined::nothing("a fake enforces nothing")))
    }

    async fn is_alive(&self, session: &SessionId) -> bool {
        self.state().sessions.contains_key(session)
    }

    async fn stop(&self, session: &SessionId) -> Result<(), BackendError> {
        self.state().calls.stop += 1;
        self.end(session, "stopped");
        Ok(())
    }

    async fn remove_storage(&self, directory: &std::path::Path) -> Result<(), BackendError> {
        match std::fs::remove_dir_all(directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(BackendError::failed("removing kept storage", error))
            }
            _ => Ok(()),
        }
    }

    async fn sweep(&self) -> Result<SweepReport, BackendError> {
        self.state().calls.sweep += 1;
        Ok(SweepReport::default())
    }

    async fn shutdown(&self) {
        self.state().calls.shutdown += 1;
        for session in self.sessions() {
            self.end(&session, "the backend shut down");
        }
    }
}

impl fmt::Debug for FakeBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeBackend").field("sessions", &self.sessions()).finish_non_exhaustive()
    }
}
