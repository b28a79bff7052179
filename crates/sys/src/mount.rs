//! mount_setattr(2), which rustix lacks.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::check;

/// Attributes to set on a mount; all of it private propagation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MountAttributes {
    pub read_only: bool,
    pub no_suid: bool,
    pub no_dev: bool,
    pub no_exec: bool,
}

/// Whether attributes go to the one mount or to everything mounted below it too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    One,
    Tree,
}

/// Sets attributes on the mount `mount` refers to, makes its propagation private, and with `idmap` shows its
/// files through the id map of that user namespace (detached mounts only).
pub fn set_attributes(
    mount: BorrowedFd<'_>,
    reach: Reach,
    attributes: MountAttributes,
    idmap: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut attr_set = 0;
    for (wanted, bit) in [
        (attributes.read_only, libc::MOUNT_ATTR_RDONLY),
        (attributes.no_suid, libc::MOUNT_ATTR_NOSUID),
        (attributes.no_dev, libc::MOUNT_ATTR_NODEV),
        (attributes.no_exec, libc::MOUNT_ATTR_NOEXEC),
        (idmap.is_some(), libc::MOUNT_ATTR_IDMAP),
    ] {
        if wanted {
            attr_set |= bit;
        }
    }
    let attr = libc::mount_attr {
        attr_set,
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: idmap.map_or(0, |fd| fd.as_raw_fd() as u64),
    };
    let mut flags = libc::AT_EMPTY_PATH;
    if reach == Reach::Tree {
        flags |= libc::AT_RECURSIVE;
    }
    let empty: &CStr = c"";
    // SAFETY: `empty` is NUL-terminated, `attr` is live and of the size given; the kernel reads both only.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            empty.as_ptr(),
            flags,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    };
    check(result).map(drop)
}
