//! Signal masks and dispositions of this process.

use std::io;

use crate::check;

/// Blocks every signal that can be blocked, so that a signal descriptor or the kernel's default decides.
pub fn block_all() -> io::Result<()> {
    change_mask(libc::SIG_BLOCK)
}

/// What a program expects to find when it starts: nothing blocked, every signal at its default. A server that
/// ignores SIGPIPE would otherwise pass that on, and `yes | head` never ends.
pub fn reset_for_exec() -> io::Result<()> {
    for signal in 1..=64 {
        if signal == libc::SIGKILL || signal == libc::SIGSTOP {
            continue;
        }
        // SAFETY: SIG_DFL is a valid disposition; numbers that libc keeps for itself fail and are left alone.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    change_mask(libc::SIG_UNBLOCK)
}

fn change_mask(how: libc::c_int) -> io::Result<()> {
    let mut set = std::mem::MaybeUninit::uninit();
    // SAFETY: sigfillset initialises the set it is given.
    unsafe { libc::sigfillset(set.as_mut_ptr()) };
    // SAFETY: the set was initialised above and is only read; no old mask is asked for.
    let result = unsafe { libc::sigprocmask(how, set.as_ptr(), std::ptr::null_mut()) };
    check(result.into()).map(drop)
}
