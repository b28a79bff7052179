//! User namespaces: id maps for boxes, and namespaces that exist only to map the ids of a mount.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::message::{Failure, Step};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use sandcrate_sys::process::{Husk, SingleThreaded, unshare};

/// Writes the id maps of a child that was cloned into a user namespace.
pub(crate) fn write_maps(pid: i32, uid_map: &str, gid_map: &str, deny_setgroups: bool) -> io::Result<()> {
    let write = |file: &str, text: &str| {
        let mut file = File::options().write(true).open(format!("/proc/{pid}/{file}"))?;
        // One write(2): the kernel takes a map whole or not at all.
        file.write_all(text.as_bytes())
    };
    if deny_setgroups {
        write("setgroups", "deny")?;
    }
    write("uid_map", uid_map)?;
    write("gid_map", gid_map)?;
    // Anybody in the namespace could write this one, once: so it is written.
    match write("projid_map", uid_map) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // The namespace around us has no such ids to give, as those of container runtimes and unshare(1): then
        // nobody inside can write it either.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        other => other,
    }
}

/// Takes this process of an ordinary user into a user namespace of its own, where it has privileges, and into
/// `others` (CLONE_NEW* flags) that belong to it.
pub(crate) fn enter_own(
    proof: &SingleThreaded,
    uid: u32,
    gid: u32,
    others: libc::c_int,
) -> Result<(), Failure> {
    // Its /proc files would belong to root otherwise, and it could not write its own maps.
    set_dumpable_behavior(DumpableBehavior::Dumpable).step("opening /proc/self")?;
    unshare(proof, libc::CLONE_NEWUSER | others).step("making a user namespace")?;
    let pid = rustix::process::getpid().as_raw_pid();
    let (uids, gids) = (format!("{uid} {uid} 1\n"), format!("{gid} {gid} 1\n"));
    write_maps(pid, &uids, &gids, true).step("mapping the user's id")
}

/// A user namespace with these maps and nobody in it, for id-mapped mounts.
#[derive(Debug)]
pub(crate) struct IdMap {
    namespace: OwnedFd,
    /// Nobody need wait for it as long as there is other work.
    _maker: Husk,
}

impl AsFd for IdMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.namespace.as_fd()
    }
}

impl IdMap {
    pub(crate) fn make(proof: &SingleThreaded, uid_map: &str, gid_map: &str) -> io::Result<Self> {
        let maker = Husk::in_new_user_namespace(proof)?;
        write_maps(maker.pid(), uid_map, gid_map, false)?;
        let namespace = File::open(format!("/proc/{}/ns/user", maker.pid()))?.into();
        Ok(Self { namespace, _maker: maker })
    }
}
