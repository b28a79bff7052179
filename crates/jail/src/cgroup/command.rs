//! One command's cgroup below a box's `run`, made by the box's init.
//!
//! It has no controllers, unless the box hands memory down: it is there to kill the command's whole tree, to see when the last of it
//! is gone, and for its CPU time. Nothing here waits, since the caller is PID 1 of the box; only
//! killing does, up to a second, on a kernel without `cgroup.kill` (before Linux 5.14).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::AtFlags;

use super::CpuTime;
use super::dir::{make_dir, open_dir, write_file};
use super::kill::kill_all;
use super::usage::{self, Counter};

#[derive(Debug)]
pub struct CommandCgroup {
    run: OwnedFd,
    name: String,
    dir: OwnedFd,
    events: Counter,
    stat: Option<Counter>,
}

impl CommandCgroup {
    /// Makes the cgroup of command number `n`, which no living command has.
    pub fn create(run_dir: BorrowedFd<'_>, n: u32) -> io::Result<Self> {
        let (run, name) = (run_dir.try_clone_to_owned()?, n.to_string());
        make_dir(run_dir, &name)?;
        let open = || {
            let dir = open_dir(run_dir, &name)?;
            let events = Counter::open(dir.as_fd(), "cgroup.events")?;
            let stat = Counter::open(dir.as_fd(), "cpu.stat").ok();
            Ok((dir, events, stat))
        };
        match open() {
            Ok((dir, events, stat)) => Ok(Self { run, name, dir, events, stat }),
            Err(error) => {
                rustix::fs::unlinkat(run_dir, &name, AtFlags::REMOVEDIR)?;
                Err(error)
            }
        }
    }

    /// For `CLONE_INTO_CGROUP`.
    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Bounds the memory of the whole tree; only after [`BoxCgroup::confine`](super::BoxCgroup::confine).
    pub fn limit_memory(&self, bytes: u64) -> io::Result<()> {
        write_file(self.dir(), "memory.max", &bytes.to_string())?;
        match write_file(self.dir(), "memory.swap.max", "0") {
            // A kernel that does not account swap.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    /// Of the whole tree, also of processes that nobody waited for.
    pub fn cpu(&self) -> Option<CpuTime> {
        self.stat.as_ref()?.read(usage::cpu_time)
    }

    /// Whether any process of the command's tree is left.
    pub fn populated(&self) -> io::Result<bool> {
        self.events
            .read(|text| usage::flag(text, "populated"))
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    pub fn kill(&self) -> io::Result<()> {
        kill_all(self.dir())
    }

    /// `ResourceBusy` while populated: try again after the next reap.
    pub fn remove(&self) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.run, &self.name, AtFlags::REMOVEDIR)?)
    }
}
