//! System directories must not change, by any call that would change them.

use crate::report::{AttackResult, Report};
use crate::sys::{SysResult, close, cstring, stat, syscall};

const DIRECTORIES: [&str; 16] = [
    "/",
    "/usr",
    "/usr/bin",
    "/usr/sbin",
    "/usr/lib",
    "/usr/local",
    "/usr/local/bin",
    "/usr/share",
    "/etc",
    "/lib",
    "/lib64",
    "/bin",
    "/sbin",
    "/boot",
    "/dev",
    "/proc",
];
const FILES: [&str; 14] = [
    "/etc/passwd",
    "/etc/group",
    "/etc/shadow",
    "/etc/hosts",
    "/etc/resolv.conf",
    "/etc/ld.so.cache",
    "/etc/profile",
    "/etc/nsswitch.conf",
    "/bin/sh",
    "/usr/bin/env",
    "/usr/bin/python3",
    "/lib64/ld-linux-x86-64.so.2",
    "/lib/x86_64-linux-gnu/libc.so.6",
    "/etc/ssl/certs/ca-certificates.crt",
];

/// FS-16: creating, changing and remounting below the system directories.
pub(crate) fn ro(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    for directory in DIRECTORIES {
        if stat(directory).is_err() {
            report.held();
            continue;
        }
        create_in(&mut report, directory);
        remount(&mut report, directory);
    }
    for file in FILES {
        if stat(file).is_ok() {
            change(&mut report, file);
        }
    }
    report.must_fail("create /etc/ld.so.preload", || create(c"/etc/ld.so.preload"));
    report.verdict("system directories cannot be changed or remounted")
}

fn create(path: &std::ffi::CStr) -> SysResult {
    let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;
    let fd = syscall!(libc::SYS_openat, libc::AT_FDCWD, path, flags, 0o600)?;
    close(fd);
    syscall!(libc::SYS_unlinkat, libc::AT_FDCWD, path, 0)
}

fn create_in(report: &mut Report, directory: &str) {
    let path = cstring(format!("{directory}/probe-{}", std::process::id()));
    report.must_fail(&format!("create a file in {directory}"), || create(&path));
    report.must_fail(&format!("mkdir in {directory}"), || {
        syscall!(libc::SYS_mkdirat, libc::AT_FDCWD, &path, 0o700)?;
        syscall!(libc::SYS_unlinkat, libc::AT_FDCWD, &path, libc::AT_REMOVEDIR)
    });
    report.must_fail(&format!("symlink in {directory}"), || {
        syscall!(libc::SYS_symlinkat, c"/nowhere", libc::AT_FDCWD, &path)?;
        syscall!(libc::SYS_unlinkat, libc::AT_FDCWD, &path, 0)
    });
    report.must_fail(&format!("unnamed file in {directory}"), || {
        let flags = libc::O_TMPFILE | libc::O_RDWR;
        syscall!(libc::SYS_openat, libc::AT_FDCWD, &cstring(directory), flags, 0o600)
    });
}

fn change(report: &mut Report, file: &str) {
    for (name, flags) in [("write", libc::O_WRONLY), ("read-write", libc::O_RDWR)] {
        // A running program answers ETXTBSY; the remount attempts judge its mount.
        report.must_fail(&format!("open({file}, {name})"), || crate::sys::open(file, flags));
    }
    let path = cstring(file);
    let mode = stat(file).map_or(0o644, |found| found.st_mode & 0o7777);
    report.must_fail(&format!("chmod({file})"), || syscall!(libc::SYS_chmod, &path, mode));
    report.must_fail(&format!("utimensat({file})"), || {
        let omit = [0i64, libc::UTIME_NOW, 0, libc::UTIME_OMIT];
        syscall!(libc::SYS_utimensat, libc::AT_FDCWD, &path, omit.as_ptr(), 0)
    });
    report.must_fail(&format!("setxattr({file})"), || {
        syscall!(libc::SYS_setxattr, &path, c"user.probe", c"x".as_ptr(), 1, 0)
    });
}

fn remount(report: &mut Report, directory: &str) {
    let target = cstring(directory);
    for flags in [libc::MS_REMOUNT | libc::MS_BIND, libc::MS_REMOUNT] {
        report.must_fail(&format!("remount {directory} read-write, flags {flags:#x}"), || {
            syscall!(libc::SYS_mount, c"none", &target, 0, flags, 0)
        });
    }
    report.must_fail(&format!("mount_setattr({directory}, clear read-only)"), || {
        let attributes = [0u64, 1, 0, 0];
        syscall!(libc::SYS_mount_setattr, libc::AT_FDCWD, &target, 0, attributes.as_ptr(), 32)
    });
}
