//! From a specification to a live session: checks, storage, configuration, nsjail.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use sandcrate_backend::{
    BackendError, DiskLimit, MountAccess, Network, RootAccess, SessionInfo, SessionSpec,
};
use sandcrate_driver::{AsyncChannel, Bound, Fittings, PipeMaker, Source, lock, open_source, step_failed};
use sandcrate_jail::cgroup::{BoxCgroup, Limits, Parent, UsageReader};
use sandcrate_jail::identity::IdMapping;
use sandcrate_jail::message::InitReply;
use sandcrate_jail::nsjail::{BoxOrder, MAKER, SourceOrder};
use sandcrate_jail::{
    Access, Channel, JailSpec, MountSource, NetworkMode, NodeKind, Plan, PlanError, RootMode,
};
use sandcrate_protocol::{Control, Enforcement, State};

use crate::NAME;
use crate::config::{self, Configurations, Surroundings};
use crate::janitor::Janitor;
use crate::log::Log;
use crate::runner::spawn_role;
use crate::session::{Ground, Made, Session, Tools};
use crate::storage::{Storage, make_place};

/// A box that is not there by then never will be.
const START_LIMIT: Duration = Duration::from_secs(30);

/// What all sessions of a backend are made with.
#[derive(Debug)]
pub(crate) struct Workshop {
    pub(crate) tools: Arc<Tools>,
    pub(crate) around: Surroundings,
    pub(crate) cgroups: Option<Parent>,
    /// Of the cgroups.
    pub(crate) janitor: Option<Janitor>,
    /// What the cgroups of this machine hold.
    pub(crate) common: Enforcement,
    pub(crate) state_dir: PathBuf,
    /// The /etc of boxes.
    pub(crate) etc: File,
}

/// One start.
#[derive(Debug)]
pub(crate) struct Ingredients {
    pub(crate) spec: SessionSpec,
    /// Of an earlier box of the session.
    pub(crate) earlier: Option<Storage>,
    /// Where a new storage goes.
    pub(crate) directory: PathBuf,
    /// Names cgroups.
    pub(crate) name: String,
    pub(crate) backend_id: String,
}

/// What can be known of a session before anything is made.
pub(crate) fn check(spec: &SessionSpec) -> Result<(), BackendError> {
    let refuse = |what: &str, hint: &str| {
        let (what, hint) = (what.to_owned(), hint.to_owned());
        Err(BackendError::Unsupported { backend: NAME, what, hint })
    };
    match &spec.network {
        Network::Off => {}
        Network::Host => return refuse("the host's network", "no box of this backend ever has it"),
        Network::Isolated(_) => {
            return refuse(
                "a network",
                "our isolated network is attached by the native backend only; use it, or network off",
            );
        }
    }
    if spec.root == RootAccess::Writable {
        return refuse(
            "a writable root",
            "its root is the host's /usr, read-only; use the native backend or a container engine",
        );
    }
    if matches!(spec.limits.disk, DiskLimit::Hard(_)) {
        return refuse(
            "a hard disk quota",
            "its storage is counted while commands run; use the native backend",
        );
    }
    Ok(())
}

impl Workshop {
    pub(crate) async fn start(
        self: &Arc<Self>,
        ingredients: Ingredients,
    ) -> Result<(Arc<Session>, SessionInfo), BackendError> {
        let began = Instant::now();
        let workshop = Arc::clone(self);
        let prepared = tokio::task::spawn_blocking(move || workshop.prepare(ingredients)).await;
        let prepared = prepared
            .unwrap_or_else(|error| Err(BackendError::failed("preparing a box", io::Error::other(error))))?;
        let limit = tokio::time::timeout(START_LIMIT, self.run_nsjail(&prepared)).await;
        let running = limit.unwrap_or_else(|_| {
            Err(BackendError::Timeout { what: "starting a box".to_owned(), limit: START_LIMIT })
        })?;
        let Prepared { spec, plan, ground, sources, command, backend_id, .. } = prepared;
        let mut enforcement = self.common.clone();
        enforcement.merge(running.enforcement);
        enforcement.enforced(
            Control::Cleanup,
            "PID 1 of the box ends with its owner's connection, and all with it; death signals stand behind it",
        );
        let accounted = account(&spec, &ground, &sources, &mut enforcement);
        spec.strictness.check(&enforcement)?;
        let info = SessionInfo {
            id: spec.id.clone(),
            backend: NAME,
            backend_id,
            enforcement,
            start_time: began.elapsed(),
        };
        let counters = ground.cgroup.as_ref().map_or_else(|| Ok(Vec::new()), BoxCgroup::usage_dirs);
        let counters =
            counters.map_err(|error| BackendError::failed("opening the session's counters", error))?;
        let host_user = plan.mapping.host_uid(plan.user);
        let data_bytes = (!self.common.holds(Control::Memory)).then_some(spec.limits.memory_bytes);
        let fittings = Fittings {
            backend: NAME,
            id: spec.id,
            env: spec.env,
            workdir: spec.workdir,
            limits: spec.limits,
            home: plan.home,
            pipes: PipeMaker::new(Some((host_user, host_user))),
            usage: UsageReader::new(counters),
            network: None,
            accounted,
        };
        let made = Made {
            control: running.control,
            log: running.log,
            nsjail: running.nsjail,
            holder: running.holder,
            configuration: command,
            ground,
            user: plan.user,
            data_bytes,
        };
        Ok((Session::new(fittings, made, Arc::clone(&self.tools)), info))
    }

    /// Everything but the process. Blocks.
    fn prepare(&self, made: Ingredients) -> Result<Prepared, BackendError> {
        let Ingredients { spec, earlier, directory, name, backend_id } = made;
        let state: Vec<PathBuf> = self.state_dir.canonicalize().into_iter().collect();
        let sources =
            spec.mounts.iter().map(|mount| open_source(mount, &state)).collect::<Result<Vec<_>, _>>()?;
        let plan = plan(&spec, &sources, &self.common)?;
        let failed = |error| BackendError::failed("making the session's storage", error);
        let storage = match (earlier, &spec.storage) {
            (Some(storage), _) => storage,
            (None, Some(kept)) => Storage::make(kept, true).map_err(failed)?,
            (None, None) => Storage::make(&directory, false).map_err(failed)?,
        };
        let mut ground = Ground { cgroup: None, storage: Mutex::default() };
        let host_user = plan.mapping.host_uid(plan.user);
        let laid_out = storage
            .lay_out(plan.storage_directories(), host_user)
            .and_then(|()| make_places(&plan, &storage, &sources, host_user));
        *lock(&ground.storage) = Some(storage);
        laid_out.map_err(failed)?;
        if let Some(parent) = &self.cgroups {
            ground.cgroup = Some(make_cgroup(parent, &name, &spec)?);
        }
        let Configurations { session, command } = config::write(&plan, &self.around);
        let failed = |error| BackendError::failed("writing nsjail's configuration", error);
        let (session, command) = (in_memory(&session).map_err(failed)?, in_memory(&command).map_err(failed)?);
        Ok(Prepared { spec, plan, sources, ground, session, command, backend_id })
    }

    async fn run_nsjail(&self, prepared: &Prepared) -> Result<Running, BackendError> {
        let failed = |error| BackendError::failed("starting a box", error);
        let (log, log_end) = Log::new()?;
        let (ours, theirs) = Channel::pair().map_err(failed)?;
        let control = AsyncChannel::new(ours).map_err(failed)?;
        let (maker, mut nsjail) = spawn_role(&self.tools, MAKER).map_err(failed)?;
        let (order, fds) = prepared.order(&self.etc).map_err(failed)?;
        let program = [self.tools.nsjail.as_fd(), self.tools.program.as_fd()];
        let mut all = vec![program[0], program[1], prepared.session.as_fd(), log_end.as_fd(), theirs.as_fd()];
        all.extend(fds.iter().map(AsFd::as_fd));
        maker.send(&order, &all).await.map_err(failed)?;
        drop((log_end, theirs, fds));
        // Its end of the channel closes when it becomes nsjail.
        if let Ok(Some((InitReply::Failed { failure }, _))) = maker.recv::<InitReply>().await {
            return Err(step_failed(&failure));
        }
        match control.recv::<InitReply>().await {
            Ok(Some((InitReply::Configured { enforcement }, fds))) => {
                let holder = fds.into_iter().next();
                let holder =
                    holder.ok_or_else(|| failed(io::Error::other("the box's PID 1 sent no pidfd")))?;
                Ok(Running { control, log, nsjail, holder, enforcement })
            }
            Ok(Some((InitReply::Failed { failure }, _))) => Err(step_failed(&failure)),
            _ => {
                let _ = nsjail.wait().await;
                Err(log.failure("starting a box"))
            }
        }
    }
}

#[derive(Debug)]
struct Prepared {
    spec: SessionSpec,
    plan: Plan,
    sources: Vec<Source>,
    ground: Ground,
    session: OwnedFd,
    command: OwnedFd,
    backend_id: String,
}

struct Running {
    control: AsyncChannel,
    log: Log,
    nsjail: tokio::process::Child,
    holder: OwnedFd,
    enforcement: Enforcement,
}

impl Prepared {
    /// The maker's order, and the descriptors behind the first five.
    fn order(&self, etc: &File) -> io::Result<(BoxOrder, Vec<OwnedFd>)> {
        let mut fds = Vec::new();
        let cgroup = self.ground.cgroup.as_ref();
        if let Some(cgroup) = cgroup {
            fds.extend(cgroup.v1_task_files()?);
        }
        let tasks = fds.len();
        let unified = cgroup.and_then(BoxCgroup::unified_dir);
        fds.extend(unified.map(|dir| dir.try_clone_to_owned()).transpose()?);
        let unified = unified.is_some();
        fds.push(etc.try_clone()?.into());
        if let Some(storage) = &*lock(&self.ground.storage) {
            fds.push(storage.opened.try_clone()?);
        }
        for source in &self.sources {
            fds.push(source.fd.try_clone()?);
        }
        let sources = self.sources.iter().map(|source| SourceOrder {
            name: source.mount.path.display().to_string(),
            owner: source.mount.owner,
            access: source.mount.access,
            kind: source.requested.kind,
        });
        let places = self.plan.mounts.iter().filter(|mount| is_in_root(&self.plan, &mount.target));
        let places = places.map(|mount| (mount.target.clone(), mount.kind)).collect();
        let order = BoxOrder { tasks, unified, user: self.plan.user, sources: sources.collect(), places };
        Ok((order, fds))
    }
}

/// Whether a target lies in the root itself, not in something that is mounted on it.
fn is_in_root(plan: &Plan, target: &str) -> bool {
    let target = Path::new(target);
    let inside = |other: &str| target != Path::new(other) && target.starts_with(other);
    !inside("/tmp") && !plan.mounts.iter().any(|mount| inside(&mount.target))
}

/// The mount that a target lies in, and the way from there.
fn around<'a>(plan: &'a Plan, target: &'a str) -> Option<(&'a MountSource, Access, &'a str)> {
    let outer = plan.mounts.iter().rev().find(|mount| {
        mount.target != target
            && Path::new(target).starts_with(&mount.target)
            && mount.kind == NodeKind::Directory
    })?;
    Some((&outer.source, outer.access, target.strip_prefix(outer.target.as_str())?))
}

/// Places for mounts inside other mounts. nsjail would make them too, but as the wrong user and following links.
fn make_places(plan: &Plan, storage: &Storage, sources: &[Source], host_user: u32) -> io::Result<()> {
    for mount in &plan.mounts {
        let Some((outer, access, below)) = around(plan, &mount.target) else { continue };
        match outer {
            MountSource::Storage { directory } => {
                make_place(&storage.open(directory)?, below, mount.kind, (host_user, host_user))?;
            }
            MountSource::Requested { index } if access == Access::ReadWrite => {
                if let Some(source) = sources.get(*index) {
                    make_place(&source.fd, below, mount.kind, source.mount.owner)?;
                }
            }
            // On a read-only one it must be there.
            _ => {}
        }
    }
    Ok(())
}

fn make_cgroup(parent: &Parent, name: &str, spec: &SessionSpec) -> Result<BoxCgroup, BackendError> {
    let failed = |error| BackendError::failed("making the session's cgroups", io::Error::other(error));
    let cgroup = parent.create(name, None).map_err(failed)?;
    let limits = Limits {
        memory_bytes: Some(spec.limits.memory_bytes),
        pids: Some(spec.limits.pids),
        cpu_millis: Some(spec.limits.cpu_millis),
    };
    if let Err(error) = cgroup.set_limits(&limits) {
        let _ = cgroup.remove();
        return Err(failed(error));
    }
    Ok(cgroup)
}

pub(crate) fn in_memory(text: &str) -> io::Result<OwnedFd> {
    let mut file = File::from(rustix::fs::memfd_create("nsjail.cfg", MemfdFlags::CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    Ok(file.into())
}

pub(crate) fn plan(
    spec: &SessionSpec,
    sources: &[Source],
    common: &Enforcement,
) -> Result<Plan, BackendError> {
    let spec = JailSpec {
        image: None,
        mapping: IdMapping::Range,
        network: NetworkMode::Off,
        interface: None,
        root: RootMode::ReadOnly,
        memory_bytes: spec.limits.memory_bytes,
        pids: spec.limits.pids,
        pids_counted: common.holds(Control::Pids),
        tmp_bytes: spec.limits.tmp_bytes,
        open_files: spec.limits.open_files,
        data_bytes: None,
        mounts: sources.iter().map(|source| source.requested.clone()).collect(),
        workspace: spec.workspace.clone(),
    };
    Plan::new(&spec).map_err(|error| match error {
        PlanError::TooLittleMemory => BackendError::invalid("memory", error.to_string()),
        PlanError::TooFewProcesses => BackendError::invalid("pids", error.to_string()),
        _ => BackendError::invalid("session", error.to_string()),
    })
}

/// Nothing bounds the files harder than counting them.
fn account(
    spec: &SessionSpec,
    ground: &Ground,
    sources: &[Source],
    enforcement: &mut Enforcement,
) -> Vec<Bound> {
    let (DiskLimit::Accounted(bytes) | DiskLimit::Hard(bytes)) = spec.limits.disk;
    let mut bounds = Vec::new();
    let mut uncounted = 0;
    for (mount, source) in spec.mounts.iter().zip(sources) {
        match (mount.access, mount.quota) {
            (MountAccess::ReadWrite, Some(quota)) => {
                let directories = vec![source.mount.path.clone()];
                bounds.push(Bound { directories, bytes: quota.bytes(), asked: true });
            }
            (MountAccess::ReadWrite, None) => uncounted += 1,
            (MountAccess::ReadOnly, _) => {}
        }
    }
    if let Some(storage) = &*lock(&ground.storage) {
        bounds.push(Bound { directories: vec![storage.directory.clone()], bytes, asked: false });
    }
    let mut by = format!("{} MiB, accounted while commands run and ended when over", bytes >> 20);
    if uncounted > 0 {
        by.push_str("; shared directories without a quota are not counted");
    }
    enforcement.record(Control::Disk, State::Degraded, by);
    bounds
}
