//! Memory that this process holds and no longer uses.

use std::hint::black_box;
use std::io;

use crate::process::SingleThreaded;

/// More than any function called from here needs below its caller, and the red zone of the ABI.
const KEPT_STACK: usize = 1 << 10;
/// How deep the stack may have been; the kernel keeps a larger gap than this free below every stack.
const DEPTH: usize = 256 << 10;

/// Gives the kernel back what is free of the heap, and the pages of the stack below the caller. Costs a few page
/// faults when they are used again.
pub fn give_back(_: &SingleThreaded) -> io::Result<()> {
    trim_heap();
    let mut here = 0_u8;
    // SAFETY: plain integers.
    let page = crate::check(unsafe { libc::sysconf(libc::_SC_PAGESIZE) })? as usize;
    let end = (black_box(&raw mut here).addr() - KEPT_STACK) & !(page - 1);
    // SAFETY: the one thread of this process runs on the stack it started on, so nothing below its stack pointer is
    // in use, and what `madvise` itself and this function need is within `KEPT_STACK`. Below the stack there is
    // nothing but its guard gap.
    let result =
        unsafe { libc::madvise(std::ptr::without_provenance_mut(end - DEPTH), DEPTH, libc::MADV_DONTNEED) };
    match crate::check(result.into()) {
        // A stack that never was so deep: what is there was given back.
        Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => Ok(()),
        other => other.map(drop),
    }
}

#[cfg(target_env = "gnu")]
fn trim_heap() {
    // SAFETY: no pointer is passed; the allocator gives back only what it holds free.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(target_env = "gnu"))]
fn trim_heap() {}
