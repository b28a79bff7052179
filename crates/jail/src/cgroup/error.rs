//! What can fail: one variant per step, with the object it failed on.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CgroupError {
    #[error("`{name}` is no {what} name: it takes 1 to 64 of a-z, 0-9 and `-`")]
    Name { what: &'static str, name: String },
    #[error("cgroup parent `{path}` may not have `.` or `..` in it")]
    ParentPath { path: String },
    #[error("cannot open `{}`", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("cannot read `{}`", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write `{value}` to `{}`", path.display())]
    Write { path: PathBuf, value: String, source: io::Error },
    #[error("cannot create cgroup `{}`", path.display())]
    Create { path: PathBuf, source: io::Error },
    #[error("cannot give `{}` to uid {uid}", path.display())]
    Delegate { path: PathBuf, uid: u32, source: io::Error },
    /// The no-internal-process rule: its processes would have to leave first.
    #[error("cgroup `{}` also holds process {pid}, which is not ours to move", path.display())]
    Occupied { path: PathBuf, pid: i32 },
    #[error("cannot kill the processes of cgroup `{}`", path.display())]
    Kill { path: PathBuf, source: io::Error },
    #[error("cgroup `{}` cannot be frozen: that takes cgroup v2", path.display())]
    FreezeUnsupported { path: PathBuf },
    #[error("no cgroup bounds the memory of the box")]
    NoMemory,
    #[error("cannot remove cgroup `{}`", path.display())]
    Remove { path: PathBuf, source: io::Error },
    /// A failed creation that could not be undone either.
    #[error("could not undo a failed creation ({cleanup})")]
    Undo {
        cleanup: Box<CgroupError>,
        #[source]
        cause: Box<CgroupError>,
    },
}

impl CgroupError {
    /// The message with its causes, for a report that keeps no error.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut next = std::error::Error::source(self);
        while let Some(cause) = next {
            text = format!("{text}: {cause}");
            next = cause.source();
        }
        text
    }

    pub(super) fn is_not_found(&self) -> bool {
        matches!(self, Self::Open { source, .. } | Self::Read { source, .. } | Self::Write { source, .. }
            | Self::Delegate { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}
