//! Descriptors that came in: leaked ones, standard streams, and programs of others.

use crate::canary::Canary;
use crate::child::{Outcome, attempt_in_child};
use crate::proc_tree::process_ids;
use crate::report::{AttackResult, Report};
use crate::sys::{close, cstring, lstat, open, stat, syscall, zeroed};

/// FS-03: descriptors above 2, and directories to climb through (CVE-2024-21626).
pub(crate) fn fdleak(arguments: &[String]) -> AttackResult {
    let canary = Canary::from_arguments(arguments)?;
    let mut report = Report::default();
    for fd in 0..65536i64 {
        if syscall!(libc::SYS_fcntl, fd, libc::F_GETFD).is_err() {
            continue;
        }
        let target = std::fs::read_link(format!("/proc/self/fd/{fd}"));
        println!("attempt: descriptor {fd} -> {target:?}");
        if fd > 2 {
            report.breach(format!("descriptor {fd} leaked: {target:?}"));
        }
        canary.look_from(&mut report, fd);
        canary.look_below(&mut report, &format!("/proc/self/fd/{fd}"));
        report.must_fail(&format!("fchdir({fd})"), || syscall!(libc::SYS_fchdir, fd));
    }
    of_other_processes(&canary, &mut report);
    report.verdict("only descriptors 0 to 2, none of them a directory")
}

/// Descriptors of init and of the parent are as good as own ones when they can be opened.
fn of_other_processes(canary: &Canary, report: &mut Report) {
    // SAFETY: `getppid` has no preconditions.
    let parent = unsafe { libc::getppid() };
    for pid in [1, parent] {
        for fd in 0..64 {
            canary.look_below(report, &format!("/proc/{pid}/fd/{fd}"));
        }
        let taken = attempt_in_child(|| {
            let pidfd = syscall!(libc::SYS_pidfd_open, pid, 0)?;
            let mut last = Err(crate::sys::Errno(libc::EBADF));
            for fd in 0..64 {
                last = syscall!(libc::SYS_pidfd_getfd, pidfd, fd, 0);
                if let Ok(taken) = last
                    && syscall!(libc::SYS_fchdir, taken).is_ok()
                {
                    return Ok(taken);
                }
            }
            last.and(Err(crate::sys::Errno(libc::ENOTDIR)))
        });
        let what = format!("pidfd_getfd from pid {pid}");
        if report.attempt(&what, taken).succeeded() {
            report.breach(format!("{what} gave a directory"));
        }
    }
}

/// FS-04: the kind of each standard stream.
pub(crate) fn stdio(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    for fd in 0..3i32 {
        let mut found = zeroed::<libc::stat>();
        if let Err(errno) = syscall!(libc::SYS_fstat, fd, &raw mut found) {
            report.attempt(&format!("fstat({fd})"), Err(errno));
            continue;
        }
        report.held();
        let target = std::fs::read_link(format!("/proc/self/fd/{fd}"));
        let kind = match found.st_mode & libc::S_IFMT {
            libc::S_IFIFO => "pipe",
            libc::S_IFSOCK => socket_kind(fd, &mut report),
            libc::S_IFCHR if is_null(&found) => "null device",
            libc::S_IFCHR => {
                report.breach(format!("stream {fd} is a device or terminal: {target:?}"));
                "character device"
            }
            _ => {
                report.breach(format!("stream {fd} is a file of some file system: {target:?}"));
                "file"
            }
        };
        println!("attempt: stream {fd} -> {kind} {target:?}");
    }
    report.verdict("standard streams are pipes, sockets or the null device")
}

fn is_null(found: &libc::stat) -> bool {
    (libc::major(found.st_rdev), libc::minor(found.st_rdev)) == (1, 3)
}

fn socket_kind(fd: i32, report: &mut Report) -> &'static str {
    let mut family = 0i32;
    let mut size = size_of::<i32>() as u32;
    let asked =
        syscall!(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, libc::SO_DOMAIN, &raw mut family, &raw mut size);
    if asked.is_ok() && family != libc::AF_UNIX {
        report.breach(format!("stream {fd} is a socket of family {family}"));
    }
    "socket"
}

/// FS-05: writing to the programs that other processes run (CVE-2019-5736).
pub(crate) fn procexe(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    let own = stat("/proc/self/exe").map(|found| (found.st_dev, found.st_ino)).ok();
    for pid in process_ids() {
        let path = format!("/proc/{pid}/exe");
        let shown = std::fs::read_link(&path);
        let same = stat(&path).map(|found| (found.st_dev, found.st_ino)).ok() == own;
        if lstat(&path).is_err() || (same && pid != std::process::id()) {
            report.held();
            continue;
        }
        println!("attempt: program of pid {pid} -> {shown:?}");
        for flags in [libc::O_WRONLY, libc::O_RDWR, libc::O_WRONLY | libc::O_APPEND] {
            write_program(&mut report, &path, flags, same);
        }
        if !same {
            let mode = stat(&path).map_or(0o755, |found| found.st_mode & 0o777);
            report.must_fail(&format!("chmod({path})"), || {
                syscall!(libc::SYS_fchmodat, libc::AT_FDCWD, &cstring(&path), mode)
            });
        }
    }
    report.verdict("no program of another process opens for writing")
}

/// A running program answers ETXTBSY before the mount's read-only flag is looked at,
/// so that answer holds only when the mount is read-only or the program is our own.
fn write_program(report: &mut Report, path: &str, flags: i32, own: bool) {
    let direct = open(path, flags | libc::O_CLOEXEC);
    let reopened = open(path, libc::O_PATH | libc::O_CLOEXEC).and_then(|fd| {
        let result = open(format!("/proc/self/fd/{fd}"), flags | libc::O_CLOEXEC);
        close(fd);
        result
    });
    for (form, result) in [("open", direct), ("reopen", reopened)] {
        let what = format!("{form}({path}, flags {flags:#o})");
        match report.attempt(&what, result) {
            Outcome::Returned(fd) => {
                close(fd);
                report.breach(what);
            }
            Outcome::Failed(errno) if errno.0 == libc::ETXTBSY && !own && writable(path) => {
                report.breach(format!("{what}: only the running program itself stops the write"));
            }
            _ => {}
        }
    }
}

fn writable(path: &str) -> bool {
    syscall!(libc::SYS_faccessat, libc::AT_FDCWD, &cstring(path), libc::W_OK).is_ok()
}
