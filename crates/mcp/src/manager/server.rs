//! One configured server: what it is, how it stands, and the task that keeps it alive.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmcp::model::Tool;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::connection::Live;
use super::info::RuntimeInfo;
use super::machine::{Machine, Next, Status};
use crate::config::{Origin, Registration};
use crate::{Identity, PhaseError, Progress, ServerConfig};

/// What is kept of a server's last words once its process is gone.
const KEPT_LOG_BYTES: usize = 16 << 10;

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) config: ServerConfig,
    pub(crate) registration: Registration,
    pub(crate) origin: Origin,
    pub(crate) identity: Identity,
    state: watch::Sender<State>,
    /// Held while somebody starts or stops it, so that two do not.
    pub(crate) control: tokio::sync::Mutex<()>,
    pub(crate) task: Mutex<Option<Running>>,
    /// Ticks when what the gateway offers has changed.
    changes: watch::Sender<u64>,
}

#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) stop: CancellationToken,
    pub(crate) task: JoinHandle<()>,
}

#[derive(Debug)]
struct State {
    machine: Machine,
    tools: Arc<[Tool]>,
    live: Option<Arc<Live>>,
    /// The last thing that was said of slow work.
    doing: Option<String>,
    last_log: Option<String>,
    /// What a person should know of this start; each start finds its own.
    notes: Vec<String>,
}

impl Server {
    pub(crate) fn new(
        name: &str,
        registration: Registration,
        origin: Origin,
        identity: Identity,
        changes: watch::Sender<u64>,
    ) -> Self {
        let status = if registration.enabled { Status::Stopped } else { Status::Disabled };
        let state = State {
            machine: Machine::new(status),
            tools: Arc::default(),
            live: None,
            doing: None,
            last_log: None,
            notes: Vec::new(),
        };
        Self {
            config: registration.server(name),
            registration,
            origin,
            identity,
            state: watch::Sender::new(state),
            control: tokio::sync::Mutex::default(),
            task: Mutex::default(),
            changes,
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.config.name
    }

    pub(crate) fn startup_limit(&self) -> Duration {
        Duration::from_secs(self.config.settings.startup_timeout_sec.max(1))
    }

    /// How long whoever starts it waits: the start's own limit, and time to say hello.
    pub(crate) fn patience(&self) -> Duration {
        self.startup_limit() + Duration::from_secs(30)
    }

    pub(crate) fn info(&self) -> RuntimeInfo {
        let state = self.state.borrow();
        let boxed = (state.machine.status() != Status::Disabled).then_some(&self.identity);
        RuntimeInfo::new(&state.machine, &state.tools, boxed)
    }

    pub(crate) fn status(&self) -> Status {
        self.state.borrow().machine.status()
    }

    pub(crate) fn error(&self) -> Option<PhaseError> {
        self.state.borrow().machine.error().cloned()
    }

    pub(crate) fn tools(&self) -> Arc<[Tool]> {
        Arc::clone(&self.state.borrow().tools)
    }

    pub(crate) fn live(&self) -> Option<Arc<Live>> {
        self.state.borrow().live.clone()
    }

    pub(crate) fn doing(&self) -> Option<String> {
        self.state.borrow().doing.clone()
    }

    pub(crate) fn notes(&self) -> Vec<String> {
        self.state.borrow().notes.clone()
    }

    pub(crate) fn last_log(&self) -> Option<String> {
        self.state.borrow().last_log.clone()
    }

    pub(crate) fn keep_log(&self, mut log: String) {
        if let Some(surplus) = log.len().checked_sub(KEPT_LOG_BYTES) {
            let cut = (surplus..=log.len()).find(|at| log.is_char_boundary(*at)).unwrap_or(0);
            log.drain(..cut);
        }
        self.state.send_modify(|state| state.last_log = Some(log));
    }

    pub(crate) fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    /// A fresh start; its number.
    pub(crate) fn begin(&self) -> u64 {
        let mut start = 0;
        self.state.send_modify(|state| {
            state.machine.begin();
            state.notes.clear();
            start = state.machine.start_number();
        });
        start
    }

    pub(crate) fn connected(&self, live: Arc<Live>, tools: Vec<Tool>) {
        self.state.send_modify(|state| {
            state.machine.connected();
            state.live = Some(live);
            state.tools = tools.into();
            state.doing = None;
        });
        self.changed();
    }

    pub(crate) fn set_tools(&self, tools: Vec<Tool>) {
        self.state.send_modify(|state| state.tools = tools.into());
        self.changed();
    }

    /// Nothing of an attempt that is over is offered any longer.
    pub(crate) fn disconnect(&self) {
        let mut offered = false;
        self.state.send_modify(|state| {
            offered = state.live.take().is_some();
            state.tools = Arc::default();
            state.doing = None;
        });
        if offered {
            self.changed();
        }
    }

    pub(crate) fn failed(&self, error: PhaseError, well_for: Option<Duration>) -> Next {
        let mut next = Next::GiveUp;
        self.state.send_modify(|state| next = state.machine.failed(error, well_for));
        next
    }

    pub(crate) fn stopped(&self) {
        self.state.send_modify(|state| state.machine.stopped());
    }

    /// Waits for the outcome of a start, with the patience of one who asked for it.
    pub(crate) async fn outcome(&self, start: u64) -> Result<(), PhaseError> {
        let patience = self.patience();
        let mut state = self.state.subscribe();
        let ready = state.wait_for(|state| state.machine.is_ready(start));
        if tokio::time::timeout(patience, ready).await.is_err() {
            self.state.send_modify(|state| state.machine.waited_in_vain(start, patience.as_secs()));
        }
        match self.error() {
            Some(error) => Err(error),
            None if self.status() == Status::Connected => Ok(()),
            None => Err(PhaseError::new(crate::Phase::Runtime, "it was stopped meanwhile")),
        }
    }

    pub(crate) fn running(&self) -> Option<Running> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn set_running(&self, running: Running) {
        *self.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(running);
    }
}

impl Progress for Server {
    fn say(&self, line: &str) {
        tracing::debug!(server = self.name(), line, "MCP server is being started");
        self.state.send_modify(|state| state.doing = Some(line.to_owned()));
    }

    fn note(&self, text: &str) {
        let is_new = self.state.send_if_modified(|state| {
            // Every attempt of a start finds the same.
            let is_new = !state.notes.iter().any(|known| known == text);
            if is_new {
                state.notes.push(text.to_owned());
            }
            is_new
        });
        if is_new {
            tracing::info!(server = self.name(), note = text, "MCP server may lack something");
        }
    }
}
