//! Making processes and ending this one: clone3, exec, wait with usage, immediate exit.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{WaitId, WaitIdOptions, waitid};

use crate::check;

/// Proof that this process has exactly one thread, so that a forked child may run ordinary code: no lock can be
/// held by a thread that does not exist in the child.
#[derive(Debug)]
pub struct SingleThreaded(());

impl SingleThreaded {
    /// Looks at the kernel's own count. Whoever holds the proof must not start threads.
    pub fn prove() -> io::Result<Self> {
        let threads = std::fs::read_dir("/proc/self/task")?.count();
        if threads == 1 {
            Ok(Self(()))
        } else {
            Err(io::Error::other(format!("the process has {threads} threads, it must have one")))
        }
    }

    /// Test harnesses have threads; for what does not depend on there being none.
    #[cfg(test)]
    pub(crate) fn assumed() -> Self {
        Self(())
    }
}

/// linux/sched.h; libc's constant is too narrow for it.
pub(crate) const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Which side of a fork this is.
#[derive(Debug)]
pub enum Fork {
    /// With a proof of its own: a new process has one thread.
    Child(SingleThreaded),
    Parent {
        pid: i32,
        pidfd: OwnedFd,
    },
}

/// Copies this process with clone3(2), into new namespaces (`flags` of the CLONE_NEW* family) and, when given,
/// straight into a cgroup v2 directory.
///
/// # Errors
/// What clone3 returns. A child that is made always gets a pidfd.
pub fn fork(_: &SingleThreaded, flags: u64, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Fork> {
    const NAMESPACES: u64 = (libc::CLONE_NEWUSER
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP) as u64;
    if flags & !NAMESPACES != 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut pidfd: libc::c_int = -1;
    let mut args = libc::clone_args {
        flags: flags | libc::CLONE_PIDFD as u64,
        pidfd: (&raw mut pidfd) as u64,
        child_tid: 0,
        parent_tid: 0,
        exit_signal: libc::SIGCHLD as u64,
        stack: 0,
        stack_size: 0,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: 0,
    };
    if let Some(directory) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = directory.as_raw_fd() as u64;
    }
    // SAFETY: `args` and `pidfd` outlive the call, and the kernel writes to `pidfd` only. Without CLONE_VM (the
    // mask above excludes it) the child has its own copy of the memory, and `SingleThreaded` says that no
    // other thread could have left a lock held in that copy.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<libc::clone_args>()) };
    let pid = match check(pid) {
        // Container engines refuse clone3, whose arguments their filters cannot see; a plain copy needs less.
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) && flags == 0 && cgroup.is_none() => {
            plain_clone(&mut pidfd)
        }
        other => other,
    };
    match pid? {
        0 => Ok(Fork::Child(SingleThreaded(()))),
        pid => {
            // SAFETY: in the parent of a successful CLONE_PIDFD, `pidfd` is a new descriptor nobody else owns.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(Fork::Parent { pid: pid as i32, pidfd })
        }
    }
}

/// The same by clone(2), into no namespace and no cgroup. Called by [`fork`] only, which asks for the proof.
fn plain_clone(pidfd: &mut libc::c_int) -> io::Result<libc::c_long> {
    let flags = (libc::CLONE_PIDFD | libc::SIGCHLD) as libc::c_ulong;
    // SAFETY: as in `fork`: no CLONE_VM, so the child has its own memory. The third argument is the place for the
    // pidfd on every architecture, and outlives the call; the stack (0: the copy of ours), child_tid and tls are
    // not used.
    check(unsafe {
        libc::syscall(libc::SYS_clone, flags, 0_usize, pidfd as *mut libc::c_int, 0_usize, 0_usize)
    })
}

/// A process in a user namespace of its own that does nothing but end. Until it is waited for, which dropping this
/// does, its number is its own, and its namespace can be mapped and opened by it.
#[derive(Debug)]
pub struct Husk {
    pid: i32,
    pidfd: OwnedFd,
    /// The child's, who may not have run yet.
    _stack: Box<[u128]>,
}

impl Husk {
    /// Copies no memory and waits for nobody, unlike a fork and a vfork.
    pub fn in_new_user_namespace(_: &SingleThreaded) -> io::Result<Self> {
        /// More than `_exit` needs.
        const STACK: usize = 4 << 10;
        extern "C" fn end(_: *mut libc::c_void) -> libc::c_int {
            // SAFETY: an integer is passed.
            unsafe { libc::_exit(0) }
        }
        let mut stack = vec![0_u128; STACK / size_of::<u128>()].into_boxed_slice();
        let mut pidfd: libc::c_int = -1;
        let flags = libc::CLONE_VM | libc::CLONE_NEWUSER | libc::CLONE_PIDFD | libc::SIGCHLD;
        // SAFETY: the child has a stack of its own, aligned, growing down from its end, which lives until the child
        // was waited for. Of the memory it shares with us it touches nothing else, thread-local storage included.
        // `pidfd` outlives the call, which writes it.
        let pid = unsafe {
            let top = stack.as_mut_ptr_range().end.cast();
            libc::clone(end, top, flags, std::ptr::null_mut(), &raw mut pidfd)
        };
        check(pid.into())?;
        // SAFETY: a successful CLONE_PIDFD made this descriptor, and nobody else owns it.
        let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
        Ok(Self { pid, pidfd, _stack: stack })
    }

    pub fn pid(&self) -> i32 {
        self.pid
    }
}

impl Drop for Husk {
    fn drop(&mut self) {
        let wait = || waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED);
        // One that somebody else has waited for has ended too.
        while wait().is_err_and(|error| error == Errno::INTR) {}
    }
}

/// Leaves namespaces of this process (CLONE_NEW* flags).
pub fn unshare(_: &SingleThreaded, flags: libc::c_int) -> io::Result<()> {
    // SAFETY: no pointer is passed; with one thread there is nobody whose view of the process could diverge.
    let result = unsafe { libc::unshare(flags) };
    check(result.into()).map(drop)
}

/// Arguments of [`execve`] in the kernel's form, made before the fork so that the child allocates nothing.
#[derive(Debug)]
pub struct ArgList {
    strings: Vec<CString>,
    pointers: Vec<*const libc::c_char>,
}

impl ArgList {
    pub fn new(strings: Vec<CString>) -> Self {
        let mut pointers: Vec<_> = strings.iter().map(|text| text.as_ptr()).collect();
        pointers.push(std::ptr::null());
        Self { strings, pointers }
    }

    pub fn strings(&self) -> &[CString] {
        &self.strings
    }
}

/// Replaces this process's program; returns only on failure.
pub fn execve(program: &CStr, argv: &ArgList, env: &ArgList) -> io::Error {
    // SAFETY: `program` is NUL-terminated; both lists are NULL-terminated by `ArgList::new` and point into
    // strings that the lists own and that live across the call.
    unsafe { libc::execve(program.as_ptr(), argv.pointers.as_ptr(), env.pointers.as_ptr()) };
    io::Error::last_os_error()
}

/// Ends the process at once: no destructors, no buffers, no handlers. What a forked child uses.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit takes an integer and does not return.
    unsafe { libc::_exit(code) }
}

/// A child that has ended.
#[derive(Debug, Clone, Copy)]
pub struct Ended {
    pub pid: i32,
    pub status: WaitStatus,
    /// Of the child and the descendants it waited for.
    pub user: Duration,
    pub system: Duration,
    pub peak_rss_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitStatus {
    Code(i32),
    Signal(i32),
}

/// Collects one ended child without waiting; `None` when there is none now.
pub fn reap() -> io::Result<Option<Ended>> {
    let mut status = 0;
    // SAFETY: rusage is plain data, for which all zeroes is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live locals of the right type; the kernel writes them and keeps neither.
    let pid = unsafe { libc::wait4(-1, &raw mut status, libc::WNOHANG, &raw mut usage) };
    match check(pid.into()) {
        Ok(0) => Ok(None),
        Ok(_) => Ok(Some(Ended {
            pid,
            status: if libc::WIFSIGNALED(status) {
                WaitStatus::Signal(libc::WTERMSIG(status))
            } else {
                WaitStatus::Code(libc::WEXITSTATUS(status))
            },
            user: duration(usage.ru_utime),
            system: duration(usage.ru_stime),
            peak_rss_bytes: (usage.ru_maxrss as u64) * 1024,
        })),
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The most memory this process ever had.
pub fn own_peak_rss() -> io::Result<u64> {
    // SAFETY: rusage is plain data, for which all zeroes is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live local of the right type; the kernel writes it and does not keep it.
    check(unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) }.into())?;
    Ok((usage.ru_maxrss as u64) * 1024)
}

fn duration(time: libc::timeval) -> Duration {
    Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000)
}

/// Sends SIGKILL to every process this one may signal, itself and PID 1 excepted: in a PID namespace's init,
/// to everything else in that namespace.
pub fn kill_everyone_else() -> io::Result<()> {
    // SAFETY: plain integers.
    let result = unsafe { libc::kill(-1, libc::SIGKILL) };
    match check(result.into()) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        other => other.map(drop),
    }
}
