//! Mounting: the old call, the new calls, nested namespaces, pivot_root.

use std::path::Path;

use super::path::scratch_directory;
use crate::report::{AttackResult, Report};
use crate::sys::{SysResult, cstring, syscall};

/// FS-06: mount(2), umount2(2) and the calls that replace them.
pub(crate) fn mount(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    let scratch = scratch_directory();
    let target = scratch.as_deref().unwrap_or(Path::new("/proc")).display().to_string();
    for kind in [
        "tmpfs", "proc", "sysfs", "cgroup", "cgroup2", "devpts", "devtmpfs", "mqueue", "overlay", "debugfs",
        "fuse",
    ] {
        report.must_refuse(&format!("mount({kind} on {target})"), || {
            mount_and_undo(kind, kind, &target, 0, c"")
        });
    }
    let flags = [
        ("bind", libc::MS_BIND),
        ("recursive bind", libc::MS_BIND | libc::MS_REC),
        ("private", libc::MS_PRIVATE),
        ("shared", libc::MS_SHARED),
        ("read-write remount", libc::MS_REMOUNT | libc::MS_BIND),
        ("superblock remount", libc::MS_REMOUNT),
    ];
    for (name, flag) in flags {
        for source in ["/", "/proc", "/dev"] {
            report.must_refuse(&format!("mount({name} of {source})"), || {
                mount_and_undo(source, "", &target, flag, c"")
            });
        }
    }
    // The root cannot be moved, so a permitted move fails after the check.
    report.must_refuse("mount(move of /)", || mount_and_undo("/", "", &target, libc::MS_MOVE, c""));
    for kind in ["ext4", "xfs", "btrfs"] {
        for device in ["/dev/vda", "/dev/sda", "/dev/loop0", "/workspace"] {
            report.must_refuse(&format!("mount({kind} from {device})"), || {
                mount_and_undo(device, kind, &target, 0, c"")
            });
        }
    }
    for name in ["/proc", "/dev/pts", "/workspace", "/tmp"] {
        // MNT_EXPIRE only marks a mount at the first call, so a permitted call does no harm.
        report.must_refuse_or(&format!("umount2({name})"), &[libc::ENOENT], || {
            syscall!(libc::SYS_umount2, &cstring(name), libc::MNT_EXPIRE)
        });
    }
    new_mount_calls(&mut report);
    if let Some(scratch) = scratch {
        let _ = std::fs::remove_dir(scratch);
    }
    report.verdict("mounting is refused in every form")
}

fn mount_and_undo(source: &str, kind: &str, target: &str, flags: u64, data: &std::ffi::CStr) -> SysResult {
    let target = cstring(target);
    let result = syscall!(libc::SYS_mount, &cstring(source), &target, &cstring(kind), flags, data)?;
    let _ = syscall!(libc::SYS_umount2, &target, libc::MNT_DETACH);
    Ok(result)
}

/// FS-51: the descriptor based mount calls by themselves.
pub(crate) fn newmount(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    new_mount_calls(&mut report);
    report.verdict("the new mount calls are refused")
}

const OPEN_TREE_CLONE: i32 = 1;
const AT_RECURSIVE: i32 = 0x8000;
const SYS_OPEN_TREE_ATTR: i64 = 467;
const FSCONFIG_CMD_CREATE: i32 = 6;

/// `struct mount_attr`: read-only off, nosuid off.
const CLEAR_ALL: [u64; 4] = [0, 0xf, 0, 0];

fn new_mount_calls(report: &mut Report) {
    for kind in [c"tmpfs", c"proc", c"sysfs", c"ext4", c"overlay", c"cgroup2"] {
        report.must_refuse(&format!("fsopen({kind:?})"), || syscall!(libc::SYS_fsopen, kind, 1));
    }
    for path in [c"/", c"/proc", c"/usr"] {
        report.must_refuse(&format!("fspick({path:?})"), || {
            syscall!(libc::SYS_fspick, libc::AT_FDCWD, path, 1)
        });
        for flags in [OPEN_TREE_CLONE, OPEN_TREE_CLONE | AT_RECURSIVE] {
            report.must_refuse(&format!("open_tree({path:?}, clone {flags:#x})"), || {
                syscall!(libc::SYS_open_tree, libc::AT_FDCWD, path, flags)
            });
        }
        report.must_refuse(&format!("open_tree_attr({path:?})"), || {
            let attributes = CLEAR_ALL.as_ptr();
            syscall!(SYS_OPEN_TREE_ATTR, libc::AT_FDCWD, path, OPEN_TREE_CLONE, attributes, 32)
        });
        for flags in [0, AT_RECURSIVE] {
            report.must_refuse(
                &format!("mount_setattr({path:?}, flags {flags:#x}, clear ro and nosuid)"),
                || syscall!(libc::SYS_mount_setattr, libc::AT_FDCWD, path, flags, CLEAR_ALL.as_ptr(), 32),
            );
        }
    }
    report.must_refuse("move_mount(/proc to /proc)", || {
        syscall!(libc::SYS_move_mount, libc::AT_FDCWD, c"/proc", libc::AT_FDCWD, c"/proc", 0)
    });
    report.must_refuse("fsmount(-1)", || syscall!(libc::SYS_fsmount, -1, 0, 0));
    // fsconfig has no privilege check of its own, so without a filter it only says EBADF.
    report.must_fail("fsconfig(-1)", || syscall!(libc::SYS_fsconfig, -1, FSCONFIG_CMD_CREATE, 0, 0, 0));
}

/// FS-07: a user namespace that gives mount rights, by every way to make one.
pub(crate) fn nsmount(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    let both = libc::CLONE_NEWUSER | libc::CLONE_NEWNS;
    for (name, flags) in [("user+mount", both), ("user", libc::CLONE_NEWUSER), ("mount", libc::CLONE_NEWNS)] {
        report.must_refuse_or(&format!("unshare({name})"), &[libc::ENOSPC], || {
            syscall!(libc::SYS_unshare, flags)
        });
        report.must_refuse_or(
            &format!("unshare({name}) with high bits"),
            &[libc::ENOSPC, libc::EINVAL],
            || syscall!(libc::SYS_unshare, flags as u64 | 0xffff_ffff_0000_0000),
        );
    }
    report.must_fail("unshare(user), unshare(mount), mount tmpfs", || {
        unshare_and_mount(&[libc::CLONE_NEWUSER, libc::CLONE_NEWNS])
    });
    report.must_fail("unshare(user+mount), mount tmpfs", || unshare_and_mount(&[both]));
    report.must_fail("clone(user+mount), mount tmpfs", || {
        crate::process::namespace::clone_and_run(both as u64, || {
            mount_and_undo("tmpfs", "tmpfs", "/proc", 0, c"")
        })
    });
    report.verdict("no nested user or mount namespace")
}

fn unshare_and_mount(steps: &[i32]) -> SysResult {
    // SAFETY: neither call has preconditions.
    let (user, group) = unsafe { (libc::getuid(), libc::getgid()) };
    for step in steps {
        syscall!(libc::SYS_unshare, *step)?;
    }
    let _ = std::fs::write("/proc/self/setgroups", "deny");
    let _ = std::fs::write("/proc/self/uid_map", format!("0 {user} 1"));
    let _ = std::fs::write("/proc/self/gid_map", format!("0 {group} 1"));
    mount_and_undo("tmpfs", "tmpfs", "/proc", 0, c"")
}

/// FS-10: pivot_root with arguments that do nothing when it is permitted.
pub(crate) fn pivot(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    let _ = std::env::set_current_dir("/");
    let pairs =
        [(c"/", c"/"), (c".", c"."), (c"/no-such-root", c"/no-such-root"), (c"/proc/self", c"/proc/self")];
    for (root, old) in pairs {
        report.must_refuse(&format!("pivot_root({root:?}, {old:?})"), || {
            syscall!(libc::SYS_pivot_root, root, old)
        });
        let what = format!("unshare(user+mount), pivot_root({root:?}, {old:?})");
        report.must_refuse_or(&what, &[libc::ENOSPC], || {
            syscall!(libc::SYS_unshare, libc::CLONE_NEWUSER | libc::CLONE_NEWNS)?;
            syscall!(libc::SYS_pivot_root, root, old)
        });
    }
    report.verdict("pivot_root is refused")
}
