//! One session: what it was asked to be, the box it has at the moment, and who uses it.
//!
//! A session outlives its boxes: one whose box died gets another, a persistent one sleeps without. Its gate is
//! the only place where a box is made or ended, so however many ask at the same time, one is made.

mod compatible;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandcrate_backend::{Backend, ExecRequest, Network, SessionId};
use sandcrate_protocol::network::{NetworkRequest, PortRequest};
use sandcrate_protocol::{BoxSpec, Enforcement, MountSpec, ProcessInfo, SessionInfo, Timestamp};
use serde::Serialize;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::RuntimeError;
use crate::network::Accounted;
use crate::ports::{PortView, Ports};
use crate::processes::Processes;
use crate::runtime::Lost;
use crate::streams::Streams;

/// What can be said about a session beyond its box.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionOptions {
    pub labels: BTreeMap<String, String>,
    /// Variables of every command and process, unless it has its own.
    pub env: BTreeMap<String, String>,
    /// Instead of the runtime's own.
    pub ttl: Option<Duration>,
    /// Instead of the mode that its specification has.
    pub network: Option<NetworkRequest>,
    /// Published when it is made, and gone with it.
    pub ports: Vec<PortRequest>,
    /// Instead of the runtime's own choice, where the operator lets requests choose.
    pub backend: Option<String>,
    /// A directory of the server's own that its mounts may lie in, whatever the roots are. Never a request's to say.
    pub own_root: Option<PathBuf>,
    /// It is persistent, and yet ends with this server unless it sleeps: until then its record is there for the next
    /// server to clear up, and need not outlive the machine.
    pub ends_with_server: bool,
}

impl SessionOptions {
    /// The network that is asked for.
    pub fn network(&self, spec: &BoxSpec) -> NetworkRequest {
        self.network.clone().unwrap_or_else(|| spec.network.into())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    Idle,
    /// A command, a process or a file operation is under way.
    Running,
    /// Persistent, without a box until its next use.
    Dormant,
}

/// A session as faces show it.
#[derive(Debug, Clone)]
pub struct SessionView {
    pub info: SessionInfo,
    pub state: SessionState,
    /// Whether commands run or wait in it; processes alone do not count.
    pub executing: bool,
    pub processes: Vec<ProcessInfo>,
    /// Of the box it has now.
    pub enforcement: Option<Enforcement>,
    pub labels: BTreeMap<String, String>,
    pub ttl: Duration,
    /// What it is held to now.
    pub network: NetworkRequest,
    pub ports: Vec<PortView>,
}

/// A poisoned lock guards data that is replaced whole, never left half changed.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// When a session was used last: on the clock for the reaper, on the calendar for people.
#[derive(Debug)]
pub(crate) struct Clock(Mutex<(Instant, Timestamp)>);

impl Clock {
    pub(crate) fn new(at: Timestamp) -> Self {
        Self(Mutex::new((Instant::now(), at)))
    }

    pub(crate) fn touch(&self) {
        *locked(&self.0) = (Instant::now(), Timestamp::now());
    }

    pub(crate) fn idle(&self) -> Duration {
        locked(&self.0).0.elapsed()
    }

    pub(crate) fn last_used_at(&self) -> Timestamp {
        locked(&self.0).1
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Open,
    Closing,
    Closed,
}

/// The box a session has.
#[derive(Debug)]
pub(crate) struct LiveBox {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) info: sandcrate_backend::SessionInfo,
    pub(crate) mounts: Vec<MountSpec>,
    /// The kind it was made with; its policy may be another by now.
    pub(crate) network: Network,
}

impl LiveBox {
    pub(crate) fn is_isolated(&self) -> bool {
        matches!(self.network, Network::Isolated(_))
    }
}

/// How the last attempt to make a box ended, if badly.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    pub(crate) failure: Option<(u64, RuntimeError)>,
}

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    /// Order of creation.
    pub(crate) number: u64,
    /// As it was first asked for, without a command.
    pub(crate) spec: BoxSpec,
    pub(crate) options: SessionOptions,
    /// Its first request brought directories named by their content, so its boxes have a place for them.
    pub(crate) wants_artifacts: bool,
    pub(crate) created_at: Timestamp,
    pub(crate) clock: Arc<Clock>,
    /// Collected commands run one after the other.
    pub(crate) turn: Arc<Semaphore>,
    pub(crate) waiting: AtomicUsize,
    pub(crate) phase: watch::Sender<Phase>,
    pub(crate) gate: tokio::sync::Mutex<Gate>,
    /// How often a box was asked for; a failure is shared by those who waited for it.
    pub(crate) attempts: AtomicU64,
    live: Mutex<Option<Arc<LiveBox>>>,
    /// The backend its files are on, once it has some.
    pub(crate) home: std::sync::OnceLock<String>,
    /// True once it has had a box, or came back from a record.
    pub(crate) established: std::sync::atomic::AtomicBool,
    /// Why its first box could not be made; everybody who waited for it hears this.
    pub(crate) stillborn: std::sync::OnceLock<RuntimeError>,
    pub(crate) processes: Processes,
    pub(crate) streams: Streams,
    pub(crate) ports: Ports,
    /// As it was first asked for. Requests that repeat it fit, whatever it was changed to.
    pub(crate) asked_network: NetworkRequest,
    network: Mutex<NetworkRequest>,
    pub(crate) accounted: Mutex<Accounted>,
    busy: Arc<AtomicUsize>,
    /// Drivers of processes and streams; they end with the box.
    pub(crate) tasks: TaskTracker,
}

/// While it lives, the session is in use.
#[derive(Debug)]
pub(crate) struct Busy(Arc<AtomicUsize>, Arc<Clock>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.1.touch();
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Session {
    pub(crate) fn new(id: SessionId, number: u64, spec: &BoxSpec, options: SessionOptions) -> Self {
        let mut spec = spec.clone();
        spec.session_id = id.as_str().to_owned();
        // What belongs to a command and not to the session; it may hold secrets, too.
        spec.cmd.clear();
        spec.env.clear();
        let wants_artifacts = spec.extra_mounts.iter().any(MountSpec::is_artifact);
        // Those come with each request, and are not what a session is compared by.
        spec.extra_mounts.retain(|mount| !mount.is_artifact());
        let network = options.network(&spec);
        spec.network = network.mode();
        let now = Timestamp::now();
        Self {
            id,
            number,
            spec,
            options,
            wants_artifacts,
            created_at: now,
            clock: Arc::new(Clock::new(now)),
            turn: Arc::new(Semaphore::new(1)),
            waiting: AtomicUsize::new(0),
            phase: watch::Sender::new(Phase::Open),
            gate: tokio::sync::Mutex::default(),
            attempts: AtomicU64::new(0),
            live: Mutex::default(),
            home: std::sync::OnceLock::new(),
            established: std::sync::atomic::AtomicBool::new(false),
            stillborn: std::sync::OnceLock::new(),
            processes: Processes::default(),
            streams: Streams::default(),
            ports: Ports::default(),
            asked_network: network.clone(),
            network: Mutex::new(network),
            accounted: Mutex::default(),
            busy: Arc::default(),
            tasks: TaskTracker::new(),
        }
    }

    /// The request with the session's variables, where it has none of that name.
    pub(crate) fn with_env(&self, mut request: ExecRequest) -> ExecRequest {
        for (key, value) in &self.options.env {
            if request.env.iter().all(|(own, _)| own != key) {
                request.env.push((key.clone(), value.clone()));
            }
        }
        request
    }

    pub(crate) fn is_open(&self) -> bool {
        *self.phase.borrow() == Phase::Open
    }

    /// Ends when the session is no longer open.
    pub(crate) async fn closing(&self) {
        // The sender is `self`: it cannot go away meanwhile.
        let _ = self.phase.subscribe().wait_for(|phase| *phase != Phase::Open).await;
    }

    pub(crate) async fn closed(&self) {
        let _ = self.phase.subscribe().wait_for(|phase| *phase == Phase::Closed).await;
    }

    /// What became of a session that is gone.
    pub(crate) fn lost(&self) -> Lost {
        self.stillborn.get().cloned().map_or(Lost::SessionGone, Lost::Failed)
    }

    pub(crate) fn live(&self) -> Option<Arc<LiveBox>> {
        locked(&self.live).clone()
    }

    pub(crate) fn set_live(&self, live: Option<Arc<LiveBox>>) {
        if let Some(live) = &live {
            let _ = self.home.set(live.info.backend.to_owned());
            self.established.store(true, Ordering::Release);
        }
        *locked(&self.live) = live;
    }

    /// What it is held to now.
    pub(crate) fn network(&self) -> NetworkRequest {
        locked(&self.network).clone()
    }

    pub(crate) fn swap_network(&self, network: NetworkRequest) -> NetworkRequest {
        std::mem::replace(&mut *locked(&self.network), network)
    }

    /// Whether it was made to be reached from outside.
    pub(crate) fn publishes(&self) -> bool {
        !self.options.ports.is_empty()
    }

    pub(crate) fn use_now(&self) -> Busy {
        self.clock.touch();
        self.busy.fetch_add(1, Ordering::Relaxed);
        Busy(Arc::clone(&self.busy), Arc::clone(&self.clock))
    }

    /// Nothing runs in it and nobody is about to start something.
    pub(crate) fn is_idle(&self) -> bool {
        self.busy.load(Ordering::Relaxed) == 0
            && self.waiting.load(Ordering::Relaxed) == 0
            && !self.processes.any_running()
            && !self.streams.any_running()
    }

    /// Something runs that a shutdown gives time to end: a managed process is not waited for.
    pub(crate) fn has_commands(&self) -> bool {
        self.busy.load(Ordering::Relaxed) > 0
            || self.waiting.load(Ordering::Relaxed) > 0
            || self.streams.any_running()
    }

    /// `None` while its first box is being made.
    pub(crate) fn view(&self, default_ttl: Duration) -> Option<SessionView> {
        let live = self.live();
        if live.is_none() && !self.established.load(Ordering::Acquire) {
            return None;
        }
        let state = match &live {
            None if self.spec.persistent => SessionState::Dormant,
            _ if self.is_idle() => SessionState::Idle,
            _ => SessionState::Running,
        };
        let spec = &self.spec;
        let info = SessionInfo {
            session_id: self.id.as_str().to_owned(),
            backend_name: self.home.get().cloned().unwrap_or_default(),
            backend_session_id: live.as_ref().map_or_else(String::new, |live| live.info.backend_id.clone()),
            image: spec.image.clone(),
            network: spec.network,
            host_path: spec.host_path.clone(),
            host_path_mode: spec.host_path_mode,
            mount_path: spec.mount_path.clone(),
            persistent: spec.persistent,
            cpus: spec.cpus,
            memory_mb: spec.memory_mb,
            pids_limit: spec.pids_limit,
            read_only_rootfs: spec.read_only_rootfs,
            workspace_quota_mb: spec.workspace_quota_mb,
            created_at: self.created_at,
            last_used_at: self.clock.last_used_at(),
        };
        Some(SessionView {
            info,
            state,
            executing: self.has_commands(),
            processes: self.processes.infos(),
            enforcement: live.map(|live| live.info.enforcement.clone()),
            labels: self.options.labels.clone(),
            ttl: self.options.ttl.unwrap_or(default_ttl),
            network: self.network(),
            ports: self.ports.views(),
        })
    }
}
