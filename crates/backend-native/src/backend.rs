//! The native backend: sessions on `jail`.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use async_trait::async_trait;
use rustix::process::getpid;
use sandcrate_backend::{
    Backend, BackendError, Capabilities, ExecRequest, Execution, FileReply, FileRequest, Isolation, Network,
    NetworkReport, SessionId, SessionInfo, SessionSpec, SweepReport,
};
use sandcrate_jail::NetworkMode;
use sandcrate_jail::identity::IdMapping;
use sandcrate_jail::message::LauncherConfig;
use sandcrate_protocol::{Control, Enforcement};
use tokio::task::JoinSet;

use crate::NAME;
use crate::boxes::Pool;
use crate::config::NativeConfig;
use crate::instance::{self, Instance};
use crate::launcher::{Launcher, lock};
use crate::network::{Networks, not_isolated};
use crate::session::{Ingredients, Session, network_mode, plan};
use crate::sources::{Source, open_source};
use crate::storage::Storage;
use crate::{exec, files};

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
    /// The pool's filler and the sweep at the start.
    tasks: Mutex<JoinSet<()>>,
    /// Last: its directory goes when everything else is gone.
    instance: Instance,
}

#[derive(Debug)]
enum Slot {
    Starting,
    Live(Arc<Session>),
}

impl NativeBackend {
    /// Takes a place in the state directory and starts a launcher. What dead instances left is swept meanwhile.
    pub async fn open(config: NativeConfig) -> Result<Self, BackendError> {
        let instance = Instance::create(&config.state_dir).map_err(|error| {
            BackendError::failed(
                format!("taking a place in the state directory {}", config.state_dir.display()),
                error,
            )
        })?;
        let launcher = Arc::new(spawn_launcher(&config, &instance)?);
        let mut tasks = JoinSet::new();
        let state_dir = config.state_dir.clone();
        tasks.spawn_blocking(move || {
            if let Err(error) = instance::sweep(&state_dir) {
                tracing::warn!(%error, "what dead instances left cannot be removed");
            }
        });
        let backend = Self {
            mapping: IdMapping::for_this_user(),
            launcher: Mutex::new(launcher),
            pool: Arc::new(Pool::new(config.pool)),
            networks: Networks::new(config.launcher.clone()),
            sessions: Mutex::default(),
            next_storage: std::sync::atomic::AtomicU64::new(1),
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
            instance::sweep_cgroups(&self.instance.name);
            *current = Arc::new(spawn_launcher(&self.config, &self.instance)?);
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
        earlier: Option<Storage>,
    ) -> Result<(Arc<Session>, SessionInfo), BackendError> {
        let started = Instant::now();
        let launcher = self.launcher()?;
        let common = launcher.ready().await?;
        let network = network_mode(&spec.network);
        if let Network::Isolated(isolation) = &spec.network {
            isolation.policy.check_against(&isolation.grants)?;
            self.networks.wake();
        }
        let sources = self.open_sources(&spec).await?;
        let number = self.next_storage.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("box-{number}");
        let plan = plan(&spec, self.mapping, &sources, &common)?;
        let shelf = launcher.shelf()?;
        let storage = match (earlier, &spec.storage) {
            (Some(storage), _) => storage,
            (None, Some(kept)) => Storage::keep(&shelf, &name, kept, spec.limits.disk).await?,
            (None, None) => Storage::create(&shelf, &name, spec.limits.disk).await?,
        };
        let backend_id = format!("{}-{name}", self.instance.name);
        let made =
            Ingredients { spec, mapping: self.mapping, sources, storage, common, plan, backend_id, started };
        let ready = if network.has_own_namespace() { self.pool.take(&launcher) } else { None };
        Session::start(made, launcher, ready, &self.networks).await
    }

    /// Makes a box for an id that is reserved.
    async fn occupy(&self, spec: SessionSpec, earlier: Option<Storage>) -> Result<SessionInfo, BackendError> {
        let id = spec.id.clone();
        let started = self.start_session(spec, earlier).await;
        // Whatever became of it, it may have taken a box.
        self.fill_pool();
        let (session, info) = started?;
        lock(&self.sessions).insert(id, Slot::Live(session));
        Ok(info)
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

fn spawn_launcher(config: &NativeConfig, instance: &Instance) -> Result<Launcher, BackendError> {
    let directory = instance
        .launcher_directory()
        .map_err(|error| BackendError::failed("making the launcher's directory", error))?;
    let config_message = LauncherConfig {
        instance: instance.name.clone(),
        directory,
        cgroup_parent: config.cgroup_parent.clone(),
        daemon_pid: getpid().as_raw_pid(),
    };
    Launcher::spawn(&config.launcher, &config_message)
}

/// Frees a reserved id when a start fails or is cancelled.
struct Reservation<'a> {
    sessions: &'a Mutex<HashMap<SessionId, Slot>>,
    id: SessionId,
    kept: bool,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if !self.kept {
            lock(self.sessions).remove(&self.id);
        }
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
            // Known once the launcher is up; until then nothing is promised.
            kill_one_command: lock(&self.launcher)
                .known()
                .is_some_and(|held| held.holds(Control::CommandKill)),
        }
    }

    async fn probe(&self) -> Result<(), BackendError> {
        self.launcher()?.ready().await.map(drop)
    }

    async fn start(&self, spec: SessionSpec) -> Result<SessionInfo, BackendError> {
        spec.validate()?;
        let id = spec.id.clone();
        let mut reservation = {
            let mut sessions = lock(&self.sessions);
            if sessions.contains_key(&id) {
                return Err(BackendError::SessionExists { session: id });
            }
            sessions.insert(id.clone(), Slot::Starting);
            Reservation { sessions: &self.sessions, id: id.clone(), kept: false }
        };
        let info = self.occupy(spec, None).await?;
        reservation.kept = true;
        Ok(info)
    }

    async fn exec(&self, session: &SessionId, request: ExecRequest) -> Result<Execution, BackendError> {
        exec::exec(&self.session(session)?, request).await
    }

    async fn files(&self, session: &SessionId, request: FileRequest) -> Result<FileReply, BackendError> {
        files::perform(&self.session(session)?, request).await
    }

    async fn set_network(&self, session: &SessionId, isolation: Isolation) -> Result<(), BackendError> {
        let session = self.session(session)?;
        isolation.policy.check_against(&isolation.grants)?;
        session.network.as_ref().ok_or_else(|| not_isolated("a network policy"))?.set(isolation).await
    }

    async fn network(&self, session: &SessionId) -> Result<NetworkReport, BackendError> {
        let session = self.session(session)?;
        Ok(session.network.as_ref().ok_or_else(|| not_isolated("a network report"))?.report().await)
    }

    async fn forward(&self, session: &SessionId, port: u16, stream: OwnedFd) -> Result<(), BackendError> {
        let session = self.session(session)?;
        if port == 0 {
            return Err(BackendError::invalid("port", "must be from 1 to 65535"));
        }
        session.network.as_ref().ok_or_else(|| not_isolated("a port"))?.forward(port, stream).await
    }

    async fn is_alive(&self, session: &SessionId) -> bool {
        self.session(session).is_ok_and(|session| session.is_alive())
    }

    async fn stop(&self, session: &SessionId) -> Result<(), BackendError> {
        let live = {
            let mut sessions = lock(&self.sessions);
            match sessions.get(session) {
                Some(Slot::Live(_)) => sessions.remove(session),
                _ => None,
            }
        };
        match live {
            Some(Slot::Live(session)) => session.stop().await,
            _ => Ok(()),
        }
    }

    async fn restart(&self, spec: SessionSpec) -> Result<SessionInfo, BackendError> {
        spec.validate()?;
        let id = spec.id.clone();
        let old = self.session(&id)?;
        let mut reservation = {
            lock(&self.sessions).insert(id.clone(), Slot::Starting);
            Reservation { sessions: &self.sessions, id: id.clone(), kept: false }
        };
        let mut storage = old.end_box().await?.ok_or_else(|| old.ended_error())?;
        if !Arc::ptr_eq(&old.launcher, &self.launcher()?) {
            // The files lie where only the launcher that is gone could show them.
            return Err(old.ended_error());
        }
        storage.again()?;
        let info = self.occupy(spec, Some(storage)).await?;
        reservation.kept = true;
        Ok(info)
    }

    async fn remove_storage(&self, directory: &Path) -> Result<(), BackendError> {
        let directory = directory.to_owned();
        let removed = tokio::task::spawn_blocking(move || crate::storage::remove_kept(&directory)).await;
        removed
            .unwrap_or_else(|error| Err(std::io::Error::other(error)))
            .map_err(|error| BackendError::failed("removing kept storage", error))
    }

    async fn adopt(&self) -> Result<Vec<SessionInfo>, BackendError> {
        // Boxes die with their owner.
        Ok(Vec::new())
    }

    async fn sweep(&self) -> Result<SweepReport, BackendError> {
        let state_dir = self.config.state_dir.clone();
        let swept = tokio::task::spawn_blocking(move || instance::sweep(&state_dir)).await;
        let swept = swept.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        swept.map_err(|error| BackendError::failed("sweeping the state directory", error))
    }

    async fn shutdown(&self) {
        let sessions: Vec<_> = lock(&self.sessions).drain().collect();
        for (_, slot) in sessions {
            if let Slot::Live(session) = slot
                && let Err(error) = session.stop().await
            {
                tracing::warn!(
                    session.id = session.id.as_str(),
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
