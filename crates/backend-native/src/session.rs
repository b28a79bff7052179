//! A live session: its init, what waits for it, and its end.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sandcrate_backend::{
    BackendError, DiskLimit, MountAccess, Network, RootAccess, SessionId, SessionInfo, SessionSpec,
    Strictness,
};
use sandcrate_jail::cgroup;
use sandcrate_jail::identity::IdMapping;
use sandcrate_jail::message::{FurnishOrder, InitReply, InitRequest};
use sandcrate_jail::{JailSpec, NetworkMode, Plan, PlanError, RootMode};
use sandcrate_protocol::{Control, Enforcement, State};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::NAME;
use crate::boxes::{Life, NascentBox, PreparedBox};
use crate::channel::AsyncChannel;
use crate::launcher::{Launcher, lock, step_failed, unavailable};
use crate::network::{BoxNetwork, Networks, check_tun_device, interface};
use crate::sources::Source;
use crate::storage::Storage;

/// A command gets at most: its terminal, why it did not start, its end; a file operation its outcome.
const REPLIES_PER_TASK: usize = 4;
/// From SIGKILL to a gone box. Processes in uninterruptible sleep can hold it up; the launcher goes on trying.
const STOP_LIMIT: Duration = Duration::from_secs(10);

pub(crate) type InitMessage = (InitReply, Vec<OwnedFd>);

/// What a session is while it lives.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) workdir: String,
    pub(crate) limits: sandcrate_backend::Limits,
    pub(crate) home: String,
    pub(crate) host_user: Option<(u32, u32)>,
    pub(crate) usage: cgroup::UsageReader,
    pub(crate) launcher: Arc<Launcher>,
    pub(crate) box_id: u64,
    pub(crate) life: Life,
    /// Of an isolated network.
    pub(crate) network: Option<Arc<BoxNetwork>>,
    control: Arc<AsyncChannel>,
    routes: Arc<Routes>,
    next_task: AtomicU32,
    /// Directories whose size has to be watched, and the bound.
    pub(crate) accounted: Vec<Bound>,
    storage: Mutex<Option<Storage>>,
    replies: Mutex<Option<crate::launcher::Replies>>,
    /// Drivers of commands; they end with the session.
    pub(crate) tasks: Mutex<JoinSet<()>>,
    /// Pipes that children of ended commands keep open.
    pub(crate) drains: Arc<tokio::sync::Semaphore>,
}

/// Who waits for what init says.
#[derive(Debug)]
pub(crate) struct Routes {
    waiting: Mutex<HashMap<u32, mpsc::Sender<InitMessage>>>,
    ended: watch::Sender<bool>,
}

/// Directories that together may hold so many bytes.
#[derive(Debug, Clone)]
pub(crate) struct Bound {
    pub(crate) directories: Vec<PathBuf>,
    pub(crate) bytes: u64,
    /// Counted before and after a command too: a quota that somebody asked for.
    pub(crate) asked: bool,
}

/// Leftover pipes drained for a session; beyond it they are closed.
const MAX_DRAINS: usize = 64;

/// Everything a start needs that is made before a box is taken.
#[derive(Debug)]
pub(crate) struct Ingredients {
    pub(crate) spec: SessionSpec,
    pub(crate) mapping: IdMapping,
    pub(crate) sources: Vec<Source>,
    pub(crate) storage: Storage,
    pub(crate) common: Enforcement,
    pub(crate) plan: Plan,
    pub(crate) backend_id: String,
    pub(crate) started: Instant,
}

pub(crate) fn network_mode(network: &Network) -> NetworkMode {
    match network {
        Network::Off => NetworkMode::Off,
        Network::Isolated(_) => NetworkMode::Isolated,
        Network::Host => NetworkMode::Host,
    }
}

impl Session {
    /// Turns a box into the session's: a prepared one, or a new one. What is said of it is the caller's to keep.
    pub(crate) async fn start(
        made: Ingredients,
        launcher: Arc<Launcher>,
        ready: Option<PreparedBox>,
        networks: &Networks,
    ) -> Result<(Arc<Self>, SessionInfo), BackendError> {
        let Ingredients { spec, mapping, sources, mut storage, common, plan, backend_id, started } = made;
        let mut enforcement = common;
        if plan.interface.is_some() {
            check_tun_device()?;
        }
        let order = FurnishOrder {
            limits: cgroup::Limits {
                memory_bytes: Some(spec.limits.memory_bytes),
                pids: Some(spec.limits.pids),
                cpu_millis: Some(spec.limits.cpu_millis),
            },
            storage: storage.source,
            kept: storage.kept.is_some().then(|| storage.directory.clone()),
            storage_name: storage.name.clone(),
            directories: plan.storage_directories().map(str::to_owned).collect(),
            root: plan.root,
            user: plan.user,
            sources: sources.iter().map(|source| source.mount.clone()).collect(),
        };
        let fds: Vec<_> = storage
            .kept
            .iter()
            .chain(&storage.image)
            .chain(sources.iter().map(|source| &source.fd))
            .map(AsFd::as_fd)
            .collect();
        let prepared = match ready {
            Some(prepared) => {
                launcher.furnish(prepared.box_id, order, &fds).await?;
                prepared
            }
            None => {
                // Both requests at once: the launcher furnishes while init prepares.
                let nascent = NascentBox::ask(Arc::clone(&launcher), plan.network).await?;
                launcher.furnish(nascent.box_id, order, &fds).await?;
                nascent.born().await?
            }
        };
        let PreparedBox { launcher, box_id, mut replies, control, life, usage } = prepared;
        let (_, mounts) = replies.next().await?;
        let (user, home) = (plan.user, plan.home.clone());
        let fds: Vec<_> = mounts.iter().map(AsFd::as_fd).collect();
        control
            .send(&InitRequest::Configure { plan: Box::new(plan) }, &fds)
            .await
            .map_err(|error| unavailable(format!("init is gone: {error}")))?;
        let tun = loop {
            match control.recv::<InitReply>().await {
                Ok(Some((InitReply::Configured { enforcement: held }, fds))) => {
                    enforcement.merge(held);
                    break fds.into_iter().next();
                }
                // A new box says so on the way.
                Ok(Some((InitReply::Prepared, _))) => {}
                Ok(Some((InitReply::Failed { failure }, _))) => return Err(step_failed(&failure)),
                _ => return Err(unavailable("the box's init ended while it was being configured")),
            }
        };
        let network = attach_network(&spec.network, tun, networks, &mut enforcement).await?;
        // The mount holds it from here on.
        storage.image = None;
        storage.report(&mut enforcement);
        enforcement.enforced(
            Control::Cleanup,
            "the launcher ends the box when its owner is gone; a parent death signal stands behind it",
        );
        let accounted = accounted(&spec, &storage, &sources, &mut enforcement);
        require(&spec.strictness, &enforcement)?;
        let info = SessionInfo {
            id: spec.id.clone(),
            backend: NAME,
            backend_id,
            enforcement,
            start_time: started.elapsed(),
        };
        let control = Arc::new(control);
        let routes = Arc::new(Routes { waiting: Mutex::default(), ended: watch::channel(false).0 });
        let mut tasks = JoinSet::new();
        tasks.spawn(route(Arc::clone(&control), Arc::clone(&routes)));
        let session = Self {
            id: spec.id,
            env: spec.env,
            workdir: spec.workdir,
            limits: spec.limits,
            home,
            host_user: (!mapping.is_rootless()).then(|| (mapping.host_uid(user), mapping.host_gid(user))),
            usage,
            launcher,
            box_id,
            life,
            network,
            control,
            routes,
            next_task: AtomicU32::new(1),
            accounted,
            storage: Mutex::new(Some(storage)),
            replies: Mutex::new(Some(replies)),
            tasks: Mutex::new(tasks),
            drains: Arc::new(tokio::sync::Semaphore::new(MAX_DRAINS)),
        };
        Ok((Arc::new(session), info))
    }

    /// A new task's number and where its replies arrive.
    pub(crate) fn new_task(&self) -> (u32, mpsc::Receiver<InitMessage>) {
        let task = self.next_task.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = mpsc::channel(REPLIES_PER_TASK);
        if *self.routes.ended.borrow() {
            // Dropping the sender ends the wait at once.
            return (task, receiver);
        }
        lock(&self.routes.waiting).insert(task, sender);
        (task, receiver)
    }

    pub(crate) fn forget_task(&self, task: u32) {
        lock(&self.routes.waiting).remove(&task);
    }

    pub(crate) async fn request(
        &self,
        request: &InitRequest,
        fds: &[std::os::fd::BorrowedFd<'_>],
    ) -> Result<(), BackendError> {
        self.control.send(request, fds).await.map_err(|_| self.ended_error())
    }

    pub(crate) fn ended_error(&self) -> BackendError {
        BackendError::SessionEnded { session: self.id.clone(), why: "its box is gone".to_owned() }
    }

    /// The same, for a box whose kernel killed processes for memory just before.
    pub(crate) fn out_of_memory_error(&self) -> BackendError {
        let why = "the box ran out of memory and its init was ended; raise the memory limit".to_owned();
        BackendError::SessionEnded { session: self.id.clone(), why }
    }

    pub(crate) fn is_alive(&self) -> bool {
        !*self.routes.ended.borrow() && !self.life.is_over()
    }

    /// Runs a command's driver until it or the session ends.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// Ends the box and removes its files. Returns when everything is gone.
    pub(crate) async fn stop(&self) -> Result<(), BackendError> {
        match self.end_box().await? {
            Some(storage) => storage
                .remove()
                .await
                .map_err(|error| BackendError::failed("removing the session's files", error)),
            None => Ok(()),
        }
    }

    /// Ends the box and gives its files back.
    pub(crate) async fn end_box(&self) -> Result<Option<Storage>, BackendError> {
        self.life.end();
        if let Some(network) = &self.network {
            network.leave();
        }
        let replies = lock(&self.replies).take();
        if let Some(mut replies) = replies {
            let gone = tokio::time::timeout(STOP_LIMIT, replies.gone()).await;
            if gone.is_err() {
                return Err(BackendError::Timeout { what: "ending the box".to_owned(), limit: STOP_LIMIT });
            }
        }
        Ok(lock(&self.storage).take())
    }
}

/// Puts an isolated box's network in force; it must be before anything runs in the box.
async fn attach_network(
    network: &Network,
    tun: Option<OwnedFd>,
    networks: &Networks,
    enforcement: &mut Enforcement,
) -> Result<Option<Arc<BoxNetwork>>, BackendError> {
    let Network::Isolated(isolation) = network else { return Ok(None) };
    let tun = tun.ok_or_else(|| unavailable("the box's init made no network device"))?;
    let (network, confined) = networks.attach(tun, (**isolation).clone()).await?;
    let policy = &isolation.policy;
    enforcement.enforced(
        Control::Network,
        format!("`{policy}` by a helper that has every packet of the box's one device ({confined}); no raw sockets"),
    );
    Ok(Some(Arc::new(network)))
}

/// Hands init's messages to whoever waits for them, until init is gone.
async fn route(control: Arc<AsyncChannel>, routes: Arc<Routes>) {
    while let Ok(Some((reply, fds))) = control.recv::<InitReply>().await {
        let (task, last) = match &reply {
            InitReply::Terminal { id } | InitReply::StartFailed { id, .. } => (*id, false),
            InitReply::Exited { id, .. } | InitReply::FileDone { id, .. } => (*id, true),
            InitReply::Failed { failure } => {
                tracing::warn!(error = %failure, "a box's init has failed");
                continue;
            }
            InitReply::Prepared | InitReply::Configured { .. } => continue,
        };
        let mut waiting = lock(&routes.waiting);
        if let Some(sender) = waiting.get(&task) {
            let _ = sender.try_send((reply, fds));
        }
        if last {
            waiting.remove(&task);
        }
    }
    routes.ended.send_replace(true);
    // Whoever waits learns it by the end of his queue.
    lock(&routes.waiting).clear();
}

/// What will be done, from what is asked for; refused before any box is touched.
pub(crate) fn plan(
    spec: &SessionSpec,
    mapping: IdMapping,
    sources: &[Source],
    common: &Enforcement,
) -> Result<Plan, BackendError> {
    let spec = JailSpec {
        mapping,
        network: network_mode(&spec.network),
        interface: matches!(spec.network, Network::Isolated(_)).then(interface),
        root: match spec.root {
            RootAccess::ReadOnly => RootMode::ReadOnly,
            RootAccess::Writable => RootMode::Writable,
        },
        memory_bytes: spec.limits.memory_bytes,
        pids: spec.limits.pids,
        pids_counted: common.holds(Control::Pids),
        tmp_bytes: spec.limits.tmp_bytes,
        open_files: spec.limits.open_files,
        data_bytes: (!common.holds(Control::Memory)).then_some(spec.limits.memory_bytes),
        mounts: sources.iter().map(|source| source.requested.clone()).collect(),
        workspace: spec.workspace.clone(),
    };
    Plan::new(&spec).map_err(|error| match error {
        PlanError::RootlessWritableRoot => BackendError::Unsupported {
            backend: NAME,
            what: "a writable root".to_owned(),
            hint: error.to_string(),
        },
        PlanError::TooLittleMemory => BackendError::invalid("memory", error.to_string()),
        PlanError::TooFewProcesses => BackendError::invalid("pids", error.to_string()),
        _ => BackendError::invalid("session", error.to_string()),
    })
}

fn require(strictness: &Strictness, enforcement: &Enforcement) -> Result<(), BackendError> {
    let Strictness::Require(controls) = strictness else { return Ok(()) };
    for control in controls {
        if !enforcement.holds(*control) {
            let why = enforcement
                .get(*control)
                .map_or("nothing is known of it".to_owned(), |finding| finding.by.clone());
            return Err(BackendError::Unenforceable { control: *control, why });
        }
    }
    Ok(())
}

/// A quota covers directories of the host that are shared for writing too; there it can only be accounted.
fn accounted(
    spec: &SessionSpec,
    storage: &Storage,
    sources: &[Source],
    enforcement: &mut Enforcement,
) -> Vec<Bound> {
    let shared =
        || spec.mounts.iter().zip(sources).filter(|(mount, _)| mount.access == MountAccess::ReadWrite);
    let private = storage.accounted_limit().map(|bytes| Bound {
        directories: vec![storage.directory.clone()],
        bytes,
        // A hard quota that nothing here makes hard is at least counted at every step.
        asked: matches!(spec.limits.disk, DiskLimit::Hard(_)),
    });
    let mut bounds: Vec<Bound> = shared()
        .filter_map(|(mount, source)| {
            let directories = vec![source.mount.path.clone()];
            Some(Bound { directories, bytes: mount.quota_bytes?, asked: true })
        })
        .collect();
    let uncounted: Vec<PathBuf> = shared()
        .filter(|(mount, _)| mount.quota_bytes.is_none())
        .map(|(_, source)| source.mount.path.clone())
        .collect();
    if shared().next().is_some() {
        let private = enforcement.get(Control::Disk).map_or(String::new(), |finding| finding.by.clone());
        let how = match spec.limits.disk {
            DiskLimit::Hard(bytes) if !uncounted.is_empty() => {
                bounds.push(Bound { directories: uncounted, bytes, asked: true });
                "accounted while commands run, ended when over"
            }
            _ if uncounted.is_empty() => "accounted while commands run, ended when over",
            _ => "not counted, ask for a quota to have them counted",
        };
        let by = format!("private files: {private}; shared directories: {how}");
        enforcement.record(Control::Disk, State::Degraded, by);
    }
    bounds.extend(private);
    bounds
}
