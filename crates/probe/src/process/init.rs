//! Controlling init: signals, priorities, limits and affinity.
//!
//! Each call sets what is already set, so that a permitted one changes nothing.

use super::namespace::write_file;
use super::trace::targets;
use crate::fs::kernel_files::must_not_write_open_files;
use crate::report::{AttackResult, Report};
use crate::sys::{Errno, SysResult, syscall};

/// PR-57: every call that changes another process, aimed at init.
pub(crate) fn control(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    for pid in targets()? {
        signals(&mut report, pid);
        scheduling(&mut report, pid);
        for resource in 0..16 {
            report.must_fail(&format!("prlimit({pid}, {resource}) read"), || {
                prlimit(pid, resource, Access::Read)
            });
            report.must_fail(&format!("prlimit({pid}, {resource}) write"), || {
                prlimit(pid, resource, Access::Write)
            });
        }
        for file in ["oom_score_adj", "autogroup", "coredump_filter", "comm", "clear_refs"] {
            report.must_not_open(&format!("/proc/{pid}/{file}"), libc::O_WRONLY);
        }
        must_not_write_open_files(&mut report, pid);
        report.must_fail(&format!("setpgid({pid})"), || syscall!(libc::SYS_setpgid, pid, 0));
    }
    report.verdict("init cannot be signalled, limited or rescheduled")
}

fn signals(report: &mut Report, pid: i32) {
    report.must_fail(&format!("kill({pid}, 0)"), || syscall!(libc::SYS_kill, pid, 0));
    report.must_fail(&format!("tkill({pid}, 0)"), || syscall!(libc::SYS_tkill, pid, 0));
    report.must_fail(&format!("tgkill({pid}, 0)"), || syscall!(libc::SYS_tgkill, pid, pid, 0));
    report.must_fail(&format!("kill(-{pid}, 0)"), || {
        // kill(-1) reaches everything but init, so it says nothing about init.
        if pid == 1 { Err(Errno(libc::ESRCH)) } else { syscall!(libc::SYS_kill, -pid, 0) }
    });
    let mut information = [0u32; 32];
    information[2] = -1i32 as u32;
    for call in [libc::SYS_rt_sigqueueinfo, libc::SYS_rt_tgsigqueueinfo] {
        report.must_fail(&format!("queue a signal by call {call} to {pid}"), || {
            let pointer = information.as_ptr() as u64;
            let middle = if call == libc::SYS_rt_sigqueueinfo { [0, pointer] } else { [pid as u64, 0] };
            syscall!(call, pid, middle[0], middle[1], pointer)
        });
    }
    report.must_fail(&format!("pidfd_send_signal({pid}, 0)"), || {
        let fd = syscall!(libc::SYS_pidfd_open, pid, 0)?;
        syscall!(libc::SYS_pidfd_send_signal, fd, 0, 0, 0)
    });
}

/// PR-69: every signal to init through a descriptor, which a filter on process ids does not see.
///
/// The kernel withholds from a PID 1 what its own kind sends and it has no handler for; whether init lives is for
/// the host to see.
pub(crate) fn signals_by_descriptor(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    let mut taken = 0;
    for signal in 1..=64 {
        for (name, by_directory) in [("pidfd", false), ("/proc/1", true)] {
            let outcome = crate::child::attempt_in_child(|| {
                let fd = match by_directory {
                    true => crate::sys::open("/proc/1", libc::O_DIRECTORY | libc::O_CLOEXEC)?,
                    false => syscall!(libc::SYS_pidfd_open, 1, 0)?,
                };
                syscall!(libc::SYS_pidfd_send_signal, fd, signal, 0, 0)
            });
            if report.attempt(&format!("signal {signal} to init by {name}"), outcome).succeeded() {
                taken += 1;
            }
        }
    }
    if taken > 0 {
        report.remark(format!("init was sent {taken} signals; the host looks whether it lives"));
    }
    report.verdict("init takes no signal by descriptor")
}

fn scheduling(report: &mut Report, pid: i32) {
    report.must_fail(&format!("setpriority({pid}, as it is)"), || {
        // The raw call answers 20 minus the nice value.
        let nice = 20 - syscall!(libc::SYS_getpriority, libc::PRIO_PROCESS, pid)?;
        syscall!(libc::SYS_setpriority, libc::PRIO_PROCESS, pid, nice)
    });
    report.must_fail(&format!("sched_setaffinity({pid}, as it is)"), || {
        let mut mask = [0u64; 128];
        let size = syscall!(libc::SYS_sched_getaffinity, pid, size_of_val(&mask), mask.as_mut_ptr())?;
        syscall!(libc::SYS_sched_setaffinity, pid, size, mask.as_ptr())
    });
    report.must_fail(&format!("sched_setscheduler({pid}, other)"), || {
        let priority = 0i32;
        syscall!(libc::SYS_sched_setscheduler, pid, libc::SCHED_OTHER, &raw const priority)
    });
    report.must_fail(&format!("sched_setparam({pid})"), || {
        let priority = 0i32;
        syscall!(libc::SYS_sched_setparam, pid, &raw const priority)
    });
    report.must_fail(&format!("sched_setattr({pid}, as it is)"), || {
        let mut attributes = [0u32; 14];
        syscall!(libc::SYS_sched_getattr, pid, attributes.as_mut_ptr(), size_of_val(&attributes), 0)?;
        syscall!(libc::SYS_sched_setattr, pid, attributes.as_ptr(), 0)
    });
    report.must_fail(&format!("ioprio_set({pid}, as it is)"), || {
        let priority = syscall!(libc::SYS_ioprio_get, 1, pid)?;
        syscall!(libc::SYS_ioprio_set, 1, pid, priority)
    });
}

enum Access {
    Read,
    Write,
}

fn prlimit(pid: i32, resource: i32, access: Access) -> SysResult {
    let mut limit = [0u64; 2];
    let read = syscall!(libc::SYS_prlimit64, pid, resource, 0, limit.as_mut_ptr())?;
    match access {
        Access::Read => Ok(read),
        Access::Write => syscall!(libc::SYS_prlimit64, pid, resource, limit.as_ptr(), 0),
    }
}

/// PR-58: making the own process the last that runs out of memory.
pub(crate) fn oom(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    let shown = std::fs::read_to_string("/proc/self/oom_score_adj");
    println!("attempt: read /proc/self/oom_score_adj -> {shown:?}");
    for (file, value) in
        [("oom_score_adj", "-1000"), ("oom_score_adj", "-500"), ("oom_score_adj", "-1"), ("oom_adj", "-17")]
    {
        for folder in ["self", "thread-self", "1"] {
            let path = format!("/proc/{folder}/{file}");
            report.must_fail(&format!("write {value} to {path}"), || write_file(&path, value));
        }
    }
    let current: i32 = shown.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    if current > 0 {
        let lowered = crate::child::attempt_in_child(|| write_file("/proc/self/oom_score_adj", "0"));
        report.attempt(&format!("lower oom_score_adj from {current} to 0, not judged"), lowered);
    }
    report.verdict("the score cannot go below zero")
}
