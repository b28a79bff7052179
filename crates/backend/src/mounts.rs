//! Which host paths may appear in a box, and where.
//!
//! Pure rules on the text of paths. They do not look at the disk: a caller hands in a source after resolving it
//! (by opening, see the security notes), and holds on to what it opened. Which of the remaining sources are
//! allowed is the configuration's business; what is refused here is refused whatever the configuration says.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use crate::{BackendError, Mount};

/// Every mount costs the box a kernel object and the daemon an fd while it starts.
pub const MAX_MOUNTS: usize = 64;
/// The kernel's PATH_MAX without the closing NUL.
pub const MAX_PATH_BYTES: usize = 4095;
/// The kernel's NAME_MAX.
const MAX_NAME_BYTES: usize = 255;

/// Refused with everything below; `/lib*` is matched by prefix.
const SYSTEM_TREES: [&str; 10] =
    ["/usr", "/bin", "/sbin", "/etc", "/proc", "/sys", "/dev", "/boot", "/run", "/var/run"];

/// Whoever holds these controls every container of the machine.
const ENGINE_TREES: [&str; 10] = [
    "/var/lib/docker",
    "/var/lib/containers",
    "/var/lib/containerd",
    "/var/lib/kubelet",
    "/var/lib/rancher",
    "/var/lib/buildkit",
    "/var/lib/lxc",
    "/var/lib/lxd",
    "/var/lib/incus",
    "/var/snap/docker",
];

/// Data of rootless engines, below a home.
const ENGINE_HOME_TREES: [&str; 2] = [".local/share/docker", ".local/share/containers"];

/// Engine sockets lie anywhere the operator likes; their names are fixed.
const ENGINE_SOCKETS: [&str; 6] =
    ["docker.sock", "podman.sock", "containerd.sock", "crio.sock", "buildkitd.sock", "dockershim.sock"];

/// Too wide as a whole; what lies below is for the configuration to allow.
const BARE: [&str; 6] = ["/root", "/home", "/opt", "/var", "/var/lib", "/srv"];

/// Places of the box that are Sandcrate's, with everything below.
const RESERVED_TREES: [&str; 14] = [
    "/proc", "/dev", "/sys", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/run",
    "/boot", "/var/run",
];

/// Why the host path may never be mounted; `None` when only the configuration has a say.
///
/// `canonical` is absolute and free of links; `own_state` are the directories of this and other instances, in
/// the same form. A parent of a state directory is refused as well: it would show what lies below.
pub fn refused_source(canonical: &Path, own_state: &[PathBuf]) -> Option<String> {
    if !canonical.is_absolute() || canonical.components().any(|part| part == Component::ParentDir) {
        return Some("the path is not absolute and resolved".to_owned());
    }
    if canonical == Path::new("/") {
        return Some("the host's root is never shared".to_owned());
    }
    let first = canonical.components().nth(1).map(|part| part.as_os_str().as_bytes());
    if first.is_some_and(|name| name.starts_with(b"lib")) {
        return Some("/lib* belongs to the host's system".to_owned());
    }
    if let Some(tree) = SYSTEM_TREES.iter().find(|tree| canonical.starts_with(tree)) {
        return Some(format!("{tree} belongs to the host's system"));
    }
    if let Some(tree) = ENGINE_TREES.iter().find(|tree| canonical.starts_with(tree)) {
        return Some(format!("{tree} belongs to a container engine"));
    }
    if ENGINE_HOME_TREES.iter().any(|tree| has_run(canonical, Path::new(tree))) {
        return Some("it belongs to a rootless container engine".to_owned());
    }
    if canonical
        .file_name()
        .is_some_and(|name| ENGINE_SOCKETS.iter().any(|socket| OsStr::new(socket) == name))
    {
        return Some("it is the socket of a container engine".to_owned());
    }
    if own_state.iter().any(|state| canonical.starts_with(state)) {
        return Some("it belongs to Sandcrate's own state".to_owned());
    }
    if own_state.iter().any(|state| state.starts_with(canonical)) {
        return Some("it contains Sandcrate's own state".to_owned());
    }
    if let Some(bare) = BARE.iter().find(|bare| canonical == Path::new(bare)) {
        return Some(format!("{bare} as a whole is too wide; name a directory below it"));
    }
    None
}

/// True when the components of `run` follow each other somewhere in `path`.
fn has_run(path: &Path, run: &Path) -> bool {
    let path: Vec<_> = path.components().collect();
    let run: Vec<_> = run.components().collect();
    path.windows(run.len()).any(|window| window == run)
}

/// The normal form of a mount target: absolute, no empty or `.` components, no slash at the end.
pub fn check_target(target: &str) -> Result<String, BackendError> {
    let normal = check_box_path("mount target", target)?;
    let refuse = |problem: String| Err(BackendError::invalid("mount target", problem));
    if normal == "/" {
        return refuse("must not be the root".to_owned());
    }
    if normal == "/tmp" {
        return refuse("must not be /tmp itself; a place below it is fine".to_owned());
    }
    if let Some(tree) = RESERVED_TREES.iter().find(|tree| Path::new(&normal).starts_with(tree)) {
        return refuse(format!("`{}` is reserved: {tree} and all below belong to the box", shown(&normal)));
    }
    Ok(normal)
}

/// Checks sources and targets one by one and together.
pub fn check_mounts(mounts: &[Mount]) -> Result<(), BackendError> {
    if mounts.len() > MAX_MOUNTS {
        return Err(BackendError::LimitExceeded {
            what: format!("a session with {} mounts", mounts.len()),
            limit: MAX_MOUNTS.to_string(),
        });
    }
    let mut targets = BTreeSet::new();
    for mount in mounts {
        let source = mount.source.as_os_str().as_bytes();
        if !mount.source.is_absolute() || source.contains(&0) || source.len() > MAX_PATH_BYTES {
            let problem = "must be absolute, without NUL and at most 4095 bytes";
            let source = shown(&mount.source.to_string_lossy());
            return Err(BackendError::invalid(format!("mount source `{source}`"), problem));
        }
        let target = check_target(&mount.target)?;
        if let Some(twice) = targets.replace(target) {
            let problem = format!("`{}` is used by two mounts", shown(&twice));
            return Err(BackendError::invalid("mount target", problem));
        }
    }
    Ok(())
}

/// The normal form of an absolute path of the box; an error names `field`.
pub(crate) fn check_box_path(field: &str, path: &str) -> Result<String, BackendError> {
    let refuse = |problem: &str| Err(BackendError::invalid(field, format!("`{}` {problem}", shown(path))));
    if !path.starts_with('/') {
        return refuse("must be an absolute path");
    }
    if path.len() > MAX_PATH_BYTES {
        return refuse("must have at most 4095 bytes");
    }
    if path.chars().any(char::is_control) {
        return refuse("must not contain NUL or control characters");
    }
    let mut normal = String::with_capacity(path.len());
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            return refuse("must not contain `..`");
        }
        if part.len() > MAX_NAME_BYTES {
            return refuse("must not have a component of more than 255 bytes");
        }
        normal.push('/');
        normal.push_str(part);
    }
    if normal.is_empty() {
        normal.push('/');
    }
    Ok(normal)
}

/// Text of a caller as it may stand in a message: escaped, and cut where it is long.
pub(crate) fn shown(text: &str) -> String {
    const SHOWN_CHARS: usize = 80;
    let mut short: String = text.chars().take(SHOWN_CHARS).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN_CHARS).is_some() {
        short.push('…');
    }
    short
}

#[cfg(test)]
#[path = "mounts_tests.rs"]
mod tests;
