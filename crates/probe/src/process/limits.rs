//! Scheduling classes, priorities and core dumps.

use super::namespace::write_file;
use crate::child::Child;
use crate::fs::path::scratch_directory;
use crate::report::{AttackResult, Report};
use crate::sys::{SysResult, syscall};

/// `struct sched_attr` of version 0: size, policy, flags, nice, priority, runtime, deadline, period.
fn sched_attr(policy: u32, nice: i32, priority: u32) -> [u32; 12] {
    const MILLISECOND: u32 = 1_000_000;
    [48, policy, 0, 0, nice as u32, priority, MILLISECOND, 0, 10 * MILLISECOND, 0, 10 * MILLISECOND, 0]
}

/// PR-30: real-time and deadline classes for processor and disk.
pub(crate) fn rt(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    for (name, policy) in [("fifo", libc::SCHED_FIFO), ("round robin", libc::SCHED_RR)] {
        for reset in [0, 0x4000_0000] {
            report.must_fail(&format!("sched_setscheduler({name}, {reset:#x})"), || {
                let priority = 1i32;
                syscall!(libc::SYS_sched_setscheduler, 0, policy | reset, &raw const priority)
            });
        }
        report.must_fail(&format!("sched_setattr({name})"), || {
            syscall!(libc::SYS_sched_setattr, 0, sched_attr(policy as u32, 0, 1).as_ptr(), 0)
        });
    }
    report.must_fail("sched_setattr(deadline)", || {
        syscall!(libc::SYS_sched_setattr, 0, sched_attr(6, 0, 0).as_ptr(), 0)
    });
    for level in [0, 4, 7] {
        const REAL_TIME_CLASS: i32 = 1 << 13;
        report.must_fail(&format!("ioprio_set(real time, {level})"), || {
            syscall!(libc::SYS_ioprio_set, 1, 0, REAL_TIME_CLASS | level)
        });
    }
    raise_limit(&mut report, "RTPRIO", libc::RLIMIT_RTPRIO as i32);
    report.verdict("real-time classes are refused")
}

/// PR-31: a better priority than the sandbox was given.
pub(crate) fn nice(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    let current = 20 - syscall!(libc::SYS_getpriority, libc::PRIO_PROCESS, 0).unwrap_or(20) as i32;
    println!("attempt: getpriority -> nice {current}");
    for target in [current - 1, -5, -20] {
        for (name, which) in
            [("process", libc::PRIO_PROCESS), ("group", libc::PRIO_PGRP), ("user", libc::PRIO_USER)]
        {
            report.must_fail(&format!("setpriority({name}, {target})"), || {
                if name != "user" {
                    let _ = syscall!(libc::SYS_setpgid, 0, 0);
                }
                syscall!(libc::SYS_setpriority, which, 0, target)
            });
        }
        report.must_fail(&format!("sched_setattr(nice {target})"), || {
            syscall!(libc::SYS_sched_setattr, 0, sched_attr(0, target, 0).as_ptr(), 0)
        });
    }
    report.must_fail("write -20 to /proc/self/autogroup", || {
        let _ = syscall!(libc::SYS_setsid);
        write_file("/proc/self/autogroup", "-20")
    });
    raise_limit(&mut report, "NICE", libc::RLIMIT_NICE as i32);
    report.verdict("priority cannot be raised")
}

/// Raises the hard limit of a resource.
fn raise_limit(report: &mut Report, name: &str, resource: i32) {
    report.must_fail(&format!("raise RLIMIT_{name}"), || {
        let mut limit = [0u64; 2];
        syscall!(libc::SYS_prlimit64, 0, resource, 0, limit.as_mut_ptr())?;
        let raised = [limit[1].saturating_add(1); 2];
        syscall!(libc::SYS_prlimit64, 0, resource, raised.as_ptr(), 0)
    });
}

/// PR-32: no core file, by limit and by crash.
pub(crate) fn core(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    let resource = libc::RLIMIT_CORE as i32;
    let mut limit = [u64::MAX; 2];
    let asked = syscall!(libc::SYS_prlimit64, 0, resource, 0, limit.as_mut_ptr());
    report.attempt(&format!("getrlimit(core) {limit:?}"), asked);
    if limit != [0, 0] {
        report.breach(format!("RLIMIT_CORE is {limit:?}"));
    }
    raise_limit(&mut report, "CORE", resource);
    for signal in [libc::SIGSEGV, libc::SIGABRT, libc::SIGQUIT, libc::SIGSYS] {
        crash(&mut report, signal);
    }
    report.verdict("no core file is written")
}

/// Crashes a child that asks for as much core as it may have, in a directory it may write.
fn crash(report: &mut Report, signal: i32) {
    let scratch = scratch_directory();
    let spawned = Child::spawn(|| {
        let _ = scratch.as_deref().map(std::env::set_current_dir);
        let mut limit = [0u64; 2];
        let resource = libc::RLIMIT_CORE as i32;
        let _ = syscall!(libc::SYS_prlimit64, 0, resource, 0, limit.as_mut_ptr());
        let _ = syscall!(libc::SYS_prlimit64, 0, resource, [limit[1]; 2].as_ptr(), 0);
        // SAFETY: restoring the default action needs no handler.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        let _ = syscall!(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 1);
        let _: SysResult = syscall!(libc::SYS_kill, std::process::id(), signal);
        std::thread::sleep(std::time::Duration::from_secs(1));
        0
    });
    let Ok(mut child) = spawned else { return };
    let _ = child.wait(std::time::Duration::from_secs(3));
    if let Some(scratch) = scratch {
        let _ = std::fs::remove_dir_all(scratch);
    }
    let dumped = child.poll().is_some_and(|status| libc::WCOREDUMP(status));
    report.held();
    println!("attempt: crash by signal {signal} -> core dumped: {dumped}");
    if dumped {
        report.breach(format!("signal {signal} dumped core"));
    }
}
