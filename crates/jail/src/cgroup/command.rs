//! One command's cgroup below a box's `run`, made by the box's init.
//!
//! It has no controllers: it is there to kill the command's whole tree, to see when the last of it
//! is gone, and for its CPU time. Nothing here waits, since the caller is PID 1 of the box; only
//! killing does, up to a second, on a kernel without `cgroup.kill` (before Linux 5.14).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::AtFlags;

use super::dir::{make_dir, open_dir};
use super::kill::kill_all;
use super::{CpuTime, usage};

#[derive(Debug)]
pub struct CommandCgroup {
    run: OwnedFd,
    name: String,
    dir: OwnedFd,
}

impl CommandCgroup {
    /// Makes the cgroup of command number `n`, which no living command has.
    pub fn create(run_dir: BorrowedFd<'_>, n: u32) -> io::Result<Self> {
        let (run, name) = (run_dir.try_clone_to_owned()?, n.to_string());
        make_dir(run_dir, &name)?;
        match open_dir(run_dir, &name) {
            Ok(dir) => Ok(Self { run, name, dir }),
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

    /// Of the whole tree, also of processes that nobody waited for.
    pub fn cpu(&self) -> Option<CpuTime> {
        usage::cpu_time(&super::dir::read_file(self.dir(), "cpu.stat").ok()?)
    }

    /// Whether any process of the command's tree is left.
    pub fn populated(&self) -> io::Result<bool> {
        usage::event(self.dir(), "populated")
    }

    pub fn kill(&self) -> io::Result<()> {
        kill_all(self.dir())
    }

    /// `ResourceBusy` while populated: try again after the next reap.
    pub fn remove(&self) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(
            &self.run,
            &self.name,
            AtFlags::REMOVEDIR,
        )?)
    }
}
