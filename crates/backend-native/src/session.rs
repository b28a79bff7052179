//! A live session: its init, what waits for it, and its end.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sandcrate_backend::{
    BackendError, DiskLimit, Limits, MountAccess, Network, RootAccess, SessionId, SessionInfo, SessionSpec,
};
use sandcrate_driver::{
    Bound, BoxLink, BoxNetwork, Fittings, LiveBox, Networks, PipeMaker, ProjectBound, Source, SparePipes,
    check_tun_device, interface, lock, step_failed,
};
use sandcrate_jail::cgroup;
use sandcrate_jail::identity::IdMapping;
use sandcrate_jail::message::{FurnishOrder, InitReply, InitRequest};
use sandcrate_jail::{JailSpec, NetworkMode, Plan, PlanError, RootMode};
use sandcrate_protocol::{Control, Enforcement, State};

use crate::NAME;
use crate::boxes::{AskedBox, Life, PreparedBox};
use crate::images::RootImage;
use crate::launcher::{Launcher, unavailable};
use crate::storage::Storage;

/// From SIGKILL to a gone box. Processes in uninterruptible sleep can hold it up; the launcher goes on trying.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// What a session is while it lives.
#[derive(Debug)]
pub(crate) struct Session {
    link: BoxLink,
    /// What its root is made of; an image stays for as long as the box.
    pub(crate) image: RootImage,
    /// As the session calls it.
    pub(crate) image_asked: Option<String>,
    pub(crate) launcher: Arc<Launcher>,
    box_id: u64,
    life: Life,
    storage: Mutex<Option<Storage>>,
    /// Hard quotas on directories of the host, until the box has ended.
    held: Mutex<Vec<Option<ProjectBound>>>,
    replies: Mutex<Option<crate::launcher::Replies>>,
}

impl LiveBox for Session {
    fn link(&self) -> &BoxLink {
        &self.link
    }

    fn end(&self) {
        self.life.end();
    }

    async fn freeze(&self, frozen: bool) {
        // A launcher that is gone took the box with it.
        let _ = self.launcher.freeze(self.box_id, frozen).await;
    }

    async fn confine(&self, memory_bytes: u64) -> Result<cgroup::Confined, BackendError> {
        self.launcher.confine(self.box_id, memory_bytes).await
    }

    fn ended_error(&self) -> BackendError {
        BackendError::SessionEnded { session: self.id().clone(), why: "its box is gone".to_owned() }
    }
}

/// Everything a start needs that is made before a box is taken.
#[derive(Debug)]
pub(crate) struct Ingredients {
    pub(crate) spec: SessionSpec,
    pub(crate) image: RootImage,
    pub(crate) mapping: IdMapping,
    pub(crate) sources: Vec<Source>,
    /// One entry for each source.
    pub(crate) held: Vec<Option<ProjectBound>>,
    pub(crate) common: Enforcement,
    pub(crate) plan: Plan,
    pub(crate) backend_id: String,
    pub(crate) spare_pipes: Arc<SparePipes>,
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
    /// Turns a box into the session's: a prepared one, or a new one. What is said of it is the caller's to keep, and
    /// so is the storage until there is a session that has it.
    pub(crate) async fn start(
        made: Ingredients,
        stored: &mut Option<Storage>,
        launcher: &Launcher,
        asked: AskedBox,
        networks: &Networks,
    ) -> Result<(Arc<Self>, SessionInfo), BackendError> {
        let Ingredients {
            spec,
            image,
            mapping,
            sources,
            held,
            common,
            plan,
            backend_id,
            spare_pipes,
            started,
        } = made;
        let storage = stored.as_mut().ok_or_else(|| unavailable("the session's files are gone"))?;
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
            layered: plan.layered,
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
        launcher.furnish(asked.box_id(), order, &fds).await?;
        let prepared = asked.born().await?;
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
        let network = match (&spec.network, tun) {
            (Network::Isolated(isolation), Some(tun)) => {
                Some(networks.attach_to(tun, life.pid(), isolation, &mut enforcement).await?)
            }
            (Network::Isolated(_), None) => return Err(unavailable("the box's init made no network device")),
            _ => None,
        };
        // The mount holds it from here on.
        storage.image = None;
        storage.report(&mut enforcement);
        image.report(&mut enforcement);
        enforcement.enforced(
            Control::Cleanup,
            "the launcher ends the box when its owner is gone; a parent death signal stands behind it",
        );
        let accounted = accounted(&spec, storage, &sources, &held, &mut enforcement);
        spec.strictness.check(&enforcement)?;
        let info = SessionInfo {
            id: spec.id.clone(),
            backend: NAME,
            backend_id,
            enforcement,
            start_time: started.elapsed(),
        };
        let owner = (!mapping.is_rootless()).then(|| (mapping.host_uid(user), mapping.host_gid(user)));
        let fittings = Fittings {
            backend: NAME,
            id: spec.id,
            // What the session sets comes after what the image brings along.
            env: [image.environment(), spec.env].concat(),
            workdir: spec.workdir,
            limits: spec.limits,
            home,
            pipes: PipeMaker::with_spare(owner, spare_pipes),
            usage,
            network,
            accounted,
        };
        let session = Self {
            link: BoxLink::new(control, fittings),
            image,
            image_asked: spec.image,
            launcher,
            box_id,
            life,
            storage: Mutex::new(stored.take()),
            held: Mutex::new(held),
            replies: Mutex::new(Some(replies)),
        };
        Ok((Arc::new(session), info))
    }

    pub(crate) fn id(&self) -> &SessionId {
        &self.link.fittings.id
    }

    pub(crate) fn network(&self) -> Option<&Arc<BoxNetwork>> {
        self.link.fittings.network.as_ref()
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.link.is_open() && !self.life.is_over()
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

    /// Refuses what `Storage::again` would.
    pub(crate) fn can_be_made_again(&self) -> Result<(), BackendError> {
        lock(&self.storage).as_ref().map_or(Ok(()), Storage::outlives_its_box)
    }

    /// Ends the box and gives its files back.
    pub(crate) async fn end_box(&self) -> Result<Option<Storage>, BackendError> {
        self.life.end();
        if let Some(network) = self.network() {
            network.leave();
        }
        let replies = lock(&self.replies).take();
        if let Some(mut replies) = replies {
            let gone = tokio::time::timeout(STOP_LIMIT, replies.gone()).await;
            if gone.is_err() {
                return Err(BackendError::Timeout { what: "ending the box".to_owned(), limit: STOP_LIMIT });
            }
        }
        lock(&self.held).clear();
        Ok(lock(&self.storage).take())
    }
}

/// What will be done, from what is asked for; refused before any box is touched.
pub(crate) fn plan(
    spec: &SessionSpec,
    mapping: IdMapping,
    image: &RootImage,
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
        image: image.name(),
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

/// A quota covers directories of the host that are shared for writing too. Where no project quota bounds them they
/// are accounted. `held` has one entry for each mount.
fn accounted(
    spec: &SessionSpec,
    storage: &Storage,
    sources: &[Source],
    held: &[Option<ProjectBound>],
    enforcement: &mut Enforcement,
) -> Vec<Bound> {
    let shared = || {
        let mounts = spec.mounts.iter().zip(sources).zip(held);
        mounts.filter(|((mount, _), _)| mount.access == MountAccess::ReadWrite)
    };
    let private = storage.accounted_limit().map(|bytes| Bound {
        directories: vec![storage.files()],
        bytes,
        // A quota that nothing here makes hard is at least counted at every step.
        asked: spec.limits.disk != Limits::default().disk,
    });
    let mut bounds: Vec<Bound> = shared()
        .filter(|(_, held)| held.is_none())
        .filter_map(|((mount, source), _)| {
            let directories = vec![source.mount.path.clone()];
            Some(Bound { directories, bytes: mount.quota?.bytes(), asked: true })
        })
        .collect();
    let uncounted: Vec<PathBuf> = shared()
        .filter(|((mount, _), _)| mount.quota.is_none())
        .map(|((_, source), _)| source.mount.path.clone())
        .collect();
    if shared().next().is_some() {
        let private = enforcement.get(Control::Disk);
        let state = match private {
            Some(finding) if shared().all(|(_, held)| held.is_some()) => finding.state,
            _ => State::Degraded,
        };
        let private = private.map_or(String::new(), |finding| finding.by.clone());
        let by_project = shared().find_map(|((mount, _), held)| {
            let (size, inodes) = (mount.quota?.bytes() >> 20, held.as_ref()?.inodes);
            Some(format!("{size} MiB and {inodes} inodes by project quota"))
        });
        let how = match (spec.limits.disk, by_project) {
            (_, Some(by_project)) if uncounted.is_empty() && bounds.is_empty() => by_project,
            (DiskLimit::Hard(bytes), _) if !uncounted.is_empty() => {
                bounds.push(Bound { directories: uncounted, bytes, asked: true });
                "accounted while commands run, ended when over".to_owned()
            }
            _ if uncounted.is_empty() => "accounted while commands run, ended when over".to_owned(),
            _ => "not counted, ask for a quota to have them counted".to_owned(),
        };
        let by = format!("private files: {private}; shared directories: {how}");
        enforcement.record(Control::Disk, state, by);
    }
    bounds.extend(private);
    bounds
}
