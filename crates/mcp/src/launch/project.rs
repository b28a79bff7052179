//! The project on the host that a server is part of: where it is, what it needs, how a box gets it.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use sandcrate_host::workspace::{infer_host_path, normalize};

use super::command::Understood;
use super::environments::{make_directory, remove, unique};

/// What a project's manifests ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PythonManifest {
    pub(super) kind: PythonKind,
    /// What decides about the environment, by name.
    pub(super) files: Vec<(&'static str, String)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PythonKind {
    /// Installed as a package.
    Package,
    /// A pyproject.toml that lists dependencies and builds nothing.
    Dependencies,
    Requirements,
}

impl PythonKind {
    pub(super) const fn uv_arguments(self) -> &'static str {
        match self {
            Self::Package => ".",
            Self::Dependencies => "-r pyproject.toml",
            Self::Requirements => "-r requirements.txt",
        }
    }

    pub(super) const fn pip_arguments(self) -> &'static str {
        match self {
            Self::Package | Self::Dependencies => ".",
            Self::Requirements => "-r requirements.txt",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodeManifest {
    /// Without its scripts: they are for the whole project, which is not there.
    pub(super) package: String,
    pub(super) lock: Option<(&'static str, String)>,
}

/// A manifest is a small file; a lock may be a large one.
const MAX_MANIFEST: u64 = 32 << 20;
const PYTHON_FILES: [&str; 5] = ["pyproject.toml", "setup.py", "setup.cfg", "requirements.txt", "uv.lock"];
const MANIFESTS: [&str; 6] =
    ["pyproject.toml", "setup.py", "setup.cfg", "requirements.txt", "uv.lock", "package.json"];
/// How far above a script its manifest is looked for.
const LEVELS: usize = 3;

fn read(directory: &Path, name: &str) -> io::Result<Option<String>> {
    let path = directory.join(name);
    match path.metadata() {
        Ok(meta) if meta.is_file() && meta.len() <= MAX_MANIFEST => {}
        Ok(_) => return Err(io::Error::other(format!("{} is no file of at most 32 MiB", path.display()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    }
    fs::read_to_string(&path)
        .map(Some)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

/// What a Python project needs; nothing without a manifest.
pub(super) fn python_manifest(directory: &Path) -> io::Result<Option<PythonManifest>> {
    let mut files = Vec::new();
    for name in PYTHON_FILES {
        if let Some(content) = read(directory, name)? {
            files.push((name, content));
        }
    }
    let content =
        |name: &str| files.iter().find(|(known, _)| *known == name).map(|(_, content)| content.as_str());
    let table = |wanted: &str| {
        content("pyproject.toml").is_some_and(|text| text.lines().any(|line| line.trim() == wanted))
    };
    let kind = if table("[build-system]") || content("setup.py").is_some() || content("setup.cfg").is_some() {
        PythonKind::Package
    } else if table("[project]") {
        PythonKind::Dependencies
    } else if content("requirements.txt").is_some() {
        PythonKind::Requirements
    } else {
        return Ok(None);
    };
    if kind == PythonKind::Package {
        // The package itself is installed: another source is another environment.
        files.push(("sources", fingerprint(directory)?));
    }
    Ok(Some(PythonManifest { kind, files }))
}

/// What a Node project needs; nothing when it needs nothing, or has its modules with it.
pub(super) fn node_manifest(directory: &Path) -> io::Result<Option<NodeManifest>> {
    let Some(package) = read(directory, "package.json")? else { return Ok(None) };
    if directory.join("node_modules").is_dir() {
        return Ok(None);
    }
    let mut package: serde_json::Value = serde_json::from_str(&package)
        .map_err(|error| io::Error::other(format!("{}/package.json: {error}", directory.display())))?;
    if package["dependencies"].as_object().is_none_or(serde_json::Map::is_empty) {
        return Ok(None);
    }
    if let Some(fields) = package.as_object_mut() {
        fields.remove("scripts");
    }
    let mut lock = None;
    for name in ["package-lock.json", "npm-shrinkwrap.json"] {
        if lock.is_none() {
            lock = read(directory, name)?.map(|content| (name, content));
        }
    }
    Ok(Some(NodeManifest { package: package.to_string(), lock }))
}

/// Histories, caches and environments: never part of what is installed or copied.
const SKIPPED: [&str; 7] =
    [".git", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".venv", "node_modules"];
/// The same as far as a copy goes: what lies in a project may be used by it.
const NOT_COPIED: [&str; 5] = [".git", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache"];
/// More files than this are no project.
const MAX_FILES: usize = 200_000;

fn fingerprint(directory: &Path) -> io::Result<String> {
    let mut lines = Vec::new();
    walk(directory, Path::new(""), &mut lines)?;
    lines.sort();
    Ok(lines.join("\n"))
}

fn walk(directory: &Path, below: &Path, lines: &mut Vec<String>) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt as _;
    for entry in fs::read_dir(directory.join(below))? {
        let entry = entry?;
        let name = entry.file_name();
        if SKIPPED.iter().any(|skipped| name == *skipped) || name.to_string_lossy().ends_with(".egg-info") {
            continue;
        }
        let path = below.join(&name);
        let meta = entry.metadata()?;
        if meta.is_dir() {
            walk(directory, &path, lines)?;
        } else {
            lines.push(format!("{} {} {}.{}", path.display(), meta.len(), meta.mtime(), meta.mtime_nsec()));
        }
        if lines.len() > MAX_FILES {
            return Err(io::Error::other(
                "a project with more than 200000 files: name a smaller one with --project",
            ));
        }
    }
    Ok(())
}

/// Where the project of a command is, when nobody says. `cwd` is where relative paths start.
pub(crate) fn locate(
    understood: &Understood,
    command: &str,
    args: &[String],
    cwd: &Path,
    home: Option<&Path>,
    roots: &[PathBuf],
) -> Option<PathBuf> {
    if let Understood::UvRun { directory, .. } = understood {
        return cwd.join(directory.as_deref().unwrap_or(".")).canonicalize().ok();
    }
    if matches!(understood, Understood::Npm { .. } | Understood::Tool { .. }) {
        return None;
    }
    let absolute = |text: &str| {
        let path = cwd.join(text);
        if path.is_file() { path.to_string_lossy().into_owned() } else { text.to_owned() }
    };
    let program = if command.contains('/') { absolute(command) } else { command.to_owned() };
    let script = understood.script().map(absolute);
    let alone: Vec<String> = script.iter().cloned().collect();
    let named: Vec<String> = args.iter().cloned().chain(script).collect();
    // A place where somebody keeps everything is no project, whatever lies in it.
    let narrow = |found: String| {
        let found = PathBuf::from(found);
        let wide = home.is_some_and(|home| home.starts_with(&found))
            || ["/tmp", "/var", "/home", "/opt", "/srv", "/root", "/mnt", "/media", "/var/tmp"]
                .iter()
                .any(|place| found == Path::new(place));
        (!wide).then_some(found)
    };
    let inferred = infer_host_path(&program, &named, roots)
        .and_then(narrow)
        .or_else(|| infer_host_path(&program, &alone, roots).and_then(narrow))
        // An environment that lies elsewhere has its own way into the box.
        .or_else(|| infer_host_path(alone.first()?, &[], roots).and_then(narrow));
    let found = inferred.or_else(|| {
        // `python -m server` in the project's own directory.
        let of_module = matches!(understood, Understood::Python { .. }) && args.iter().any(|arg| arg == "-m");
        let cwd = cwd.canonicalize().ok().filter(|_| of_module && has_manifest(cwd))?;
        narrow(cwd.to_string_lossy().into_owned())
    })?;
    let above = found.ancestors().take(LEVELS).find(|directory| has_manifest(directory));
    let above = above.and_then(|directory| narrow(directory.to_string_lossy().into_owned()));
    Some(above.unwrap_or(found))
}

fn has_manifest(directory: &Path) -> bool {
    MANIFESTS.iter().any(|name| directory.join(name).is_file())
}

/// The directory that a configuration names.
pub(super) fn configured(path: &str, cwd: &Path) -> Result<PathBuf, String> {
    let path = cwd.join(path.trim());
    let found = PathBuf::from(normalize(&path.to_string_lossy()));
    if found.is_dir() {
        Ok(found)
    } else {
        Err(format!("MCP host_path does not exist or is not a directory: {}", path.display()))
    }
}

/// A copy of a project that one server has for itself, until it is dropped.
#[derive(Debug)]
pub(super) struct StagedCopy {
    pub(super) path: PathBuf,
    lock_path: PathBuf,
    /// Tells others that this copy is in use; goes with the process.
    _lock: File,
}

impl StagedCopy {
    pub(super) fn make(cache: &Path, project: &Path) -> io::Result<Self> {
        let staging = cache.join("staging");
        make_directory(&staging)?;
        sweep(&staging);
        let path = staging.join(unique());
        let lock_path = path.with_extension("lock");
        let lock = File::create_new(&lock_path)?;
        lock.try_lock().map_err(io::Error::other)?;
        let copy = Self { path, lock_path, _lock: lock };
        make_directory(&copy.path)?;
        let mut files = 0;
        copy_tree(project, &copy.path, &mut files)?;
        Ok(copy)
    }
}

impl Drop for StagedCopy {
    fn drop(&mut self) {
        remove(&self.path);
        let _ = fs::remove_file(&self.lock_path);
    }
}

/// Removes the copies of processes that are gone: who is gone is told by the lock.
fn sweep(staging: &Path) {
    let Ok(entries) = fs::read_dir(staging) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.extension().is_none_or(|extension| extension != "lock") {
            continue;
        }
        let Ok(lock) = File::open(&path) else { continue };
        match lock.try_lock() {
            Ok(()) => {
                remove(&path.with_extension(""));
                let _ = fs::remove_file(&path);
            }
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => {}
        }
    }
}

/// Links stay links; what is neither file, directory nor link stays behind.
fn copy_tree(from: &Path, to: &Path, files: &mut usize) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name();
        if NOT_COPIED.iter().any(|skipped| name == *skipped) {
            continue;
        }
        *files += 1;
        if *files > MAX_FILES {
            return Err(io::Error::other(
                "a project with more than 200000 files: name a smaller one with --project",
            ));
        }
        let (source, target) = (entry.path(), to.join(&name));
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(&source)?, &target)?;
        } else if kind.is_dir() {
            fs::create_dir(&target)?;
            copy_tree(&source, &target, files)?;
        } else if kind.is_file() {
            fs::copy(&source, &target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "project_tests.rs"]
mod tests;
