//! Wholesale handling of this process's descriptor table.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::check;
use crate::process::SingleThreaded;

/// Takes descriptor 0 out of the standard streams: it was handed over there at spawn, and standard input is
/// replaced by /dev/null.
pub fn take_stdin() -> io::Result<OwnedFd> {
    let stdin = std::io::stdin();
    let taken = rustix::io::fcntl_dupfd_cloexec(&stdin, 3)?;
    rustix::stdio::dup2_stdin(null()?)?;
    Ok(taken)
}

fn null() -> io::Result<OwnedFd> {
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    Ok(rustix::fs::open("/dev/null", flags, 0.into())?)
}

/// Closes every descriptor from 3 up that is not in `keep`.
///
/// For the start of a process's new life, right after a fork: whatever the old life owned must never be dropped
/// or used again, which holds because the caller diverges into code that is handed `keep` only.
pub fn close_all_but(_: &SingleThreaded, keep: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut kept: Vec<RawFd> = keep.iter().map(AsRawFd::as_raw_fd).filter(|fd| *fd > 2).collect();
    kept.sort_unstable();
    let mut first = 3;
    for fd in kept {
        if fd > first {
            close_range(first, fd - 1, 0)?;
        }
        first = fd + 1;
    }
    close_range(first, RawFd::MAX, 0)
}

/// Marks every descriptor from 3 up to be closed by the next exec.
pub fn close_on_exec_from_3() -> io::Result<()> {
    close_range(3, RawFd::MAX, libc::CLOSE_RANGE_CLOEXEC)
}

fn close_range(first: RawFd, last: RawFd, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: plain integers. Closing is sound under the contract of `close_all_but`; with CLOEXEC nothing is
    // closed now.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    check(result).map(drop)
}

/// Puts the given descriptors on 0, 1 and 2. The originals stay open.
pub fn set_stdio(stdin: BorrowedFd<'_>, stdout: BorrowedFd<'_>, stderr: BorrowedFd<'_>) -> io::Result<()> {
    // All three are above 2 (they came over a socket while 0 to 2 were taken), so no copy overwrites a source.
    rustix::stdio::dup2_stdin(stdin)?;
    rustix::stdio::dup2_stdout(stdout)?;
    rustix::stdio::dup2_stderr(stderr)?;
    Ok(())
}

/// A signal descriptor for SIGCHLD; the signal must be blocked.
pub fn child_signals() -> io::Result<OwnedFd> {
    let set = child_set();
    // SAFETY: the set is initialised and only read; -1 asks for a new descriptor.
    let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    check(fd.into())?;
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// SIGCHLD alone.
pub(crate) fn child_set() -> libc::sigset_t {
    let mut set = std::mem::MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set it is given.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: initialised by the call above.
    let mut set = unsafe { set.assume_init() };
    // SAFETY: a live set and a valid signal number.
    unsafe { libc::sigaddset(&raw mut set, libc::SIGCHLD) };
    set
}
