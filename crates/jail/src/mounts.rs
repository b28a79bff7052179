//! Making and placing mounts, with the new mount API only: a mount is an owned descriptor until it is attached.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree, unmount,
};
use rustix::path::Arg;
use sandcrate_sys::mount::{MountAttributes, Reach, set_attributes};

/// No setuid programs, no devices: what every mount of a box has but the device nodes.
pub(crate) const PLAIN: MountAttributes =
    MountAttributes { read_only: false, no_suid: true, no_dev: true, no_exec: false };
pub(crate) const PLAIN_READ_ONLY: MountAttributes = MountAttributes { read_only: true, ..PLAIN };

/// A detached copy of the mount at `path` (or of the part of it below `path`).
pub(crate) fn clone_at<P: Arg>(directory: BorrowedFd<'_>, path: P, reach: Reach) -> io::Result<OwnedFd> {
    let mut flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    if reach == Reach::Tree {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    Ok(open_tree(directory, path, flags)?)
}

/// A detached copy with attributes, and private.
pub(crate) fn clone_with<P: Arg>(path: P, reach: Reach, attributes: MountAttributes) -> io::Result<OwnedFd> {
    let mount = clone_at(CWD, path, reach)?;
    set_attributes(mount.as_fd(), reach, attributes, None)?;
    Ok(mount)
}

/// A new file system instance, detached.
pub(crate) fn make<'a>(
    kind: &CStr,
    options: impl IntoIterator<Item = (&'a str, &'a str)>,
    attributes: MountAttributes,
) -> io::Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        if value.is_empty() {
            fsconfig_set_flag(&context, key)?;
        } else {
            fsconfig_set_string(&context, key, value)?;
        }
    }
    fsconfig_create(&context)?;
    let mut flags = MountAttrFlags::empty();
    for (wanted, flag) in [
        (attributes.read_only, MountAttrFlags::MOUNT_ATTR_RDONLY),
        (attributes.no_suid, MountAttrFlags::MOUNT_ATTR_NOSUID),
        (attributes.no_dev, MountAttrFlags::MOUNT_ATTR_NODEV),
        (attributes.no_exec, MountAttrFlags::MOUNT_ATTR_NOEXEC),
    ] {
        flags.set(flag, wanted);
    }
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags)?)
}

pub(crate) fn make_tmpfs(
    bytes: u64,
    inodes: u64,
    mode: &str,
    attributes: MountAttributes,
) -> io::Result<OwnedFd> {
    let (size, count) = (bytes.to_string(), inodes.to_string());
    make(c"tmpfs", [("size", size.as_str()), ("nr_inodes", count.as_str()), ("mode", mode)], attributes)
}

/// An overlay, detached. All paths are of the caller's own mount namespace: an overlay takes its layers only from
/// there.
pub(crate) fn make_overlay(lower: &str, upper: &str, work: &str, rootless: bool) -> io::Result<OwnedFd> {
    let mut options =
        vec![("source", "overlay"), ("lowerdir", lower), ("upperdir", upper), ("workdir", work)];
    // The files go with the session: without this, its end would sync the whole disk beneath.
    options.push(("volatile", ""));
    if rootless {
        options.push(("userxattr", ""));
    } else {
        // Without it, renaming a directory of the template fails with EXDEV.
        options.push(("redirect_dir", "on"));
    }
    make(c"overlay", options, PLAIN)
}

/// A read-only overlay of directories that nobody writes to, the first over the others; detached. The kernel wants
/// at least two.
pub(crate) fn make_lower_overlay(lower: &[&str], rootless: bool) -> io::Result<OwnedFd> {
    let lower = lower.join(":");
    let mut options = vec![("source", "overlay"), ("lowerdir", lower.as_str())];
    if rootless {
        options.push(("userxattr", ""));
    }
    make(c"overlay", options, PLAIN_READ_ONLY)
}

/// Attaches a detached mount at a path.
pub(crate) fn attach<P: Arg>(mount: &OwnedFd, path: P) -> io::Result<()> {
    Ok(move_mount(mount, "", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// Attaches a detached mount on what an O_PATH descriptor refers to.
pub(crate) fn attach_on(mount: &OwnedFd, target: &OwnedFd) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(mount, "", target, "", flags)?)
}

/// Takes the mount at `path` out of this mount namespace; it lives on where it is in use.
pub(crate) fn detach<P: Arg>(path: P) -> io::Result<()> {
    Ok(unmount(path, UnmountFlags::DETACH)?)
}

/// Makes the mount at `new_root` the root of this mount namespace, and the old root unreachable.
pub(crate) fn enter_root(new_root: &str) -> io::Result<()> {
    rustix::process::chdir(new_root)?;
    // Stacks the old root on the new one, so that no directory is needed for it (pivot_root(2), "the . . trick").
    rustix::process::pivot_root(".", ".")?;
    detach(".")?;
    rustix::process::chdir("/")?;
    Ok(())
}
