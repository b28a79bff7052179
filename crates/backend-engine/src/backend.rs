//! The engine backend: sessions in containers.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use sandcrate_backend::{
    Backend, BackendError, Capabilities, ExecRequest, Execution, FileReply, FileRequest, Isolation,
    NetworkReport, RootAccess, SessionId, SessionInfo, SessionSpec, SweepReport,
};
use sandcrate_driver::instance::{self, remove_if_there};
use sandcrate_driver::{BoxNetwork, LiveBox, Networks, lock, not_isolated, on_disk};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::config::{EngineConfig, EngineKind};
use crate::container::{OWNER, STATE};
use crate::engine::Engine;
use crate::instance::Instance;
use crate::making::{check, make, open_sources};
use crate::pulls::Pulls;
use crate::session::Session;
use crate::slots::{Caller, Slot, Starting};
use crate::storage::Storage;

/// For what is under way to see that all is being shut down.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(30);

/// Boxes made by a container engine.
#[derive(Debug)]
pub struct EngineBackend {
    shared: Arc<Shared>,
    /// Starts and ends that outlive their caller, and the sweep at the start.
    tasks: Mutex<JoinSet<()>>,
}

/// What the backend's tasks share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) config: Arc<EngineConfig>,
    pub(crate) next_box: AtomicU64,
    /// Containers that are being made.
    pub(crate) turns: Semaphore,
    sessions: Mutex<HashMap<SessionId, Slot>>,
    pub(crate) pulls: Pulls,
    pub(crate) networks: Networks,
    /// True when all is being shut down.
    closing: watch::Sender<bool>,
    /// Whether dead instances may have left something that no sweep has seen.
    sweep_due: AtomicBool,
    sweeping: AtomicBool,
    /// The part of the state directory for this engine.
    part: PathBuf,
    /// Last: its directory goes when everything else is gone.
    pub(crate) instance: Instance,
}

impl Shared {
    fn session(&self, id: &SessionId) -> Result<Arc<Session>, BackendError> {
        match lock(&self.sessions).get(id) {
            Some(Slot::Live(session)) => Ok(Arc::clone(session)),
            _ => Err(BackendError::SessionNotFound { session: id.clone() }),
        }
    }

    /// Makes a box for an id that is reserved, and frees the id again when there is none in the end.
    /// Files of an earlier box are kept for the next one.
    async fn occupy(
        self: &Arc<Self>,
        spec: SessionSpec,
        number: u64,
        mut held: Option<Storage>,
        caller: &mut Caller,
    ) -> Result<SessionInfo, BackendError> {
        let id = spec.id.clone();
        let made = make(self, spec, &mut held, caller).await;
        if let Ok(session) = &made {
            let wanted =
                |slot: &Slot| matches!(slot, Slot::Starting(start) if start.number == number && start.wanted);
            let mut sessions = lock(&self.sessions);
            if sessions.get(&id).is_some_and(wanted) {
                sessions.insert(id, Slot::Live(Arc::clone(session)));
                return Ok(session.info.clone());
            }
        }
        if let Ok(session) = &made {
            held = session.end_box().await.unwrap_or_else(|error| {
                not_clean(session.id(), &error);
                None
            });
        }
        if let Some(unkept) = self.give_up(&id, number, held)
            && let Err(error) = unkept.remove().await
        {
            not_clean(&id, &BackendError::failed("removing the session's files", error));
        }
        made.and_then(|session| Err(session.ended_error()))
    }

    /// Frees the id of a start that came to nothing, or keeps its files there; gives back what is not to be kept.
    fn give_up(&self, id: &SessionId, number: u64, held: Option<Storage>) -> Option<Storage> {
        let mut sessions = lock(&self.sessions);
        match (sessions.get(id), held) {
            (Some(Slot::Starting(start)), Some(storage)) if start.number == number && start.keeps => {
                sessions.insert(id.clone(), Slot::Kept(storage));
                None
            }
            (Some(slot), held) => {
                if slot.is_start(number) {
                    sessions.remove(id);
                }
                held
            }
            (None, held) => held,
        }
    }

    /// Nobody waits for a start any more.
    fn abandon(&self, id: &SessionId, number: u64, keeps: bool) -> Option<Arc<Session>> {
        let mut sessions = lock(&self.sessions);
        match sessions.get_mut(id) {
            Some(Slot::Starting(start)) if start.number == number => {
                start.wanted = false;
                None
            }
            // One that was made anew has files that somebody may still want.
            Some(Slot::Live(_)) if !keeps => match sessions.remove(id) {
                Some(Slot::Live(session)) => Some(session),
                _ => None,
            },
            _ => None,
        }
    }

    /// Removes containers and directories of dead instances of this state directory.
    async fn sweep(&self) -> Result<SweepReport, BackendError> {
        let failed = |error| BackendError::failed("sweeping the state directory", error);
        let mut report = SweepReport { cgroups: self.engine.remove_left().await, ..SweepReport::default() };
        let part = self.part.clone();
        let dead = tokio::task::spawn_blocking(move || instance::dead(&part)).await;
        let dead = dead.map_err(|error| failed(std::io::Error::other(error)))?.map_err(failed)?;
        let containers = self.engine.list(&format!("{STATE}={}", self.instance.state_id)).await?;
        let mut spared = Vec::new();
        for container in containers {
            let owner = container.labels.get(OWNER).cloned().unwrap_or_default();
            let ours = container.labels.get(STATE) == Some(&self.instance.state_id);
            // Ours to clear away: one of the dead whose locks we hold, or one whose lock file is gone.
            let is_dead =
                dead.iter().any(|dead| dead.name == owner) || !instance::is_alive(&self.part, &owner);
            if ours && is_dead && owner != self.instance.name() {
                match self.engine.remove(&container.id).await {
                    // The report has no containers; what one is to the kernel is its cgroups.
                    Ok(_) => report.cgroups += 1,
                    Err(error) => {
                        tracing::warn!(
                            container = container.id,
                            error = &error as &dyn std::error::Error,
                            "a dead instance's container cannot be removed"
                        );
                        self.sweep_due.store(true, Ordering::Release);
                        spared.push(owner);
                    }
                }
            }
        }
        // One whose box may still run keeps its files.
        for dead in dead.into_iter().filter(|dead| !spared.contains(&dead.name)) {
            report.instances += 1;
            match on_disk(move || dead.clear()).await {
                Ok(there) => report.directories += u32::from(there),
                Err(error) => tracing::warn!(%error, "a dead instance's directory cannot be removed"),
            }
        }
        Ok(report)
    }
}

/// Ends a session that nobody asks about.
async fn end(session: &Session) {
    if let Err(error) = session.stop().await {
        not_clean(session.id(), &error);
    }
}

fn not_clean(id: &SessionId, error: &BackendError) {
    tracing::warn!(
        session.id = id.as_str(),
        error = error as &dyn std::error::Error,
        "a session did not end cleanly"
    );
}

/// Ends what was started for a caller who has gone.
struct Waiting<'a> {
    backend: &'a EngineBackend,
    id: Option<SessionId>,
    number: u64,
    /// Whether the box has files of an earlier one.
    keeps: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let id = self.id.take();
        let session = id.and_then(|id| self.backend.shared.abandon(&id, self.number, self.keeps));
        if let Some(session) = session {
            self.backend.spawn(async move { end(&session).await });
        }
    }
}

impl EngineBackend {
    /// Takes a place in the state directory and finds the engine. What dead instances left is swept meanwhile.
    pub async fn connect(kind: EngineKind, config: EngineConfig) -> Result<Self, BackendError> {
        let backend = Self::open(kind, config).await?;
        backend.probe().await?;
        Ok(backend)
    }

    /// The same for an engine that may come later: until then every use of it says that it is unavailable.
    pub async fn open(kind: EngineKind, config: EngineConfig) -> Result<Self, BackendError> {
        let config = Arc::new(config);
        let engine = Engine::new(kind, Arc::clone(&config));
        let part = config.state_dir.join(kind.name());
        let guest = config.guest.clone();
        let place = part.clone();
        let made = on_disk(move || Instance::create(&place, &guest));
        let instance = made.await.map_err(|error| {
            BackendError::failed(format!("taking a place in the state directory {}", part.display()), error)
        })?;
        let shared = Arc::new(Shared {
            engine,
            next_box: AtomicU64::new(1),
            turns: Semaphore::new(config.parallel.max(1)),
            sessions: Mutex::default(),
            pulls: Pulls::default(),
            networks: Networks::new(kind.name(), config.guest.clone()),
            closing: watch::Sender::new(false),
            sweep_due: AtomicBool::new(true),
            sweeping: AtomicBool::new(false),
            part,
            instance,
            config,
        });
        let backend = Self { shared, tasks: Mutex::default() };
        backend.sweep_if_due();
        Ok(backend)
    }

    /// Sweeps in the background when the last sweep missed something: as soon as the engine is heard of again.
    fn sweep_if_due(&self) {
        let shared = Arc::clone(&self.shared);
        if shared.sweeping.swap(true, Ordering::AcqRel) {
            return;
        }
        if !shared.sweep_due.swap(false, Ordering::AcqRel) && !shared.engine.has_left() {
            return shared.sweeping.store(false, Ordering::Release);
        }
        self.spawn(async move {
            if let Err(error) = shared.sweep().await {
                shared.sweep_due.store(true, Ordering::Release);
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "what dead instances left cannot be removed"
                );
            }
            shared.sweeping.store(false, Ordering::Release);
        });
    }

    fn network_of<'a>(&self, session: &'a Session, what: &str) -> Result<&'a Arc<BoxNetwork>, BackendError> {
        session.network().ok_or_else(|| not_isolated(self.shared.engine.kind.name(), what))
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// Makes the box in a task of its own: an engine that was asked for a container makes it, whether or not
    /// somebody still waits, and then it has to be removed again.
    async fn launch(
        &self,
        spec: SessionSpec,
        number: u64,
        earlier: Option<Storage>,
    ) -> Result<SessionInfo, BackendError> {
        let mut waiting =
            Waiting { backend: self, id: Some(spec.id.clone()), number, keeps: earlier.is_some() };
        let shared = Arc::clone(&self.shared);
        let (sender, outcome) = oneshot::channel();
        let mut caller = Caller { outcome: sender, closing: self.shared.closing.subscribe() };
        self.spawn(async move {
            let outcome = shared.occupy(spec, number, earlier, &mut caller).await;
            drop(caller.outcome.send(outcome));
        });
        let outcome = outcome.await;
        waiting.id = None;
        let made = outcome.unwrap_or_else(|_| Err(self.shared.engine.unavailable("it is being shut down")));
        if made.is_ok() {
            self.sweep_if_due();
        }
        made
    }

    /// Whether a session can be made anew.
    fn check_restart(&self, id: &SessionId, slot: Option<&Slot>) -> Result<(), BackendError> {
        match slot {
            // Its changes to the root would be lost, and a restart promises to keep them.
            Some(Slot::Live(session)) if session.root == RootAccess::Writable => {
                Err(BackendError::Unsupported {
                    backend: self.name(),
                    what: "making a box with a writable root anew".to_owned(),
                    hint: "its changes go with the container; end the session and start another".to_owned(),
                })
            }
            Some(Slot::Live(_) | Slot::Kept(_)) => Ok(()),
            _ => Err(BackendError::SessionNotFound { session: id.clone() }),
        }
    }

    /// What stands for an id while its box is made, and its number.
    fn reserve(&self, keeps: bool) -> (u64, Slot) {
        let number = self.shared.next_box.fetch_add(1, Ordering::Relaxed);
        (number, Slot::Starting(Starting { number, wanted: true, keeps }))
    }
}

#[async_trait]
impl Backend for EngineBackend {
    fn name(&self) -> &'static str {
        self.shared.engine.kind.name()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            pty: true,
            files: true,
            writable_root: true,
            host_network: true,
            // Its device is made from outside, which takes the right to enter the container's namespace.
            isolated_network: rustix::process::geteuid().is_root(),
            host_mounts: true,
            hard_disk_quota: false,
            kept_storage: true,
            kill_one_command: true,
        }
    }

    async fn probe(&self) -> Result<(), BackendError> {
        let answer = self.shared.engine.ping().await;
        match answer {
            Ok(()) => self.sweep_if_due(),
            Err(_) => self.shared.sweep_due.store(true, Ordering::Release),
        }
        answer
    }

    async fn start(&self, spec: SessionSpec) -> Result<SessionInfo, BackendError> {
        check(&self.shared, &spec)?;
        let (number, earlier) = {
            let mut sessions = lock(&self.shared.sessions);
            let free = match sessions.get(&spec.id) {
                None | Some(Slot::Kept(_)) => true,
                // What nobody waits for ends by itself, and has no files that matter.
                Some(Slot::Starting(start)) => !start.wanted && !start.keeps,
                Some(Slot::Live(_)) => false,
            };
            if !free {
                return Err(BackendError::SessionExists { session: spec.id });
            }
            let fits = |storage: &Storage| spec.storage.is_none() && storage.is_private();
            let keeps = matches!(sessions.get(&spec.id), Some(Slot::Kept(storage)) if fits(storage));
            let (number, slot) = self.reserve(keeps);
            match sessions.insert(spec.id.clone(), slot) {
                Some(Slot::Kept(storage)) if keeps => (number, Some(storage)),
                _ => (number, None),
            }
        };
        self.launch(spec, number, earlier).await
    }

    async fn exec(&self, session: &SessionId, request: ExecRequest) -> Result<Execution, BackendError> {
        sandcrate_driver::exec(&self.shared.session(session)?, request).await
    }

    async fn files(&self, session: &SessionId, request: FileRequest) -> Result<FileReply, BackendError> {
        sandcrate_driver::perform(&self.shared.session(session)?, request).await
    }

    async fn set_network(&self, session: &SessionId, isolation: Isolation) -> Result<(), BackendError> {
        let session = self.shared.session(session)?;
        isolation.policy.check_against(&isolation.grants)?;
        self.network_of(&session, "a network policy")?.set(isolation).await
    }

    async fn network(&self, session: &SessionId) -> Result<NetworkReport, BackendError> {
        let session = self.shared.session(session)?;
        Ok(self.network_of(&session, "a network report")?.report().await)
    }

    async fn forward(&self, session: &SessionId, port: u16, stream: OwnedFd) -> Result<(), BackendError> {
        let session = self.shared.session(session)?;
        if port == 0 {
            return Err(BackendError::invalid("port", "must be from 1 to 65535"));
        }
        self.network_of(&session, "a port")?.forward(port, stream).await
    }

    async fn is_alive(&self, session: &SessionId) -> bool {
        self.shared.session(session).is_ok_and(|session| session.is_alive())
    }

    async fn stop(&self, session: &SessionId) -> Result<(), BackendError> {
        let live = {
            let mut sessions = lock(&self.shared.sessions);
            match sessions.get_mut(session) {
                Some(Slot::Live(_) | Slot::Kept(_)) => sessions.remove(session),
                // A restart that nobody waits for has nobody to keep its files for.
                Some(Slot::Starting(start)) if !start.wanted => {
                    start.keeps = false;
                    None
                }
                _ => None,
            }
        };
        match live {
            Some(Slot::Live(session)) => session.stop().await,
            Some(Slot::Kept(storage)) => storage
                .remove()
                .await
                .map_err(|error| BackendError::failed("removing the session's files", error)),
            _ => Ok(()),
        }
    }

    async fn restart(&self, spec: SessionSpec) -> Result<SessionInfo, BackendError> {
        check(&self.shared, &spec)?;
        self.check_restart(&spec.id, lock(&self.shared.sessions).get(&spec.id))?;
        // What can be known to fail fails while the old box still runs.
        let (spec, sources) = open_sources(&self.shared, spec).await?;
        drop(sources);
        self.probe().await?;
        let (number, old) = {
            let mut sessions = lock(&self.shared.sessions);
            self.check_restart(&spec.id, sessions.get(&spec.id))?;
            let (number, slot) = self.reserve(true);
            (number, sessions.insert(spec.id.clone(), slot))
        };
        let storage = match old {
            Some(Slot::Live(old)) => {
                let mut back = Back { shared: &self.shared, old: Some(Arc::clone(&old)) };
                let storage = old.end_box().await?.ok_or_else(|| old.ended_error())?;
                back.old = None;
                storage
            }
            Some(Slot::Kept(storage)) => storage,
            _ => return Err(BackendError::SessionNotFound { session: spec.id }),
        };
        self.launch(spec, number, Some(storage)).await
    }

    async fn remove_storage(&self, directory: &Path) -> Result<(), BackendError> {
        let directory = directory.to_owned();
        let removed = on_disk(move || remove_if_there(&directory)).await;
        removed.map_err(|error| BackendError::failed("removing kept storage", error))
    }

    async fn sweep(&self) -> Result<SweepReport, BackendError> {
        self.shared.sweep().await
    }

    async fn shutdown(&self) {
        self.shared.turns.close();
        self.shared.closing.send_replace(true);
        let sessions: Vec<_> = {
            let mut sessions = lock(&self.shared.sessions);
            // What is being started sees that nobody waits.
            for slot in sessions.values_mut() {
                if let Slot::Starting(start) = slot {
                    (start.wanted, start.keeps) = (false, false);
                }
            }
            let there = sessions.extract_if(|_, slot| matches!(slot, Slot::Live(_) | Slot::Kept(_)));
            there.collect()
        };
        let mut ends = JoinSet::new();
        for (id, slot) in sessions {
            match slot {
                Slot::Live(session) => drop(ends.spawn(async move { end(&session).await })),
                Slot::Kept(storage) => drop(ends.spawn(async move {
                    if let Err(error) = storage.remove().await {
                        not_clean(&id, &BackendError::failed("removing the session's files", error));
                    }
                })),
                Slot::Starting(_) => {}
            }
        }
        ends.join_all().await;
        let mut tasks = std::mem::take(&mut *lock(&self.tasks));
        let joined = timeout(SHUTDOWN_LIMIT, async { while tasks.join_next().await.is_some() {} }).await;
        if joined.is_err() {
            tracing::warn!(tasks = tasks.len(), "what did not end in time is given up");
            tasks.shutdown().await;
        }
        self.shared.networks.close().await;
    }
}

/// Puts a session back when its end fails half-way: its files are still its own.
struct Back<'a> {
    shared: &'a Shared,
    old: Option<Arc<Session>>,
}

impl Drop for Back<'_> {
    fn drop(&mut self) {
        if let Some(old) = self.old.take() {
            lock(&self.shared.sessions).insert(old.id().clone(), Slot::Live(old));
        }
    }
}
