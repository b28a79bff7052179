//! Paths of the host, as the kernel sees them.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags};

/// Absolute, and with the links resolved of as much of it as exists.
pub(crate) fn resolved(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for existing in path.ancestors() {
        let Ok(mut real) = existing.canonicalize() else { continue };
        let rest = path.strip_prefix(existing).unwrap_or(Path::new(""));
        for component in rest.components() {
            match component {
                Component::ParentDir => drop(real.pop()),
                Component::Normal(name) => real.push(name),
                _ => {}
            }
        }
        return real;
    }
    path
}

/// Opens a directory, and tells where it really is: the kernel's answer about what was opened, so that no link
/// can be swapped between a look and a use.
pub(crate) fn opened_directory(path: &Path) -> io::Result<(OwnedFd, PathBuf)> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(path, flags, Mode::empty())?;
    let real = std::fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd()))?;
    Ok((directory, real))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_resolved_as_far_as_there_is_something() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path().canonicalize().unwrap();
        std::fs::create_dir(place.join("real")).unwrap();
        std::os::unix::fs::symlink("real", place.join("link")).unwrap();
        assert_eq!(resolved(&place.join("link/a/../b")), place.join("real/b"));
        assert_eq!(resolved(&place.join("none/x")), place.join("none/x"));
        assert_eq!(opened_directory(&place.join("link")).unwrap().1, place.join("real"));
        assert!(opened_directory(&place.join("none")).is_err());
    }
}
