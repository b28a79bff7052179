//! Starts servers in boxes, over whatever way there is to a runtime.
//!
//! A command is understood first: what installs and runs in one step is taken apart. What it needs is installed into
//! an environment that is named by its content, once, in a box of its own. Then the server's box is made, with the
//! environment and the project mounted, and without a network unless it is asked for.

mod command;
mod environments;
mod install;
mod key;
pub(crate) mod missing;
mod npx;
mod plan;
mod project;
mod recipe;
mod session;
mod tools;
mod uvx;
mod variables;

use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sandcrate_host::{Client, HostError};
use sandcrate_protocol::network::NetworkRequest;
use sandcrate_protocol::{BoxSpec, ErrorKind, MountSpec, ProcessSpec, ProcessStatus};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::{Identity, Life, Phase, PhaseError, Progress, ServerConfig, Start, Started};
use environments::Environments;
use install::InstallBox;
use session::Made;

pub use command::{CommandError, Understood, understand};
pub use missing::MountBy;
pub(crate) use project::locate;
pub use tools::{ImageTools, SystemTools, Tool, Toolbox};
pub use variables::{index_settings, is_withheld};

/// Says which directories of the host a server may be given as its project.
pub trait Projects: std::fmt::Debug + Send + Sync {
    /// # Errors
    /// Why not this one, in this `host_path_mode`.
    fn check(&self, directory: &Path, mode: &str) -> Result<(), String>;
}

/// For the person at the shell, who may read it anyway.
#[derive(Debug)]
pub struct AnyProject;

impl Projects for AnyProject {
    fn check(&self, _: &Path, _: &str) -> Result<(), String> {
        Ok(())
    }
}

/// What servers have in common.
#[derive(Debug, Clone)]
pub struct LaunchConfig {
    /// Environments and copies of projects lie below it. The runtime must be able to mount from it.
    pub cache_dir: PathBuf,
    pub toolbox: Arc<dyn Toolbox>,
    /// Where relative paths start.
    pub cwd: PathBuf,
    /// A project is never as wide as this.
    pub home: Option<PathBuf>,
    /// Projects are told from paths below these alone, if there are any.
    pub roots: Vec<PathBuf>,
    /// Which directories of the host servers may be given.
    pub projects: Arc<dyn Projects>,
    /// How servers are shown more, for the notes about what they are not.
    pub mount_by: MountBy,
    /// What installs know of the user's variables: see [`index_settings`].
    pub install_env: BTreeMap<String, String>,
    /// Certificates and local indexes that those name.
    pub install_mounts: Vec<MountSpec>,
    pub install_memory_mb: u64,
    pub install_timeout: Duration,
    /// Install again, whatever there is.
    pub reinstall: bool,
}

impl LaunchConfig {
    pub fn new(cache_dir: impl Into<PathBuf>) -> Self {
        Self {
            cache_dir: cache_dir.into(),
            toolbox: Arc::new(SystemTools),
            cwd: PathBuf::from("/"),
            home: None,
            roots: Vec::new(),
            projects: Arc::new(AnyProject),
            mount_by: MountBy::Flag,
            install_env: BTreeMap::new(),
            install_mounts: Vec::new(),
            install_memory_mb: 2048,
            install_timeout: install::INSTALL_TIMEOUT,
            reinstall: false,
        }
    }
}

/// Gets servers running by a client of a runtime.
#[derive(Debug)]
pub struct Launcher {
    client: Arc<dyn Client>,
    config: LaunchConfig,
    environments: Environments,
    made: Made,
    /// Ends of install boxes that nobody waits for.
    tasks: TaskTracker,
}

impl Launcher {
    pub fn new(client: Arc<dyn Client>, config: LaunchConfig) -> Self {
        let environments = Environments::new(config.cache_dir.clone());
        Self { client, config, environments, made: Made::default(), tasks: TaskTracker::new() }
    }

    /// Waits for the ends of boxes that nobody else waits for.
    pub async fn close(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// PATH with these directories in front of the box's own, or of the one that somebody chose.
fn search_path(front: impl IntoIterator<Item = String>, own: Option<&str>) -> String {
    let mut parts: Vec<String> = Vec::new();
    for part in front.into_iter().chain([own.unwrap_or(tools::BOX_PATH).to_owned()]) {
        if !parts.contains(&part) {
            parts.push(part);
        }
    }
    parts.join(":")
}

/// What somebody calls a network, or the usual one.
fn network(field: &str, text: Option<&str>, usual: NetworkRequest) -> Result<NetworkRequest, PhaseError> {
    match text {
        None => Ok(usual),
        Some(text) => text
            .parse()
            .map_err(|error| PhaseError::new(Phase::SessionCreate, format!("box.{field} `{text}`: {error}"))),
    }
}

/// One step of a start, which must not take for ever.
async fn within<T>(
    phase: Phase,
    deadline: Instant,
    step: impl Future<Output = Result<T, HostError>>,
) -> Result<T, PhaseError> {
    match tokio::time::timeout_at(deadline, step).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) if error.kind == ErrorKind::RuntimeUnavailable && phase == Phase::SessionCreate => {
            Err(PhaseError::new(Phase::BoxUnavailable, error.message))
        }
        Ok(Err(error)) => Err(PhaseError::new(phase, error.message)),
        Err(_) => Err(PhaseError::new(phase, "the start did not end within its time (startup_timeout_sec)")),
    }
}

fn is_gone(error: &HostError) -> bool {
    matches!(error.kind, ErrorKind::SessionNotFound | ErrorKind::ProcessNotFound)
}

#[async_trait]
impl Start for Launcher {
    async fn availability(&self) -> Result<(), PhaseError> {
        let unavailable = |message: String| PhaseError::new(Phase::BoxUnavailable, message);
        let info = self.client.backend_info().await.map_err(|error| unavailable(error.message))?;
        if info["available"].as_bool() == Some(false) {
            return Err(unavailable("box_unavailable".to_owned()));
        }
        Ok(())
    }

    async fn start(
        &self,
        server: &ServerConfig,
        identity: &Identity,
        progress: &dyn Progress,
    ) -> Result<Started, PhaseError> {
        let settings = &server.settings;
        let wanted = network("network", settings.network.as_deref(), NetworkRequest::Off)?;
        let on = NetworkRequest::On { deny: Vec::new() };
        let install_network = network("install_network", settings.install_network.as_deref(), on)?;
        let understood = understand(&server.command, &server.args)
            .map_err(|error| PhaseError::new(Phase::Staging, error.to_string()))?;
        let mut install =
            InstallBox { image: settings.image.as_deref(), network: install_network, project: None };
        let planned = self.plan(server, &identity.process_id, understood, &mut install, progress).await?;

        let (session, process) = (&identity.session_id, &identity.process_id);
        let mut spec = BoxSpec::new(session.clone());
        if let Some(image) = &settings.image {
            spec.image.clone_from(image);
        }
        spec.cpus = settings.cpus.unwrap_or(spec.cpus);
        spec.memory_mb = settings.memory_mb.unwrap_or(spec.memory_mb);
        spec.pids_limit = settings.pids_limit.unwrap_or(spec.pids_limit);
        spec.read_only_rootfs = settings.read_only_rootfs.unwrap_or(true);
        spec.extra_mounts = planned.mounts;
        // From here on there is something to clean up.
        self.made.add(session, process, planned.copy);
        let deadline = Instant::now() + Duration::from_secs(settings.startup_timeout_sec.max(1));
        within(Phase::SessionCreate, deadline, self.client.create_session_on(&spec, &wanted)).await?;
        let started = ProcessSpec {
            process_id: process.clone(),
            command: planned.program,
            args: planned.args,
            env: planned.env,
            cwd: planned.cwd,
            memory_mb: 0,
        };
        within(Phase::ProcessStart, deadline, self.client.start_process(session, &started)).await?;
        match within(Phase::RelayConnect, deadline, self.client.attach(session, process)).await {
            Ok(streams) => Ok(Started { reader: streams.reader, writer: streams.writer }),
            Err(error) => Err(self.why_not_attached(session, process, error).await),
        }
    }

    async fn look(&self, identity: &Identity) -> Result<Life, PhaseError> {
        let info = self.client.process(&identity.session_id, &identity.process_id).await;
        let info = info.map_err(|error| PhaseError::new(Phase::Runtime, error.message))?;
        Ok(match info.status {
            ProcessStatus::Running => Life::Running,
            ProcessStatus::Exited => Life::Exited { code: info.exit_code },
        })
    }

    async fn log(&self, identity: &Identity) -> Result<String, PhaseError> {
        let info = self.client.process(&identity.session_id, &identity.process_id).await;
        info.map(|info| info.stderr_preview).map_err(|error| PhaseError::new(Phase::Runtime, error.message))
    }

    async fn clean_up(&self, identity: &Identity) -> Result<(), PhaseError> {
        let (session, process) = (&identity.session_id, &identity.process_id);
        let (last, copy) = self.made.remove(session, process);
        let ended = if last || identity.transient {
            self.client.delete_session(session).await
        } else {
            self.client.stop_process(session, process).await
        };
        if let Some(copy) = copy {
            // After the box that had it mounted.
            let _ = tokio::task::spawn_blocking(move || drop(copy)).await;
        }
        match ended {
            Err(error) if !is_gone(&error) => Err(PhaseError::new(Phase::Runtime, error.message)),
            _ => Ok(()),
        }
    }
}

impl Launcher {
    /// A server that ended at once is the more useful reason.
    async fn why_not_attached(&self, session: &str, process: &str, error: PhaseError) -> PhaseError {
        match self.client.process(session, process).await {
            Ok(info) if info.status == ProcessStatus::Exited => {
                let code = info.exit_code.map_or("unknown".to_owned(), |code| code.to_string());
                let said = info.stderr_preview;
                PhaseError::new(
                    Phase::ProcessStart,
                    format!("the server ended at once (exit code {code}): {said}"),
                )
            }
            _ => error,
        }
    }
}

#[cfg(test)]
#[path = "launch_tests.rs"]
mod tests;
