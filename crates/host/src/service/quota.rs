//! How much lies in a workspace, and whether that is too much.
//!
//! Sizes are apparent ones, as the reference counts: a sparse file counts in full, a link its own length, a hard
//! link each time. Nothing below the workspace is followed out of it.

use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use sandcrate_protocol::BoxSpec;

use crate::config::opened_directory;
use crate::{HostError, Result};

const MEBIBYTE: u64 = 1 << 20;

/// When a workspace is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Before,
    After,
    /// Of a file tool, which runs no command.
    BeforeWriting,
}

/// What a workspace was found to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) used: u64,
    limit: u64,
    place: PathBuf,
}

impl Usage {
    pub(super) fn is_too_much(&self) -> bool {
        self.used > self.limit
    }

    pub(super) fn exceeded(&self, phase: Phase, session: &str) -> HostError {
        let phase = match phase {
            Phase::Before => "before execution",
            Phase::After => "after execution",
            Phase::BeforeWriting => "before writing",
        };
        let Self { used, limit, place } = self;
        let place = place.display();
        HostError::invalid(format!(
            "workspace quota exceeded {phase}: used={used} bytes limit={limit} bytes host_path={place} session_id={session}"
        ))
    }
}

/// Nothing when there is no quota, or when the workspace is not here to be measured.
pub(super) async fn measure(spec: &BoxSpec) -> Result<Option<Usage>> {
    let Some(path) = spec.host_path.clone().filter(|_| spec.workspace_quota_mb > 0) else { return Ok(None) };
    let limit = spec.workspace_quota_mb.saturating_mul(MEBIBYTE);
    let walk = move || {
        let Ok((directory, place)) = opened_directory(Path::new(&path)) else { return Ok(None) };
        used_bytes(&directory).map(|used| Some(Usage { used, limit, place }))
    };
    let measured = tokio::task::spawn_blocking(walk).await.map_err(io::Error::other).flatten();
    measured.map_err(|error| HostError::invalid(format!("workspace quota cannot be measured: {error}")))
}

/// Refuses a file of that many bytes more than there were, if its workspace would hold too much with it.
pub(crate) async fn check_write(spec: &BoxSpec, path: &str, growth: u64) -> Result<()> {
    let lies_below = |mount: &str| Path::new(path).starts_with(mount);
    let elsewhere = spec.extra_mounts.iter().any(|mount| lies_below(&mount.mount_path));
    if growth == 0 || elsewhere || !lies_below(&spec.mount_path) {
        return Ok(());
    }
    match measure(spec).await? {
        Some(mut usage) => {
            usage.used = usage.used.saturating_add(growth);
            if usage.is_too_much() {
                return Err(usage.exceeded(Phase::BeforeWriting, &spec.session_id));
            }
            Ok(())
        }
        None => Ok(()),
    }
}

/// One directory is open at a time, however deep the tree. What vanishes meanwhile counts nothing.
fn used_bytes(root: &impl AsFd) -> io::Result<u64> {
    let mut used = 0_u64;
    let mut left = vec![PathBuf::from(".")];
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    while let Some(path) = left.pop() {
        let directory = match rustix::fs::openat2(root, &path, flags, Mode::empty(), resolve) {
            Ok(directory) => directory,
            Err(error) if is_gone(error) => continue,
            Err(error) => return Err(error.into()),
        };
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let stat = match rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(error) if is_gone(error) => continue,
                Err(error) => return Err(error.into()),
            };
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                left.push(path.join(OsStr::from_bytes(name.to_bytes())));
            } else {
                used = used.saturating_add(u64::try_from(stat.st_size).unwrap_or(0));
            }
        }
    }
    Ok(used)
}

/// Removed, or replaced by something that is no directory, between two looks.
fn is_gone(error: rustix::io::Errno) -> bool {
    use rustix::io::Errno;
    matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV)
}
