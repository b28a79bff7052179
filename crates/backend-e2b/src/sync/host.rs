//! The host's side of a share. Everything here blocks, and no step follows a link.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Uid, fchmod, fchown, fstat, mkdirat, open,
    openat2, readlinkat, renameat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use super::report::Report;
use super::{FILE_BYTES, MAX_ENTRIES, TOTAL_BYTES};

const BELOW: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// A new file under this name becomes the one it is meant for when it is whole.
const UNFINISHED: &str = ".sandcrate-unfinished";

/// What a path of a share is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Node {
    Directory,
    File { bytes: u64, modified: (i64, u64), changed: (i64, u64), number: u64, executable: bool },
    Link { target: String },
}

/// By its path below the share; the empty path is a share that is a single file.
pub(super) type Tree = BTreeMap<String, Node>;

/// A shared directory, or file.
#[derive(Debug)]
pub(super) struct Root {
    fd: OwnedFd,
    owner: (u32, u32),
    pub(super) is_file: bool,
}

impl Root {
    /// From what was opened and checked, with no more than its place.
    pub(super) fn open(place: &OwnedFd, owner: (u32, u32), is_file: bool) -> io::Result<Self> {
        // What was checked is opened again by itself, not by its path.
        let flags = if is_file { OFlags::PATH | OFlags::CLOEXEC } else { DIRECTORY };
        let fd = open(own(place), flags, Mode::empty())?;
        Ok(Self { fd, owner, is_file })
    }

    /// All that is shared, but for what lies below `hidden`.
    pub(super) fn scan(&self, hidden: &[String], report: &mut Report) -> io::Result<Tree> {
        let mut tree = Tree::new();
        if self.is_file {
            let facts = fstat(&self.fd)?;
            if size(&facts) > FILE_BYTES {
                report.skipped("the shared file", &too_large(size(&facts)));
            } else {
                tree.insert(String::new(), file(&facts));
            }
            return Ok(tree);
        }
        let mut total = 0_u64;
        // Breadth first: what is left out for the sake of a bound is what lies deepest.
        let mut pending = std::collections::VecDeque::from([String::new()]);
        while let Some(above) = pending.pop_front() {
            for name in self.names(&above, report)? {
                let path = if above.is_empty() { name } else { format!("{above}/{name}") };
                if hidden.contains(&path) || path.ends_with(UNFINISHED) {
                    continue;
                }
                if tree.len() >= MAX_ENTRIES {
                    report.skipped("the rest", &format!("there are more than {MAX_ENTRIES} files"));
                    return Ok(tree);
                }
                let facts = match self.facts(&path) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    facts => facts?,
                };
                match FileType::from_raw_mode(facts.st_mode) {
                    FileType::Directory => {
                        tree.insert(path.clone(), Node::Directory);
                        pending.push_back(path);
                    }
                    FileType::RegularFile if size(&facts) > FILE_BYTES => {
                        report.skipped(&path, &too_large(size(&facts)));
                    }
                    FileType::RegularFile if total + size(&facts) > TOTAL_BYTES => {
                        report.skipped(&path, &over_total());
                    }
                    FileType::RegularFile => {
                        total += size(&facts);
                        tree.insert(path, file(&facts));
                    }
                    FileType::Symlink => match self.link(&path) {
                        Some(target) if stays_inside(&path, &target) => {
                            tree.insert(path, Node::Link { target });
                        }
                        _ => report.skipped(&path, LEADS_OUT),
                    },
                    _ => report.skipped(&path, "it is neither a file, a directory nor a link"),
                }
            }
        }
        Ok(tree)
    }

    fn names(&self, directory: &str, report: &mut Report) -> io::Result<Vec<String>> {
        let opened = match self.directory(directory) {
            Err(error) if is_gone(&error) => return Ok(Vec::new()),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                report.skipped(directory, "it cannot be read");
                return Ok(Vec::new());
            }
            opened => opened?,
        };
        let mut names = Vec::new();
        for entry in Dir::read_from(&opened)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            match name.to_str() {
                Ok(name) => names.push(name.to_owned()),
                Err(_) => report
                    .skipped(&format!("{directory}/{}", name.to_string_lossy()), "its name is not UTF-8"),
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn directory(&self, path: &str) -> io::Result<OwnedFd> {
        let path = if path.is_empty() { "." } else { path };
        Ok(openat2(&self.fd, path, DIRECTORY, Mode::empty(), BELOW)?)
    }

    fn facts(&self, path: &str) -> io::Result<Stat> {
        let (above, name) = split(path);
        Ok(statat(self.directory(above)?, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn link(&self, path: &str) -> Option<String> {
        let (above, name) = split(path);
        readlinkat(self.directory(above).ok()?, name, Vec::new()).ok()?.into_string().ok()
    }

    /// What is there now, as a scan would tell it.
    pub(super) fn node(&self, path: &str) -> io::Result<Option<Node>> {
        let facts = match if self.is_file { fstat(&self.fd).map_err(Into::into) } else { self.facts(path) } {
            Err(error) if is_gone(&error) => return Ok(None),
            facts => facts?,
        };
        Ok(Some(match FileType::from_raw_mode(facts.st_mode) {
            FileType::Directory => Node::Directory,
            FileType::Symlink => Node::Link { target: self.link(path).unwrap_or_default() },
            _ => file(&facts),
        }))
    }

    pub(super) fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let opened = match self.is_file {
            true => open(own(&self.fd), flags, Mode::empty())?,
            false => openat2(&self.fd, path, flags, Mode::empty(), BELOW)?,
        };
        let mut data = Vec::new();
        File::from(opened).take(FILE_BYTES + 1).read_to_end(&mut data)?;
        if data.len() as u64 > FILE_BYTES {
            return Err(io::Error::other("it has grown too large"));
        }
        Ok(data)
    }

    /// Makes or replaces a file, whole or not at all; its directory is there.
    pub(super) fn write(&self, path: &str, data: &[u8], executable: bool) -> io::Result<()> {
        if self.is_file {
            let opened =
                open(own(&self.fd), OFlags::WRONLY | OFlags::TRUNC | OFlags::CLOEXEC, Mode::empty())?;
            return File::from(opened).write_all(data);
        }
        let (above, name) = split(path);
        let directory = self.directory(above)?;
        let before = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).ok();
        let kind = before.as_ref().map(|facts| FileType::from_raw_mode(facts.st_mode));
        if kind == Some(FileType::Directory) {
            return Err(io::Error::other("it is a directory on the host"));
        }
        let kept = before
            .filter(|_| kind == Some(FileType::RegularFile))
            .map_or(0o644, |facts| facts.st_mode & 0o666);
        let mode = if executable { kept | ((kept & 0o444) >> 2) } else { kept };
        let unfinished = format!("{name}{UNFINISHED}");
        let short = if unfinished.len() > 255 { UNFINISHED } else { unfinished.as_str() };
        match unlinkat(&directory, short, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(&directory, short, flags, Mode::from_raw_mode(0o600))?;
        let finish = || -> io::Result<()> {
            let mut file = File::from(made.try_clone()?);
            file.write_all(data)?;
            self.give(&made)?;
            fchmod(&made, Mode::from_raw_mode(mode))?;
            Ok(renameat(&directory, short, &directory, name)?)
        };
        finish().inspect_err(|_| {
            let _ = unlinkat(&directory, short, AtFlags::empty());
        })
    }

    /// Makes a directory; one that is there will do.
    pub(super) fn make_directory(&self, path: &str) -> io::Result<()> {
        let (above, name) = split(path);
        let directory = self.directory(above)?;
        match mkdirat(&directory, name, Mode::from_raw_mode(0o755)) {
            Ok(()) => self.give(openat2(&directory, name, DIRECTORY, Mode::empty(), BELOW)?),
            Err(Errno::EXIST) => self.directory(path).map(drop),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn make_link(&self, path: &str, target: &str) -> io::Result<()> {
        let (above, name) = split(path);
        let directory = self.directory(above)?;
        match unlinkat(&directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(symlinkat(target, &directory, name)?),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes a file, a link or an empty directory. What is gone is gone; what has filled again stays.
    pub(super) fn remove(&self, path: &str, node: &Node) -> io::Result<()> {
        let (above, name) = split(path);
        let directory = match self.directory(above) {
            Err(error) if is_gone(&error) => return Ok(()),
            directory => directory?,
        };
        let flags = if *node == Node::Directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        match unlinkat(&directory, name, flags) {
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// What is made belongs to whoever owns the share. Only root can give it away.
    fn give(&self, made: impl AsFd) -> io::Result<()> {
        if rustix::process::geteuid().is_root() {
            let (user, group) = self.owner;
            fchown(made, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))?;
        }
        Ok(())
    }
}

pub(super) const LEADS_OUT: &str = "it is a link that leads out of the shared directory";

pub(super) fn too_large(bytes: u64) -> String {
    format!("it has {bytes} bytes, more than the {} MiB of a file that is copied", FILE_BYTES >> 20)
}

pub(super) fn over_total() -> String {
    format!("the files together have more than {} MiB", TOTAL_BYTES >> 20)
}

/// Whether a link can lead nowhere but to another place of its share. It climbs first and then goes down: after a
/// step down another link may have led elsewhere, and a climb from there leads nobody knows where.
pub(super) fn stays_inside(path: &str, target: &str) -> bool {
    let mut depth = path.split('/').count() - 1;
    let mut down = false;
    if target.is_empty() || target.starts_with('/') || target.contains('\0') {
        return false;
    }
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." if down || depth == 0 => return false,
            ".." => depth -= 1,
            _ => down = true,
        }
    }
    true
}

/// A path below a share, as a sandbox may name it: plain components and no way up.
pub(super) fn is_plain(path: &str) -> bool {
    path.len() <= 4000
        && path.split('/').all(|part| {
            !part.is_empty() && part != "." && part != ".." && part.len() <= 255 && !part.contains('\0')
        })
}

fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

fn file(facts: &Stat) -> Node {
    Node::File {
        bytes: size(facts),
        modified: (facts.st_mtime, facts.st_mtime_nsec),
        changed: (facts.st_ctime, facts.st_ctime_nsec),
        number: facts.st_ino,
        executable: facts.st_mode & 0o111 != 0,
    }
}

fn size(facts: &Stat) -> u64 {
    u64::try_from(facts.st_size).unwrap_or(0)
}

fn is_gone(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    [Errno::NOENT, Errno::NOTDIR, Errno::LOOP].iter().any(|gone| code == Some(gone.raw_os_error()))
}

fn own(fd: &OwnedFd) -> impl AsRef<Path> + rustix::path::Arg {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
