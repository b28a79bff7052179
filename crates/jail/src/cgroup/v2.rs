//! The v2 control files, and handing controllers down to child cgroups.

use rustix::process::Pid;

use super::dir::{Dir, if_present};
use super::{CPU_PERIOD_US, CgroupError, Controller, Limits, or_max};

pub(super) fn set_limit(dir: &Dir, controller: Controller, limits: &Limits) -> Result<(), CgroupError> {
    match controller {
        Controller::Memory => {
            dir.write("memory.max", &or_max(limits.memory_bytes))?;
            let swap = limits.memory_bytes.map(|_| 0);
            if_present(dir.write("memory.swap.max", &or_max(swap)))?;
            // An OOM kill takes one command, not the box's init with it.
            if_present(dir.write("memory.oom.group", "0"))
        }
        Controller::Pids => dir.write("pids.max", &limits.pids_max()),
        Controller::Cpu => {
            let quota = or_max(limits.cpu_quota_us());
            dir.write("cpu.max", &format!("{quota} {CPU_PERIOD_US}"))
        }
    }
}

/// The controllers that `dir` may hand to its children.
pub(super) fn offered(dir: &Dir) -> Vec<Controller> {
    listed(dir, "cgroup.controllers")
}

/// The controllers that the children of `dir` have.
pub(super) fn handed_down(dir: &Dir) -> Vec<Controller> {
    listed(dir, "cgroup.subtree_control")
}

#[derive(Debug)]
pub(super) struct Enabled {
    pub(super) on: Vec<Controller>,
    pub(super) refused: Vec<(Controller, String)>,
}

/// Hands `wanted` to the children of `base`, moving `ours` out of it into its child `leaf` if it
/// must be empty of processes for that.
pub(super) fn enable(base: &Dir, wanted: &[Controller], leaf: &str, ours: &[Pid]) -> Enabled {
    let already = handed_down(base);
    let (on, missing): (Vec<_>, Vec<_>) = wanted.iter().partition(|c| already.contains(c));
    let mut enabled = Enabled { on, refused: Vec::new() };
    if missing.is_empty() {
        return enabled;
    }
    let vacated = vacate(base, leaf, ours);
    for controller in missing {
        // One by one: cpu alone may be refused, by real-time processes elsewhere.
        let result = match &vacated {
            Ok(()) => {
                base.write("cgroup.subtree_control", &format!("+{controller}")).map_err(|error| error.chain())
            }
            Err(error) => Err(error.chain()),
        };
        match result {
            Ok(()) => enabled.on.push(controller),
            Err(why) => enabled.refused.push((controller, why)),
        }
    }
    enabled
}

/// No internal processes: a cgroup with controllers for its children has no process of its own,
/// save the root (cgroups(7)), which is known by having no `cgroup.type`.
fn vacate(base: &Dir, leaf: &str, ours: &[Pid]) -> Result<(), CgroupError> {
    if !base.has("cgroup.type") {
        return Ok(());
    }
    let inside: Vec<i32> = base.read("cgroup.procs")?.lines().filter_map(|l| l.parse().ok()).collect();
    // A process outside of our pid namespace is listed as 0, which is never ours.
    let is_ours = |pid: i32| ours.iter().any(|our| our.as_raw_pid() == pid);
    if let Some(&pid) = inside.iter().find(|pid| !is_ours(**pid)) {
        return Err(CgroupError::Occupied { path: base.path().to_owned(), pid });
    }
    if inside.is_empty() {
        return Ok(());
    }
    let leaf = base.make_or_open(leaf)?;
    inside.iter().try_for_each(|pid| leaf.write("cgroup.procs", &pid.to_string()))
}

/// Undoes what [`enable`] did to make room in `base`, when nobody else has use of it: takes the controllers back,
/// lets whoever is in `leaf` return, and removes it. Did `base` not have to be vacated, there is no leaf.
pub(super) fn give_back(base: &Dir, leaf: &str) -> Result<(), CgroupError> {
    let Ok(place) = base.sub(leaf) else { return Ok(()) };
    // A base that had processes had no controllers on: these are ours. Refused while another's cgroup uses them.
    for controller in listed(base, "cgroup.subtree_control") {
        base.write("cgroup.subtree_control", &format!("-{controller}"))?;
    }
    for pid in place.read("cgroup.procs")?.lines() {
        // One that has ended meanwhile; one that stays keeps the removal from succeeding.
        let _ = base.write("cgroup.procs", pid);
    }
    base.remove(leaf)
}

fn listed(dir: &Dir, file: &str) -> Vec<Controller> {
    dir.read(file).map(|text| Controller::parse_list(&text, ' ')).unwrap_or_default()
}
