//! The first phase: what all boxes have in common. The order is the point of this file; each step says why it
//! stands where it does.

use std::fs;
use std::io::{Read, Write};

use rustix::fs::CWD;
use rustix::mount::mount_bind;
use rustix::thread::{CapabilitiesSecureBits, set_capabilities_secure_bits};
use sandcrate_sys::mount::{MountAttributes, Reach};
use sandcrate_sys::process::{SingleThreaded, unshare};

use super::Inheritance;
use super::network::Preparations;
use crate::identity::{BOX_USER, IdMapping, become_ids};
use crate::message::{Failure, Step};
use crate::mounts::{PLAIN, PLAIN_READ_ONLY, attach, clone_at, clone_with, enter_root, make, make_tmpfs};
use crate::plan::{NetworkMode, USUAL_TMPFS_BYTES};
use crate::template::Template;

/// Where the launcher's namespace has room for a box's root.
const ROOT: &str = "/root";

pub(super) fn prepare(
    proof: &SingleThreaded,
    inheritance: &Inheritance,
    template: &Template,
) -> Result<Preparations, Failure> {
    wait_for_maps(inheritance)?;
    let mut prepared = Preparations::open_device(inheritance.network);
    join_cgroups(inheritance)?;
    take_identity(inheritance.mapping)?;
    // After the joins: the namespace is rooted where its maker stands.
    unshare(proof, libc::CLONE_NEWCGROUP).step("making a cgroup namespace")?;
    rustix::system::sethostname(b"sandbox").step("naming the host")?;
    // The template, or the image's root, is everybody's: read-only, and locked so when it came into this box's namespaces.
    let root = clone_at(CWD, inheritance.root.as_str(), Reach::Tree).step("cloning the template")?;
    attach(&root, ROOT).step("attaching the root")?;
    if inheritance.network == NetworkMode::Host {
        let resolver = clone_with("/resolv.conf", Reach::One, PLAIN_READ_ONLY)
            .step("cloning the resolver's configuration")?;
        attach(&resolver, format!("{ROOT}/etc/resolv.conf"))
            .step("attaching the resolver's configuration")?;
    }
    prepared.ping_range = mount_proc(template, inheritance.network)?;
    mount_terminals(&format!("{ROOT}/dev/pts"), BOX_USER)?;
    // After the identity: a tmpfs belongs to the user who makes it.
    for place in ["tmp", "dev/shm"] {
        let tmpfs =
            make_tmpfs(USUAL_TMPFS_BYTES, 16384, "1777", PLAIN).step_with(|| format!("making /{place}"))?;
        attach(&tmpfs, format!("{ROOT}/{place}")).step_with(|| format!("attaching /{place}"))?;
    }
    // Last: a new procfs may only be mounted while the host's is visible, which it is until here.
    enter_root(ROOT).step("entering the root")?;
    Ok(prepared)
}

fn wait_for_maps(inheritance: &Inheritance) -> Result<(), Failure> {
    let go = inheritance.go.try_clone().step("waiting for the launcher")?;
    fs::File::from(go).read_exact(&mut [0]).step("waiting for the launcher")
}

/// A process that moves itself by `tasks` takes no global lock; being moved by another waits for a grace period
/// of the whole machine.
fn join_cgroups(inheritance: &Inheritance) -> Result<(), Failure> {
    for tasks in &inheritance.tasks {
        let tasks = tasks.try_clone().step("joining a cgroup")?;
        fs::File::from(tasks).write_all(b"0").step("joining a cgroup")?;
    }
    Ok(())
}

/// While it builds, init is the box's root, so that the root it builds belongs to root; it takes its own id when
/// it drops its privileges.
fn take_identity(mapping: IdMapping) -> Result<(), Failure> {
    if mapping == IdMapping::Range {
        rustix::thread::set_thread_groups(&[]).step("leaving supplementary groups")?;
        // Leaving root's id later must not cost the capabilities that are to be kept.
        set_capabilities_secure_bits(CapabilitiesSecureBits::NO_SETUID_FIXUP).step("keeping capabilities")?;
        become_ids(0, 0).step("becoming the box's root")?;
    }
    Ok(())
}

/// A procfs of the box's own, its settings read-only, its tell-tale files covered. Returns the one setting that a
/// box's plan may change later: who may have echo sockets.
fn mount_proc(template: &Template, network: NetworkMode) -> Result<Option<fs::File>, Failure> {
    let attributes = MountAttributes { no_exec: true, ..PLAIN };
    let proc = make(c"proc", [], attributes).step("making /proc")?;
    attach(&proc, format!("{ROOT}/proc")).step("attaching /proc")?;
    // A second line behind seccomp: no user namespace can be made inside this one.
    fs::write(format!("{ROOT}/proc/sys/user/max_user_namespaces"), "0")
        .step("forbidding nested user namespaces")?;
    let ping_range = (network == NetworkMode::Isolated)
        .then(|| fs::File::options().write(true).open(format!("{ROOT}/proc/sys/net/ipv4/ping_group_range")))
        .transpose()
        .step("opening the groups of echo sockets")?;
    let read_only = MountAttributes { read_only: true, ..attributes };
    let sys = clone_with(format!("{ROOT}/proc/sys"), Reach::One, read_only).step("cloning /proc/sys")?;
    attach(&sys, format!("{ROOT}/proc/sys")).step("protecting /proc/sys")?;
    for mask in &template.masks {
        // Mounts of the template that have their attributes already: one call each, and there are many.
        let cover = if mask.directory { "/empty" } else { "/blank" };
        mount_bind(cover, format!("{ROOT}/proc/{}", mask.path))
            .step_with(|| format!("masking /proc/{}", mask.path))?;
    }
    Ok(ping_range)
}

/// A devpts of the box's own whose terminals belong to `user`.
pub(super) fn mount_terminals(at: &str, user: u32) -> Result<(), Failure> {
    let id = user.to_string();
    let options = [
        ("newinstance", ""),
        ("ptmxmode", "0666"),
        ("mode", "0620"),
        ("uid", id.as_str()),
        ("gid", id.as_str()),
    ];
    let attributes = MountAttributes { no_suid: true, no_exec: true, ..Default::default() };
    let terminals = make(c"devpts", options, attributes).step("making /dev/pts")?;
    attach(&terminals, at).step("attaching /dev/pts")
}
