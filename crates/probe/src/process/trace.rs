//! Tracing and reading other processes.

use std::time::Duration;

use crate::child::{Child, attempt_in_child};
use crate::proc_tree::{belongs_to_another, process_ids};
use crate::report::{AttackResult, Report, Usage};
use crate::sys::{Errno, SysResult, syscall};

/// A whole host's processes would take longer than the alarm allows.
const MOST_TARGETS: usize = 16;
const PTRACE_TRACEME: i32 = 0;
const PTRACE_ATTACH: i32 = 16;
const PTRACE_DETACH: i32 = 17;
const PTRACE_SEIZE: i32 = 0x4206;

fn ptrace(request: i32, pid: i32) -> SysResult {
    syscall!(libc::SYS_ptrace, request, pid, 0, 0)
}

/// PR-07: tracing own children, which a debug profile may permit.
pub(crate) fn own_child(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    let mut permitted = Vec::new();
    for (name, request) in [("attach", PTRACE_ATTACH), ("seize", PTRACE_SEIZE)] {
        let outcome = attempt_in_child(|| {
            let target = sleeper()?;
            ptrace(request, target.pid())
        });
        if !report.attempt(&format!("ptrace({name}, own child)"), outcome).refused() {
            permitted.push(name);
        }
    }
    let outcome = attempt_in_child(|| ptrace(PTRACE_TRACEME, 0));
    if !report.attempt("ptrace(traceme)", outcome).refused() {
        permitted.push("traceme");
    }
    let outcome = attempt_in_child(|| {
        let target = sleeper()?;
        read_memory(target.pid())
    });
    if !report.attempt("process_vm_readv(own child)", outcome).refused() {
        permitted.push("process_vm_readv");
    }
    if !permitted.is_empty() {
        report.remark(format!("own children can be traced: {}", permitted.join(", ")));
    }
    report.verdict("tracing is refused")
}

fn sleeper() -> Result<Child, Errno> {
    Child::spawn(|| {
        std::thread::sleep(Duration::from_secs(3));
        0
    })
}

/// PR-08: tracing init and processes of other users.
pub(crate) fn init(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    for pid in targets()? {
        report.must_fail(&format!("ptrace(seize, {pid})"), || ptrace(PTRACE_SEIZE, pid));
        report.must_fail(&format!("ptrace(attach, {pid})"), || attach_and_detach(pid));
        report.must_fail(&format!("process_vm_readv({pid})"), || read_memory(pid));
        for file in ["mem", "root/etc", "cwd/.", "fd", "map_files", "environ", "exe"] {
            report.must_not_open(&format!("/proc/{pid}/{file}"), libc::O_RDONLY);
        }
        report.must_not_open(&format!("/proc/{pid}/mem"), libc::O_RDWR);
    }
    report.verdict("init and other users' processes cannot be traced")
}

/// PR-56: reading and writing memory of init without tracing it.
pub(crate) fn init_memory(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    for pid in targets()? {
        report.must_fail(&format!("process_vm_readv({pid})"), || read_memory(pid));
        report.must_fail(&format!("process_vm_writev({pid}, nothing)"), || {
            syscall!(libc::SYS_process_vm_writev, pid, 0, 0, 0, 0, 0).and_then(|_| write_memory(pid))
        });
        report.must_fail(&format!("process_madvise({pid})"), || {
            let fd = syscall!(libc::SYS_pidfd_open, pid, 0)?;
            let vector = [0x1000u64, 0x1000];
            syscall!(libc::SYS_process_madvise, fd, vector.as_ptr(), 1, libc::MADV_COLD, 0)
        });
        report.must_fail(&format!("process_mrelease({pid})"), || {
            let fd = syscall!(libc::SYS_pidfd_open, pid, 0)?;
            syscall!(libc::SYS_process_mrelease, fd, 0)
        });
        report.must_fail(&format!("pidfd_getfd({pid}, 0..64)"), || {
            let fd = syscall!(libc::SYS_pidfd_open, pid, 0)?;
            let taken = (0..64).map(|number| syscall!(libc::SYS_pidfd_getfd, fd, number, 0));
            taken.reduce(Result::or).unwrap_or(Err(Errno(libc::EBADF)))
        });
        report.must_fail(&format!("kcmp({pid}, self, memory)"), || {
            syscall!(libc::SYS_kcmp, pid, std::process::id(), 1, 0, 0)
        });
        report.must_fail(&format!("get_robust_list({pid})"), || {
            let mut found = [0u64; 2];
            let size = found[1..].as_mut_ptr();
            syscall!(libc::SYS_get_robust_list, pid, found.as_mut_ptr(), size)
        });
        for form in [libc::SYS_move_pages, libc::SYS_migrate_pages] {
            report.must_fail(&format!("call {form} on {pid}"), || syscall!(form, pid, 0, 0, 0, 0, 0));
        }
    }
    report.verdict("memory of init is closed to every call")
}

/// Init and every process of another user; an error when init is this program's own supervisor.
pub(crate) fn targets() -> Result<Vec<i32>, Usage> {
    // SAFETY: `getppid` has no preconditions.
    let supervisor = unsafe { libc::getppid() };
    if supervisor == 1 {
        return Err(Usage("pid 1 is this program itself; run it below an init".into()));
    }
    let own = std::process::id();
    let others = process_ids().into_iter().filter(|pid| *pid != own && *pid != 1 && belongs_to_another(*pid));
    Ok(std::iter::once(1).chain(others.map(|pid| pid as i32)).take(MOST_TARGETS).collect())
}

fn attach_and_detach(pid: i32) -> SysResult {
    ptrace(PTRACE_ATTACH, pid)?;
    let mut status = 0;
    for _ in 0..200 {
        // SAFETY: `status` is a live integer that the call may write.
        if unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG | libc::__WALL) } == pid {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = ptrace(PTRACE_DETACH, pid);
    Ok(0)
}

/// Reads at the probe's own addresses: what counts is whether the check lets it through,
/// and EFAULT means that it did.
fn read_memory(pid: i32) -> SysResult {
    vm_transfer(libc::SYS_process_vm_readv, pid)
}

fn write_memory(pid: i32) -> SysResult {
    vm_transfer(libc::SYS_process_vm_writev, pid)
}

fn vm_transfer(call: i64, pid: i32) -> SysResult {
    let mut buffer = [0u8; 8];
    let local = [buffer.as_mut_ptr() as u64, 8];
    // Page zero is never mapped, so a permitted write faults.
    let remote = [0u64, 8];
    match syscall!(call, pid, local.as_ptr(), 1, remote.as_ptr(), 1, 0) {
        Err(Errno(libc::EFAULT)) => Ok(0),
        other => other,
    }
}
