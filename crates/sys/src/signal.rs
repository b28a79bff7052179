//! Signal masks and dispositions of this process.

use std::io;

use crate::check;

/// Blocks every signal that can be blocked, so that a signal descriptor or the kernel's default decides.
pub fn block_all() -> io::Result<()> {
    change_mask(libc::SIG_BLOCK)
}

/// Blocks SIGCHLD alone, for a signal descriptor, and heeds it: whoever ignores it, which is inherited, is never
/// told of an end.
pub fn block_child_ends() -> io::Result<()> {
    // SAFETY: a valid signal number and no handler.
    if unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) } == libc::SIG_ERR {
        return Err(io::Error::last_os_error());
    }
    change(libc::SIG_BLOCK, &crate::fd::child_set())
}

/// Unblocks everything: what a program expects to find when it starts.
pub fn unblock_all() -> io::Result<()> {
    change_mask(libc::SIG_UNBLOCK)
}

/// Puts every signal at its default, for this process and what it forks. A server that ignores SIGPIPE would
/// otherwise pass that on, and `yes | head` never ends.
pub fn reset_dispositions() -> io::Result<()> {
    /// `struct sigaction` as the kernel has it; libc's functions refuse the two signals it keeps for itself.
    #[repr(C)]
    struct KernelAction {
        handler: usize,
        flags: libc::c_ulong,
        restorer: usize,
        mask: u64,
    }
    let default = KernelAction { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 };
    for signal in (1..=64).filter(|signal| ![libc::SIGKILL, libc::SIGSTOP].contains(signal)) {
        // SAFETY: the kernel reads one sigaction and is given the size of its mask; no old one is asked for.
        let result = unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                &raw const default,
                std::ptr::null_mut::<u8>(),
                size_of::<u64>(),
            )
        };
        check(result)?;
    }
    Ok(())
}

fn change_mask(how: libc::c_int) -> io::Result<()> {
    let mut set = std::mem::MaybeUninit::uninit();
    // SAFETY: sigfillset initialises the set it is given.
    unsafe { libc::sigfillset(set.as_mut_ptr()) };
    // SAFETY: initialised by the call above.
    change(how, &unsafe { set.assume_init() })
}

fn change(how: libc::c_int, set: &libc::sigset_t) -> io::Result<()> {
    // SAFETY: the set is initialised and only read; no old mask is asked for.
    let result = unsafe { libc::sigprocmask(how, set, std::ptr::null_mut()) };
    check(result.into()).map(drop)
}
