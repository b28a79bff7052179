//! A child that borrows this process's memory until it is another program: no page is copied, or found changed later.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::process::{CLONE_INTO_CGROUP, SingleThreaded};

/// Whether [`spawn`] is there on this architecture.
pub const AVAILABLE: bool = cfg!(target_arch = "x86_64");

/// Far more than what becomes a program needs.
const STACK_BYTES: usize = 64 << 10;

/// What the child is to do, and what it left when it did not become a program.
struct Errand<F, T> {
    work: Option<F>,
    left: Option<T>,
}

/// Makes a child, straight in a cgroup v2 directory when one is given, and waits until it has executed a program or
/// ended. `work` runs in the child and returns only when there is no program; what it returns comes back with the
/// child's pid, and the child ends with 127. What `work` allocates and still holds when it executes a program is lost.
///
/// Who can signal the child can hold this process up: it is for when nobody is there who would.
pub fn spawn<T, F: FnOnce() -> T>(
    _: &SingleThreaded,
    cgroup: Option<BorrowedFd<'_>>,
    work: F,
) -> io::Result<(i32, Option<T>)> {
    let mut stack: Box<[MaybeUninit<u128>]> = Box::new_uninit_slice(STACK_BYTES / size_of::<u128>());
    let mut errand = Errand { work: Some(work), left: None };
    let mut flags = (libc::CLONE_VM | libc::CLONE_VFORK) as u64;
    if cgroup.is_some() {
        flags |= CLONE_INTO_CGROUP;
    }
    let args = libc::clone_args {
        flags,
        pidfd: 0,
        child_tid: 0,
        parent_tid: 0,
        exit_signal: libc::SIGCHLD as u64,
        stack: stack.as_mut_ptr().expose_provenance() as u64,
        stack_size: STACK_BYTES as u64,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: cgroup.map_or(0, |directory| directory.as_raw_fd() as u64),
    };
    let place = &raw mut errand;
    // SAFETY: the child runs `run_errand::<T, F>` with a pointer of the type it takes, on a stack that nobody else uses
    // and that outlives it here: CLONE_VFORK keeps this thread, the only one, in the kernel until the child has executed
    // a program, ended or was killed. So nothing runs beside it in the memory they share, as in a call.
    let pid = unsafe { clone3(&args, run_errand::<T, F>, place) }?;
    // SAFETY: the child has left the memory; nobody else has the pointer.
    let left = unsafe { (*place).left.take() };
    Ok((pid, left))
}

/// The child's life. A panic ends it: nothing unwinds out of here.
extern "C" fn run_errand<T, F: FnOnce() -> T>(errand: *mut Errand<F, T>) -> ! {
    // SAFETY: see `spawn`: a live errand, and its owner does not run.
    let errand = unsafe { &mut *errand };
    errand.left = errand.work.take().map(|work| work());
    // SAFETY: _exit takes an integer and does not return.
    unsafe { libc::_exit(127) }
}

/// # Safety
/// `args` must ask for CLONE_VM and CLONE_VFORK and name a stack of the child's own; `errand` must be what `child` takes.
#[cfg(target_arch = "x86_64")]
unsafe fn clone3<E>(
    args: &libc::clone_args,
    child: extern "C" fn(*mut E) -> !,
    errand: *mut E,
) -> io::Result<i32> {
    let result: libc::c_long;
    // SAFETY: the parent passes through like after any system call. The child begins on its own stack, aligned to 16
    // bytes as a call wants it, with the registers of the parent; it calls `child`, which does not return.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r9",
            "call r8",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone3 => result,
            in("rdi") &raw const *args,
            in("rsi") size_of::<libc::clone_args>(),
            in("r8") child,
            in("r9") errand,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    if result < 0 { Err(io::Error::from_raw_os_error(-result as i32)) } else { Ok(result as i32) }
}

/// # Safety
/// None is needed: there is no child.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn clone3<E>(_: &libc::clone_args, _: extern "C" fn(*mut E) -> !, _: *mut E) -> io::Result<i32> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests {
    use super::*;
    use crate::process::{ArgList, execve};
    use rustix::process::{Pid, WaitOptions, waitpid};

    fn code(pid: i32) -> Option<i32> {
        let (_, status) = waitpid(Pid::from_raw(pid), WaitOptions::empty()).unwrap().unwrap();
        status.exit_status()
    }

    #[test]
    fn a_program_is_executed_and_leaves_nothing() {
        let (argv, env) = (list_of(&["/bin/sh", "-c", "exit 7"]), list_of(&[]));
        let (pid, left) =
            spawn(&SingleThreaded::assumed(), None, || execve(c"/bin/sh", &argv, &env)).unwrap();
        assert!(left.is_none(), "{left:?}");
        assert_eq!(code(pid), Some(7));
    }

    fn list_of(words: &[&str]) -> ArgList {
        ArgList::new(words.iter().map(|word| std::ffi::CString::new(*word).unwrap()).collect())
    }

    #[test]
    fn what_kept_it_from_a_program_comes_back() {
        let mut seen = Vec::new();
        let (pid, left) = spawn(&SingleThreaded::assumed(), None, || {
            seen.push("in the child".to_owned());
            execve(c"/nowhere", &list_of(&["x"]), &list_of(&[])).to_string()
        })
        .unwrap();
        assert!(left.unwrap().contains("No such file"));
        assert_eq!(seen, ["in the child"], "the memory is one");
        assert_eq!(code(pid), Some(127));
    }

    #[test]
    fn a_child_that_is_killed_lets_go() {
        let killed =
            || rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        let (pid, left) = spawn(&SingleThreaded::assumed(), None, killed).unwrap();
        assert!(left.is_none());
        assert_eq!(code(pid), None);
    }

    #[test]
    fn one_that_cannot_be_made_is_an_error() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let place = std::os::fd::AsFd::as_fd(&file);
        assert!(spawn(&SingleThreaded::assumed(), Some(place), || ()).is_err(), "a file is no cgroup");
    }
}
