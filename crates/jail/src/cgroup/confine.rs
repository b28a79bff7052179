//! A bound of memory for one command and what it starts, below the box's own.
//!
//! On v1 that is a cgroup below the box's in the memory hierarchy, which the command joins by itself. On v2 it is the
//! command's own cgroup below `run`, once the controller is handed down so far; the box's directory must be empty of
//! processes for that, so its init and workers move to a leaf first. Nothing of either is there before it is asked for.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, OFlags};

use super::dir::{Dir, open_file, subdirs};
use super::parent::Node;
use super::{BoxCgroup, CgroupError, Controller, Limits, Version, v1, v2};

/// How the cgroups of such commands are called on v1, before their number.
const COMMAND: &str = "command-";
/// More than a box can have processes by default; those of ended commands are removed on the way.
const MOST_COMMANDS: u32 = 1024;
/// One that is empty for so long is nobody's any more: a command joins right after it was made.
const ABANDONED: Duration = Duration::from_secs(60);
/// On v2, where init lives when the box's directory has to be empty.
const LEAF: &str = "init";
/// Rounds of moving processes that fork meanwhile: init does while it serves, and is itself moved in the first.
const ROUNDS: usize = 16;

/// What a command takes along to be bounded. On v2 nothing: its own cgroup takes the limit
/// ([`CommandCgroup::limit_memory`](super::CommandCgroup::limit_memory)).
#[derive(Debug, Default)]
pub struct Confined {
    /// On v1, the file to which the command writes `0` to join.
    pub tasks: Option<OwnedFd>,
    /// On v1, its directory, for a [`UsageReader`](super::UsageReader): the box's own does not count its kills.
    pub usage: Option<OwnedFd>,
}

impl BoxCgroup {
    /// Prepares a bound of memory for the next command. The box's own holds as well.
    pub fn confine(&self, memory_bytes: u64) -> Result<Confined, CgroupError> {
        let with_memory = |node: &&Node| node.controllers.contains(&Controller::Memory);
        let node = self.nodes().iter().find(with_memory).ok_or(CgroupError::NoMemory)?;
        match (node.version, self.run()) {
            (Version::V1, _) => confine_v1(&node.dir, memory_bytes),
            (Version::V2, Some(run)) => hand_down(&node.dir, run).map(|()| Confined::default()),
            (Version::V2, None) => Err(CgroupError::NoMemory),
        }
    }
}

fn confine_v1(parent: &Dir, memory_bytes: u64) -> Result<Confined, CgroupError> {
    // Always so since Linux 5.11; before, a child would not count for its parent.
    if parent.read("memory.use_hierarchy").is_ok_and(|text| text.trim() == "0") {
        parent.write("memory.use_hierarchy", "1")?;
    }
    remove_abandoned(parent);
    let (name, dir) = make_next(parent)?;
    let limits = Limits { memory_bytes: Some(memory_bytes), ..Limits::default() };
    let filled = v1::set_limit(&dir, Controller::Memory, &limits).and_then(|()| {
        let opened = open_file(dir.as_fd(), "tasks", OFlags::WRONLY)
            .and_then(|tasks| Ok((tasks, dir.as_fd().try_clone_to_owned()?)));
        opened.map_err(|source| CgroupError::Open { path: dir.path().join("tasks"), source })
    });
    match filled {
        Ok((tasks, usage)) => Ok(Confined { tasks: Some(tasks), usage: Some(usage) }),
        Err(error) => {
            let _ = parent.try_remove(&name);
            Err(error)
        }
    }
}

fn make_next(parent: &Dir) -> Result<(String, Dir), CgroupError> {
    for number in 1..=MOST_COMMANDS {
        let name = format!("{COMMAND}{number}");
        match parent.make(&name) {
            Err(CgroupError::Create { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|dir| (name, dir)),
        }
    }
    let source = io::Error::from(io::ErrorKind::QuotaExceeded);
    Err(CgroupError::Create { path: parent.path().join(COMMAND), source })
}

/// Removes those of commands that have ended; one that has processes refuses.
fn remove_abandoned(parent: &Dir) {
    for name in subdirs(parent.as_fd()).unwrap_or_default() {
        if name.starts_with(COMMAND) && age(parent, &name).is_some_and(|age| age >= ABANDONED) {
            let _ = parent.try_remove(&name);
        }
    }
}

fn age(parent: &Dir, name: &str) -> Option<Duration> {
    let found = rustix::fs::statat(parent.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    let made = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(found.st_mtime).ok()?);
    SystemTime::now().duration_since(made).ok()
}

/// Hands memory down to the commands' cgroups; once for a box.
fn hand_down(dir: &Dir, run: &Dir) -> Result<(), CgroupError> {
    if v2::handed_down(run).contains(&Controller::Memory) {
        return Ok(());
    }
    let leaf = dir.make_or_open(LEAF)?;
    for _ in 0..ROUNDS {
        let inside = dir.read("cgroup.procs")?;
        if inside.trim().is_empty() {
            break;
        }
        for pid in inside.lines() {
            // One that has ended meanwhile; one that stays keeps the controller from being handed down.
            let _ = leaf.write("cgroup.procs", pid);
        }
    }
    let memory = format!("+{}", Controller::Memory);
    dir.write("cgroup.subtree_control", &memory)?;
    run.write("cgroup.subtree_control", &memory)
}
