//! PID 1 of a box: builds its root, drops what it no longer needs, proves it, then starts and reaps commands.
//!
//! It is a fork of the launcher without an exec, in all the box's namespaces. Two phases, because everything
//! that no session changes is done ahead of time: `prepare` (root, /proc, /dev) and `finish` (the session's own
//! mounts, then the drop). Untrusted code runs only after the second.

pub(crate) mod command;
pub(crate) mod files;
mod finish;
mod network;
mod oom_score;
mod own_root;
pub(crate) mod path_walk;
mod prepare;
mod serve;

pub use command::EXECUTING;

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};

use sandcrate_sys::fd::close_all_but;
use sandcrate_sys::process::{SingleThreaded, exit_now};
use sandcrate_sys::seccomp::Instruction;

use crate::channel::Channel;
use crate::identity::IdMapping;
use crate::message::{Failure, InitReply, InitRequest, Step};
use crate::plan::{MountSource, NetworkMode, Plan, PlannedMount};
use crate::template::Template;

/// What the launcher leaves its child.
#[derive(Debug)]
pub(crate) struct Inheritance {
    pub(crate) control: Channel,
    /// Readable when the id maps are written; at its end the launcher is gone.
    pub(crate) go: OwnedFd,
    /// v1 `tasks` files that init joins by itself.
    pub(crate) tasks: Vec<OwnedFd>,
    /// The v2 directory below which init makes a cgroup for each command.
    pub(crate) run_directory: Option<OwnedFd>,
    pub(crate) mapping: IdMapping,
    pub(crate) network: NetworkMode,
    /// The box was cloned into a network namespace whose loopback is up.
    pub(crate) has_loopback: bool,
    /// Of the launcher's mounts, the tree that becomes the box's root.
    pub(crate) root: String,
}

/// The seccomp filters, as the daemon compiled them.
#[derive(Debug)]
pub(crate) struct Filters {
    pub(crate) init: Vec<Instruction>,
    /// Above that of init; nothing by itself.
    pub(crate) command: Vec<Instruction>,
}

/// The life of PID 1.
pub(crate) fn run(
    proof: SingleThreaded,
    inheritance: Inheritance,
    template: &Template,
    filters: &HashMap<NetworkMode, Filters>,
) -> ! {
    let mut keep = vec![inheritance.control.as_fd(), inheritance.go.as_fd()];
    keep.extend(inheritance.tasks.iter().map(AsFd::as_fd));
    keep.extend(inheritance.run_directory.as_ref().map(AsFd::as_fd));
    // The launcher forks without exec, so close-on-exec does nothing: boxes must not hold each other's sockets.
    if close_all_but(&proof, &keep).is_err() {
        exit_now(1);
    }
    let control = inheritance.control.as_fd().try_clone_to_owned().map(Channel::from);
    if let Err(failure) = live(proof, inheritance, template, filters)
        && let Ok(control) = control
    {
        let _ = control.send(&InitReply::Failed { failure }, &[]);
    }
    exit_now(0)
}

fn live(
    proof: SingleThreaded,
    inheritance: Inheritance,
    template: &Template,
    filters: &HashMap<NetworkMode, Filters>,
) -> Result<(), Failure> {
    let prepared = prepare::prepare(&proof, &inheritance, template)?;
    let Inheritance { control, go, tasks, run_directory, mapping, network, root: _, has_loopback } =
        inheritance;
    drop((go, tasks));
    control.send(&InitReply::Prepared, &[]).step("reporting to the daemon")?;
    // While the daemon answers: it takes a tenth of a millisecond.
    if network.has_own_namespace() && !has_loopback {
        sandcrate_sys::loopback::bring_up().step("bringing up loopback")?;
    }
    let oom_score = oom_score::OomScore::open().step("opening the OOM score")?;
    let plan = match control.recv::<InitRequest>().step("waiting for a session")? {
        Some((InitRequest::Configure { plan }, mounts)) => {
            let filters = chosen(filters, network, &plan)?;
            let tun = network::set_up(&plan, prepared)?;
            let enforcement = finish::finish(&plan, mounts, run_directory.as_ref(), template, filters)?;
            let tun: Vec<_> = tun.iter().map(AsFd::as_fd).collect();
            control.send(&InitReply::Configured { enforcement }, &tun).step("reporting to the daemon")?;
            plan
        }
        // A prepared box that nobody claimed.
        _ => return Ok(()),
    };
    let filter = &chosen(filters, network, &plan)?.command;
    let identity = command::Identity { mapping, user: plan.user };
    let shared = |mount: &PlannedMount| matches!(mount.source, MountSource::Requested { .. });
    let shares_directories = plan.mounts.iter().any(shared);
    // Of no use any more, and boxes live long.
    drop(plan);
    serve::serve(proof, control, run_directory, oom_score, identity, shares_directories, filter)
}

/// The filters of the plan's network. Which namespace the box is in was decided when it was cloned, so a plan for
/// the other kind is refused.
fn chosen<'a>(
    filters: &'a HashMap<NetworkMode, Filters>,
    cloned: NetworkMode,
    plan: &Plan,
) -> Result<&'a Filters, Failure> {
    if cloned.has_own_namespace() != plan.network.has_own_namespace() {
        return Err(Failure { step: "the plan has another kind of network".into(), errno: libc::EINVAL });
    }
    filters
        .get(&plan.network)
        .ok_or_else(|| Failure { step: "no policy for this network".into(), errno: libc::EINVAL })
}
