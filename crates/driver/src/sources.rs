//! Mount sources: opened once, and checked by what was opened.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Gid, Mode, OFlags, Uid, fchown, fstat, mkdirat, open, openat};
use sandcrate_backend::{BackendError, Mount, MountAccess, check_target, refused_source};
use sandcrate_jail::message::SourceMount;
use sandcrate_jail::{Access, NodeKind, RequestedMount};

/// A source that passed, with the descriptor everything else goes by.
#[derive(Debug)]
pub struct Source {
    pub fd: OwnedFd,
    pub mount: SourceMount,
    pub requested: RequestedMount,
}

/// Files looked at before a directory is shared for writing.
const MAX_SCANNED: u64 = 2_000_000;

/// Opens and checks one source. Blocks: walks a directory that is to be shared for writing.
pub fn open_source(wanted: &Mount, own_state: &[PathBuf]) -> Result<Source, BackendError> {
    let denied = |rule: String| BackendError::MountDenied { path: wanted.source.clone(), rule };
    if wanted.create {
        make_missing(wanted).map_err(|error| denied(format!("it cannot be made: {error}")))?;
    }
    let fd =
        open(&wanted.source, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(|error| match error {
            rustix::io::Errno::NOENT => denied("it does not exist".to_owned()),
            error => denied(format!("it cannot be opened: {error}")),
        })?;
    // Where the descriptor really is, whatever links led there.
    let canonical = std::fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd)))
        .map_err(|error| BackendError::failed("resolving a mount source", error))?;
    // Skills may be kept in our own state; the runtime vouches for them by the root they must stay in.
    let vouched = |state: &&PathBuf| {
        wanted.within.as_ref().is_some_and(|root| root.starts_with(state) && root != *state)
            && wanted.within.as_ref().is_some_and(|root| canonical.starts_with(root))
    };
    let own_state: Vec<PathBuf> = own_state.iter().filter(|state| !vouched(state)).cloned().collect();
    if let Some(rule) = refused_source(&canonical, &own_state) {
        return Err(denied(match canonical == wanted.source {
            true => rule,
            false => format!("it leads to {}: {rule}", canonical.display()),
        }));
    }
    if let Some(root) = &wanted.within
        && !canonical.starts_with(root)
    {
        return Err(denied(format!("it leads to {}, outside {}", canonical.display(), root.display())));
    }
    let facts = std::fs::metadata(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd)))
        .map_err(|error| BackendError::failed("looking at a mount source", error))?;
    let kind = match (facts.is_dir(), facts.is_file()) {
        (true, _) => NodeKind::Directory,
        (_, true) => NodeKind::File,
        _ => return Err(denied("it is neither a directory nor a regular file".to_owned())),
    };
    let access = match wanted.access {
        MountAccess::ReadOnly => Access::ReadOnly,
        MountAccess::ReadWrite => Access::ReadWrite,
    };
    if access == Access::ReadWrite {
        refuse_setuid_files(&canonical).map_err(|rule| denied(rule.to_string()))?;
    }
    Ok(Source {
        fd,
        mount: SourceMount { path: canonical, owner: (facts.uid(), facts.gid()), access },
        requested: RequestedMount { target: check_target(&wanted.target)?, access, kind },
    })
}

/// Makes a missing source below its root, step by step and without following a link, for the owner of the
/// directory it is made in.
fn make_missing(wanted: &Mount) -> io::Result<()> {
    let outside = || io::Error::other("it lies in no directory that is allowed");
    let root = wanted.within.as_ref().ok_or_else(outside)?;
    let below = wanted.source.strip_prefix(root).map_err(|_| outside())?;
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut directory = open(root, flags, Mode::empty())?;
    for part in below.components() {
        let Component::Normal(name) = part else { return Err(outside()) };
        match mkdirat(&directory, name, Mode::from_raw_mode(0o755)) {
            Ok(()) => {
                let owner = fstat(&directory)?;
                let made = openat(&directory, name, flags, Mode::empty())?;
                // Only root can give it away, and only for root is it not the caller's already.
                if rustix::process::geteuid().is_root() {
                    fchown(&made, Some(Uid::from_raw(owner.st_uid)), Some(Gid::from_raw(owner.st_gid)))?;
                }
                directory = made;
            }
            Err(rustix::io::Errno::EXIST) => directory = openat(&directory, name, flags, Mode::empty())?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The box's user owns what the directory's owner owns. It cannot set a setuid bit, but a file that has one keeps
/// it when it is written through a shared mapping.
fn refuse_setuid_files(root: &Path) -> io::Result<()> {
    let mut left = MAX_SCANNED;
    let mut pending = vec![root.to_owned()];
    while let Some(path) = pending.pop() {
        let facts = match std::fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            facts => facts?,
        };
        // Without the bit to execute, setgid means something else, and setuid nothing.
        if facts.is_file() && facts.mode() & 0o6000 != 0 && facts.mode() & 0o111 != 0 {
            return Err(io::Error::other(format!(
                "{} is a setuid or setgid file, which a box could rewrite; share the directory read-only, or remove the bit",
                path.display()
            )));
        }
        if facts.is_dir() {
            for entry in std::fs::read_dir(&path)? {
                left -= 1;
                if left == 0 {
                    return Err(io::Error::other(
                        "it has too many files to look for setuid ones; share it read-only",
                    ));
                }
                let entry = entry?;
                // Links and devices cannot be setuid programs; the type costs no further call.
                if entry.file_type().is_ok_and(|kind| kind.is_dir() || kind.is_file()) {
                    pending.push(entry.path());
                }
            }
        }
    }
    Ok(())
}
