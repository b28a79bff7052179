//! Mount sources as an engine gets them.
//!
//! The engine is given the resolved path and opens it again itself. When the box is up, what is mounted is compared
//! with what was checked ([`exchanged`]): a path that was exchanged in between ends the start.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags, ResolveFlags, fstat, open, openat2};
use sandcrate_backend::{BackendError, Mount};
use sandcrate_jail::Access;

/// A source that passed.
#[derive(Debug)]
pub(crate) struct Source {
    /// Where it really is, whatever links led there.
    pub(crate) path: PathBuf,
    pub(crate) path_text: String,
    pub(crate) target: String,
    pub(crate) read_only: bool,
    facts: (u64, u64),
    /// Keeps the number from being given to another file.
    _held: OwnedFd,
}

/// Opens and checks one source. Blocks: walks a directory that is to be shared for writing.
pub(crate) fn open_source(wanted: &Mount, own_state: &[PathBuf]) -> Result<Source, BackendError> {
    let sandcrate_driver::Source { fd, mount, requested } = sandcrate_driver::open_source(wanted, own_state)?;
    let facts =
        fstat(&fd).map_err(|error| BackendError::failed("looking at a mount source", error.into()))?;
    let path_text = mount.path.to_str().map(str::to_owned).ok_or_else(|| BackendError::MountDenied {
        path: wanted.source.clone(),
        rule: "its name is not UTF-8, which engines cannot be told".to_owned(),
    })?;
    Ok(Source {
        path: mount.path,
        path_text,
        target: requested.target,
        read_only: requested.access == Access::ReadOnly,
        facts: (facts.st_dev, facts.st_ino),
        _held: fd,
    })
}

impl Source {
    /// Whether this very file is what a path of the box leads to. The box's links are followed within its root.
    fn is_below(&self, root: &OwnedFd) -> bool {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        openat2(root, &self.target, flags, Mode::empty(), resolve)
            .and_then(fstat)
            .is_ok_and(|found| (found.st_dev, found.st_ino) == self.facts)
    }
}

/// Compares what is mounted in the box of that process with what was checked: the first source that is not where it
/// belongs. An error where the box cannot be looked into. Blocks: a source may lie on a slow file system.
pub(crate) fn exchanged(sources: &[Source], pid: i32) -> std::io::Result<Option<&Source>> {
    let root =
        open(format!("/proc/{pid}/root"), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(sources.iter().find(|source| !source.is_below(&root)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use sandcrate_backend::MountAccess;

    use super::*;

    #[test]
    fn a_source_that_was_exchanged_is_found() {
        let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
        let place = scratch.path().canonicalize().unwrap().join("shared");
        fs::create_dir(&place).unwrap();
        let mount = Mount::new(&place, place.to_str().unwrap(), MountAccess::ReadOnly);
        let sources = [open_source(&mount, &[]).unwrap()];
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(exchanged(&sources, own).unwrap().is_none());
        fs::rename(&place, scratch.path().join("away")).unwrap();
        assert!(exchanged(&sources, own).unwrap().is_some(), "what is missing is not there");
        fs::create_dir(&place).unwrap();
        assert!(exchanged(&sources, own).unwrap().is_some());
        assert!(exchanged(&sources, 0).is_err(), "a process that cannot be looked into");
    }
}
