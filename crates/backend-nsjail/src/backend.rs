//! The nsjail backend: sessions by their ids.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use sandcrate_backend::{
    Backend, BackendError, Capabilities, ExecRequest, Execution, FileReply, FileRequest, SessionId,
    SessionInfo, SessionSpec, SweepReport,
};
use sandcrate_driver::instance::{self, Instance};
use sandcrate_driver::{lock, on_disk};
use sandcrate_jail::cgroup::{Discovery, Parent, Placement};
use sandcrate_jail::nsjail::generate_etc;
use sandcrate_jail::remove_tree;
use sandcrate_protocol::{Control, Enforcement};
use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;

use crate::config::Surroundings;
use crate::janitor::Janitor;
use crate::session::{Session, Tools};
use crate::start::{Ingredients, Workshop, check};
use crate::storage::Storage;
use crate::trial::Trial;
use crate::{NAME, exec, files};

/// What an operator can set about the nsjail backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NsjailConfig {
    /// Private files of sessions live below it; instances share it safely.
    pub state_dir: PathBuf,
    /// The nsjail program; looked for along PATH when not given.
    pub nsjail: Option<PathBuf>,
    /// An existing cgroup to put boxes below, instead of our own.
    pub cgroup_parent: Option<String>,
    /// The program that takes the roles: any that calls `sandcrate_jail::dispatch_role` first.
    pub program: PathBuf,
}

impl NsjailConfig {
    pub fn new(state_dir: impl Into<PathBuf>) -> Self {
        Self {
            state_dir: state_dir.into(),
            nsjail: None,
            cgroup_parent: None,
            program: PathBuf::from("/proc/self/exe"),
        }
    }

    /// The nsjail program of this machine.
    pub fn find(&self) -> Option<PathBuf> {
        if let Some(named) = &self.nsjail {
            return Some(named.clone());
        }
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path).map(|directory| directory.join("nsjail")).find(|path| path.is_file())
    }
}

/// Boxes made by nsjail.
#[derive(Debug)]
pub struct NsjailBackend {
    config: NsjailConfig,
    trial: Trial,
    /// Made by the first use: a backend that nobody chooses touches no cgroup.
    workshop: OnceCell<Arc<Workshop>>,
    sessions: Mutex<HashMap<SessionId, Slot>>,
    next_box: AtomicU64,
    /// Last: its directory goes when everything else is gone.
    instance: Instance,
}

#[derive(Debug)]
enum Slot {
    Starting,
    Live(Arc<Session>),
}

impl NsjailBackend {
    /// Takes a place in the state directory, and sweeps what dead instances left there. Whether this
    /// machine can have boxes of nsjail's is told by [`Backend::probe`].
    pub async fn open(config: NsjailConfig) -> Result<Self, BackendError> {
        let opened = tokio::task::spawn_blocking(move || Self::open_now(config)).await;
        opened.unwrap_or_else(|error| {
            Err(BackendError::failed("opening the nsjail backend", std::io::Error::other(error)))
        })
    }

    fn open_now(config: NsjailConfig) -> Result<Self, BackendError> {
        let instance = Instance::create(&part(&config.state_dir)).map_err(|error| {
            let place = config.state_dir.display();
            BackendError::failed(format!("taking a place in the state directory {place}"), error)
        })?;
        if let Err(error) = instance::sweep(&part(&config.state_dir), |_| ()) {
            tracing::warn!(%error, "what dead instances left cannot be removed");
        }
        Ok(Self {
            config,
            trial: Trial::default(),
            workshop: OnceCell::new(),
            sessions: Mutex::default(),
            next_box: AtomicU64::new(1),
            instance,
        })
    }

    async fn workshop(&self) -> Result<&Arc<Workshop>, BackendError> {
        let unavailable = |why| BackendError::Unavailable { backend: NAME, why };
        let make = || async {
            let (config, instance) = (self.config.clone(), self.instance.name.clone());
            let directory = self.instance.directory.clone();
            let made =
                tokio::task::spawn_blocking(move || equip(&config, &instance, &directory).map(Arc::new))
                    .await;
            made.map_err(|error| unavailable(error.to_string()))?.map_err(unavailable)
        };
        self.workshop.get_or_try_init(make).await
    }

    /// What the cgroups of this machine hold, for every box.
    pub async fn common_enforcement(&self) -> Result<Enforcement, BackendError> {
        Ok(self.workshop().await?.common.clone())
    }

    fn session(&self, id: &SessionId) -> Result<Arc<Session>, BackendError> {
        match lock(&self.sessions).get(id) {
            Some(Slot::Live(session)) => Ok(Arc::clone(session)),
            _ => Err(BackendError::SessionNotFound { session: id.clone() }),
        }
    }

    /// Makes a box for an id that is reserved.
    async fn occupy(&self, spec: SessionSpec, earlier: Option<Storage>) -> Result<SessionInfo, BackendError> {
        let id = spec.id.clone();
        let number = self.next_box.fetch_add(1, Ordering::Relaxed);
        // The number keeps apart boxes that one id had; the hash tells whose it is, whatever the id is made of.
        let directory = self.instance.directory.join(format!("{}-{number}", hash(&id)));
        let name = format!("box-{number}");
        let backend_id = format!("{}-{name}", self.instance.name);
        let ingredients = Ingredients { spec, earlier, directory, name, backend_id };
        let (session, info) = self.workshop().await?.start(ingredients).await?;
        lock(&self.sessions).insert(id, Slot::Live(session));
        Ok(info)
    }
}

/// An id becomes no part of a path.
fn hash(id: &SessionId) -> String {
    Sha256::digest(id.as_str().as_bytes()).iter().take(12).map(|byte| format!("{byte:02x}")).collect()
}

/// The programs, open; or why they cannot be used. And where nsjail is.
fn find(config: &NsjailConfig) -> Result<(Arc<Tools>, PathBuf), String> {
    let nsjail = config.find().ok_or("the program nsjail is not on PATH; install it")?;
    if !rustix::process::geteuid().is_root() {
        return Err(
            "nsjail needs root here, for ids of its own and cgroups; the native backend does not".to_owned()
        );
    }
    let tools = Tools {
        nsjail: open(&nsjail)?,
        program: open(&config.program)?,
        program_path: config.program.clone(),
    };
    Ok((Arc::new(tools), nsjail))
}

fn open(path: &Path) -> Result<File, String> {
    File::open(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Everything that sessions are made with; or why there can be none.
fn part(state_dir: &Path) -> PathBuf {
    state_dir.join("nsjail")
}

fn equip(config: &NsjailConfig, instance: &str, directory: &Path) -> Result<Workshop, String> {
    let (tools, _) = find(config)?;
    let etc = etc(directory).map_err(|error| format!("the /etc of boxes cannot be made: {error}"))?;
    let around = Surroundings::look().map_err(|error| error.to_string())?;
    let mut common = Enforcement::new();
    let placement = Placement { instance, below: config.cgroup_parent.as_deref(), daemon: None };
    let cgroups = Discovery::probe(Path::new("/")).and_then(|found| Parent::open(&found, &placement));
    let cgroups = match cgroups {
        Ok(parent) => {
            sandcrate_jail::record_cgroups(parent.report(), &mut common);
            Some(parent)
        }
        Err(error) => {
            sandcrate_jail::record_no_cgroups(&error.to_string(), &mut common);
            None
        }
    };
    if !common.holds(Control::CommandKill) {
        common.degraded(Control::CommandKill, "without a v2 cgroup a deadline ends the whole box");
    }
    // After the cgroups: a process that was there before would stand in their way.
    let janitor = cgroups.as_ref().map(|_| Janitor::start(&config.program, instance)).transpose();
    let janitor = janitor.map_err(|error| format!("the janitor of cgroups cannot be started: {error}"))?;
    let state_dir = config.state_dir.clone();
    Ok(Workshop { tools, around, cgroups, janitor, common, state_dir, etc })
}

/// Under its name only when it is whole.
fn etc(directory: &Path) -> std::io::Result<File> {
    let (whole, new) = (directory.join("etc"), directory.join("etc.new"));
    if !whole.exists() {
        match remove_tree::remove(&new) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => generate_etc(&new)?,
        }
        std::fs::rename(&new, &whole)?;
    }
    File::open(whole)
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
impl Backend for NsjailBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            pty: true,
            files: true,
            writable_root: false,
            host_network: false,
            isolated_network: false,
            host_mounts: true,
            hard_disk_quota: false,
            kept_storage: true,
            // Known with the first use; until then nothing is promised.
            kill_one_command: self.workshop.get().is_some_and(|shop| shop.common.holds(Control::CommandKill)),
        }
    }

    /// Makes nothing that stays: the runtime looks at backends that nobody uses, too.
    async fn probe(&self) -> Result<(), BackendError> {
        let tried = match find(&self.config) {
            Ok((tools, path)) => self.trial.check(tools, &path).await,
            Err(why) => Err(why),
        };
        tried.map_err(|why| BackendError::Unavailable { backend: NAME, why })
    }

    async fn start(&self, spec: SessionSpec) -> Result<SessionInfo, BackendError> {
        spec.validate()?;
        check(&spec)?;
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
        check(&spec)?;
        let id = spec.id.clone();
        let old = self.session(&id)?;
        let mut reservation = {
            lock(&self.sessions).insert(id.clone(), Slot::Starting);
            Reservation { sessions: &self.sessions, id: id.clone(), kept: false }
        };
        let storage = old.take_down().await?.ok_or_else(|| old.ended_error())?;
        let info = self.occupy(spec, Some(storage)).await?;
        reservation.kept = true;
        Ok(info)
    }

    async fn remove_storage(&self, directory: &Path) -> Result<(), BackendError> {
        let directory = directory.to_owned();
        let removed = on_disk(move || crate::storage::remove_kept(&directory)).await;
        removed.map_err(|error| BackendError::failed("removing kept storage", error))
    }

    async fn sweep(&self) -> Result<SweepReport, BackendError> {
        let state_dir = self.config.state_dir.clone();
        let swept = on_disk(move || instance::sweep(&part(&state_dir), |_| ())).await;
        swept.map_err(|error| BackendError::failed("sweeping the state directory", error))
    }

    async fn shutdown(&self) {
        let sessions: Vec<_> = lock(&self.sessions).drain().collect();
        for (_, slot) in sessions {
            if let Slot::Live(session) = slot
                && let Err(error) = session.stop().await
            {
                tracing::warn!(
                    session.id = session.id().as_str(),
                    error = &error as &dyn std::error::Error,
                    "a session did not end cleanly"
                );
            }
        }
        let Some(workshop) = self.workshop.get() else { return };
        if let Some(parent) = &workshop.cgroups
            && let Err(error) = parent.remove()
        {
            tracing::warn!(%error, "this instance's cgroups cannot be removed");
        }
        if let Some(janitor) = &workshop.janitor {
            janitor.dismiss().await;
        }
    }
}
