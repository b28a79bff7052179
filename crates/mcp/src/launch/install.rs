//! Makes environments, each in an install box of its own: a network, none of the client's variables, and of the host
//! the tools, the index settings and a directory to fill.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::time::Duration;

use sandcrate_host::HostError;
use sandcrate_protocol::network::NetworkRequest;
use sandcrate_protocol::{BoxSpec, MountMode, MountSpec, ProcessSpec};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use super::environments::{Building, mount_path, unique};
use super::recipe::{INSTALL_PROJECT, Recipe};
use super::session::SessionGuard;
use super::{Launcher, search_path};
use crate::{Phase, PhaseError, Progress};

/// Lines of an install's output that are kept for its failure.
const KEPT_LINES: usize = 40;
/// Of them so much is told.
const SHOWN_CHARS: usize = 1500;
/// A line longer than this is cut: it is for people.
const SHOWN_LINE: usize = 200;
const PROCESS: &str = "install";

/// What the server's settings say of installs.
#[derive(Debug, Clone)]
pub(super) struct InstallBox<'a> {
    pub(super) image: Option<&'a str>,
    pub(super) network: NetworkRequest,
    pub(super) project: Option<PathBuf>,
}

fn failed(message: impl Into<String>) -> PhaseError {
    PhaseError::new(Phase::DepInstall, message)
}

impl Launcher {
    /// The environment of a recipe: the one there is, or a new one.
    pub(super) async fn environment(
        &self,
        recipe: &Recipe,
        install: &InstallBox<'_>,
        progress: &dyn Progress,
    ) -> Result<PathBuf, PhaseError> {
        let key = &recipe.key;
        if let Some(ready) = self.environments.ready(key).filter(|_| !self.config.reinstall) {
            return Ok(ready);
        }
        let unusable = |error: std::io::Error| {
            let place = self.config.cache_dir.display();
            failed(format!("the cache directory {place} cannot be used: {error}"))
        };
        let waits = || progress.say(&format!("another process installs {}; waiting for it", recipe.what));
        let lock = self.environments.lock(key, waits).await.map_err(unusable)?;
        if let Some(ready) = self.environments.ready(key).filter(|_| !self.config.reinstall) {
            return Ok(ready);
        }
        progress.say(&format!("installing {} (once; the next start has it)", recipe.what));
        let building = self.environments.begin(key, &lock).map_err(unusable)?;
        for (name, content) in &recipe.files {
            std::fs::write(building.path.join(name), content).map_err(unusable)?;
        }
        let built = self.build(recipe, &building, install, progress);
        let limit = self.config.install_timeout;
        match tokio::time::timeout(limit, built).await {
            Ok(built) => built?,
            Err(_) => {
                let message = format!("the install did not end within {} s", limit.as_secs());
                return Err(failed(message));
            }
        }
        let published = self.environments.publish(key, building, &lock).map_err(unusable)?;
        progress.say(&format!("installed {}", recipe.what));
        Ok(published)
    }

    async fn build(
        &self,
        recipe: &Recipe,
        building: &Building,
        install: &InstallBox<'_>,
        progress: &dyn Progress,
    ) -> Result<(), PhaseError> {
        let place =
            building.path.to_str().ok_or_else(|| failed("the cache directory's path is not UTF-8"))?;
        let session = format!("mcp-install-{}", unique());
        let mut spec = BoxSpec::new(session.clone());
        if let Some(image) = install.image {
            spec.image = image.to_owned();
        }
        (spec.memory_mb, spec.cpus, spec.pids_limit) = (self.config.install_memory_mb, 2.0, 512);
        spec.extra_mounts.push(MountSpec::new(place, mount_path(&recipe.key), MountMode::Rw));
        if let Some(project) = install.project.as_ref().filter(|_| recipe.needs_project) {
            spec.extra_mounts.push(MountSpec::new(project.to_string_lossy(), INSTALL_PROJECT, MountMode::Ro));
        }
        for mount in recipe.tools.iter().flat_map(|tool| &tool.mounts).chain(&self.config.install_mounts) {
            if !spec.extra_mounts.iter().any(|known| known.mount_path == mount.mount_path) {
                spec.extra_mounts.push(mount.clone());
            }
        }
        let not_made = |error: HostError| failed(format!("the install box cannot be made: {error}"));
        // Before it is there: whoever gives up meanwhile leaves it to the guard.
        let guard = SessionGuard::new(self, session.clone());
        self.client.create_session_on(&spec, &install.network).await.map_err(not_made)?;
        let mut process = ProcessSpec::new("sh");
        process.process_id = PROCESS.to_owned();
        process.args = vec![
            "-c".to_owned(),
            format!("set -e\nexec 2>&1 </dev/null\nmkdir -p \"$TMPDIR\"\n{}", recipe.script),
        ];
        process.args.push("install".to_owned());
        process.args.extend(recipe.args.iter().cloned());
        process.env = self.install_variables(recipe, install.image.is_some());
        self.client.start_process(&session, &process).await.map_err(not_made)?;
        let streams = self.client.attach(&session, PROCESS).await.map_err(not_made)?;
        let mut kept: VecDeque<String> = VecDeque::new();
        let mut lines = BufReader::new(streams.reader).split(b'\n');
        while let Some(line) = lines.next_segment().await.map_err(|error| failed(error.to_string()))? {
            let line = String::from_utf8_lossy(&line);
            let line: String = line.chars().filter(|c| !c.is_control()).take(SHOWN_LINE).collect();
            if line.trim().is_empty() {
                continue;
            }
            progress.say(&line);
            if kept.len() == KEPT_LINES {
                kept.pop_front();
            }
            kept.push_back(line);
        }
        let ended = self.client.process(&session, PROCESS).await.map_err(not_made)?;
        guard.end().await;
        match ended.exit_code {
            Some(0) => Ok(()),
            code => {
                let code = code.map_or("none".to_owned(), |code| code.to_string());
                let said = kept.make_contiguous().join("\n");
                let skip = said.chars().count().saturating_sub(SHOWN_CHARS);
                let said: String = said.chars().skip(skip).collect();
                Err(failed(format!("Dependency install failed (exit code {code}): {said}")))
            }
        }
    }

    /// The index settings, and where things are put.
    fn install_variables(&self, recipe: &Recipe, in_image: bool) -> BTreeMap<String, String> {
        let mut env = self.config.install_env.clone();
        let place = mount_path(&recipe.key);
        let mut set = |name: &str, value: String| env.insert(name.to_owned(), value);
        set("ENV", place.clone());
        set("PROJECT", INSTALL_PROJECT.to_owned());
        // A box's /tmp is small and counts as memory.
        set("TMPDIR", "/workspace/.tmp".to_owned());
        set("UV_CACHE_DIR", "/workspace/.uv-cache".to_owned());
        set("UV_LINK_MODE", "copy".to_owned());
        set("UV_COMPILE_BYTECODE", "1".to_owned());
        set("UV_NO_PROGRESS", "1".to_owned());
        set("UV_TOOL_DIR", format!("{place}/tools"));
        set("UV_TOOL_BIN_DIR", format!("{place}/bin"));
        set("UV_PYTHON_INSTALL_DIR", format!("{place}/python"));
        set("UV_PROJECT_ENVIRONMENT", format!("{place}/venv"));
        set("PIP_DISABLE_PIP_VERSION_CHECK", "1".to_owned());
        set("PIP_PROGRESS_BAR", "off".to_owned());
        set("npm_config_cache", "/workspace/.npm-cache".to_owned());
        set("npm_config_update_notifier", "false".to_owned());
        if !in_image {
            set("PATH", search_path(recipe.tools.iter().flat_map(|tool| tool.path.iter().cloned()), None));
        }
        env
    }
}

/// Long enough for a slow network and a compiler.
pub(super) const INSTALL_TIMEOUT: Duration = Duration::from_secs(900);
