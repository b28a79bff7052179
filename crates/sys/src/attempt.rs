//! Calls that a box must refuse, made with arguments that do no harm where they are permitted. For the self
//! test of `sandcrate doctor --attack`.

use std::io;

use crate::check;

macro_rules! attempts {
    ($($(#[$doc:meta])* $name:ident = $number:ident($($arg:expr),*);)*) => {$(
        $(#[$doc])*
        pub fn $name() -> io::Result<()> {
            // SAFETY: integers, null pointers or pointers to static strings only; a kernel that permits the
            // call fails it with EFAULT or EINVAL, or makes an object that ends with the process.
            check(unsafe { libc::syscall(libc::$number $(, $arg)*) }).map(drop)
        }
    )*};
}

attempts! {
    /// Adds a key to the process keyring.
    add_key = SYS_add_key(c"user".as_ptr(), c"sandcrate".as_ptr(), c"x".as_ptr(), 1_usize, -2_i32);
    keyctl = SYS_keyctl(0_i32, -3_i32, 0_i32);
    bpf = SYS_bpf(0_i32, 0_usize, 0_u32);
    io_uring_setup = SYS_io_uring_setup(1_u32, 0_usize);
    userfaultfd = SYS_userfaultfd(1_i32);
    perf_event_open = SYS_perf_event_open(0_usize, 0_i32, -1_i32, -1_i32, 0_usize);
    /// Asks to trace the box's init.
    ptrace_init = SYS_ptrace(libc::PTRACE_SEIZE, 1_i32, 0_usize, 0_usize);
    clone3 = SYS_clone3(0_usize, 0_usize);
    memfd_secret = SYS_memfd_secret(0_u32);
    open_by_handle_at = SYS_open_by_handle_at(-1_i32, 0_usize, 0_i32);
    kexec_load = SYS_kexec_load(0_usize, 0_usize, 0_usize, !0_usize);
    init_module = SYS_init_module(0_usize, 0_usize, 0_usize);
    swapoff = SYS_swapoff(c"/nonexistent".as_ptr());
    fsopen = SYS_fsopen(c"tmpfs".as_ptr(), 1_u32);
    unshare_user = SYS_unshare(libc::CLONE_NEWUSER);
    unshare_mount = SYS_unshare(libc::CLONE_NEWNS);
    process_vm_readv = SYS_process_vm_readv(1_i32, 0_usize, 0_usize, 0_usize, 0_usize, 0_usize);
}
