//! Creating a setuid file by io_uring, which runs past a filter on the calls themselves.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::sys::{Errno, SysResult, cstring, syscall};

const OFFSET_SUBMISSION_RING: i64 = 0;
const OFFSET_SUBMISSION_ENTRIES: i64 = 0x1000_0000;
const OP_OPENAT: u64 = 18;
const GETEVENTS: i32 = 1;
/// Words of `struct io_uring_params`, and where the offset tables begin in it.
const PARAMETER_WORDS: usize = 30;
const SUBMISSION_TABLE: usize = 10;
const COMPLETION_TABLE: usize = 20;

/// Opens `path` with O_CREAT and `mode` by one ring entry.
pub(crate) fn open_by_ring(path: &str, mode: u32) -> SysResult {
    let mut parameters = [0u32; PARAMETER_WORDS];
    let ring = syscall!(libc::SYS_io_uring_setup, 2, parameters.as_mut_ptr())?;
    let rings = map(ring, OFFSET_SUBMISSION_RING)?;
    let entries = map(ring, OFFSET_SUBMISSION_ENTRIES)?;
    let word = |table: usize, index: usize| {
        rings.wrapping_byte_add(parameters[table + index] as usize).cast::<u32>()
    };

    let name = cstring(path);
    let mut entry = [0u64; 8];
    entry[0] = OP_OPENAT | ((libc::AT_FDCWD as u32 as u64) << 32);
    entry[2] = name.as_ptr() as u64;
    entry[3] = u64::from(mode) | (((libc::O_CREAT | libc::O_RDWR) as u64) << 32);
    // SAFETY: both mappings are one page or more and hold what io_uring_setup placed at
    // these offsets; nobody else writes before the tail is published.
    let completed = unsafe {
        entries.cast::<[u64; 8]>().write(entry);
        word(SUBMISSION_TABLE, 6).write(0);
        AtomicU32::from_ptr(word(SUBMISSION_TABLE, 1)).store(1, Ordering::Release);
        syscall!(libc::SYS_io_uring_enter, ring, 1, 1, GETEVENTS, 0, 0)?;
        word(COMPLETION_TABLE, 5).wrapping_add(2).cast::<i32>().read()
    };
    if completed < 0 { Err(Errno(-completed)) } else { Ok(completed.into()) }
}

fn map(ring: i64, offset: i64) -> Result<*mut u64, Errno> {
    let address = syscall!(
        libc::SYS_mmap,
        0,
        4096,
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_SHARED | libc::MAP_POPULATE,
        ring,
        offset
    )?;
    Ok(address as *mut u64)
}
