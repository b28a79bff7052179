//! The root that is being unpacked. Every path of an archive is found from its descriptor, links included: a link
//! to /etc leads to the root's own etc, as it will in a box, and nothing leads out.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, chownat, fchmod, futimens,
    linkat, mkdirat, openat, openat2, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use sandcrate_jail::identity::{HOST_BASE, ID_COUNT};
use sandcrate_jail::remove_tree;

use crate::error::{ImageError, Step, shown};
use crate::limits::{ImportLimits, Progress};
use crate::record::Ownership;

const MAX_PATH: usize = 4095;
const MAX_COMPONENT: usize = 255;
/// Who has what belongs to ids that no box has.
const NOBODY: u32 = 65534;
/// Between two reports of progress.
const REPORT_EVERY: u64 = 8 << 20;
const ENTRIES_PER_REPORT: u64 = 1024;

/// Owner, mode and time of an entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts {
    pub(crate) mode: u32,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    pub(crate) mtime: i64,
}

impl Facts {
    /// Of a directory that is only there because something lies in it.
    pub(crate) const IMPLIED: Self = Self { mode: 0o755, uid: 0, gid: 0, mtime: 0 };
}

pub(crate) struct Root<'a> {
    fd: OwnedFd,
    owners: Ownership,
    limits: ImportLimits,
    pub(crate) done: Progress,
    pub(crate) left_out: u64,
    /// The directory of the last entry: the next is mostly in the same.
    parent: Option<(Vec<u8>, OwnedFd)>,
    reported: u64,
    report: &'a mut dyn FnMut(Progress),
}

/// A path of an archive, taken apart: the directory, and the last part. `None` is the root itself.
type Split = Option<(Vec<u8>, Vec<u8>)>;

/// Takes a path apart and refuses what leads up or cannot be a path. A leading slash means the root.
pub(crate) fn split(path: &[u8]) -> Result<Split, ImageError> {
    if path.contains(&0) {
        return Err(ImageError::refused(path, "its name has a NUL byte"));
    }
    if path.len() > MAX_PATH {
        return Err(ImageError::refused(path, "its path is longer than 4095 bytes"));
    }
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err(ImageError::refused(path, "its path has `..` in it")),
            part if part.len() > MAX_COMPONENT => {
                return Err(ImageError::refused(path, "a part of its path is longer than 255 bytes"));
            }
            part => parts.push(part),
        }
    }
    Ok(parts.pop().map(|name| (parts.join(&b'/'), name.to_vec())))
}

impl<'a> Root<'a> {
    pub(crate) fn new(
        fd: OwnedFd,
        owners: Ownership,
        limits: ImportLimits,
        report: &'a mut dyn FnMut(Progress),
    ) -> Self {
        let done = Progress::default();
        Self { fd, owners, limits, done, left_out: 0, parent: None, reported: 0, report }
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Counts an entry, whatever becomes of it.
    pub(crate) fn count(&mut self) -> Result<(), ImageError> {
        if self.done.entries >= self.limits.entries {
            return Err(self.limits.too_many_entries());
        }
        self.done.entries += 1;
        if self.done.entries.is_multiple_of(ENTRIES_PER_REPORT) {
            (self.report)(self.done);
        }
        Ok(())
    }

    pub(crate) fn directory(&mut self, path: &[u8], facts: Facts) -> Result<(), ImageError> {
        // The root itself is as every box has it.
        let Some((parent, name)) = split(path)? else { return Ok(()) };
        let parent = self.parent(&parent, path)?;
        let is_there = statat(&parent, &name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|found| FileType::from_raw_mode(found.st_mode).is_dir());
        if !is_there {
            self.clear(&parent, &name, path)?;
            mkdirat(&parent, &name, Mode::RWXU).step(|| making(path))?;
        }
        self.dress_directory(&parent, &name, facts).step(|| making(path))
    }

    /// Makes a file of `data`, which must have `size` bytes.
    pub(crate) fn file(
        &mut self,
        path: &[u8],
        facts: Facts,
        size: u64,
        data: &mut dyn Read,
    ) -> Result<(), ImageError> {
        let (parent, name) = self.place(path)?;
        if size > self.limits.bytes - self.done.bytes {
            return Err(self.limits.too_many_bytes());
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file =
            File::from(openat(&parent, &name, flags, Mode::RUSR | Mode::WUSR).step(|| making(path))?);
        self.fill(&mut file, path, size, data)?;
        self.own(&parent, &name, facts).step(|| making(path))?;
        // After the change of owner, which clears bits. No file of an image is setuid or setgid.
        let mode = match self.owners {
            Ownership::Shifted => facts.mode & 0o777,
            Ownership::User(_) => facts.mode & 0o777 | 0o400,
        };
        fchmod(&file, Mode::from_raw_mode(mode)).step(|| making(path))?;
        let time = Timespec { tv_sec: facts.mtime, tv_nsec: 0 };
        futimens(&file, &Timestamps { last_access: time, last_modification: time }).step(|| making(path))
    }

    fn fill(
        &mut self,
        file: &mut File,
        path: &[u8],
        size: u64,
        data: &mut dyn Read,
    ) -> Result<(), ImageError> {
        let mut buffer = vec![0; 128 << 10];
        let mut left = size;
        while left > 0 {
            let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let count = match data.read(&mut buffer[..most]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other.step(|| format!("reading {}", shown(path)))?,
            };
            if count == 0 {
                return Err(ImageError::refused(path, "it became shorter while it was read"));
            }
            file.write_all(&buffer[..count]).step(|| making(path))?;
            left -= count as u64;
            self.done.bytes += count as u64;
            if self.done.bytes - self.reported >= REPORT_EVERY {
                self.reported = self.done.bytes;
                (self.report)(self.done);
            }
        }
        Ok(())
    }

    pub(crate) fn symlink(&mut self, path: &[u8], target: &[u8], facts: Facts) -> Result<(), ImageError> {
        if target.is_empty() || target.len() > MAX_PATH || target.contains(&0) {
            return Err(ImageError::refused(path, "its link leads to no possible path"));
        }
        let (parent, name) = self.place(path)?;
        symlinkat(target, &parent, &name).step(|| making(path))?;
        self.own(&parent, &name, facts).step(|| making(path))
    }

    /// A second name for a file of the same root.
    pub(crate) fn hardlink(&mut self, path: &[u8], target: &[u8]) -> Result<(), ImageError> {
        let Some((directory, file)) = split(target)? else {
            return Err(ImageError::refused(path, "it is a hard link to the root"));
        };
        if split(path)? == Some((directory.clone(), file.clone())) {
            return Err(ImageError::refused(path, "it is a hard link to itself"));
        }
        let from = match self.open_directory(&directory) {
            Err(_) => return Err(ImageError::refused(path, "it is a hard link to what is not there")),
            Ok(from) => from,
        };
        let (parent, name) = self.place(path)?;
        let linked = statat(&from, &file, AtFlags::SYMLINK_NOFOLLOW);
        match linked.map(|found| FileType::from_raw_mode(found.st_mode)) {
            Ok(FileType::RegularFile | FileType::Symlink) => {}
            Ok(_) => return Err(ImageError::refused(path, "it is a hard link to a directory")),
            Err(_) => return Err(ImageError::refused(path, "it is a hard link to what is not there")),
        }
        linkat(&from, &file, &parent, &name, AtFlags::empty()).step(|| making(path))
    }

    /// Removes what lower layers have at `path`.
    pub(crate) fn white_out(&mut self, path: &[u8]) -> Result<(), ImageError> {
        let Some((directory, name)) = split(path)? else { return Ok(()) };
        match self.open_directory(&directory) {
            Ok(parent) => self.clear(&parent, &name, path),
            // Nothing there to be hidden.
            Err(_) => Ok(()),
        }
    }

    /// Removes what lower layers have in the directory `path`.
    pub(crate) fn make_opaque(&mut self, path: &[u8]) -> Result<(), ImageError> {
        let Ok(directory) = self.open_directory(path) else { return Ok(()) };
        self.parent = None;
        let mode = rustix::fs::fstat(&directory).step(|| making(path))?.st_mode;
        let here = format!("/proc/self/fd/{}/.", std::os::fd::AsRawFd::as_raw_fd(&directory));
        remove_tree::empty(rustix::fs::CWD, Path::new(&here)).step(|| format!("emptying {}", shown(path)))?;
        rustix::fs::chmod(&here, Mode::from_raw_mode(mode & 0o7777)).step(|| making(path))
    }

    /// The directory and the free name for a new entry that is no directory.
    fn place(&mut self, path: &[u8]) -> Result<(OwnedFd, Vec<u8>), ImageError> {
        let Some((parent, name)) = split(path)? else {
            return Err(ImageError::refused(path, "only a directory can be the root"));
        };
        let parent = self.parent(&parent, path)?;
        self.clear(&parent, &name, path)?;
        Ok((parent, name))
    }

    /// Removes what is at a name, whatever it is; a link itself, never what it leads to.
    pub(crate) fn clear(&mut self, parent: &OwnedFd, name: &[u8], path: &[u8]) -> Result<(), ImageError> {
        let removed = match unlinkat(parent, name, AtFlags::empty()) {
            Err(Errno::NOENT) => return Ok(()),
            Err(Errno::ISDIR | Errno::PERM) => {
                remove_tree::remove_at(parent.as_fd(), Path::new(OsStr::from_bytes(name)))
            }
            other => other.map_err(io::Error::from),
        };
        // It may have been on the way to the directory we remember.
        self.parent = None;
        removed.step(|| format!("removing {}", shown(path)))
    }

    fn parent(&mut self, directory: &[u8], path: &[u8]) -> Result<OwnedFd, ImageError> {
        if let Some((known, fd)) = &self.parent
            && known == directory
        {
            return fd.try_clone().step(|| making(path));
        }
        let fd = self.open_or_make(directory, path)?;
        let kept = fd.try_clone().step(|| making(path))?;
        self.parent = Some((directory.to_vec(), kept));
        Ok(fd)
    }

    /// Links on the way are followed as in a box: below this root.
    pub(crate) fn open_directory(&self, directory: &[u8]) -> rustix::io::Result<OwnedFd> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let path: &[u8] = if directory.is_empty() { b"." } else { directory };
        // Not O_PATH: it is removed from and linked from as well.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat2(&self.fd, path, flags, Mode::empty(), resolve)
    }

    fn open_or_make(&mut self, directory: &[u8], path: &[u8]) -> Result<OwnedFd, ImageError> {
        let no_way = |error: Errno| match error {
            Errno::NOTDIR | Errno::LOOP | Errno::NOENT | Errno::EXIST => {
                ImageError::refused(path, "what it lies in is a file, or a link that leads nowhere")
            }
            other => ImageError::Failed { step: making(path), source: other.into() },
        };
        match self.open_directory(directory) {
            Err(Errno::NOENT) => {}
            other => return other.map_err(no_way),
        }
        let mut ends: Vec<usize> =
            directory.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at).collect();
        ends.push(directory.len());
        let mut above = self.open_directory(b"").map_err(no_way)?;
        let mut begin = 0;
        for end in ends {
            let name = &directory[begin..end];
            begin = end + 1;
            above = match self.open_directory(&directory[..end]) {
                Err(Errno::NOENT) => {
                    self.count()?;
                    mkdirat(&above, name, Mode::RWXU).map_err(no_way)?;
                    self.dress_directory(&above, name, Facts::IMPLIED).step(|| making(path))?;
                    self.open_directory(&directory[..end]).map_err(no_way)?
                }
                other => other.map_err(no_way)?,
            };
        }
        Ok(above)
    }

    fn dress_directory(&self, parent: &OwnedFd, name: &[u8], facts: Facts) -> io::Result<()> {
        self.own(parent, name, facts)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = openat(parent, name, flags, Mode::empty())?;
        let mode = match self.owners {
            Ownership::Shifted => facts.mode & 0o1777,
            // Or we could not go on in it, nor remove it one day.
            Ownership::User(_) => facts.mode & 0o1777 | 0o700,
        };
        Ok(fchmod(&directory, Mode::from_raw_mode(mode))?)
    }

    /// Gives an entry to its owner, as far as we can.
    fn own(&self, parent: &OwnedFd, name: &[u8], facts: Facts) -> io::Result<()> {
        if self.owners != Ownership::Shifted {
            return Ok(());
        }
        let (uid, gid) = (Uid::from_raw(shifted(facts.uid)), Gid::from_raw(shifted(facts.gid)));
        Ok(chownat(parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// The root directory itself belongs to the box's root.
    pub(crate) fn dress_root(&self) -> Result<(), ImageError> {
        let dress = || {
            if self.owners == Ownership::Shifted {
                let (uid, gid) = (Uid::from_raw(HOST_BASE), Gid::from_raw(HOST_BASE));
                rustix::fs::fchown(&self.fd, Some(uid), Some(gid))?;
            }
            fchmod(&self.fd, Mode::from_raw_mode(0o755))
        };
        dress().step(|| "giving the root to the box's root")
    }
}

/// The host id behind an id of an image.
fn shifted(id: u64) -> u32 {
    let id = u32::try_from(id).ok().filter(|id| *id < ID_COUNT).unwrap_or(NOBODY);
    HOST_BASE + id
}

fn making(path: &[u8]) -> String {
    format!("unpacking {}", shown(path))
}

#[cfg(test)]
#[path = "root_tests.rs"]
mod tests;
