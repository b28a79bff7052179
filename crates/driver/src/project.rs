//! A hard bound on a directory of the host, in bytes and in inodes: a project quota of its file system.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, openat2, statat};
use sandcrate_sys::quota;

/// Inodes per MiB of a hard quota.
const INODES_PER_MIB: u64 = 256;
/// Projects of ours are told by the top bits; the rest is the directory's inode number.
const PROJECT_BASE: u32 = 0x4000_0000;
/// Files and directories that are put into a project when a box starts.
const MAX_ENTRIES: u64 = 2_000_000;

/// A bound that is in force while this lives. What is below the directory stays in its project, without a bound.
#[derive(Debug)]
pub struct ProjectBound {
    directory: OwnedFd,
    project: u32,
    pub inodes: u64,
}

/// How many inodes go with a hard quota.
pub fn inodes_of(bytes: u64) -> u64 {
    (bytes >> 20).max(1) * INODES_PER_MIB
}

/// The project that a directory has for itself.
pub fn project_of(directory: &File) -> io::Result<u32> {
    Ok(PROJECT_BASE | (directory.metadata()?.ino() as u32 & (PROJECT_BASE - 1)))
}

impl ProjectBound {
    /// Puts a directory and all that is in it into a project, and bounds that. `None` where the file system has no
    /// project quotas, or we may not set them. Blocks: a file outside the project could grow without a bound, so
    /// each of them is looked at.
    pub fn set(directory: BorrowedFd<'_>, bytes: u64) -> io::Result<Option<Self>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = File::from(rustix::fs::openat(directory, ".", flags, Mode::empty())?);
        if quota::usage(directory.as_fd(), 0).is_err() {
            return Ok(None);
        }
        let (project, inodes) = (project_of(&directory)?, inodes_of(bytes));
        take_in(&directory, project)?;
        quota::set_limit(directory.as_fd(), project, bytes, inodes)?;
        Ok(Some(Self { directory: directory.into(), project, inodes }))
    }
}

impl Drop for ProjectBound {
    fn drop(&mut self) {
        // The file system would remember it for ever. One that cannot be lifted bounds the next box all the same.
        let _ = quota::set_limit(self.directory.as_fd(), self.project, 0, 0);
    }
}

/// Each directory before what is in it: whatever is made meanwhile is in the project by itself. No link is followed.
fn take_in(top: &File, project: u32) -> io::Result<()> {
    let mut left = MAX_ENTRIES;
    quota::set_project(top.as_fd(), project)?;
    let mut waiting = VecDeque::from([PathBuf::from(".")]);
    while let Some(path) = waiting.pop_front() {
        let Some(directory) = open_below(top, &path, OFlags::DIRECTORY)? else { continue };
        quota::set_project(directory.as_fd(), project)?;
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            left = left.checked_sub(1).ok_or_else(|| io::Error::other("it has too many files"))?;
            let kind = match entry.file_type() {
                FileType::Unknown => {
                    let facts = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
                    FileType::from_raw_mode(facts.st_mode)
                }
                kind => kind,
            };
            let name = Path::new(OsStr::from_bytes(name.to_bytes()));
            match kind {
                FileType::Directory => waiting.push_back(path.join(name)),
                FileType::RegularFile => {
                    if let Some(file) = open_below(&directory, name, OFlags::NONBLOCK)? {
                        quota::set_file_project(file.as_fd(), project)?;
                    }
                }
                // Nothing can be written into the others.
                _ => {}
            }
        }
    }
    Ok(())
}

/// `None` for what is gone by now. Another file system below would not be bounded, and is an error.
fn open_below(at: impl AsFd, path: &Path, more: OFlags) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | more;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    match openat2(at, path, flags, Mode::empty(), resolve) {
        Ok(opened) => Ok(Some(opened)),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(rustix::io::Errno::XDEV) => Err(io::Error::other("another file system is mounted in it")),
        Err(error) => Err(error.into()),
    }
}
