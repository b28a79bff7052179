//! The native backend: sessions on `jail`.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use async_trait::async_trait;
use rustix::process::getpid;
use sandcrate_backend::{
    Backend, BackendError, Capabilities, DiskLimit, ExecRequest, Execution, FileReply, FileRequest,
    ImageInfo, ImageRemoval, Isolation, Mount, MountAccess, Network, NetworkReport, SessionId, SessionInfo,
    SessionSpec, SweepReport,
};
use sandcrate_driver::{
    LiveBox, Networks, ProjectBound, Source, SparePipes, check_tun_device, lock, not_isolated, on_disk,
    open_source,
};
use sandcrate_jail::identity::IdMapping;
use sandcrate_jail::message::LauncherConfig;
use sandcrate_jail::{NetworkMode, NewLauncher};
use sandcrate_protocol::Enforcement;
use tokio::task::JoinSet;

use crate::NAME;
use crate::boxes::{AskedBox, NascentBox, Pool};
use crate::config::NativeConfig;
use crate::images::{self, RootImage};
use crate::instance::{self, Instance};
use crate::launcher::Launcher;
use crate::session::{Ingredients, Session, network_mode, plan};
use crate::storage::Storage;

/// Boxes made by Sandcrate itself.
#[derive(Debug)]
pub struct NativeBackend {
    config: NativeConfig,
    mapping: IdMapping,
    launcher: Mutex<Arc<Launcher>>,
    pool: Arc<Pool>,
    networks: Networks,
    sessions: Mutex<HashMap<SessionId, Slot>>,
    next_storage: std::sync::atomic::AtomicU64,
    spare_pipes: Arc<SparePipes>,
    importing: Arc<tokio::sync::Semaphore>,
    /// The pool's filler and the sweep at the start.
    tasks: Mutex<JoinSet<()>>,
    /// Last: its directory goes when everything else is gone.
    instance: Instance,
}

/// What a box leaves to the next of its session.
#[derive(Debug)]
struct Earlier {
    /// Until the next has it.
    storage: Option<Storage>,
    /// What it was made of, and as the session called it.
    image: RootImage,
    image_asked: Option<String>,
    /// Only this one can show the files.
    launcher: Arc<Launcher>,
}

#[derive(Debug)]
enum Slot {
    Starting,
    Live(Arc<Session>),
    /// A box was ended and the next could not be made: the files wait for one, or for the end of the session.
    Left(Box<Earlier>),
}

impl NativeBackend {
    /// Takes a place in the state directory and starts a launcher. What dead instances left is swept meanwhile.
    pub async fn open(config: NativeConfig) -> Result<Self, BackendError> {
        Self::open_with(config, None).await
    }

    /// With a launcher that has been started already.
    pub async fn open_with(
        config: NativeConfig,
        launcher: Option<NewLauncher>,
    ) -> Result<Self, BackendError> {
        let instance = Instance::create(&config.state_dir).map_err(|error| {
            BackendError::failed(
                format!("taking a place in the state directory {}", config.state_dir.display()),
                error,
            )
        })?;
        let launcher = Arc::new(start_launcher(launcher, &config, &instance)?);
        let mut tasks = JoinSet::new();
        let (state_dir, images) = (config.state_dir.clone(), config.image_store());
        tasks.spawn_blocking(move || {
            if let Err(error) = instance::sweep(&state_dir) {
                tracing::warn!(%error, "what dead instances left cannot be removed");
            }
            if let Err(error) = images.sweep() {
                tracing::warn!(%error, "what is left of images cannot be removed");
            }
        });
        let backend = Self {
            mapping: IdMapping::for_this_user(),
            launcher: Mutex::new(launcher),
            pool: Arc::new(Pool::new(config.pool)),
            networks: Networks::new(NAME, config.launcher.clone()),
            sessions: Mutex::default(),
            next_storage: std::sync::atomic::AtomicU64::new(1),
            spare_pipes: Arc::default(),
            importing: Arc::new(tokio::sync::Semaphore::new(1)),
            tasks: Mutex::new(tasks),
            instance,
            config,
        };
        // While the launcher starts.
        let launcher = backend.launcher()?;
        launcher.ensure_policy(NetworkMode::Off).await?;
        backend.fill_pool();
        Ok(backend)
    }

    /// What holds for every box made here, whatever its session.
    pub async fn common_enforcement(&self) -> Result<Enforcement, BackendError> {
        self.launcher()?.ready().await
    }

    /// The living launcher; a new one when the last has died.
    fn launcher(&self) -> Result<Arc<Launcher>, BackendError> {
        let mut current = lock(&self.launcher);
        if current.is_dead() {
            tracing::warn!("the launcher has died; starting another");
            // Its boxes died with it; their cgroups are still there, under the name the next one takes.
            sandcrate_driver::instance::sweep_cgroups(self.instance.name());
            *current = Arc::new(start_launcher(None, &self.config, &self.instance)?);
        }
        Ok(Arc::clone(&current))
    }

    fn fill_pool(&self) {
        if self.pool.wants_filling()
            && let Ok(launcher) = self.launcher()
        {
            let pool = Arc::clone(&self.pool);
            let mut tasks = lock(&self.tasks);
            while tasks.try_join_next().is_some() {}
            tasks.spawn(async move { pool.fill(launcher).await });
        }
    }

    fn session(&self, id: &SessionId) -> Result<Arc<Session>, BackendError> {
        match lock(&self.sessions).get(id) {
            Some(Slot::Live(session)) => Ok(Arc::clone(session)),
            _ => Err(BackendError::SessionNotFound { session: id.clone() }),
        }
    }

    /// Makes a box; on the storage of an earlier one of its session, if there is one.
    async fn start_session(
        &self,
        spec: SessionSpec,
        earlier: Option<&mut Earlier>,
    ) -> Result<(Arc<Session>, SessionInfo), BackendError> {
        let started = Instant::now();
        let launcher = self.launcher()?;
        let network = network_mode(&spec.network);
        if let Network::Isolated(isolation) = &spec.network {
            isolation.policy.check_against(&isolation.grants)?;
        }
        // The files may lie over the image they were made with, which may have been replaced since.
        let image = match &earlier {
            Some(earlier) if earlier.image_asked == spec.image => earlier.image.clone(),
            _ => self.resolve_image(spec.image.as_deref()).await?,
        };
        let sources = self.open_sources(&spec).await?;
        // What cannot be planned must cost no box, but for the first, which need not wait for the launcher.
        let planned = match launcher.ready_now() {
            Some(common) => Some((plan(&spec, self.mapping, &image, &sources, &common)?, common)),
            None => None,
        };
        // The pool's boxes are made of the host's template.
        let poolable = network.has_own_namespace() && image.held().is_none();
        // Asked for first: the launcher works on it, as soon as it is up, while the rest is looked at here.
        let asked = match poolable.then(|| self.pool.take(&launcher)).flatten() {
            Some(ready) => Ok(AskedBox::Ready(ready)),
            None => {
                NascentBox::ask(Arc::clone(&launcher), network, image.held()).await.map(AskedBox::Nascent)
            }
        };
        let (plan, common) = match planned {
            Some(planned) => planned,
            None => {
                // One that cannot be asked has died: it says why.
                let common = launcher.ready().await?;
                (plan(&spec, self.mapping, &image, &sources, &common)?, common)
            }
        };
        let asked = asked?;
        if let Network::Isolated(_) = &spec.network {
            // Behind the launcher, which may have had to empty our cgroup.
            self.networks.wake();
        }
        let number = self.next_storage.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("box-{number}");
        let shelf = launcher.shelf()?;
        let mut fresh;
        // An earlier one stays with its owner until the box has it.
        let storage = match (earlier, &spec.storage) {
            (Some(earlier), _) => {
                if let Some(storage) = &mut earlier.storage {
                    storage.again().await?;
                }
                &mut earlier.storage
            }
            (None, Some(kept)) => {
                fresh = Some(Storage::keep(&shelf, &name, kept, spec.limits.disk).await?);
                &mut fresh
            }
            (None, None) => {
                fresh = Some(Storage::create(&shelf, &name, spec.limits.disk).await?);
                &mut fresh
            }
        };
        let backend_id = format!("{}-{name}", self.instance.name());
        let (sources, held) = self.hold(&spec, sources).await?;
        let mapping = self.mapping;
        let spare_pipes = Arc::clone(&self.spare_pipes);
        let made = Ingredients {
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
        };
        Session::start(made, storage, &launcher, asked, &self.networks).await
    }

    /// Makes a box for an id that is reserved.
    async fn occupy(
        &self,
        spec: SessionSpec,
        mut reservation: Reservation<'_>,
    ) -> Result<SessionInfo, BackendError> {
        let id = spec.id.clone();
        let started = self.start_session(spec, reservation.left.as_deref_mut()).await;
        // Whatever became of it, it may have taken a box.
        self.fill_pool();
        let (session, info) = started?;
        lock(&self.sessions).insert(id, Slot::Live(session));
        reservation.kept = true;
        Ok(info)
    }

    /// Off the async threads, unless there is nothing to look for.
    async fn resolve_image(&self, asked: Option<&str>) -> Result<RootImage, BackendError> {
        let Some(asked) = asked.filter(|asked| !asked.is_empty()) else { return Ok(RootImage::Host) };
        let (config, asked) = (self.config.clone(), asked.to_owned());
        blocking("finding the image", move || RootImage::resolve(&config, Some(&asked))).await
    }

    /// Everything that can be known of a restart before the old box is ended.
    async fn check(&self, spec: &SessionSpec, old: &Session) -> Result<(), BackendError> {
        let common = self.launcher()?.ready().await?;
        old.can_be_made_again()?;
        if let Network::Isolated(isolation) = &spec.network {
            isolation.policy.check_against(&isolation.grants)?;
            check_tun_device()?;
        }
        let image = if spec.image == old.image_asked {
            old.image.clone()
        } else {
            self.resolve_image(spec.image.as_deref()).await?
        };
        let sources = self.open_sources(spec).await?;
        plan(spec, self.mapping, &image, &sources, &common).map(drop)
    }

    /// Bounds the directories that have a hard quota, as far as this machine can. Off the async threads.
    async fn hold(
        &self,
        spec: &SessionSpec,
        sources: Vec<Source>,
    ) -> Result<(Vec<Source>, Vec<Option<ProjectBound>>), BackendError> {
        let quotas: Vec<Option<u64>> = spec.mounts.iter().map(hard_quota).collect();
        if quotas.iter().all(Option::is_none) {
            let none = sources.iter().map(|_| None).collect();
            return Ok((sources, none));
        }
        blocking("setting a quota", move || {
            let held = quotas.iter().zip(&sources).map(|(quota, source)| match quota {
                Some(bytes) => ProjectBound::set(source.fd.as_fd(), *bytes).map_err(|error| {
                    let path = source.mount.path.display();
                    BackendError::failed(format!("setting a quota on {path}"), error)
                }),
                None => Ok(None),
            });
            let held = held.collect::<Result<_, _>>()?;
            Ok((sources, held))
        })
        .await
    }

    /// Off the async threads: a check may have to walk a directory.
    async fn open_sources(&self, spec: &SessionSpec) -> Result<Vec<Source>, BackendError> {
        if spec.mounts.is_empty() {
            return Ok(Vec::new());
        }
        let mounts = spec.mounts.clone();
        let state: Vec<PathBuf> = self.config.state_dir.canonicalize().into_iter().collect();
        let opened = tokio::task::spawn_blocking(move || {
            mounts.iter().map(|mount| open_source(mount, &state)).collect()
        });
        opened.await.unwrap_or_else(|error| {
            Err(BackendError::failed("checking mounts", std::io::Error::other(error)))
        })
    }
}

/// Ends what a session has, and removes its files.
async fn end(there: Option<Slot>) -> Result<(), BackendError> {
    match there {
        Some(Slot::Live(session)) => session.stop().await,
        Some(Slot::Left(mut left)) => match left.storage.take() {
            Some(storage) => storage
                .remove()
                .await
                .map_err(|error| BackendError::failed("removing the session's files", error)),
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

fn hard_quota(mount: &Mount) -> Option<u64> {
    match (mount.access, mount.quota) {
        (MountAccess::ReadWrite, Some(DiskLimit::Hard(bytes))) => Some(bytes),
        _ => None,
    }
}

/// Off the async threads.
async fn blocking<T: Send + 'static>(
    step: &str,
    work: impl FnOnce() -> Result<T, BackendError> + Send + 'static,
) -> Result<T, BackendError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(BackendError::failed(step, std::io::Error::other(error))))
}

fn start_launcher(
    new: Option<NewLauncher>,
    config: &NativeConfig,
    instance: &Instance,
) -> Result<Launcher, BackendError> {
    let directory = instance
        .launcher_directory()
        .map_err(|error| BackendError::failed("making the launcher's directory", error))?;
    let config_message = LauncherConfig {
        instance: instance.name().to_owned(),
        directory,
        cgroup_parent: config.cgroup_parent.clone(),
        daemon_pid: getpid().as_raw_pid(),
        boxes_ahead: if config.one_box { 0 } else { config.pool.max(1) },
    };
    // One that was started ahead and cannot be had any more is replaced.
    if let Some(Ok(started)) = new.map(|new| Launcher::start(new, &config_message)) {
        return Ok(started);
    }
    let new = NewLauncher::spawn(&config.launcher)
        .map_err(|error| BackendError::failed("starting the launcher", error))?;
    Launcher::start(new, &config_message)
}

/// Frees a reserved id when a start fails or is cancelled. Files that an earlier box left are kept under it.
struct Reservation<'a> {
    sessions: &'a Mutex<HashMap<SessionId, Slot>>,
    id: SessionId,
    left: Option<Box<Earlier>>,
    kept: bool,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        match self.left.take().filter(|left| left.storage.is_some()) {
            Some(left) => lock(self.sessions).insert(self.id.clone(), Slot::Left(left)),
            None => lock(self.sessions).remove(&self.id),
        };
    }
}

#[async_trait]
impl Backend for NativeBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            pty: true,
            files: true,
            writable_root: !self.mapping.is_rootless(),
            host_network: true,
            isolated_network: true,
            host_mounts: true,
            hard_disk_quota: self.mapping.is_rootless() || crate::storage::has_images(),
            kept_storage: true,
            kill_one_command: true,
        }
    }

    async fn probe(&self) -> Result<(), BackendError> {
        self.launcher()?.ready().await.map(drop)
    }

    async fn start(&self, spec: SessionSpec) -> Result<SessionInfo, BackendError> {
        spec.validate()?;
        let id = spec.id.clone();
        let launcher = self.launcher()?;
        let mut reservation = {
            let mut sessions = lock(&self.sessions);
            let left = match sessions.remove(&id) {
                None => None,
                Some(Slot::Left(left)) => Some(left),
                Some(there) => {
                    sessions.insert(id.clone(), there);
                    return Err(BackendError::SessionExists { session: id });
                }
            };
            sessions.insert(id.clone(), Slot::Starting);
            Reservation { sessions: &self.sessions, id, left, kept: false }
        };
        if reservation.left.as_ref().is_some_and(|left| !Arc::ptr_eq(&left.launcher, &launcher)) {
            // Nobody can show these any more.
            reservation.left = None;
        }
        self.occupy(spec, reservation).await
    }

    async fn exec(&self, session: &SessionId, request: ExecRequest) -> Result<Execution, BackendError> {
        sandcrate_driver::exec(&self.session(session)?, request).await
    }

    async fn files(&self, session: &SessionId, request: FileRequest) -> Result<FileReply, BackendError> {
        sandcrate_driver::perform(&self.session(session)?, request).await
    }

    async fn set_network(&self, session: &SessionId, isolation: Isolation) -> Result<(), BackendError> {
        let session = self.session(session)?;
        isolation.policy.check_against(&isolation.grants)?;
        session.network().ok_or_else(|| not_isolated(NAME, "a network policy"))?.set(isolation).await
    }

    async fn network(&self, session: &SessionId) -> Result<NetworkReport, BackendError> {
        let session = self.session(session)?;
        Ok(session.network().ok_or_else(|| not_isolated(NAME, "a network report"))?.report().await)
    }

    async fn forward(&self, session: &SessionId, port: u16, stream: OwnedFd) -> Result<(), BackendError> {
        let session = self.session(session)?;
        if port == 0 {
            return Err(BackendError::invalid("port", "must be from 1 to 65535"));
        }
        session.network().ok_or_else(|| not_isolated(NAME, "a port"))?.forward(port, stream).await
    }

    async fn images(&self) -> Result<Vec<ImageInfo>, BackendError> {
        let store = self.config.image_store();
        blocking("listing images", move || images::list(&store)).await
    }

    async fn image_spool(&self) -> Result<File, BackendError> {
        let store = self.config.image_store();
        blocking("making a file for the image", move || images::spool(&store)).await
    }

    async fn import_image(&self, name: &str, archive: File) -> Result<ImageInfo, BackendError> {
        let (store, name) = (self.config.image_store(), name.to_owned());
        // One after the other: an import takes a core and the disk's time, which boxes need too.
        let turn = Arc::clone(&self.importing).acquire_owned().await;
        blocking("importing an image", move || {
            let _turn = turn;
            images::import(&store, &name, archive)
        })
        .await
    }

    async fn remove_image(&self, name: &str, removal: ImageRemoval) -> Result<(), BackendError> {
        let (store, name) = (self.config.image_store(), name.to_owned());
        blocking("removing an image", move || images::remove(&store, &name, removal)).await
    }

    async fn is_alive(&self, session: &SessionId) -> bool {
        self.session(session).is_ok_and(|session| session.is_alive())
    }

    async fn stop(&self, session: &SessionId) -> Result<(), BackendError> {
        let there = {
            let mut sessions = lock(&self.sessions);
            match sessions.get(session) {
                Some(Slot::Live(_) | Slot::Left(_)) => sessions.remove(session),
                _ => None,
            }
        };
        end(there).await
    }

    async fn restart(&self, spec: SessionSpec) -> Result<SessionInfo, BackendError> {
        spec.validate()?;
        let id = spec.id.clone();
        let old = self.session(&id)?;
        // What would fail anyway does so while the old box still lives.
        self.check(&spec, &old).await?;
        let mut reservation = {
            let mut sessions = lock(&self.sessions);
            match sessions.get(&id) {
                Some(Slot::Live(live)) if Arc::ptr_eq(live, &old) => {}
                _ => return Err(BackendError::SessionNotFound { session: id }),
            }
            sessions.insert(id.clone(), Slot::Starting);
            Reservation { sessions: &self.sessions, id, left: None, kept: false }
        };
        let storage = old.end_box().await?.ok_or_else(|| old.ended_error())?;
        reservation.left = Some(Box::new(Earlier {
            storage: Some(storage),
            image: old.image.clone(),
            image_asked: old.image_asked.clone(),
            launcher: Arc::clone(&old.launcher),
        }));
        if !Arc::ptr_eq(&old.launcher, &self.launcher()?) {
            // The files lie where only the launcher that is gone could show them.
            reservation.left = None;
            return Err(old.ended_error());
        }
        self.occupy(spec, reservation).await
    }

    async fn remove_storage(&self, directory: &Path) -> Result<(), BackendError> {
        let directory = directory.to_owned();
        let removed = on_disk(move || crate::storage::remove_kept(&directory)).await;
        removed.map_err(|error| BackendError::failed("removing kept storage", error))
    }

    async fn sweep(&self) -> Result<SweepReport, BackendError> {
        let state_dir = self.config.state_dir.clone();
        let swept = on_disk(move || instance::sweep(&state_dir)).await;
        swept.map_err(|error| BackendError::failed("sweeping the state directory", error))
    }

    async fn shutdown(&self) {
        let sessions: Vec<_> = lock(&self.sessions).drain().collect();
        for (id, slot) in sessions {
            if let Err(error) = end(Some(slot)).await {
                tracing::warn!(
                    session.id = id.as_str(),
                    error = &error as &dyn std::error::Error,
                    "a session did not end cleanly"
                );
            }
        }
        self.networks.close().await;
        self.pool.close();
        let launcher = Arc::clone(&lock(&self.launcher));
        launcher.close().await;
    }
}
