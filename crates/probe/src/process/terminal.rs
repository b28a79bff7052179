//! PR-68: pushing input into a terminal that somebody else reads.

use crate::child::attempt_in_child;
use crate::report::{AttackResult, Report};
use crate::sys::{SysResult, cstring, open, syscall};

const TIOCSTI: u64 = 0x5412;
const TIOCLINUX: u64 = 0x541c;
const TIOCSPTLCK: u64 = 0x4004_5431;
const TIOCGPTPEER: u64 = 0x5441;
const TIOCSCTTY: u64 = 0x540e;
const TIOCSETD: u64 = 0x5423;
/// The kernel reads 32 bits of the request; a filter that compares 64 misses these.
const HIGH_BITS: [u64; 4] = [0, 1 << 32, 0xffff_ffff_0000_0000, 1 << 63];

/// TIOCSTI and TIOCLINUX with and without high bits, on a terminal of our own and on the streams.
pub(crate) fn tiocsti(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    let terminal = attempt_in_child(|| with_terminal(|_| Ok(0)));
    let have_terminal = report.attempt("own pseudo terminal", terminal).succeeded();
    for high in HIGH_BITS {
        if have_terminal {
            let what = format!("TIOCSTI with bits {high:#x} on an own terminal");
            report.must_fail(&what, || with_terminal(|fd| push(fd, high)));
            let what = format!("TIOCSETD with bits {high:#x} to a rare discipline");
            report.must_fail(&what, || {
                with_terminal(|fd| {
                    let discipline = 21i32;
                    syscall!(libc::SYS_ioctl, fd, TIOCSETD | high, &raw const discipline)
                })
            });
        }
        for stream in 0..3 {
            on_stream(&mut report, &format!("stream {stream}"), stream, high);
        }
        if let Ok(fd) = open("/dev/tty", libc::O_RDWR | libc::O_CLOEXEC) {
            on_stream(&mut report, "/dev/tty", fd, high);
        }
    }
    for number in 0..16 {
        report.must_fail(&format!("push into /dev/pts/{number}"), || {
            let fd = open(format!("/dev/pts/{number}"), libc::O_RDWR | libc::O_NOCTTY)?;
            push(fd, 0)
        });
    }
    report.verdict("no input can be pushed into a terminal")
}

/// A stream that is no terminal answers ENOTTY without a filter; that is told, not judged.
fn on_stream(report: &mut Report, name: &str, fd: i64, high: u64) {
    for (call, request) in [("TIOCSTI", TIOCSTI), ("TIOCLINUX", TIOCLINUX)] {
        let what = format!("{call} with bits {high:#x} on {name}");
        let byte = 0u8;
        let outcome =
            report.must_fail(&what, || syscall!(libc::SYS_ioctl, fd, request | high, &raw const byte));
        if !outcome.refused() && !outcome.succeeded() {
            report.remark(format!("{what} reaches the kernel: {outcome}"));
        }
    }
}

fn push(fd: i64, high: u64) -> SysResult {
    let byte = b'x';
    syscall!(libc::SYS_ioctl, fd, TIOCSTI | high, &raw const byte)
}

/// Runs `body` on a fresh pseudo terminal that controls this process.
fn with_terminal(body: impl FnOnce(i64) -> SysResult) -> SysResult {
    let _ = syscall!(libc::SYS_setsid);
    let master = ["/dev/ptmx", "/dev/pts/ptmx"]
        .into_iter()
        .map(|path| syscall!(libc::SYS_openat, libc::AT_FDCWD, &cstring(path), libc::O_RDWR | libc::O_NOCTTY))
        .reduce(Result::or)
        .unwrap_or(Err(crate::sys::Errno(libc::ENOENT)))?;
    let unlocked = 0i32;
    syscall!(libc::SYS_ioctl, master, TIOCSPTLCK, &raw const unlocked)?;
    let slave = syscall!(libc::SYS_ioctl, master, TIOCGPTPEER, libc::O_RDWR | libc::O_NOCTTY)?;
    let _ = syscall!(libc::SYS_ioctl, slave, TIOCSCTTY, 0);
    body(slave)
}
