//! A cgroup directory held by fd, and the few file operations cgroupfs needs.
//!
//! Paths are kept for messages only; every operation is relative to an fd.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::{CgroupError, Owner};

/// How long killed processes may take to leave a cgroup.
const PATIENCE: Duration = Duration::from_secs(1);
/// Our own trees are 4 deep (instance, box, run, command); nobody else's are ours to remove.
const MAX_DEPTH: usize = 8;

#[derive(Debug)]
pub(super) struct Dir {
    fd: OwnedFd,
    path: PathBuf,
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Dir {
    pub(super) fn open(path: &Path) -> Result<Self, CgroupError> {
        Self::open_below(CWD, path, path.to_owned())
    }

    /// Opens `name` below this directory; an empty name is the directory itself.
    pub(super) fn sub(&self, name: impl AsRef<Path>) -> Result<Self, CgroupError> {
        let name = name.as_ref();
        let step = if name.as_os_str().is_empty() { Path::new(".") } else { name };
        Self::open_below(self.fd.as_fd(), step, self.path.join(name))
    }

    fn open_below(fd: BorrowedFd<'_>, name: &Path, path: PathBuf) -> Result<Self, CgroupError> {
        match open_dir(fd, name) {
            Ok(fd) => Ok(Self { fd, path }),
            Err(source) => Err(CgroupError::Open { path, source }),
        }
    }

    /// Makes `name` and opens it; it is an error that it exists.
    pub(super) fn make(&self, name: &str) -> Result<Self, CgroupError> {
        make_dir(self.as_fd(), name)
            .map_err(|source| CgroupError::Create { path: self.path.join(name), source })?;
        // Out of fds, say: what was just made must not stay.
        self.sub(name).inspect_err(|_| {
            let _ = rustix::fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR);
        })
    }

    pub(super) fn make_or_open(&self, name: &str) -> Result<Self, CgroupError> {
        match self.make(name) {
            Err(CgroupError::Create { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => {
                self.sub(name)
            }
            made => made,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn has(&self, file: &str) -> bool {
        rustix::fs::statat(&self.fd, file, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    pub(super) fn is_writable(&self) -> bool {
        let access = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
        rustix::fs::accessat(&self.fd, ".", access, AtFlags::EACCESS).is_ok()
    }

    pub(super) fn read(&self, file: &str) -> Result<String, CgroupError> {
        read_file(self.as_fd(), file)
            .map_err(|source| CgroupError::Read { path: self.path.join(file), source })
    }

    pub(super) fn write(&self, file: &str, value: &str) -> Result<(), CgroupError> {
        write_file(self.as_fd(), file, value).map_err(|source| CgroupError::Write {
            path: self.path.join(file),
            value: value.to_owned(),
            source,
        })
    }

    /// Gives `file` to `owner`; an empty name is the directory itself.
    pub(super) fn chown(&self, file: &str, owner: Owner) -> Result<(), CgroupError> {
        let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
        let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::chownat(&self.fd, file, Some(uid), Some(gid), flags).map_err(|errno| {
            let (path, uid) = (self.path.join(file), owner.uid);
            CgroupError::Delegate { path, uid, source: errno.into() }
        })
    }

    /// Removes the tree `name`, waiting for killed processes to be gone.
    pub(super) fn remove(&self, name: &str) -> Result<(), CgroupError> {
        retry_while_busy(|| remove_tree(self.as_fd(), name, MAX_DEPTH))
            .map_err(|source| CgroupError::Remove { path: self.path.join(name), source })
    }

    /// As [`Dir::remove`], but gives up at once with `EBUSY`.
    pub(super) fn try_remove(&self, name: &str) -> io::Result<()> {
        remove_tree(self.as_fd(), name, MAX_DEPTH)
    }
}

/// For what an older kernel may lack: an absent file is no error.
pub(super) fn if_present(result: Result<(), CgroupError>) -> Result<(), CgroupError> {
    match result {
        Err(error) if error.is_not_found() => Ok(()),
        result => result,
    }
}

pub(super) fn open_dir(fd: BorrowedFd<'_>, name: impl AsRef<Path>) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(fd, name.as_ref(), flags, Mode::empty())?)
}

pub(super) fn make_dir(fd: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    Ok(rustix::fs::mkdirat(fd, name, Mode::from_raw_mode(0o755))?)
}

pub(super) fn open_file(fd: BorrowedFd<'_>, file: &str, access: OFlags) -> io::Result<OwnedFd> {
    let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(fd, file, flags, Mode::empty())?)
}

pub(super) fn read_file(fd: BorrowedFd<'_>, file: &str) -> io::Result<String> {
    let mut text = String::new();
    File::from(open_file(fd, file, OFlags::RDONLY)?).read_to_string(&mut text)?;
    Ok(text)
}

pub(super) fn write_file(fd: BorrowedFd<'_>, file: &str, value: &str) -> io::Result<()> {
    // One write(2): cgroupfs takes each one as a whole command.
    let fd = open_file(fd, file, OFlags::WRONLY | OFlags::TRUNC)?;
    rustix::io::write(fd, value.as_bytes())?;
    Ok(())
}

pub(super) fn subdirs(fd: BorrowedFd<'_>) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(fd)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy();
        if entry.file_type() == FileType::Directory && name != "." && name != ".." {
            names.push(name.into_owned());
        }
    }
    Ok(names)
}

fn remove_tree(parent: BorrowedFd<'_>, name: &str, depth: usize) -> io::Result<()> {
    match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::BUSY | Errno::NOTEMPTY) if depth > 0 => {}
        Err(errno) => return Err(errno.into()),
    }
    let dir = open_dir(parent, name)?;
    for child in subdirs(dir.as_fd())? {
        remove_tree(dir.as_fd(), &child, depth - 1)?;
    }
    Ok(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?)
}

/// Repeats `step` while it answers `EBUSY`, for at most [`PATIENCE`].
pub(super) fn retry_while_busy(mut step: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let mut pause = Duration::from_micros(200);
    loop {
        match step() {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline => {}
            result => return result,
        }
        sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}
