//! One box's cgroups, one directory in each hierarchy.
//!
//! On v2 the box's init lives in the box's directory itself and its commands in cgroups below
//! `run`, which is delegated to init and is what gets frozen. The box's own limits cover both: no
//! controller is handed further down, until a command has a bound of its own. Dropping a [`BoxCgroup`] removes nothing.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::process::Pid;

use super::dir::{Dir, if_present, open_file};
use super::kill::kill_all;
use super::parent::Node;
use super::{CgroupError, Controller, Limits, Owner, Version, check_name, usage, v1, v2};

const RUN: &str = "run";
/// What init makes below `run` is one flat level with a cgroup per command that still has
/// processes; the bound is far above any pids limit in use.
const RUN_BOUNDS: [(&str, &str); 2] = [("cgroup.max.depth", "1"), ("cgroup.max.descendants", "4096")];

#[derive(Debug)]
pub struct BoxCgroup {
    name: String,
    nodes: Vec<Node>,
    run: Option<Dir>,
}

impl BoxCgroup {
    /// Those that were made before, by their name.
    pub(super) fn open(parents: &[Node], name: &str) -> Result<Self, CgroupError> {
        let mut opened = Self { name: name.to_owned(), nodes: Vec::new(), run: None };
        for parent in parents {
            let dir = Arc::new(parent.dir.sub(name)?);
            if parent.version == Version::V2 {
                opened.run = Some(dir.sub(RUN)?);
            }
            opened.nodes.push(parent.below(dir));
        }
        Ok(opened)
    }

    pub(super) fn make(parents: &[Node], name: &str, owner: Option<Owner>) -> Result<Self, CgroupError> {
        check_name("box", name)?;
        let mut made = Self { name: name.to_owned(), nodes: Vec::new(), run: None };
        let Err(cause) = made.fill(parents, owner) else {
            return Ok(made);
        };
        match made.remove() {
            Ok(()) => Err(cause),
            Err(cleanup) => Err(CgroupError::Undo { cleanup: cleanup.into(), cause: cause.into() }),
        }
    }

    fn fill(&mut self, parents: &[Node], owner: Option<Owner>) -> Result<(), CgroupError> {
        for parent in parents {
            let dir = Arc::new(parent.dir.make(&self.name)?);
            self.nodes.push(parent.below(Arc::clone(&dir)));
            if parent.version == Version::V2 {
                self.run = Some(make_run(&dir, owner)?);
            }
        }
        Ok(())
    }

    /// Sets every limit, also back to unlimited. One whose controller is missing is skipped: the
    /// parent's report names it, and whether to go on without it is the caller's decision.
    pub fn set_limits(&self, limits: &Limits) -> Result<(), CgroupError> {
        for node in &self.nodes {
            let set = match node.version {
                Version::V1 => v1::set_limit,
                Version::V2 => v2::set_limit,
            };
            node.controllers.iter().try_for_each(|c| set(&node.dir, *c, limits))?;
        }
        Ok(())
    }

    /// The files to which the box's init itself, single-threaded, writes `0` to join on v1.
    ///
    /// That takes some 45 us. A pid, or anything to `cgroup.procs`, waits for an RCU grace period
    /// of 6 to 14 ms: only a thread that moves itself is spared the global lock (Linux 5.5).
    pub fn v1_task_files(&self) -> io::Result<Vec<OwnedFd>> {
        let v1 = self.nodes.iter().filter(|node| node.version == Version::V1);
        v1.map(|node| open_file(node.dir.as_fd(), "tasks", OFlags::WRONLY)).collect()
    }

    /// The box's v2 directory, for `CLONE_INTO_CGROUP`.
    pub fn unified_dir(&self) -> Option<BorrowedFd<'_>> {
        self.unified().map(|node| node.dir.as_fd())
    }

    /// The v2 directory that holds the commands' cgroups.
    pub fn run_dir(&self) -> Option<BorrowedFd<'_>> {
        self.run.as_ref().map(AsFd::as_fd)
    }

    /// Moves a process in, in every hierarchy: the slow way, for what was not cloned into it.
    pub fn join_pid(&self, pid: Pid) -> Result<(), CgroupError> {
        let pid = pid.as_raw_pid().to_string();
        self.nodes.iter().try_for_each(|node| node.dir.write("cgroup.procs", &pid))
    }

    /// Kills everything in the box, frozen or not. With `cgroup.kill` it does not wait for the end.
    pub fn kill(&self) -> Result<(), CgroupError> {
        // Every process of the box is in all hierarchies, so one of them is enough.
        let Some(node) = self.unified().or(self.nodes.first()) else {
            return Ok(());
        };
        let path = node.dir.path().to_owned();
        kill_all(node.dir.as_fd()).map_err(|source| CgroupError::Kill { path, source })
    }

    /// Stops the commands, but not init. It does not wait until the last one has stopped.
    pub fn freeze(&self) -> Result<(), CgroupError> {
        self.set_frozen("1")
    }

    pub fn thaw(&self) -> Result<(), CgroupError> {
        self.set_frozen("0")
    }

    fn set_frozen(&self, value: &str) -> Result<(), CgroupError> {
        match &self.run {
            Some(run) => run.write("cgroup.freeze", value),
            None => Err(CgroupError::FreezeUnsupported { path: self.name.clone().into() }),
        }
    }

    /// Removes the box's directories, waiting at most a second for killed processes to leave.
    pub fn remove(&self) -> Result<(), CgroupError> {
        self.nodes.iter().try_for_each(|node| node.base.remove(&self.name))
    }

    /// As [`BoxCgroup::remove`] without waiting: `ResourceBusy` while processes are left.
    pub fn try_remove(&self) -> io::Result<()> {
        self.nodes.iter().try_for_each(|node| node.base.try_remove(&self.name))
    }

    /// The directories a [`UsageReader`](super::UsageReader) needs, to be passed to its process.
    pub fn usage_dirs(&self) -> io::Result<Vec<OwnedFd>> {
        let read = |node: &&Node| {
            node.version == Version::V2 || node.controllers.iter().any(|c| *c != Controller::Cpu)
        };
        self.nodes.iter().filter(read).map(|node| node.dir.as_fd().try_clone_to_owned()).collect()
    }

    /// Whether the freeze has taken hold.
    pub fn is_frozen(&self) -> io::Result<bool> {
        self.run_dir().map_or(Ok(false), |run| usage::event(run, "frozen"))
    }

    pub(super) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub(super) fn run(&self) -> Option<&Dir> {
        self.run.as_ref()
    }

    fn unified(&self) -> Option<&Node> {
        self.nodes.iter().find(|node| node.version == Version::V2)
    }
}

/// Makes `run` and delegates it. To clone from the box's directory into one below `run`, init needs
/// to write the `cgroup.procs` of their common ancestor too (cgroups(7), delegation containment).
fn make_run(dir: &Dir, owner: Option<Owner>) -> Result<Dir, CgroupError> {
    let run = dir.make(RUN)?;
    for (file, bound) in RUN_BOUNDS {
        if_present(run.write(file, bound))?;
    }
    if let Some(owner) = owner {
        for file in ["", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"] {
            if_present(run.chown(file, owner))?;
        }
        if_present(dir.chown("cgroup.procs", owner))?;
    }
    Ok(run)
}
