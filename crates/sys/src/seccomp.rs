//! Loading a seccomp filter.

use std::io;

use crate::check;

/// One BPF instruction, in the kernel's layout (`struct sock_filter`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    pub code: u16,
    pub jt: u8,
    pub jf: u8,
    pub k: u32,
}

/// Puts this thread under `program`. Needs no_new_privs.
pub fn load(program: &[Instruction]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let filter = libc::sock_fprog { len, filter: program.as_ptr().cast_mut().cast() };
    // SAFETY: `Instruction` has the layout of sock_filter; `filter` points to `len` of them, which live across
    // the call. The kernel copies them and writes nothing.
    let result =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const filter) };
    check(result).map(drop)
}
