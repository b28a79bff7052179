//! Removes a directory tree of any depth, without following links or entering mounts and without recursion: neither the
//! path nor the stack nor the number of open files grows with the depth.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    Access, AtFlags, CWD, Dir, FileType, Mode, OFlags, StatxFlags, accessat, fchmod, openat, renameat, statx,
    unlinkat,
};

/// Removes `path` and all below it.
pub fn remove(path: &Path) -> io::Result<()> {
    remove_at(CWD, path)
}

/// The same for a path that is seen from a directory.
pub fn remove_at(at: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    empty(at, path)?;
    Ok(unlinkat(at, path, AtFlags::REMOVEDIR)?)
}

/// Removes all that is below `path`. Subdirectories are lifted to the top level one after the other, so that each
/// is only ever one level deep when it is looked at.
pub fn empty(at: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let top = open_directory(at, path.as_os_str().as_encoded_bytes())?;
    let mount = mount_of(&top, "")?;
    let mut lifted = 0_u64;
    loop {
        let directories = empty_of_files(&top)?;
        if directories.is_empty() {
            break;
        }
        for name in directories {
            match unlinkat(&top, &name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(rustix::io::Errno::NOENT) => continue,
                Err(rustix::io::Errno::NOTEMPTY | rustix::io::Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            if mount_of(&top, &name)? != mount {
                return Err(rustix::io::Errno::BUSY.into());
            }
            let directory = open_directory(&top, name.as_bytes())?;
            for inner in empty_of_files(&directory)? {
                lift(&directory, &inner, &top, &mut lifted)?;
            }
            unlinkat(&top, &name, AtFlags::REMOVEDIR)?;
        }
    }
    Ok(())
}

/// Fails where a directory could not be removed once it is empty: it is where something is mounted, or its parent is not
/// ours to change.
pub(crate) fn check_removable(path: &Path) -> io::Result<()> {
    let parent = path.join("..");
    if mount_of(CWD, path)? != mount_of(CWD, &parent)? {
        return Err(rustix::io::Errno::BUSY.into());
    }
    let (access, flags) = (Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS);
    Ok(accessat(CWD, &parent, access, flags)?)
}

/// By its number. Kernels before 5.8 tell none, and all look like one.
fn mount_of<P: rustix::path::Arg>(at: impl AsFd, path: P) -> io::Result<u64> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT;
    Ok(statx(at, path, flags, StatxFlags::MNT_ID)?.stx_mnt_id)
}

/// Moves a subdirectory to the top, under a name that is free: a removal that was interrupted has left some.
fn lift(from: &OwnedFd, name: &CString, top: &OwnedFd, lifted: &mut u64) -> io::Result<()> {
    let mut opened = false;
    loop {
        *lifted += 1;
        match renameat(from, name, top, format!(".removing-{lifted}")) {
            Err(rustix::io::Errno::EXIST | rustix::io::Errno::NOTEMPTY) => {}
            // Moving a directory changes its `..`, so it must be writable itself.
            Err(rustix::io::Errno::ACCESS) if !opened => {
                open_directory(from, name.as_bytes())?;
                opened = true;
            }
            other => return Ok(other?),
        }
    }
}

fn open_directory<Fd: AsFd>(at: Fd, name: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = match openat(&at, name, flags, Mode::empty()) {
        // A directory that its owner closed to himself.
        Err(rustix::io::Errno::ACCESS) => {
            let place = openat(&at, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
            rustix::fs::chmod(
                format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&place)),
                Mode::RWXU,
            )?;
            openat(&at, name, flags, Mode::empty())?
        }
        other => other?,
    };
    // Without write permission its entries cannot go; for root it makes no difference.
    let _ = fchmod(&directory, Mode::RWXU);
    Ok(directory)
}

/// Removes everything in `directory` that is not a directory; the names of those that are.
fn empty_of_files(directory: &OwnedFd) -> io::Result<Vec<CString>> {
    let mut directories = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_bytes() == b"." || name.to_bytes() == b".." {
            continue;
        }
        let is_directory = match entry.file_type() {
            FileType::Directory => true,
            FileType::Unknown => {
                let facts = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
                FileType::from_raw_mode(facts.st_mode).is_dir()
            }
            _ => false,
        };
        if is_directory {
            directories.push(name.to_owned());
        } else {
            match unlinkat(directory, name, AtFlags::empty()) {
                Ok(()) | Err(rustix::io::Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(directories)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_tree_deeper_than_any_path_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let top = root.path().join("deep");
        fs::create_dir(&top).unwrap();
        let mut here = open_directory(CWD, top.as_os_str().as_encoded_bytes()).unwrap();
        for level in 0..3000 {
            rustix::fs::mkdirat(&here, "d", Mode::RWXU).unwrap();
            if level % 500 == 0 {
                openat(&here, "file", OFlags::CREATE, Mode::RUSR).unwrap();
            }
            here = open_directory(&here, b"d").unwrap();
        }
        remove(&top).unwrap();
        assert!(!top.exists());
    }

    #[test]
    fn a_removal_that_was_interrupted_is_finished_by_the_next() {
        let root = tempfile::tempdir().unwrap();
        let top = root.path().join("top");
        fs::create_dir_all(top.join(".removing-1/a/b")).unwrap();
        fs::create_dir_all(top.join(".removing-2/c/d")).unwrap();
        fs::create_dir_all(top.join("e/f/g")).unwrap();
        remove(&top).unwrap();
        assert!(!top.exists());
    }

    #[test]
    fn links_are_not_followed_and_closed_directories_no_obstacle() {
        let root = tempfile::tempdir().unwrap();
        let kept = root.path().join("kept");
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join("file"), "x").unwrap();
        let top = root.path().join("top");
        fs::create_dir_all(top.join("a/b/c")).unwrap();
        std::os::unix::fs::symlink(&kept, top.join("a/link")).unwrap();
        for closed in ["a/b/c", "a/b", "a"] {
            fs::set_permissions(top.join(closed), std::os::unix::fs::PermissionsExt::from_mode(0o000))
                .unwrap();
        }
        remove(&top).unwrap();
        assert!(!top.exists() && kept.join("file").exists());
    }
}
