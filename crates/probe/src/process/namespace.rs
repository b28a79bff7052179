//! Namespaces: joining those of others, making new ones, writing id maps.

use crate::proc_tree::process_ids;
use crate::report::{AttackResult, Report};
use crate::sys::{Errno, SysResult, close, open, syscall};

const NAMESPACES: [(&str, i32); 8] = [
    ("user", libc::CLONE_NEWUSER),
    ("mnt", libc::CLONE_NEWNS),
    ("pid", libc::CLONE_NEWPID),
    ("net", libc::CLONE_NEWNET),
    ("ipc", libc::CLONE_NEWIPC),
    ("uts", libc::CLONE_NEWUTS),
    ("cgroup", libc::CLONE_NEWCGROUP),
    ("time", 0x80),
];
const NS_GET_USERNS: u64 = 0xb701;
const NS_GET_PARENT: u64 = 0xb702;

/// FS-11: setns by namespace file, by pidfd and by ioctl to a parent namespace.
pub(crate) fn setns(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    for pid in process_ids() {
        for (name, flag) in NAMESPACES {
            let path = format!("/proc/{pid}/ns/{name}");
            let Ok(fd) = open(&path, libc::O_RDONLY | libc::O_CLOEXEC) else {
                report.held();
                continue;
            };
            for kind in [0, flag] {
                report
                    .must_fail(&format!("setns({path}, {kind:#x})"), || syscall!(libc::SYS_setns, fd, kind));
            }
            close(fd);
        }
        let own = i64::from(std::process::id()) == i64::from(pid);
        for (name, flag) in NAMESPACES {
            // Joining one's own namespaces by pidfd is a permitted no-op for some kinds.
            if !own {
                report.must_fail(&format!("setns(pidfd of {pid}, {name})"), || {
                    let fd = syscall!(libc::SYS_pidfd_open, pid, 0)?;
                    syscall!(libc::SYS_setns, fd, flag)
                });
            }
        }
    }
    for name in ["user", "pid"] {
        report.must_fail(&format!("parent of own {name} namespace"), || {
            let fd = open(format!("/proc/self/ns/{name}"), libc::O_RDONLY)?;
            syscall!(libc::SYS_ioctl, fd, NS_GET_PARENT)
        });
    }
    for (name, _) in NAMESPACES {
        report.must_fail(&format!("owner of own {name} namespace, then its parent"), || {
            let fd = open(format!("/proc/self/ns/{name}"), libc::O_RDONLY)?;
            let owner = syscall!(libc::SYS_ioctl, fd, NS_GET_USERNS)?;
            syscall!(libc::SYS_ioctl, owner, NS_GET_PARENT)
        });
    }
    report.verdict("no namespace can be joined")
}

/// PR-52: unshare with each namespace flag by itself, with the user flag, and with high bits.
pub(crate) fn unshare(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    for (name, flag) in NAMESPACES {
        for (form, flags) in [
            ("alone", flag as u64),
            ("with user", (flag | libc::CLONE_NEWUSER) as u64),
            ("with fs and files", (flag | libc::CLONE_FS | libc::CLONE_FILES) as u64),
        ] {
            report.must_refuse_or(&format!("unshare({name}) {form}"), &[libc::ENOSPC], || {
                syscall!(libc::SYS_unshare, flags)
            });
        }
        report.must_fail(&format!("unshare({name}) with high bits"), || {
            syscall!(libc::SYS_unshare, flag as u64 | 0xffff_ffff_0000_0000)
        });
    }
    report.verdict("no namespace can be unshared")
}

/// PR-53: clone and clone3 with each namespace flag.
pub(crate) fn clone_namespaces(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    for (name, flag) in NAMESPACES {
        // The time flag lies in clone's signal field; only clone3 takes it.
        if name != "time" {
            for (form, extra) in [
                ("alone", 0),
                ("with user", libc::CLONE_NEWUSER as u64),
                ("with parent", libc::CLONE_PARENT as u64),
                ("with high bits", 0xffff_ffff_0000_0000),
            ] {
                let what = format!("clone({name}) {form}");
                report.must_fail(&what, || clone_and_run(flag as u64 | extra, || Ok(0)));
            }
        }
        report.must_fail(&format!("clone3({name})"), || clone3(flag as u64, 0));
        report.must_fail(&format!("clone3({name} with user)"), || {
            clone3((flag | libc::CLONE_NEWUSER) as u64, 0)
        });
    }
    report.verdict("no namespace can be cloned")
}

/// Clones with `flags`, runs `body` in the clone and returns its result.
pub(crate) fn clone_and_run(flags: u64, body: impl FnOnce() -> SysResult) -> SysResult {
    let pid = syscall!(libc::SYS_clone, flags | libc::SIGCHLD as u64, 0, 0, 0, 0)?;
    if pid == 0 {
        crate::child::set_alarm(5);
        crate::child::exit_now(body().map_or_else(|Errno(number)| number, |_| 0));
    }
    let mut status = 0;
    if syscall!(libc::SYS_wait4, pid, &raw mut status, 0x4000_0000, 0).is_err() {
        return Ok(pid);
    }
    match libc::WEXITSTATUS(status) {
        0 => Ok(pid),
        number => Err(Errno(number)),
    }
}

fn clone3(flags: u64, cgroup: u64) -> SysResult {
    let mut arguments = [0u64; 11];
    arguments[0] = flags;
    arguments[4] = libc::SIGCHLD as u64;
    arguments[10] = cgroup;
    let pid = syscall!(libc::SYS_clone3, arguments.as_ptr(), size_of_val(&arguments))?;
    if pid == 0 {
        crate::child::exit_now(0);
    }
    let _ = syscall!(libc::SYS_wait4, pid, 0, 0, 0);
    Ok(pid)
}

/// PR-27: clone3 must say ENOSYS, so that libc falls back to clone.
pub(crate) fn clone3_refused(_arguments: &[String]) -> AttackResult {
    const INTO_CGROUP: u64 = 0x2_0000_0000;
    let mut report = Report::default();
    let short = || syscall!(libc::SYS_clone3, 0, 0);
    let forms: [(&str, &dyn Fn() -> SysResult); 6] = [
        ("plain", &|| clone3(0, 0)),
        ("user namespace", &|| clone3(libc::CLONE_NEWUSER as u64, 0)),
        ("all namespaces", &|| clone3(0x7e02_0080, 0)),
        ("into cgroup", &|| clone3(INTO_CGROUP, 0)),
        ("clear handlers", &|| clone3(0x1_0000_0000, 0)),
        ("no arguments", &short),
    ];
    for (name, form) in forms {
        let what = format!("clone3({name})");
        if let crate::child::Outcome::Failed(Errno(libc::EPERM)) = report.must_refuse(&what, form) {
            report.remark(format!("{what} says EPERM, which libc does not fall back from"));
        }
    }
    report.verdict("clone3 says ENOSYS")
}

/// PR-54: writing id maps of this process, its parent and init.
pub(crate) fn mapwrite(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    for pid in ["self", "1", "thread-self"] {
        for file in ["uid_map", "gid_map", "projid_map"] {
            for content in ["0 0 1", "0 0 4294967295", "1000 0 1"] {
                report.must_fail(&format!("write {content:?} to /proc/{pid}/{file}"), || {
                    write_file(&format!("/proc/{pid}/{file}"), content)
                });
            }
        }
        report.must_fail(&format!("write allow to /proc/{pid}/setgroups"), || {
            // Where the state is already "allow" the write changes nothing.
            if std::fs::read_to_string("/proc/self/setgroups").is_ok_and(|state| state.trim() == "allow") {
                return Err(Errno(libc::EALREADY));
            }
            write_file(&format!("/proc/{pid}/setgroups"), "allow")
        });
    }
    report.verdict("id maps cannot be written")
}

/// Writes `content` in one call, as the kernel's files demand.
pub(crate) fn write_file(path: &str, content: &str) -> SysResult {
    let fd = open(path, libc::O_WRONLY | libc::O_CLOEXEC)?;
    syscall!(libc::SYS_write, fd, content.as_ptr(), content.len())
}
