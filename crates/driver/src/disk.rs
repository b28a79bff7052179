//! What lies in directories that a box may change.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{
    Access, AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, accessat, open, openat2, statat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

const FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);
/// Of a path that is walked at once: with one name more it stays below what the kernel takes.
const MAX_PATH: usize = 2048;
/// Descriptors on the way down, one for each such path: beyond them a tree is too deep to be counted.
const MAX_ANCHORS: u32 = 64;

/// Bytes allocated below some directories. Blocks. What vanishes meanwhile counts nothing, and no link is followed:
/// a box may change the tree under our feet. What cannot be counted is an error, or a box would hide files there.
/// A file that is open but has no name any more is not seen.
pub(crate) fn used_bytes(roots: &[PathBuf]) -> io::Result<u64> {
    // st_blocks counts units of 512 bytes (stat(2)).
    roots.iter().try_fold(0_u64, |sum, root| Ok(sum.saturating_add(used_blocks(root)?.saturating_mul(512))))
}

/// A directory that is being counted, by an open one above it: its own path may be too long for the kernel.
struct Place {
    anchor: Rc<OwnedFd>,
    path: PathBuf,
    /// How many anchors lie above.
    anchors: u32,
}

fn used_blocks(root: &Path) -> io::Result<u64> {
    let anchor = match open(root, FLAGS, Mode::empty()) {
        Err(error) if is_gone(error) => return Ok(0),
        opened => Rc::new(opened?),
    };
    let top = Rc::new(Place { anchor, path: PathBuf::from("."), anchors: 0 });
    // Depth first, so that only the anchors of one way down are open.
    let mut pending = vec![(top, CString::from(c"."))];
    let mut blocks = 0_u64;
    while let Some((above, name)) = pending.pop() {
        let path = above.path.join(OsStr::from_bytes(name.to_bytes()));
        let (directory, mut entries) = match open_directory(&above.anchor, &path) {
            Ok(opened) => opened,
            Err(error) if is_gone(error) => continue,
            Err(Errno::ACCESS) if is_closed_to_boxes(&above.anchor, &path) => continue,
            Err(error) => return Err(error.into()),
        };
        let here = if path.as_os_str().len() <= MAX_PATH {
            Place { anchor: Rc::clone(&above.anchor), path, anchors: above.anchors }
        } else if above.anchors < MAX_ANCHORS {
            Place { anchor: Rc::new(directory), path: PathBuf::from("."), anchors: above.anchors + 1 }
        } else {
            return Err(Errno::NAMETOOLONG.into());
        };
        let here = Rc::new(here);
        while let Some(entry) = entries.read() {
            let entry = match entry {
                // The directory itself went.
                Err(error) if is_gone(error) => break,
                entry => entry?,
            };
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let facts = match statat(entries.fd()?, name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(error) if is_gone(error) => continue,
                facts => facts?,
            };
            blocks = blocks.saturating_add(u64::try_from(facts.st_blocks).unwrap_or(0));
            if FileType::from_raw_mode(facts.st_mode).is_dir() {
                pending.push((Rc::clone(&here), name.to_owned()));
            }
        }
    }
    Ok(blocks)
}

fn open_directory(anchor: &OwnedFd, path: &Path) -> Result<(OwnedFd, Dir), Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let directory = openat2(anchor, path, FLAGS, Mode::empty(), resolve)?;
    let entries = Dir::read_from(&directory)?;
    Ok((directory, entries))
}

/// Vanished, or exchanged for something that is no directory.
fn is_gone(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP)
}

/// Whether a directory that we may not read is one that no box of ours can write to either: boxes of an ordinary
/// user have that user's id, and who is not the owner cannot open it. A box's own closed directory is none of these.
fn is_closed_to_boxes(anchor: &OwnedFd, path: &Path) -> bool {
    let user = geteuid();
    let foreign = statat(anchor, path, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|facts| !user.is_root() && facts.st_uid != user.as_raw());
    foreign
        && accessat(anchor, path, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS) == Err(Errno::ACCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use rustix::fs::{mkdirat, openat};

    const FILE_BYTES: u64 = 1 << 20;

    /// A file of 1 MiB below so many directories whose names have 200 bytes.
    fn deep(depth: usize) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let name = "d".repeat(200);
        let mut here = open(root.path(), FLAGS, Mode::empty()).unwrap();
        for _ in 0..depth {
            mkdirat(&here, &name, Mode::RWXU).unwrap();
            here = openat(&here, &name, FLAGS, Mode::empty()).unwrap();
        }
        let file = openat(&here, "file", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap();
        rustix::io::write(&file, &vec![1; FILE_BYTES as usize]).unwrap();
        root
    }

    fn remove(root: tempfile::TempDir) {
        sandcrate_jail::remove_tree::remove(&root.keep()).unwrap();
    }

    #[test]
    fn what_lies_deeper_than_any_path_is_counted() {
        let root = deep(100);
        let used = used_bytes(&[root.path().to_owned(), root.path().join("missing")]).unwrap();
        assert!((FILE_BYTES..FILE_BYTES * 4).contains(&used), "{used}");
        remove(root);
    }

    #[test]
    fn what_lies_too_deep_is_an_error_and_not_nothing() {
        let root = deep(1000);
        assert!(used_bytes(&[root.path().to_owned()]).is_err());
        remove(root);
    }

    /// As an ordinary user: root reads everything.
    #[test]
    fn a_closed_directory_is_an_error_unless_it_is_somebody_elses() {
        let root = tempfile::tempdir().unwrap();
        let at = root.path().to_owned();
        let ours = if geteuid().is_root() { 12345 } else { geteuid().as_raw() };
        fs::set_permissions(&at, Permissions::from_mode(0o755)).unwrap();
        for (name, mode) in [("none", 0o000), ("blind", 0o300), ("stuck", 0o600)] {
            let closed = at.join(name).join("closed");
            fs::create_dir_all(&closed).unwrap();
            fs::write(closed.join("file"), "x").unwrap();
            if geteuid().is_root() {
                std::os::unix::fs::chown(&closed, Some(ours), Some(ours)).unwrap();
            }
            fs::set_permissions(&closed, Permissions::from_mode(mode)).unwrap();
        }
        let foreign = at.join("foreign/closed");
        fs::create_dir_all(&foreign).unwrap();
        fs::set_permissions(&foreign, Permissions::from_mode(0o700)).unwrap();
        let count = std::thread::spawn(move || {
            if geteuid().is_root() {
                let user = rustix::process::Uid::from_raw(ours);
                rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            }
            let errors = ["none", "blind", "stuck"].map(|name| used_bytes(&[at.join(name)]).is_err());
            (errors, used_bytes(&[at.join("foreign")]).is_ok())
        });
        assert_eq!(count.join().unwrap(), ([true; 3], true));
        for name in ["none", "blind", "stuck"] {
            let open = Permissions::from_mode(0o700);
            fs::set_permissions(root.path().join(name).join("closed"), open).unwrap();
        }
    }
}
