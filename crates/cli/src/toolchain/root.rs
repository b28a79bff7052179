//! Which piece of the host belongs to a program: its installation prefix, its directory, or the file alone.
//!
//! A prefix is taken only when it looks like one of its own; places where people keep everything (homes, /opt,
//! /tmp) are never shown as a whole.

use std::path::{Path, PathBuf};

use super::ToolRoot;

/// Present in every box from the host.
const SYSTEM: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];

/// Never mounted by this search, nor anything below: the box has its own, or mount rules refuse them.
const NEVER: [&str; 6] = ["/etc", "/proc", "/sys", "/dev", "/run", "/boot"];

/// Places that hold more than one installation: never mounted themselves.
const SHARED: [&str; 12] = [
    "/",
    "/root",
    "/home",
    "/opt",
    "/srv",
    "/var",
    "/var/lib",
    "/var/tmp",
    "/tmp",
    "/mnt",
    "/media",
    "/workspace",
];

/// What marks a directory with a `bin` as an installation of its own.
const PREFIX_MARKS: [&str; 4] = ["lib", "share", "include", "pyvenv.cfg"];

pub(super) fn is_system(path: &Path) -> bool {
    SYSTEM.iter().any(|prefix| path.starts_with(prefix))
}

/// Whether a box looks into this directory anyway.
pub(super) fn is_on_box_path(dir: &Path) -> bool {
    std::env::split_paths(sandcrate_backend_native::DEFAULT_PATH).any(|known| known == dir)
}

/// What to mount for `program`, an absolute path; `None` when the box has it already or must not have it.
pub(super) fn root_of(program: &Path, home: Option<&Path>) -> Option<PathBuf> {
    if is_system(program) || NEVER.iter().any(|prefix| program.starts_with(prefix)) {
        return None;
    }
    let dir = program.parent()?;
    if dir.file_name().is_some_and(|name| name == "bin" || name == "sbin" || name == "libexec")
        && let Some(prefix) = dir.parent()
        && !is_shared(prefix, home)
        && PREFIX_MARKS.iter().any(|mark| prefix.join(mark).exists())
    {
        return Some(prefix.to_owned());
    }
    if is_shared(dir, home) { Some(program.to_owned()) } else { Some(dir.to_owned()) }
}

/// A place where somebody keeps more than this program.
fn is_shared(dir: &Path, home: Option<&Path>) -> bool {
    SHARED.iter().any(|place| dir == Path::new(place))
        || dir.parent() == Some(Path::new("/home"))
        || home.is_some_and(|home| dir == home || home.starts_with(dir))
        || dir.ends_with(".local")
}

/// The `bin` directory of the Python that a virtual environment was made from.
pub(super) fn venv_base(root: &Path) -> Option<PathBuf> {
    let text = std::fs::read_to_string(root.join("pyvenv.cfg")).ok()?;
    let home = text.lines().find_map(|line| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == "home").then(|| PathBuf::from(value.trim()))
    })?;
    home.is_absolute().then_some(home)
}

/// Removes roots that another one already shows, at the same place and from the same source.
pub(super) fn drop_covered(roots: &mut Vec<ToolRoot>) {
    let all = roots.clone();
    roots.retain(|root| {
        !all.iter().any(|other| {
            other != root
                && root
                    .path
                    .strip_prefix(&other.path)
                    .is_ok_and(|rest| other.source.join(rest) == root.source)
        })
    });
}
