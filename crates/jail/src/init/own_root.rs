//! A root of a box's own, for sessions that the shared one does not do for.
//!
//! All boxes share one read-only tree of directories and links, which saves each of them a file system and the time
//! to fill it. A session that wants a mount where that tree has no place for it, or that may write to its root, gets
//! a copy: a small tmpfs with the same directories and links, and clones of everything that is mounted by then.

use std::os::fd::OwnedFd;

use rustix::fs::CWD;
use sandcrate_sys::mount::Reach;

use super::path_walk;
use crate::message::{Failure, Step};
use crate::mounts::{PLAIN, attach, attach_on, clone_at, enter_root, make_tmpfs};
use crate::plan::{NetworkMode, NodeKind, Plan, RootMode};
use crate::template::Template;

/// Directories, links and mount points; nothing is stored in it.
const BYTES: u64 = 1 << 20;
const INODES: u64 = 1024;
/// A place of the shared root that is free until the session's mounts come.
const PLACE: &str = "/mnt";
/// What a box has in its root before its session's mounts; all with what is mounted below.
const FURNITURE: [&str; 5] = ["usr", "etc", "dev", "proc", "tmp"];

/// The same of a box of an image, all else is in its layers.
const LAYER_FURNITURE: [&str; 3] = ["dev", "proc", "tmp"];
const RESOLVER: &str = "/etc/resolv.conf";

pub(super) fn is_needed(plan: &Plan) -> bool {
    if plan.image.is_some() {
        return plan.layered;
    }
    plan.root == RootMode::Writable
        || plan.mounts.iter().any(|mount| {
            // Below another mount of the session, a place is made there.
            let inside = plan.mounts.iter().any(|other| {
                mount.target.strip_prefix(&other.target).is_some_and(|rest| rest.starts_with('/'))
            });
            !inside && path_walk::place(&mount.target).is_err()
        })
}

/// Makes the root and enters it. What it leaves is not seen again.
pub(super) fn take(template: &Template) -> Result<(), Failure> {
    let root = make_tmpfs(BYTES, INODES, "755", PLAIN).step("making the root")?;
    attach(&root, PLACE).step("attaching the root")?;
    template.lay_out(PLACE)?;
    for name in FURNITURE.into_iter().chain(template.system_directories.iter().map(String::as_str)) {
        let mount =
            clone_at(CWD, format!("/{name}"), Reach::Tree).step_with(|| format!("cloning /{name}"))?;
        attach(&mount, format!("{PLACE}/{name}")).step_with(|| format!("attaching /{name}"))?;
    }
    enter_root(PLACE).step("entering the root")
}

/// The same for a box of an image: its own layer over the image is handed in. A session that comes back may have
/// changed anything in it, so no link is followed.
pub(super) fn take_layer(layer: &OwnedFd, plan: &Plan) -> Result<(), Failure> {
    attach(layer, PLACE).step("attaching the root")?;
    for name in LAYER_FURNITURE {
        let mount =
            clone_at(CWD, format!("/{name}"), Reach::Tree).step_with(|| format!("cloning /{name}"))?;
        let place = path_walk::mount_point(&format!("{PLACE}/{name}"), NodeKind::Directory, plan.user)
            .step_with(|| format!("finding /{name}"))?;
        attach_on(&mount, &place).step_with(|| format!("attaching /{name}"))?;
    }
    if plan.network == NetworkMode::Host
        && let Ok(place) = path_walk::place(&format!("{PLACE}{RESOLVER}"))
    {
        let mount = clone_at(CWD, RESOLVER, Reach::One).step("cloning the resolver's configuration")?;
        attach_on(&mount, &place).step("attaching the resolver's configuration")?;
    }
    enter_root(PLACE).step("entering the root")
}
