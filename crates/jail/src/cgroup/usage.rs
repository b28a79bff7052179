//! Reads what a box used, from directory fds that another process opened.
//!
//! Which fd belongs to which hierarchy is found by the files in it. What the kernel does not give,
//! or no longer gives because the box is removed, is `None`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::OFlags;

use super::dir::{open_file, read_file};

/// CPU time used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuTime {
    pub user: Duration,
    pub system: Duration,
}

/// A file of a cgroup, kept open: reading it again is one system call.
#[derive(Debug)]
pub(super) struct Counter(OwnedFd);

impl Counter {
    /// The first of the files that exists in one of the directories.
    fn find(dirs: &[OwnedFd], names: &[&str]) -> Option<Self> {
        dirs.iter().find_map(|dir| names.iter().find_map(|name| Self::open(dir.as_fd(), name).ok()))
    }

    pub(super) fn open(dir: BorrowedFd<'_>, name: &str) -> io::Result<Self> {
        // Before Linux 6.12 v2's peak is read-only, as the others are.
        open_file(dir, name, OFlags::RDWR).or_else(|_| open_file(dir, name, OFlags::RDONLY)).map(Self)
    }

    /// What `parse` makes of the file now. The files that are read so hold a few short lines.
    pub(super) fn read<T>(&self, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
        let mut text = [0; 1024];
        let length = rustix::io::pread(&self.0, &mut text, 0).ok()?;
        parse(std::str::from_utf8(text.get(..length)?).ok()?)
    }
}

#[derive(Debug)]
pub struct UsageReader {
    /// The directory with memory.stat, which is seldom read.
    memory: Option<OwnedFd>,
    /// v2 resets the peak for one open file only.
    peak: Option<Counter>,
    oom: Option<Counter>,
    pids: Option<Counter>,
}

impl UsageReader {
    /// Takes what [`BoxCgroup::usage_dirs`](super::BoxCgroup::usage_dirs) gave, in any order.
    pub fn new(dirs: Vec<OwnedFd>) -> Self {
        let (peak, oom, pids) = (
            Counter::find(&dirs, &["memory.peak", "memory.max_usage_in_bytes"]),
            Counter::find(&dirs, &["memory.events", "memory.oom_control"]),
            Counter::find(&dirs, &["pids.events"]),
        );
        let memory =
            dirs.into_iter().find(|dir| open_file(dir.as_fd(), "memory.stat", OFlags::RDONLY).is_ok());
        Self { memory, peak, oom, pids }
    }

    /// The most memory used at once since the start or the last reset; v2 has it since Linux 5.19.
    pub fn peak_memory_bytes(&self) -> Option<u64> {
        self.peak.as_ref()?.read(|text| text.trim().parse().ok())
    }

    /// Counts the peak from here; false where the kernel cannot (v2 before Linux 6.12).
    pub fn reset_peak(&self) -> bool {
        self.peak.as_ref().is_some_and(|peak| rustix::io::pwrite(&peak.0, b"0", 0).is_ok())
    }

    pub fn current_memory_bytes(&self) -> Option<u64> {
        let number = |text: String| text.trim().parse().ok();
        let dir = self.memory.as_ref()?.as_fd();
        let read = read_file(dir, "memory.current").or_else(|_| read_file(dir, "memory.usage_in_bytes"));
        read.ok().and_then(number)
    }

    /// Memory held by tmpfs files and shared memory.
    pub fn tmpfs_bytes(&self) -> Option<u64> {
        field(&read_file(self.memory.as_ref()?.as_fd(), "memory.stat").ok()?, "shmem")
    }

    /// Processes that the kernel killed for want of memory.
    pub fn oom_kills(&self) -> Option<u64> {
        self.oom.as_ref()?.read(|text| field(text, "oom_kill"))
    }

    /// Forks that failed at the pids limit.
    pub fn pids_refused(&self) -> Option<u64> {
        self.pids.as_ref()?.read(|text| field(text, "max"))
    }
}

pub(super) fn cpu_time(stat: &str) -> Option<CpuTime> {
    let time = |key| field(stat, key).map(Duration::from_micros);
    Some(CpuTime { user: time("user_usec")?, system: time("system_usec")? })
}

/// One flag of `cgroup.events`.
pub(super) fn flag(text: &str, key: &str) -> Option<bool> {
    field(text, key).map(|value| value == 1)
}

/// One flag of a v2 directory's `cgroup.events`.
pub(super) fn event(dir: BorrowedFd<'_>, key: &str) -> io::Result<bool> {
    Ok(field(&read_file(dir, "cgroup.events")?, key) == Some(1))
}

/// The number after `key` in lines of `key number`.
fn field(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}
