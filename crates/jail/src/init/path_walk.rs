//! Finding and making places in the box's root without following links that somebody else may have put there.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, ResolveFlags, Uid, chownat, mkdirat, openat, openat2};

use crate::plan::NodeKind;

/// Opens an absolute path as a place to mount on, making what is missing; new directories belong to `owner`.
pub(super) fn mount_point(path: &str, kind: NodeKind, owner: u32) -> io::Result<OwnedFd> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let mut walked = String::new();
    for (index, part) in parts.iter().enumerate() {
        walked.push('/');
        walked.push_str(part);
        match place(&walked) {
            Ok(fd) if index + 1 == parts.len() => return Ok(fd),
            Ok(_) => continue,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        if index + 1 == parts.len() && kind == NodeKind::File {
            openat(
                CWD,
                &walked,
                OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC,
                Mode::from_raw_mode(0o644),
            )?;
        } else {
            mkdirat(CWD, &walked, Mode::from_raw_mode(0o755))?;
        }
        let (uid, gid) = (Uid::from_raw(owner), Gid::from_raw(owner));
        chownat(CWD, &walked, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    place(path)
}

/// Opens an absolute path that has no link in it.
pub(super) fn place(path: &str) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)?)
}

/// Changes to a command's directory, making it when missing. Ordinary links are followed, as the command itself
/// could; those of /proc that lead to open descriptors are not.
pub(crate) fn enter_directory(path: &[u8]) -> io::Result<()> {
    let open = || {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)
    };
    let directory = match open() {
        Err(rustix::io::Errno::NOENT) => {
            make_directories(path)?;
            open()?
        }
        other => other?,
    };
    rustix::process::fchdir(&directory)?;
    Ok(())
}

/// Makes a directory and its missing parents, with the identity of the caller.
pub(crate) fn make_directories(path: &[u8]) -> io::Result<()> {
    let ends =
        path.iter().enumerate().filter(|(index, byte)| **byte == b'/' && *index > 0).map(|(index, _)| index);
    for end in ends.chain([path.len()]) {
        match mkdirat(CWD, &path[..end], Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            // A parent that exists may be on a read-only mount or closed to us.
            Err(_) if end < path.len() && is_directory(&path[..end]) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if is_directory(path) { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ENOTDIR)) }
}

fn is_directory(path: &[u8]) -> bool {
    rustix::fs::stat(path).is_ok_and(|facts| rustix::fs::FileType::from_raw_mode(facts.st_mode).is_dir())
}
