//! Directories held open, and everything below them by paths that cannot leave.
//!
//! The kernel resolves every path (`openat2`, Linux 5.6): text is never trusted to stay inside, because a box
//! that has the package mounted for writing may put a link anywhere at any time.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Stat, Uid, fchmod, fchown, fdatasync,
    fstat, mkdirat, openat, openat2, renameat, renameat_with, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

/// How links below a directory are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Links {
    /// Any link ends the search.
    Refuse,
    /// Those that stay below the directory lead on.
    Inside,
}

/// Why something below a directory could not be had.
#[derive(Debug)]
pub(crate) enum Miss {
    Absent,
    /// A link leads out, or there is one where none may be.
    Outside,
    /// Not of the kind that is wanted.
    OtherKind,
    TooLong,
    Failed(io::Error),
}

impl From<Errno> for Miss {
    fn from(error: Errno) -> Self {
        match error {
            Errno::NOENT | Errno::NAMETOOLONG => Self::Absent,
            Errno::XDEV | Errno::LOOP => Self::Outside,
            // A file where a directory is wanted, a socket that cannot be opened.
            Errno::NOTDIR | Errno::ISDIR | Errno::NXIO => Self::OtherKind,
            error => Self::Failed(error.into()),
        }
    }
}

impl From<io::Error> for Miss {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// One entry of a directory, as it is itself.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: OsString,
    pub(crate) kind: FileType,
}

/// A directory that is held open.
#[derive(Debug)]
pub(crate) struct Dir(OwnedFd);

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl Dir {
    /// A directory that the operator named; links on the way to it are the operator's.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(rustix::fs::open(path, DIRECTORY, Mode::empty())?))
    }

    /// Where it really is.
    pub(crate) fn path(&self) -> io::Result<PathBuf> {
        std::fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&self.0)))
    }

    pub(crate) fn dir(&self, below: &Path, links: Links) -> Result<Self, Miss> {
        Ok(Self(self.at(below, DIRECTORY, links)?))
    }

    fn at(&self, below: &Path, flags: OFlags, links: Links) -> Result<OwnedFd, Errno> {
        let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
        let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        if links == Links::Refuse {
            resolve |= ResolveFlags::NO_SYMLINKS;
        }
        loop {
            match openat2(&self.0, below, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
                // Something was renamed on the way.
                Err(Errno::AGAIN | Errno::INTR) => {}
                opened => return opened,
            }
        }
    }

    /// A regular file, opened without waiting for whoever holds the other end of what is none.
    pub(crate) fn file(&self, below: &Path, links: Links) -> Result<(std::fs::File, Stat), Miss> {
        let fd = self.at(below, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY, links)?;
        let stat = fstat(&fd)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Miss::OtherKind);
        }
        Ok((fd.into(), stat))
    }

    /// The whole of a regular file that has at most `most` bytes.
    pub(crate) fn read(&self, below: &Path, links: Links, most: usize) -> Result<(Vec<u8>, Stat), Miss> {
        let (file, stat) = self.file(below, links)?;
        let mut bytes = Vec::new();
        file.take(most as u64 + 1).read_to_end(&mut bytes)?;
        if bytes.len() > most { Err(Miss::TooLong) } else { Ok((bytes, stat)) }
    }

    /// What is there, links followed as far as they stay inside.
    pub(crate) fn stat(&self, below: &Path, links: Links) -> Result<Stat, Miss> {
        Ok(fstat(self.at(below, OFlags::PATH, links)?)?)
    }

    /// The entry itself, if there is one.
    pub(crate) fn entry(&self, name: &Path) -> Result<Option<Stat>, Miss> {
        match statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT | Errno::NAMETOOLONG) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn own_stat(&self) -> Result<Stat, Miss> {
        Ok(fstat(&self.0)?)
    }

    /// At most `most` entries, sorted by name; and whether there are more.
    pub(crate) fn entries(&self, most: usize) -> Result<(Vec<Entry>, bool), Miss> {
        // Reading moves a position, which copies of the descriptor share.
        let again = openat(&self.0, ".", DIRECTORY, Mode::empty())?;
        let mut entries = Vec::new();
        for entry in rustix::fs::Dir::new(again)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            if entries.len() == most {
                return Ok((sorted(entries), true));
            }
            let name = OsString::from_vec(name.to_vec());
            let kind = match entry.file_type() {
                FileType::Unknown => match self.entry(Path::new(&name))? {
                    Some(stat) => FileType::from_raw_mode(stat.st_mode),
                    None => continue,
                },
                kind => kind,
            };
            entries.push(Entry { name, kind });
        }
        Ok((sorted(entries), false))
    }

    /// Makes a directory, for the owner of this one.
    pub(crate) fn make(&self, name: &Path) -> Result<Self, Miss> {
        mkdirat(&self.0, name, Mode::from_raw_mode(0o755))?;
        let made = self.dir(name, Links::Refuse)?;
        give(&made.0, &self.own_stat()?)?;
        Ok(made)
    }

    /// The directory below, made as far as it is missing.
    pub(crate) fn make_all(&self, below: &Path) -> Result<Self, Miss> {
        let mut known = PathBuf::new();
        let mut dir = self.dir(&known, Links::Inside)?;
        for part in below.components() {
            known.push(part);
            dir = match self.dir(&known, Links::Inside) {
                Err(Miss::Absent) => match dir.make(Path::new(part.as_os_str())) {
                    // Somebody was faster, or it is a link that leads nowhere; the next look tells.
                    Err(Miss::Failed(error)) if error.kind() == io::ErrorKind::AlreadyExists => {
                        self.dir(&known, Links::Inside)?
                    }
                    made => made?,
                },
                found => found?,
            };
        }
        Ok(dir)
    }

    /// A new file, for the owner of this directory.
    pub(crate) fn create(&self, name: &Path, mode: u32) -> Result<std::fs::File, Miss> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(&self.0, name, flags, Mode::from_raw_mode(0o600))?;
        give(&fd, &self.own_stat()?)?;
        fchmod(&fd, Mode::from_raw_mode(mode & 0o777))?;
        Ok(fd.into())
    }

    pub(crate) fn link(&self, name: &Path, target: &Path) -> Result<(), Miss> {
        Ok(symlinkat(target, &self.0, name)?)
    }

    /// Puts a file in the place of whatever has the name, whole or not at all. Mode and owner stay.
    pub(crate) fn replace(&self, name: &Path, bytes: &[u8]) -> Result<(), Miss> {
        let before = self.entry(name)?;
        let regular = before.filter(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
        let mode = regular.map_or(0o644, |stat| stat.st_mode);
        let beside = PathBuf::from(format!(".{}.tmp", random_name()?));
        let written = self.create(&beside, mode).and_then(|mut file| {
            file.write_all(bytes)?;
            if let Some(before) = &regular {
                give(&file, before)?;
            }
            fdatasync(&file)?;
            Ok(renameat(&self.0, &beside, &self.0, name)?)
        });
        if written.is_err() {
            // The reason is told; a file that cannot be removed either is hidden and small.
            let _ = unlinkat(&self.0, &beside, AtFlags::empty());
        }
        written
    }

    /// Moves an entry to a place that must be free.
    pub(crate) fn move_to(&self, name: &Path, target: &Self, new_name: &Path) -> Result<(), Miss> {
        Ok(renameat_with(&self.0, name, &target.0, new_name, RenameFlags::NOREPLACE)?)
    }

    pub(crate) fn remove_file(&self, name: &Path) -> Result<(), Miss> {
        Ok(unlinkat(&self.0, name, AtFlags::empty())?)
    }

    pub(crate) fn remove_dir(&self, name: &Path) -> Result<(), Miss> {
        Ok(unlinkat(&self.0, name, AtFlags::REMOVEDIR)?)
    }

    pub(crate) fn read_link(&self, name: &Path) -> Result<PathBuf, Miss> {
        let target = rustix::fs::readlinkat(&self.0, name, Vec::new())?;
        Ok(OsString::from_vec(target.into_bytes()).into())
    }

    /// The lock file, made when it is missing.
    pub(crate) fn lock_file(&self, name: &Path) -> Result<OwnedFd, Miss> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.0, name, flags, Mode::from_raw_mode(0o600))?)
    }
}

fn sorted(mut entries: Vec<Entry>) -> Vec<Entry> {
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    entries
}

/// Root makes files for the owner of the place: a box sees the owner of a mounted directory as its own user.
fn give(fd: &impl std::os::fd::AsFd, like: &Stat) -> Result<(), Miss> {
    if rustix::process::geteuid().is_root() {
        fchown(fd, Some(Uid::from_raw(like.st_uid)), Some(Gid::from_raw(like.st_gid)))?;
    }
    Ok(())
}

/// A name nobody else has.
pub(crate) fn random_name() -> io::Result<String> {
    let mut bytes = [0_u8; 12];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn no_link_leads_out() {
        let place = tempfile::tempdir().unwrap();
        let inside = place.path().join("in");
        std::fs::create_dir_all(inside.join("sub")).unwrap();
        std::fs::write(place.path().join("secret"), "s").unwrap();
        std::fs::write(inside.join("sub/file"), "f").unwrap();
        symlink("../secret", inside.join("up")).unwrap();
        symlink(place.path().join("secret"), inside.join("absolute")).unwrap();
        symlink("sub/file", inside.join("fine")).unwrap();
        let dir = Dir::open(&inside).unwrap();
        for bad in ["up", "absolute", "../secret", "sub/../../secret"] {
            assert!(matches!(dir.read(Path::new(bad), Links::Inside, 9), Err(Miss::Outside)), "{bad}");
        }
        assert_eq!(dir.read(Path::new("fine"), Links::Inside, 9).unwrap().0, b"f");
        assert!(matches!(dir.read(Path::new("fine"), Links::Refuse, 9), Err(Miss::Outside)));
        assert!(matches!(dir.read(Path::new("sub"), Links::Refuse, 9), Err(Miss::OtherKind)));
        assert!(matches!(dir.read(Path::new("sub/file"), Links::Refuse, 0), Err(Miss::TooLong)));
    }

    /// K8: a reader sees the old file or the new one.
    #[test]
    fn k8_a_replaced_file_keeps_its_mode_and_a_link_is_replaced_itself() {
        let place = tempfile::tempdir().unwrap();
        let dir = Dir::open(place.path()).unwrap();
        let tool = place.path().join("tool");
        std::fs::write(&tool, "old").unwrap();
        std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).unwrap();
        let held = std::fs::File::open(&tool).unwrap();
        dir.replace(Path::new("tool"), b"new").unwrap();
        assert_eq!(std::fs::read(&tool).unwrap(), b"new");
        assert_eq!(std::fs::metadata(&tool).unwrap().permissions().mode() & 0o777, 0o755);
        assert_eq!(io::read_to_string(held).unwrap(), "old", "who has it open reads on");
        std::fs::write(place.path().join("target"), "t").unwrap();
        symlink("target", place.path().join("link")).unwrap();
        dir.replace(Path::new("link"), b"x").unwrap();
        assert_eq!(std::fs::read(place.path().join("target")).unwrap(), b"t");
        std::fs::create_dir(place.path().join("d")).unwrap();
        assert!(dir.replace(Path::new("d"), b"x").is_err());
        let left: Vec<_> = dir.entries(99).unwrap().0.into_iter().map(|entry| entry.name).collect();
        assert_eq!(left, ["d", "link", "target", "tool"], "nothing is left beside");
    }

    #[test]
    fn a_fifo_does_not_hold_us_up() {
        let place = tempfile::tempdir().unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            place.path().join("fifo"),
            FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        let dir = Dir::open(place.path()).unwrap();
        assert!(matches!(dir.read(Path::new("fifo"), Links::Inside, 9), Err(Miss::OtherKind)));
    }
}
