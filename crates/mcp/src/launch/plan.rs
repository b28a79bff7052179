//! From a server's configuration to the process in its box: program, arguments, variables, mounts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use sandcrate_host::workspace::{rewrite_argument, rewrite_venv_command};
use sandcrate_protocol::{MountMode, MountSpec};

use super::command::{Understood, is_python};
use super::environments::mount_path;
use super::install::InstallBox;
use super::missing::{self, MountBy};
use super::project::{self, StagedCopy};
use super::recipe::{self, Recipe};
use super::tools::Tool;
use super::{Launcher, search_path};
use crate::{Phase, PhaseError, Progress, ServerConfig};

/// What is to be started.
#[derive(Debug, Default)]
pub(super) struct Planned {
    pub(super) program: String,
    pub(super) args: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) cwd: String,
    pub(super) mounts: Vec<MountSpec>,
    pub(super) copy: Option<StagedCopy>,
}

fn staging(message: impl Into<String>) -> PhaseError {
    PhaseError::new(Phase::Staging, message)
}

fn dep_install(message: impl Into<String>) -> PhaseError {
    PhaseError::new(Phase::DepInstall, message)
}

/// Where a server's project is in its box.
pub(super) fn project_mount(process: &str) -> String {
    let name: String = process
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') { c } else { '-' })
        .collect();
    format!("/workspace/.mcp/{name}/workspace")
}

/// A project as the box has it.
struct Staged {
    host: String,
    mount: String,
    directory: PathBuf,
}

impl Launcher {
    /// Stages and installs; nothing of the server runs.
    pub(super) async fn plan(
        &self,
        server: &ServerConfig,
        process: &str,
        understood: Understood,
        install: &mut InstallBox<'_>,
        progress: &dyn Progress,
    ) -> Result<Planned, PhaseError> {
        let in_image = server.settings.image.is_some();
        let mut planned = Planned { cwd: "/workspace".to_owned(), ..Planned::default() };
        planned.mounts.clone_from(&server.settings.mounts);
        let staged = self.stage(server, process, &understood, &mut planned).await?;
        install.project = staged.as_ref().map(|staged| staged.directory.clone());
        let mut path = Vec::new();
        let mut tools: Vec<Tool> = Vec::new();
        match understood {
            Understood::Npm { packages, program, args } => {
                let recipe = recipe::npm(&packages, &*self.config.toolbox).map_err(dep_install)?;
                let environment = self.environment(&recipe, install, progress).await?;
                let name = match program {
                    Some(name) => name,
                    None => recipe::npm_program(&environment).map_err(dep_install)?,
                };
                planned.program =
                    recipe::program_in(&environment, &recipe.key, &name).map_err(dep_install)?;
                planned.args = args;
                self.use_environment(&recipe, &environment, &mut planned, &mut path)?;
                tools.extend(recipe.tools);
            }
            Understood::Tool { package, with, python, program, args } => {
                let recipe = recipe::tool(&package, &with, python.as_deref(), &*self.config.toolbox)
                    .map_err(dep_install)?;
                let environment = self.environment(&recipe, install, progress).await?;
                planned.program =
                    recipe::program_in(&environment, &recipe.key, &program).map_err(dep_install)?;
                planned.args = args;
                self.use_environment(&recipe, &environment, &mut planned, &mut path)?;
                tools.extend(recipe.tools);
            }
            Understood::Python { interpreter, args } => {
                let own =
                    self.config.toolbox.find(&interpreter).filter(|_| is_in_venv(&interpreter) && !in_image);
                if let Some(tool) = own {
                    // A real environment of the user's, with what stands in it.
                    planned.program = interpreter;
                    tools.push(tool);
                } else {
                    // An interpreter that boxes have is the one that is meant; another is known by its name.
                    let name = match self.config.toolbox.find(&interpreter) {
                        Some(_) if !is_in_venv(&interpreter) => interpreter.clone(),
                        _ => file_name(&interpreter),
                    };
                    self.in_project_environment(
                        &name,
                        staged.as_ref(),
                        install,
                        &mut planned,
                        &mut path,
                        &mut tools,
                        progress,
                    )
                    .await?;
                }
                planned.args = args;
            }
            Understood::UvRun { args, .. } => {
                self.in_project_environment(
                    "python3",
                    staged.as_ref(),
                    install,
                    &mut planned,
                    &mut path,
                    &mut tools,
                    progress,
                )
                .await?;
                let first = args.first().cloned().unwrap_or_default();
                planned.args = args;
                if !first.ends_with(".py") {
                    planned.args.remove(0);
                    if !is_python(&first) {
                        // A program of the environment, or of the box.
                        planned.program = match planned.program.strip_suffix("/python") {
                            Some(bin) if bin.starts_with('/') => format!("{bin}/{first}"),
                            _ => first,
                        };
                    }
                }
            }
            Understood::Node { program, args } => {
                let manifest = staged.as_ref().map(|staged| project::node_manifest(&staged.directory));
                let manifest =
                    manifest.transpose().map_err(|error| dep_install(error.to_string()))?.flatten();
                if let (Some(manifest), Some(staged)) = (manifest, &staged) {
                    let recipe =
                        recipe::npm_project(&manifest, &*self.config.toolbox).map_err(dep_install)?;
                    let environment = self.environment(&recipe, install, progress).await?;
                    let modules = utf8(&environment.join("node_modules"))?;
                    // Node looks for modules in every directory above the script.
                    let beside = staged.mount.trim_end_matches("/workspace");
                    planned.mounts.push(MountSpec::new(
                        modules,
                        format!("{beside}/node_modules"),
                        MountMode::Ro,
                    ));
                }
                tools.extend(self.config.toolbox.find(&program));
                planned.program = program;
                planned.args = args;
            }
            Understood::Other { program, args } => {
                let absolute = if program.contains('/') {
                    self.config.cwd.join(&program).to_string_lossy().into_owned()
                } else {
                    program
                };
                tools.extend(self.config.toolbox.find(&absolute));
                planned.program = absolute;
                planned.args = args;
            }
        }
        if let Some(staged) = &staged {
            self.rewrite(staged, &mut planned);
            let covered = |mount: &MountSpec| {
                mount.mount_path.starts_with(&format!("{}/", staged.host)) || mount.mount_path == staged.host
            };
            if planned.program.starts_with(&staged.mount) {
                tools.iter_mut().for_each(|tool| tool.mounts.retain(|mount| !covered(mount)));
            }
        }
        for tool in &tools {
            path.extend(tool.path.iter().cloned());
            planned.mounts.extend(tool.mounts.iter().cloned());
        }
        let mut seen = std::collections::BTreeSet::new();
        planned.mounts.retain(|mount| seen.insert(mount.mount_path.clone()));
        planned.env.extend(server.settings.env.clone());
        planned.env.extend(server.env.clone());
        if !in_image && !path.is_empty() {
            let own = planned.env.get("PATH").cloned();
            planned.env.insert("PATH".to_owned(), search_path(path, own.as_deref()));
        }
        let by = self.config.mount_by;
        // What an image has cannot be told from here, and nobody looks for a managed server.
        if !in_image || by == MountBy::Flag {
            let notes =
                planned.args.iter().filter_map(|argument| missing::note(argument, &planned.mounts, by));
            notes.for_each(|note| progress.note(&note));
        }
        Ok(planned)
    }

    /// Finds the project and makes it part of the box.
    async fn stage(
        &self,
        server: &ServerConfig,
        process: &str,
        understood: &Understood,
        planned: &mut Planned,
    ) -> Result<Option<Staged>, PhaseError> {
        let config = &self.config;
        let directory = match &server.settings.host_path {
            Some(path) if !path.trim().is_empty() => {
                Some(project::configured(path, &config.cwd).map_err(staging)?)
            }
            _ => project::locate(
                understood,
                &server.command,
                &server.args,
                &config.cwd,
                config.home.as_deref(),
                &config.roots,
            ),
        };
        let mode = server.settings.host_path_mode.as_str();
        let Some(directory) = directory.filter(|_| mode != "none") else { return Ok(None) };
        // Before anything of it is looked at.
        let (projects, asked, how) = (config.projects.clone(), directory.clone(), mode.to_owned());
        let checked = tokio::task::spawn_blocking(move || projects.check(&asked, &how)).await;
        checked
            .map_err(|error| error.to_string())
            .flatten()
            .map_err(|error| staging(format!("{}: {error}", directory.display())))?;
        let (host, mount) = (utf8(&directory)?, project_mount(process));
        let (source, mode) = match mode {
            "ro" => (host.clone(), MountMode::Ro),
            "rw" => (host.clone(), MountMode::Rw),
            "copy" => {
                let (cache, from) = (config.cache_dir.clone(), directory.clone());
                let copied = tokio::task::spawn_blocking(move || StagedCopy::make(&cache, &from)).await;
                let copied = copied.map_err(|error| staging(error.to_string()))?;
                let copy = copied.map_err(|error| staging(format!("{host} cannot be copied: {error}")))?;
                let source = utf8(&copy.path)?;
                planned.copy = Some(copy);
                (source, MountMode::Rw)
            }
            other => {
                return Err(staging(format!("host_path_mode `{other}`: it is one of ro, rw, copy and none")));
            }
        };
        planned.mounts.push(MountSpec::new(source, mount.clone(), mode));
        planned.cwd = match config
            .cwd
            .canonicalize()
            .ok()
            .and_then(|cwd| cwd.strip_prefix(&directory).ok().map(Path::to_owned))
        {
            Some(below) if !below.as_os_str().is_empty() => format!("{mount}/{}", below.display()),
            _ => mount.clone(),
        };
        Ok(Some(Staged { host, mount, directory }))
    }

    /// Python in what the project's manifests ask for; the plain interpreter when there are none.
    #[expect(clippy::too_many_arguments, reason = "the parts of one plan")]
    async fn in_project_environment(
        &self,
        interpreter: &str,
        staged: Option<&Staged>,
        install: &InstallBox<'_>,
        planned: &mut Planned,
        path: &mut Vec<String>,
        tools: &mut Vec<Tool>,
        progress: &dyn Progress,
    ) -> Result<(), PhaseError> {
        let manifest = staged.map(|staged| project::python_manifest(&staged.directory));
        let manifest = manifest.transpose().map_err(|error| dep_install(error.to_string()))?.flatten();
        let toolbox = &*self.config.toolbox;
        let Some(manifest) = manifest else {
            // A machine with python3 may have no `python`.
            let name = if toolbox.find(interpreter).is_some() || toolbox.find("python3").is_none() {
                interpreter
            } else {
                "python3"
            };
            tools.extend(toolbox.find(name));
            planned.program = name.to_owned();
            return Ok(());
        };
        let recipe = recipe::python_project(&manifest, interpreter, toolbox).map_err(dep_install)?;
        let environment = self.environment(&recipe, install, progress).await?;
        planned.program = format!("{}/venv/bin/python", mount_path(&recipe.key));
        self.use_environment(&recipe, &environment, planned, path)?;
        tools.extend(recipe.tools);
        Ok(())
    }

    fn use_environment(
        &self,
        recipe: &Recipe,
        environment: &Path,
        planned: &mut Planned,
        path: &mut Vec<String>,
    ) -> Result<(), PhaseError> {
        let mount = mount_path(&recipe.key);
        planned.mounts.push(MountSpec::new(utf8(environment)?, mount.clone(), MountMode::Ro));
        for bin in ["bin", "venv/bin", "node_modules/.bin"] {
            if environment.join(bin).is_dir() {
                path.push(format!("{mount}/{bin}"));
            }
        }
        Ok(())
    }

    /// Paths of the host become paths of the box; a script that is named from our own directory too.
    fn rewrite(&self, staged: &Staged, planned: &mut Planned) {
        let (host, mount) = (&staged.host, &staged.mount);
        if !is_in_venv(&planned.program) || planned.program.starts_with(mount) {
            planned.program = rewrite_venv_command(&planned.program, host, mount);
        }
        for argument in &mut planned.args {
            let named = self.config.cwd.join(&*argument);
            let is_script = !argument.starts_with(['-', '/']) && named.is_file();
            if is_script {
                let rewritten = rewrite_argument(&named.to_string_lossy(), host, mount);
                if rewritten.starts_with(mount) {
                    *argument = rewritten;
                }
            } else {
                *argument = rewrite_argument(argument, host, mount);
            }
        }
    }
}

/// Whether a path is that of an interpreter in a virtual environment that is there.
fn is_in_venv(interpreter: &str) -> bool {
    let venv = Path::new(interpreter).parent().and_then(Path::parent);
    interpreter.starts_with('/') && venv.is_some_and(|venv| venv.join("pyvenv.cfg").is_file())
}

fn file_name(path: &str) -> String {
    Path::new(path).file_name().map_or("python3".to_owned(), |name| name.to_string_lossy().into_owned())
}

fn utf8(path: &Path) -> Result<String, PhaseError> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| staging(format!("the path {} is not UTF-8", path.display())))
}
