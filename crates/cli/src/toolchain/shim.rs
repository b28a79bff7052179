//! Shims of version managers: small scripts (or one proxy binary) that pick a version at run time.
//!
//! In a box neither the manager nor its configuration is there, so the choice is made here, by the same rules
//! as far as they are simple: the manager's variable, the project's version file, the global one.

use std::path::{Path, PathBuf};

use super::{Surroundings, is_program};

/// What a path turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// No shim.
    Not,
    /// A shim that would start this.
    Program(PathBuf),
    /// A shim that would start nothing we can find.
    Unknown,
}

/// A manager with `shims` beside `versions`.
struct Manager {
    variable: &'static str,
    project_file: &'static str,
}

const MANAGERS: [Manager; 4] = [
    Manager { variable: "PYENV_VERSION", project_file: ".python-version" },
    Manager { variable: "RBENV_VERSION", project_file: ".ruby-version" },
    Manager { variable: "NODENV_VERSION", project_file: ".node-version" },
    Manager { variable: "GOENV_VERSION", project_file: ".go-version" },
];

pub(super) fn target(path: &Path, around: &Surroundings) -> Target {
    let (Some(name), Some(dir)) = (path.file_name(), path.parent()) else { return Target::Not };
    if dir.ends_with("shims")
        && let Some(root) = dir.parent()
    {
        let program = if root.join("versions").is_dir() {
            chosen_versions(root, around)
                .iter()
                .find_map(|version| program_in(&root.join("versions"), version, name))
        } else if root.join("installs").is_dir() {
            installed(&root.join("installs"), name, around)
        } else {
            return Target::Not;
        };
        return program.map_or(Target::Unknown, Target::Program);
    }
    if path.canonicalize().is_ok_and(|real| real.file_name().is_some_and(|real| real == "rustup"))
        && name != "rustup"
    {
        return rustup(name, around).map_or(Target::Unknown, Target::Program);
    }
    Target::Not
}

/// The versions that a manager at `root` would try, in order.
fn chosen_versions(root: &Path, around: &Surroundings) -> Vec<String> {
    let name = root.file_name().map(|name| name.to_string_lossy().to_uppercase()).unwrap_or_default();
    let manager = MANAGERS.iter().find(|manager| {
        manager.variable.strip_suffix("_VERSION").is_some_and(|known| name.trim_start_matches('.') == known)
    });
    if let Some(chosen) = manager.and_then(|manager| around.var(manager.variable)) {
        return chosen.split(':').map(str::to_owned).collect();
    }
    let project = manager.and_then(|manager| {
        around.cwd.ancestors().map(|dir| dir.join(manager.project_file)).find(|file| file.is_file())
    });
    let text = std::fs::read_to_string(project.unwrap_or_else(|| root.join("version"))).unwrap_or_default();
    text.lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim().to_owned())
        .filter(|v| !v.is_empty())
        .collect()
}

/// The program of that name in a version, which may be given by its beginning (`3.11`).
fn program_in(versions: &Path, version: &str, name: &std::ffi::OsStr) -> Option<PathBuf> {
    // A version is one path component; anything else would lead elsewhere.
    if version.contains('/') || version.starts_with('.') {
        return None;
    }
    let exact = versions.join(version).join("bin").join(name);
    if is_program(&exact) {
        return Some(exact);
    }
    let beginning = format!("{version}.");
    newest(versions, |candidate| candidate.starts_with(&beginning))
        .map(|dir| dir.join("bin").join(name))
        .filter(|program| is_program(program))
}

/// asdf and mise: `installs/PLUGIN/VERSION/bin/NAME`; the version by `.tool-versions`, else the newest.
fn installed(installs: &Path, name: &std::ffi::OsStr, around: &Surroundings) -> Option<PathBuf> {
    let plugins = std::fs::read_dir(installs).ok()?.flatten().map(|entry| entry.path());
    let has = |dir: &Path| is_program(&dir.join("bin").join(name));
    plugins.into_iter().find_map(|plugin| {
        let plugin_name = plugin.file_name()?.to_string_lossy().into_owned();
        let wanted = around
            .cwd
            .ancestors()
            .chain(around.home.as_deref())
            .filter_map(|dir| std::fs::read_to_string(dir.join(".tool-versions")).ok())
            .find_map(|text| {
                let line = text.lines().find(|line| line.split_whitespace().next() == Some(&plugin_name))?;
                line.split_whitespace().nth(1).map(|version| plugin.join(version))
            });
        let dir = wanted
            .filter(|dir| has(dir))
            .or_else(|| newest(&plugin, |version| has(&plugin.join(version))))?;
        Some(dir.join("bin").join(name))
    })
}

/// rustup's proxies: the toolchain by variable, else the default one.
fn rustup(name: &std::ffi::OsStr, around: &Surroundings) -> Option<PathBuf> {
    let home = around
        .var("RUSTUP_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(around.home.as_ref()?.join(".rustup")))?;
    let settings = std::fs::read_to_string(home.join("settings.toml")).unwrap_or_default();
    let default = settings.lines().find_map(|line| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == "default_toolchain").then(|| value.trim().trim_matches('"').to_owned())
    });
    let wanted = around.var("RUSTUP_TOOLCHAIN").map(str::to_owned).or(default)?;
    let toolchains = home.join("toolchains");
    // `stable` is installed as `stable-x86_64-unknown-linux-gnu`.
    let beginning = format!("{wanted}-");
    let dir = newest(&toolchains, |known| known == wanted || known.starts_with(&beginning))?;
    Some(dir.join("bin").join(name)).filter(|program| is_program(program))
}

/// The directory below `dir` with the highest version among those whose name is `fit`.
fn newest(dir: &Path, fit: impl Fn(&str) -> bool) -> Option<PathBuf> {
    let names =
        std::fs::read_dir(dir).ok()?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| fit(name)).max_by_key(|name| version_key(name)).map(|name| dir.join(name))
}

/// Orders `3.9.1` before `3.10`; parts that are no number count as lower.
fn version_key(version: &str) -> Vec<u64> {
    version.split(['.', '-', '+']).map(|part| part.trim_start_matches('v').parse().unwrap_or(0)).collect()
}
