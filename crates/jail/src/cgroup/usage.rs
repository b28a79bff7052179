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

#[derive(Debug)]
pub struct UsageReader {
    dirs: Vec<OwnedFd>,
    /// Kept open, because v2 resets the peak for one open file only.
    peak: Option<OwnedFd>,
}

impl UsageReader {
    /// Takes what [`BoxCgroup::usage_dirs`](super::BoxCgroup::usage_dirs) gave, in any order.
    pub fn new(dirs: Vec<OwnedFd>) -> Self {
        let open = |dir: &OwnedFd, file| {
            // Before Linux 6.12 v2's file is read-only.
            open_file(dir.as_fd(), file, OFlags::RDWR)
                .or_else(|_| open_file(dir.as_fd(), file, OFlags::RDONLY))
                .ok()
        };
        let names = ["memory.peak", "memory.max_usage_in_bytes"];
        let peak = dirs
            .iter()
            .find_map(|dir| names.iter().find_map(|name| open(dir, name)));
        Self { dirs, peak }
    }

    /// The most memory used at once since the start or the last reset; v2 has it since Linux 5.19.
    pub fn peak_memory_bytes(&self) -> Option<u64> {
        let mut text = [0; 32];
        let length = rustix::io::pread(self.peak.as_ref()?, &mut text, 0).ok()?;
        std::str::from_utf8(text.get(..length)?)
            .ok()?
            .trim()
            .parse()
            .ok()
    }

    /// Counts the peak from here; false where the kernel cannot (v2 before Linux 6.12).
    pub fn reset_peak(&self) -> bool {
        self.peak
            .as_ref()
            .is_some_and(|peak| rustix::io::pwrite(peak, b"0", 0).is_ok())
    }

    pub fn current_memory_bytes(&self) -> Option<u64> {
        let number = |text: &str| text.trim().parse().ok();
        self.find("memory.current", number)
            .or_else(|| self.find("memory.usage_in_bytes", number))
    }

    /// Memory held by tmpfs files and shared memory.
    pub fn tmpfs_bytes(&self) -> Option<u64> {
        self.find("memory.stat", |text| field(text, "shmem"))
    }

    /// Processes that the kernel killed for want of memory.
    pub fn oom_kills(&self) -> Option<u64> {
        let count = |text: &str| field(text, "oom_kill");
        self.find("memory.events", count)
            .or_else(|| self.find("memory.oom_control", count))
    }

    /// Forks that failed at the pids limit.
    pub fn pids_refused(&self) -> Option<u64> {
        self.find("pids.events", |text| field(text, "max"))
    }

    /// v2 only; it counts without a cpu controller.
    pub fn cpu(&self) -> Option<CpuTime> {
        self.find("cpu.stat", cpu_time)
    }

    fn find<T>(&self, file: &str, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
        self.dirs
            .iter()
            .find_map(|dir| parse(&read_file(dir.as_fd(), file).ok()?))
    }
}

pub(super) fn cpu_time(stat: &str) -> Option<CpuTime> {
    let time = |key| field(stat, key).map(Duration::from_micros);
    Some(CpuTime {
        user: time("user_usec")?,
        system: time("system_usec")?,
    })
}

/// One flag of a v2 directory's `cgroup.events`.
pub(super) fn event(dir: BorrowedFd<'_>, key: &str) -> io::Result<bool> {
    Ok(field(&read_file(dir, "cgroup.events")?, key) == Some(1))
}

/// The number after `key` in lines of `key number`.
fn field(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        line.strip_prefix(key)?
            .strip_prefix(' ')?
            .trim()
            .parse()
            .ok()
    })
}
