//! The private files of a session: where they are and how much is used.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, ResolveFlags, Uid, chownat, mkdirat, open, openat, openat2,
};
use sandcrate_jail::{NodeKind, remove_tree};

/// What boxes see of a storage; beside it, what the overlay over it needs.
const FILES: &str = "files";

/// The storage of one session.
#[derive(Debug)]
pub(crate) struct Storage {
    pub(crate) directory: PathBuf,
    pub(crate) opened: OwnedFd,
    /// In a directory of the caller's, which outlives the session.
    kept: bool,
}

impl Storage {
    /// A new directory that goes with the session, or one of the caller's, made when it is missing. Blocks.
    pub(crate) fn make(directory: &Path, kept: bool) -> io::Result<Self> {
        // Passed through by the box's user; the instance's directory keeps everybody else out.
        DirBuilder::new().recursive(kept).mode(0o755).create(directory)?;
        let directory = directory.canonicalize()?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = open(&directory, flags, Mode::empty())?;
        Ok(Self { directory, opened, kept })
    }

    /// Makes the session's directories in it, for the host's id of the box's user. Blocks.
    pub(crate) fn lay_out<'a>(
        &self,
        directories: impl Iterator<Item = &'a str>,
        owner: u32,
    ) -> io::Result<()> {
        make_owned(&self.opened, FILES, owner)?;
        let files = openat(&self.opened, FILES, DIRECTORY, Mode::empty())?;
        for directory in directories {
            make_owned(&files, directory, owner)?;
        }
        Ok(())
    }

    /// One of the session's directories.
    pub(crate) fn open(&self, directory: &str) -> io::Result<OwnedFd> {
        let path = format!("{FILES}/{directory}");
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        Ok(openat2(&self.opened, path, DIRECTORY, Mode::empty(), resolve)?)
    }

    /// Removes everything that is not kept. Blocks.
    pub(crate) fn remove(&self) -> io::Result<()> {
        if self.kept {
            return Ok(());
        }
        match remove_tree::remove(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}

const DIRECTORY: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn make_owned(parent: &OwnedFd, name: &str, owner: u32) -> io::Result<()> {
    match mkdirat(parent, name, Mode::from_raw_mode(0o755)) {
        // A session that comes back.
        Err(rustix::io::Errno::EXIST) => return Ok(()),
        other => other?,
    }
    let (uid, gid) = (Uid::from_raw(owner), Gid::from_raw(owner));
    Ok(chownat(parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Makes a place to mount on below a directory, step by step and without following a link: what lies in the
/// directory may be a box's doing. What is there stays as it is.
pub(crate) fn make_place(base: &OwnedFd, path: &str, kind: NodeKind, owner: (u32, u32)) -> io::Result<()> {
    let own = |directory: &OwnedFd, name: &str| {
        let (uid, gid) = (Uid::from_raw(owner.0), Gid::from_raw(owner.1));
        chownat(directory, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
    };
    let mut directory = openat(base, ".", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    for (index, part) in parts.iter().enumerate() {
        if index + 1 == parts.len() && kind == NodeKind::File {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            return match openat(&directory, *part, flags, Mode::from_raw_mode(0o644)) {
                Ok(_) => Ok(own(&directory, part)?),
                Err(rustix::io::Errno::EXIST) => Ok(()),
                Err(error) => Err(error.into()),
            };
        }
        match mkdirat(&directory, *part, Mode::from_raw_mode(0o755)) {
            Ok(()) => own(&directory, part)?,
            Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        directory = openat(&directory, *part, DIRECTORY, Mode::empty())?;
    }
    Ok(())
}

/// Removes storage that was kept. Blocks.
pub(crate) fn remove_kept(directory: &Path) -> io::Result<()> {
    match remove_tree::empty(CWD, directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    }
    std::fs::remove_dir(directory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, symlink};

    #[test]
    fn places_are_made_for_their_owner_and_never_through_a_link() {
        let base = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        let opened: OwnedFd = std::fs::File::open(base.path()).unwrap().into();
        let owner = std::fs::metadata(base.path()).map(|facts| (facts.uid(), facts.gid())).unwrap();
        make_place(&opened, ".skills/one", NodeKind::Directory, owner).unwrap();
        make_place(&opened, ".skills/one", NodeKind::Directory, owner).unwrap();
        make_place(&opened, "a/file", NodeKind::File, owner).unwrap();
        assert!(base.path().join(".skills/one").is_dir() && base.path().join("a/file").is_file());
        symlink(outside.path(), base.path().join("link")).unwrap();
        assert!(make_place(&opened, "link/new", NodeKind::Directory, owner).is_err());
        assert!(!outside.path().join("new").exists());
    }
}
