//! Other doors into the kernel: 32-bit calls by `int 0x80`, x32 numbers, high bits in the number.

use crate::report::{AttackResult, Report};
use crate::sys::{Errno, SysResult, syscall};

const X32: i64 = 0x4000_0000;

/// A 32-bit system call; the error comes back in the register.
#[cfg(target_arch = "x86_64")]
pub(crate) fn int80(number: u32, arguments: [u32; 3]) -> SysResult {
    let mut result = number;
    // SAFETY: the compiler is told of every register the gate may change; rbx is
    // restored by hand because the compiler reserves it. Pointers lie in low memory.
    unsafe {
        std::arch::asm!(
            "push rbx",
            "mov ebx, {first:e}",
            "int 0x80",
            "pop rbx",
            first = in(reg) arguments[0],
            inout("eax") result,
            in("ecx") arguments[1],
            in("edx") arguments[2],
            in("esi") 0,
            in("edi") 0,
            lateout("r8") _, lateout("r9") _, lateout("r10") _, lateout("r11") _,
        );
    }
    let signed = result as i32;
    if (-4095..0).contains(&signed) { Err(Errno(-signed)) } else { Ok(signed.into()) }
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn int80(_number: u32, _arguments: [u32; 3]) -> SysResult {
    Err(Errno(libc::ENOSYS))
}

/// Copies `bytes` to where a 32-bit pointer reaches; lives until the process ends.
pub(crate) fn low_memory(bytes: &[u8]) -> Result<u32, Errno> {
    let size = bytes.len().max(1).next_multiple_of(4096);
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT;
    let address = syscall!(libc::SYS_mmap, 0, size, protection, flags, -1, 0)?;
    // SAFETY: the mapping is fresh, writable and at least as long as `bytes`.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
    Ok(address as u32)
}

/// PR-51: 32-bit calls, each in a child that a filter may kill.
pub(crate) fn int80_calls(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    let user_namespace = libc::CLONE_NEWUSER as u32;
    for (name, number, arguments) in [
        ("getpid", 20, [0, 0, 0]),
        ("getuid", 199, [0, 0, 0]),
        ("unshare user", 310, [user_namespace, 0, 0]),
        ("ptrace traceme", 26, [0, 0, 0]),
        ("personality", 136, [0x0004_0000, 0, 0]),
        ("keyctl", 288, [0, u32::MAX - 2, 1]),
        ("io_uring_setup", 425, [1, 0, 0]),
        ("userfaultfd", 374, [1, 0, 0]),
        ("modify_ldt", 123, [0, 0, 0]),
        ("socket by socketcall", 102, [1, 0, 0]),
        ("vsock socket", 359, [40, 1, 0]),
    ] {
        // A kernel without 32-bit calls answers the gate with SIGSEGV.
        let outcome = crate::child::attempt_in_child(|| int80(number, arguments));
        let outcome = report.attempt(&format!("int 0x80 {name}"), outcome);
        let closed = matches!(outcome, crate::child::Outcome::Killed(libc::SIGSEGV));
        if !outcome.refused() && !closed {
            report.breach(format!("int 0x80 {name} -> {outcome}"));
        }
    }
    report.verdict("32-bit system calls are refused")
}

/// PR-29: x32 numbers, and numbers with bits above the 32 that the kernel reads.
pub(crate) fn x32(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    for (name, number) in [
        ("getpid", libc::SYS_getpid),
        ("getuid", libc::SYS_getuid),
        ("sched_yield", libc::SYS_sched_yield),
        ("setsid", libc::SYS_setsid),
        ("ptrace by its x32 number", 521),
        ("io_submit by its x32 number", 544),
        ("process_vm_readv by its x32 number", 539),
        ("kexec_load by its x32 number", 528),
    ] {
        report.must_refuse(&format!("x32 {name}"), || syscall!(number | X32));
    }
    let user = libc::CLONE_NEWUSER;
    report.must_refuse("x32 unshare(user)", || syscall!(libc::SYS_unshare | X32, user));
    report.must_refuse("x32 personality", || syscall!(libc::SYS_personality | X32, 0x0004_0000));
    for bits in [1i64 << 32, 0xffff_i64 << 32, i64::MIN, X32 | (1 << 32)] {
        report.must_refuse(&format!("unshare(user) with number bits {bits:#x}"), || {
            syscall!(libc::SYS_unshare | bits, user)
        });
        report.must_refuse(&format!("keyctl with number bits {bits:#x}"), || {
            syscall!(libc::SYS_keyctl | bits, 0, -3, 1)
        });
    }
    report.must_refuse("number -1", || syscall!(-1));
    report.must_refuse("number 0x7fffffff", || syscall!(0x7fff_ffff));
    report.must_refuse("number 1000", || syscall!(1000));
    report.verdict("x32 and out-of-range numbers are refused")
}
