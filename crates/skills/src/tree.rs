//! Whole directories: copied, packed and removed with bounds, without following a link and without recursion.

use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::FileType;

use crate::beneath::{Dir, Links, Miss, random_name};
use crate::limits::PACKAGE_DEPTH;
use crate::zip::ZipWriter;
use crate::{Limits, SkillError};

/// One entry of a tree.
#[derive(Debug)]
struct Node {
    below: PathBuf,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Directory,
    File,
    /// A relative link to something inside.
    Link(PathBuf),
}

/// Every entry, parents first.
fn walk(top: &Dir, limits: &Limits) -> Result<Vec<Node>, SkillError> {
    let mut nodes = Vec::new();
    let mut pending = vec![(PathBuf::new(), 0)];
    while let Some((at, depth)) = pending.pop() {
        if depth > PACKAGE_DEPTH {
            return Err(SkillError::limit("the depth of a package", PACKAGE_DEPTH.to_string()));
        }
        let dir = top.dir(&at, Links::Refuse).map_err(|miss| failed("opening", &at, miss))?;
        let room = limits.package_entries.saturating_sub(nodes.len());
        let (entries, more) = dir.entries(room).map_err(|miss| failed("listing", &at, miss))?;
        if more {
            let limit = format!("{} entries", limits.package_entries);
            return Err(SkillError::limit("the package", limit));
        }
        for entry in entries {
            let below = at.join(&entry.name);
            let kind = match entry.kind {
                FileType::Directory => {
                    pending.push((below.clone(), depth + 1));
                    Kind::Directory
                }
                FileType::RegularFile => Kind::File,
                FileType::Symlink => {
                    let name = Path::new(&entry.name);
                    let target = dir.read_link(name).map_err(|miss| failed("reading", &below, miss))?;
                    // What it leads to must be there and inside; then the link itself is kept.
                    if target.is_absolute() || top.stat(&below, Links::Inside).is_err() {
                        let problem = format!(
                            "the package has a symbolic link that leads out of it: {}",
                            below.display()
                        );
                        return Err(SkillError::invalid("package_root", problem));
                    }
                    Kind::Link(target)
                }
                _ => {
                    let problem = format!("the package has something that is no file: {}", below.display());
                    return Err(SkillError::invalid("package_root", problem));
                }
            };
            nodes.push(Node { below, kind });
        }
    }
    Ok(nodes)
}

/// Counts bytes against the bound of a package.
#[derive(Debug)]
pub(crate) struct Budget {
    left: u64,
    limit: u64,
}

impl Budget {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self { left: limits.package_bytes, limit: limits.package_bytes }
    }

    pub(crate) fn take(&mut self, bytes: u64) -> Result<(), SkillError> {
        self.left = self
            .left
            .checked_sub(bytes)
            .ok_or_else(|| SkillError::limit("the size of the package", format!("{} bytes", self.limit)))?;
        Ok(())
    }
}

/// Copies everything below `from` into the empty directory `to`.
pub(crate) fn copy(from: &Dir, to: &Dir, limits: &Limits) -> Result<(), SkillError> {
    let mut budget = Budget::new(limits);
    for Node { below, kind } in walk(from, limits)? {
        let parent = to
            .dir(below.parent().unwrap_or(Path::new("")), Links::Refuse)
            .map_err(|miss| failed("copying", &below, miss))?;
        let name = Path::new(below.file_name().unwrap_or_default());
        match kind {
            Kind::Directory => drop(parent.make(name).map_err(|miss| failed("copying", &below, miss))?),
            Kind::Link(target) => {
                parent.link(name, &target).map_err(|miss| failed("copying", &below, miss))?
            }
            Kind::File => {
                let (source, stat) =
                    from.file(&below, Links::Refuse).map_err(|miss| failed("copying", &below, miss))?;
                let mode = if stat.st_mode & 0o111 != 0 { 0o755 } else { 0o644 };
                let target = parent.create(name, mode).map_err(|miss| failed("copying", &below, miss))?;
                copy_bytes(source, target, &mut budget, &below)?;
            }
        }
    }
    Ok(())
}

fn copy_bytes(
    mut from: impl Read,
    mut to: impl Write,
    budget: &mut Budget,
    what: &Path,
) -> Result<(), SkillError> {
    let mut buffer = vec![0; 64 << 10];
    let failed = |error| SkillError::io(format!("copying {}", what.display()), error);
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed(error)),
        };
        budget.take(read as u64)?;
        to.write_all(&buffer[..read]).map_err(failed)?;
    }
}

/// A zip of everything below `top`, its files at the archive's top.
pub(crate) fn pack(top: &Dir, limits: &Limits) -> Result<Vec<u8>, SkillError> {
    let mut budget = Budget::new(limits);
    let mut zip = ZipWriter::default();
    let mut nodes = walk(top, limits)?;
    nodes.sort_by(|a, b| a.below.as_os_str().as_bytes().cmp(b.below.as_os_str().as_bytes()));
    for Node { below, kind } in nodes {
        let Some(name) = below.to_str() else {
            let problem = format!("a file name is not UTF-8: {}", below.display());
            return Err(SkillError::invalid("path", problem));
        };
        match kind {
            Kind::Directory => zip.directory(name)?,
            // A link inside the package is packed as what it leads to: archives with links are refused.
            Kind::File | Kind::Link(_) => {
                let (source, stat) = match top.file(&below, Links::Inside) {
                    Err(Miss::OtherKind) => continue,
                    opened => opened.map_err(|miss| failed("packing", &below, miss))?,
                };
                let mut bytes = Vec::new();
                copy_bytes(source, &mut bytes, &mut budget, &below)?;
                zip.file(name, &bytes, stat.st_mode & 0o111 != 0)?;
            }
        }
    }
    zip.finish()
}

/// A zip of a directory of the caller's own, for sending it to a server.
///
/// # Errors
/// When the directory cannot be read, has links that leave it, or exceeds a limit.
pub fn pack_directory(path: &Path, limits: &Limits) -> Result<Vec<u8>, SkillError> {
    let top =
        Dir::open(path).map_err(|error| SkillError::io(format!("opening {}", path.display()), error))?;
    pack(&top, limits)
}

/// Removes an entry of `place` with all below it. Directories inside are moved up into `place` first, so
/// neither depth nor the length of a path can stop it. It ends in time even while somebody goes on writing there.
pub(crate) fn remove(place: &Dir, name: &Path, until: Instant) -> Result<(), Miss> {
    let mut pending = vec![name.to_owned()];
    while let Some(name) = pending.pop() {
        match place.dir(&name, Links::Refuse) {
            Ok(dir) => loop {
                if Instant::now() >= until {
                    return Err(Miss::Failed(io::ErrorKind::TimedOut.into()));
                }
                let (entries, more) = dir.entries(1024)?;
                for entry in entries {
                    let inner = Path::new(&entry.name);
                    if entry.kind == FileType::Directory {
                        let moved = PathBuf::from(random_name()?);
                        dir.move_to(inner, place, &moved)?;
                        pending.push(moved);
                    } else {
                        dir.remove_file(inner)?;
                    }
                }
                if !more {
                    place.remove_dir(&name)?;
                    break;
                }
            },
            Err(Miss::Absent) => {}
            Err(_) => place.remove_file(&name)?,
        }
    }
    Ok(())
}

pub(crate) fn failed(doing: &str, what: &Path, miss: Miss) -> SkillError {
    let why = match miss {
        Miss::Failed(error) => error,
        Miss::Absent => io::ErrorKind::NotFound.into(),
        Miss::Outside => io::Error::other("a symbolic link is in the way"),
        Miss::OtherKind => io::Error::other("it is of another kind than it was"),
        Miss::TooLong => io::Error::other("it is too large"),
    };
    SkillError::io(format!("{doing} {}", what.display()), why)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    use super::*;

    #[test]
    fn s9_a_copy_follows_no_link_and_refuses_those_that_leave() {
        let place = tempfile::tempdir().unwrap();
        let (from, to) = (place.path().join("from"), place.path().join("to"));
        std::fs::create_dir_all(from.join("sub")).unwrap();
        std::fs::create_dir(&to).unwrap();
        std::fs::write(from.join("sub/file"), "x").unwrap();
        symlink("sub/file", from.join("inside")).unwrap();
        let limits = Limits::default();
        copy(&Dir::open(&from).unwrap(), &Dir::open(&to).unwrap(), &limits).unwrap();
        assert_eq!(std::fs::read_link(to.join("inside")).unwrap(), Path::new("sub/file"));
        assert_eq!(std::fs::read(to.join("sub/file")).unwrap(), b"x");
        for target in ["/etc/hostname", "../secret", "nowhere"] {
            symlink(target, from.join("bad")).unwrap();
            let empty = place.path().join(format!("to-{}", target.len()));
            std::fs::create_dir(&empty).unwrap();
            let refused = copy(&Dir::open(&from).unwrap(), &Dir::open(&empty).unwrap(), &limits);
            assert!(refused.unwrap_err().to_string().contains("symbolic link"), "{target}");
            std::fs::remove_file(from.join("bad")).unwrap();
        }
    }

    #[test]
    fn s15_a_copy_is_bounded_in_entries_bytes_and_depth() {
        let place = tempfile::tempdir().unwrap();
        let from = place.path().join("from");
        let mut deep = from.clone();
        for _ in 0..40 {
            deep.push("d");
        }
        std::fs::create_dir_all(&deep).unwrap();
        std::fs::write(from.join("file"), [0; 1000]).unwrap();
        let copy_with = |limits: &Limits, name: &str| {
            let to = place.path().join(name);
            std::fs::create_dir(&to).unwrap();
            copy(&Dir::open(&from).unwrap(), &Dir::open(&to).unwrap(), limits)
        };
        assert!(copy_with(&Limits::default(), "a").unwrap_err().to_string().contains("depth"));
        std::fs::remove_dir_all(from.join("d")).unwrap();
        let bytes = Limits { package_bytes: 999, ..Limits::default() };
        assert!(copy_with(&bytes, "b").unwrap_err().to_string().contains("999 bytes"));
        let entries = Limits { package_entries: 0, ..Limits::default() };
        assert!(copy_with(&entries, "c").unwrap_err().to_string().contains("0 entries"));
        copy_with(&Limits::default(), "d").unwrap();
    }

    #[test]
    fn any_depth_is_removed_and_no_link_is_followed() {
        let place = tempfile::tempdir().unwrap();
        let kept = place.path().join("kept");
        std::fs::create_dir(&kept).unwrap();
        std::fs::write(kept.join("file"), "x").unwrap();
        let holder = place.path().join("holder");
        std::fs::create_dir(&holder).unwrap();
        let dir = Dir::open(&holder).unwrap();
        // Deeper than a path can name, and than descriptors would do for.
        let mut at = dir.make(Path::new("victim")).unwrap();
        for _ in 0..3000 {
            at = at.make(Path::new("directory")).unwrap();
            at.link(Path::new("link"), &kept).unwrap();
        }
        remove(&dir, Path::new("victim"), Instant::now() + Duration::from_secs(60)).unwrap();
        assert_eq!(std::fs::read_dir(&holder).unwrap().count(), 0);
        assert!(kept.join("file").exists());
    }

    #[test]
    fn a_removal_ends_while_somebody_goes_on_writing() {
        let place = tempfile::tempdir().unwrap();
        let dir = Dir::open(place.path()).unwrap();
        let victim = place.path().join("victim");
        std::fs::create_dir(&victim).unwrap();
        let ended = std::sync::atomic::AtomicBool::new(false);
        let order = std::sync::atomic::Ordering::SeqCst;
        std::thread::scope(|scope| {
            for writer in 0..2 {
                let (held, ended) = (Dir::open(&victim).unwrap(), &ended);
                scope.spawn(move || {
                    for number in 0_u64.. {
                        if ended.load(order) || held.make(Path::new(&format!("{writer}-{number}"))).is_err() {
                            break;
                        }
                    }
                });
            }
            let began = Instant::now();
            let removed = remove(&dir, Path::new("victim"), began + Duration::from_millis(200));
            let took = began.elapsed();
            ended.store(true, order);
            assert!(took < Duration::from_secs(10), "{removed:?} after {took:?}");
        });
        let late = remove(&dir, Path::new("victim"), Instant::now());
        assert!(!victim.exists() || matches!(late, Err(Miss::Failed(_))));
        let rest = place.path().join("rest");
        std::fs::create_dir(&rest).unwrap();
        assert!(remove(&dir, Path::new("rest"), Instant::now()).is_err());
        assert!(rest.exists());
        remove(&dir, Path::new("rest"), Instant::now() + Duration::from_secs(60)).unwrap();
        assert!(!rest.exists());
    }
}
