//! Memory that this process holds and no longer uses.

use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::io;
use std::ops::Range;

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

/// Unmaps the pages of this program's code and constants. What runs next maps what it needs again, out of the page
/// cache: a fault each, none of them with reading from a disk while the cache has them. What only a start needs stays
/// away, and so do the page tables for it, where the kernel frees empty ones.
pub fn release_code() -> io::Result<()> {
    let mut found: Segments = Default::default();
    // SAFETY: the callback is called with what it expects, before this returns; `found` outlives that.
    unsafe { libc::dl_iterate_phdr(Some(find_code), (&raw mut found).cast()) };
    for segment in found.into_iter().filter(|segment| !segment.is_empty()) {
        let start = std::ptr::without_provenance_mut::<c_void>(segment.start);
        // SAFETY: the range is a segment of this program's file that is not mapped for writing. No page of it was ever
        // changed, so every page comes back from the file as it was, also the one that is running.
        let result = unsafe { libc::madvise(start, segment.len(), libc::MADV_DONTNEED) };
        crate::check(result.into())?;
    }
    Ok(())
}

/// Code, and the constants before and behind it; linkers make no more. Those that are not there are empty.
type Segments = [Range<usize>; 3];

/// Writes the pages of the program's segments that are never written to `found`, which is [`Segments`], and asks for no
/// further object.
unsafe extern "C" fn find_code(info: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
    // SAFETY: `dl_iterate_phdr` passes a valid object, the program itself first.
    let info = unsafe { &*info };
    // SAFETY: it is passed as it was given, and nobody else has it meanwhile.
    let found = unsafe { &mut *found.cast::<Segments>() };
    // SAFETY: the object has that many headers there, and stays loaded.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let constant =
        |header: &&libc::Elf64_Phdr| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0;
    // SAFETY: plain integers.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    if let Ok(page) = usize::try_from(page) {
        for (segment, header) in found.iter_mut().zip(headers.iter().filter(constant)) {
            let start = info.dlpi_addr as usize + header.p_vaddr as usize;
            let end = start + header.p_memsz as usize;
            *segment = start & !(page - 1)..end.next_multiple_of(page);
        }
    }
    1
}

#[cfg(target_env = "gnu")]
fn trim_heap() {
    // SAFETY: no pointer is passed; the allocator gives back only what it holds free.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(target_env = "gnu"))]
fn trim_heap() {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of this program's file that are mapped, of all its mappings for execution.
    fn mapped_code() -> u64 {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let program = std::env::current_exe().unwrap();
        let mut here = false;
        let mut kib = 0;
        for line in smaps.lines() {
            match line.strip_prefix("Rss:") {
                Some(rss) if here => kib += rss.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap(),
                Some(_) => {}
                None if line.contains(" r") => {
                    here = line.contains(" r-xp ") && line.ends_with(program.to_str().unwrap());
                }
                None => {}
            }
        }
        kib << 10
    }

    #[test]
    fn code_is_given_back_and_comes_again() {
        let before = mapped_code();
        // Other tests run beside this one and fetch theirs back; without a release it only ever grows.
        let fewer = |_| {
            release_code().unwrap();
            mapped_code() < before
        };
        assert!((0..200).any(fewer), "all of {before} bytes stay mapped");
        assert_eq!([3, 1, 2].iter().max(), Some(&3), "and runs");
    }
}
