//! The floor's launcher: a small process with few mounts that makes bare boxes on request.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::symlink;

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind_recursive, mount_change};
use rustix::process::{DumpableBehavior, getegid, geteuid, getpid, set_dumpable_behavior};
use sandcrate_jail::Channel;
use sandcrate_sys::process::{SingleThreaded, exit_now, unshare};

use super::bare_box::{self, Life, enter_root};
use super::{ROLE, Reply, Request, static_true};

/// Where the launcher's own root is put together; any directory does, the mount namespace is its own.
const BASE: &str = "/tmp";

/// Does not return in a process that was started as the floor's launcher.
pub(crate) fn dispatch_role() {
    let mut arguments = std::env::args_os();
    if arguments.next().as_deref() == Some(OsStr::new(ROLE)) && arguments.next().is_none() {
        exit_now(if run().is_ok() { 0 } else { 1 });
    }
}

fn run() -> io::Result<()> {
    let proof = SingleThreaded::prove()?;
    let control = Channel::from(sandcrate_sys::fd::take_stdin()?);
    sandcrate_sys::fd::close_all_but(&proof, &[control.as_fd()])?;
    let static_true = static_true::make()?;
    reply(&control, &enter_own_mounts(&proof))?;
    while let Some((request, fds)) = control.recv::<Request>()? {
        reply(&control, &serve(&proof, &request, fds, &static_true))?;
    }
    Ok(())
}

fn serve(
    proof: &SingleThreaded,
    request: &Request,
    fds: Vec<OwnedFd>,
    static_true: &OwnedFd,
) -> io::Result<()> {
    let life = match request {
        Request::Cold(payload) => Life::Program(*payload),
        Request::MakeInit => Life::Init(fds.into_iter().next().ok_or(io::ErrorKind::InvalidInput)?.into()),
        Request::Warm(_) => return Err(io::ErrorKind::InvalidInput.into()),
    };
    bare_box::make(proof, life, static_true)
}

pub(super) fn reply(channel: &Channel, result: &io::Result<()>) -> io::Result<()> {
    let errno = |error: &io::Error| error.raw_os_error().unwrap_or(libc::EIO);
    channel.send(&Reply(result.as_ref().copied().map_err(errno)), &[])
}

/// A root of a tmpfs with the host's /usr, /etc and /proc and a place for boxes: a clone copies these mounts only.
fn enter_own_mounts(proof: &SingleThreaded) -> io::Result<()> {
    if geteuid().is_root() {
        unshare(proof, libc::CLONE_NEWNS)?;
    } else {
        enter_user_namespace(proof)?;
    }
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    // Read before the new root hides what lies at its place.
    let links: Vec<_> = ["bin", "lib", "lib64"]
        .iter()
        .filter_map(|name| Some((name, fs::read_link(format!("/{name}")).ok()?)))
        .collect();
    mount("tmpfs", BASE, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, c"size=1m,mode=755")?;
    for directory in ["usr", "etc", "proc", "box"] {
        fs::create_dir(format!("{BASE}/{directory}"))?;
    }
    for (name, target) in links {
        symlink(target, format!("{BASE}/{name}"))?;
    }
    for directory in ["usr", "etc", "proc"] {
        mount_bind_recursive(format!("/{directory}"), format!("{BASE}/{directory}"))?;
    }
    enter_root(BASE)
}

/// An ordinary user has the needed privileges in a user namespace only.
fn enter_user_namespace(proof: &SingleThreaded) -> io::Result<()> {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    unshare(proof, libc::CLONE_NEWUSER | libc::CLONE_NEWNS)?;
    let own = format!("/proc/{}", getpid().as_raw_pid());
    fs::write(format!("{own}/setgroups"), "deny")?;
    fs::write(format!("{own}/uid_map"), format!("0 {uid} 1"))?;
    fs::write(format!("{own}/gid_map"), format!("0 {gid} 1"))
}
