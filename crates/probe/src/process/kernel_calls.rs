//! Calls that administer the machine.
//!
//! Arguments are chosen so that a permitted call changes nothing: it fails after
//! the permission check, or it sets what is already set.

use crate::report::{AttackResult, Report};
use crate::sys::{SysResult, cstring, syscall, zeroed};

/// PR-13: loading another kernel, with flags that are invalid once permitted.
pub(crate) fn kexec(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    for flags in [0xff00u64, u64::MAX, 0xffff_0000_0000_ff00] {
        report.must_refuse(&format!("kexec_load(flags {flags:#x})"), || {
            syscall!(libc::SYS_kexec_load, 0, 0, 0, flags)
        });
        report.must_refuse(&format!("kexec_file_load(flags {flags:#x})"), || {
            syscall!(libc::SYS_kexec_file_load, -1, -1, 0, 0, flags)
        });
    }
    report.verdict("kexec is refused")
}

/// PR-14: loading an empty module, removing one that does not exist.
pub(crate) fn module(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    let image = [0u8; 8];
    report.must_refuse("init_module(empty)", || syscall!(libc::SYS_init_module, image.as_ptr(), 0, c""));
    report.must_refuse("finit_module(-1)", || syscall!(libc::SYS_finit_module, -1, c"", 0));
    for flags in [libc::O_NONBLOCK, libc::O_NONBLOCK | libc::O_TRUNC] {
        report.must_refuse("delete_module(no such module)", || {
            syscall!(libc::SYS_delete_module, c"no_such_probe_module", flags)
        });
    }
    for (name, number) in [("create_module", 174), ("get_kernel_syms", 177), ("query_module", 178)] {
        report.must_refuse(name, || syscall!(number, 0, 0, 0, 0, 0));
    }
    report.verdict("kernel modules are refused")
}

/// PR-19: setting clocks to their own value or with a tick that is invalid once permitted.
///
/// An invalid time would not tell: the kernel looks at it before the permission.
pub(crate) fn clock(_arguments: &[String]) -> AttackResult {
    const ADJ_TICK: u32 = 0x4000;
    let mut report = Report::default();
    report.must_refuse("settimeofday(nothing)", || syscall!(libc::SYS_settimeofday, 0, 0));
    report.must_refuse("clock_settime(realtime, now)", || {
        let mut now = [0i64; 2];
        syscall!(libc::SYS_clock_gettime, libc::CLOCK_REALTIME, now.as_mut_ptr())?;
        syscall!(libc::SYS_clock_settime, libc::CLOCK_REALTIME, now.as_ptr())
    });
    for clock in [libc::CLOCK_MONOTONIC, libc::CLOCK_BOOTTIME, libc::CLOCK_TAI, -1] {
        report.must_fail(&format!("clock_settime({clock}, 1)"), || {
            let time = [1i64, 0];
            syscall!(libc::SYS_clock_settime, clock, time.as_ptr())
        });
    }
    let mut change = zeroed::<libc::timex>();
    change.modes = ADJ_TICK;
    report.must_refuse("adjtimex(invalid tick)", || syscall!(libc::SYS_adjtimex, &raw mut change));
    report.must_refuse("clock_adjtime(realtime, invalid tick)", || {
        syscall!(libc::SYS_clock_adjtime, libc::CLOCK_REALTIME, &raw mut change)
    });
    for clock in [libc::CLOCK_REALTIME_ALARM, libc::CLOCK_BOOTTIME_ALARM] {
        report.must_fail(&format!("timer_create({clock}, wakes the machine)"), || {
            let mut timer = 0i32;
            syscall!(libc::SYS_timer_create, clock, 0, &raw mut timer)
        });
    }
    for device in ["/dev/rtc", "/dev/rtc0", "/dev/ptp0", "/proc/self/timens_offsets"] {
        report.must_fail(&format!("write to {device}"), || {
            // Only a file of this process could take the value, and the child alone would see it.
            let fd = crate::sys::open(device, libc::O_WRONLY)?;
            syscall!(libc::SYS_write, fd, c"monotonic 1 0\n", 14)
        });
    }
    report.verdict("clocks cannot be set")
}

/// PR-20: reboot with magic numbers that are invalid once permitted.
pub(crate) fn reboot(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    for magic in [0u64, 1, 0xffff_ffff_0000_0000] {
        report.must_refuse(&format!("reboot(magic {magic:#x})"), || {
            syscall!(libc::SYS_reboot, magic, magic, 0, 0)
        });
    }
    report.verdict("reboot is refused")
}

/// PR-21: swap on a path that does not exist.
pub(crate) fn swap(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    for path in [c"/no-such-swap", c""] {
        report.must_refuse(&format!("swapon({path:?})"), || syscall!(libc::SYS_swapon, path, 0));
        report.must_refuse(&format!("swapoff({path:?})"), || syscall!(libc::SYS_swapoff, path));
    }
    report.verdict("swap is refused")
}

/// PR-23: access to ports, by call, by instruction and by device.
pub(crate) fn iopl(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    for level in [1, 2, 3] {
        report.must_refuse(&format!("iopl({level})"), || syscall!(libc::SYS_iopl, level));
    }
    for port in [0x60, 0x70, 0x80, 0x3f8] {
        report.must_refuse(&format!("ioperm({port:#x})"), || syscall!(libc::SYS_ioperm, port, 1, 1));
    }
    // Without permission the instruction kills the child.
    let outcome = report.attempt("read port 0x80", crate::child::attempt_in_child(read_port));
    if outcome.succeeded() {
        report.breach("port 0x80 can be read");
    }
    for device in ["/dev/port", "/dev/mem", "/dev/kmem"] {
        report.must_not_open(device, libc::O_RDONLY);
    }
    report.verdict("ports are closed")
}

#[cfg(target_arch = "x86_64")]
fn read_port() -> SysResult {
    let value: u8;
    // SAFETY: reading port 0x80 has no effect; without permission the child dies by SIGSEGV.
    unsafe { std::arch::asm!("in al, 0x80", out("al") value) };
    Ok(value.into())
}

#[cfg(not(target_arch = "x86_64"))]
fn read_port() -> SysResult {
    Err(crate::sys::Errno(libc::ENOSYS))
}

/// PR-24: quota calls; without a filter the kernel answers even unprivileged ones.
pub(crate) fn quotactl(_arguments: &[String]) -> AttackResult {
    const Q_SYNC: u32 = 0x80_0001;
    const Q_QUOTAON: u32 = 0x80_0002;
    const Q_GETFMT: u32 = 0x80_0004;
    const SYS_QUOTACTL_FD: i64 = 443;
    let mut report = Report::default();
    let mut format = [0u8; 128];
    for (name, command) in [("sync", Q_SYNC), ("on", Q_QUOTAON), ("format", Q_GETFMT)] {
        for device in ["/dev/vda", "/no-such-device", "/"] {
            let what = format!("quotactl({name}, {device})");
            let outcome = report.must_fail(&what, || {
                syscall!(libc::SYS_quotactl, command << 8, &cstring(device), 0, format.as_mut_ptr())
            });
            if !outcome.refused() && !outcome.succeeded() {
                report.remark(format!("{what} reaches the kernel: {outcome}"));
            }
        }
        let what = format!("quotactl_fd({name})");
        let outcome = report.must_fail(&what, || {
            let fd = crate::sys::open("/", libc::O_RDONLY)?;
            syscall!(SYS_QUOTACTL_FD, fd, command << 8, 0, format.as_mut_ptr())
        });
        if !outcome.refused() && !outcome.succeeded() {
            report.remark(format!("{what} reaches the kernel: {outcome}"));
        }
    }
    report.verdict("quota calls are refused")
}

/// PR-59: process accounting on a file that does not exist.
pub(crate) fn acct(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    report.must_refuse("acct(no such file)", || syscall!(libc::SYS_acct, c"/no-such-accounting"));
    report.must_refuse("acct(empty path)", || syscall!(libc::SYS_acct, c""));
    report.verdict("process accounting is refused")
}

/// PR-60: reading the kernel log.
pub(crate) fn syslog(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    let mut buffer = [0u8; 256];
    for (name, action) in [("read all", 3), ("size unread", 9), ("size of buffer", 10), ("close", 0)] {
        let judged = action == 3 || action == 9;
        let what = format!("syslog({name})");
        let call = || syscall!(libc::SYS_syslog, action, buffer.as_mut_ptr(), buffer.len());
        if judged {
            report.must_refuse(&what, call);
        } else {
            report.attempt(&what, crate::child::attempt_in_child(call));
        }
    }
    for path in ["/dev/kmsg", "/proc/kmsg"] {
        report.must_not_read(path);
    }
    report.verdict("the kernel log is closed")
}

/// PR-61: hanging up the terminal.
pub(crate) fn vhangup(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    // In a session of its own the child has no terminal, so a permitted call hangs up nothing.
    report.must_refuse("setsid, vhangup", || {
        let _ = syscall!(libc::SYS_setsid);
        syscall!(libc::SYS_vhangup)
    });
    report.verdict("vhangup is refused")
}

/// PR-62: host and domain name, with a length that is invalid once permitted.
pub(crate) fn hostname(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    report.must_refuse("sethostname(too long)", || syscall!(libc::SYS_sethostname, c"x", 4096));
    report.must_refuse("setdomainname(too long)", || syscall!(libc::SYS_setdomainname, c"x", 4096));
    report.must_not_open("/proc/sys/kernel/hostname", libc::O_WRONLY);
    report.must_not_open("/proc/sys/kernel/domainname", libc::O_WRONLY);
    report.verdict("host and domain name cannot be set")
}
