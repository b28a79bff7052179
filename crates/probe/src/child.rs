//! Runs one attempt in a forked child, so that a filter that kills, a namespace that
//! opens or a limit that changes cannot disturb the attempts that follow.

use std::fmt;
use std::time::{Duration, Instant};

use crate::sys::{Errno, SysResult, close, syscall};

/// How an attempt ended.
#[derive(Clone, Copy)]
pub(crate) enum Outcome {
    Returned(i64),
    Failed(Errno),
    Killed(i32),
    Hung,
    /// No child could be started, so nothing was tried.
    NotMade(Errno),
}

impl Outcome {
    /// The kernel or a filter said no before looking at what was asked.
    pub(crate) fn refused(self) -> bool {
        match self {
            Self::Failed(Errno(number)) => matches!(number, libc::EPERM | libc::EACCES | libc::ENOSYS),
            Self::Killed(signal) => signal == libc::SIGSYS,
            Self::Returned(_) | Self::Hung | Self::NotMade(_) => false,
        }
    }

    pub(crate) fn succeeded(self) -> bool {
        matches!(self, Self::Returned(_))
    }
}

impl From<SysResult> for Outcome {
    fn from(result: SysResult) -> Self {
        match result {
            Ok(value) => Self::Returned(value),
            Err(errno) => Self::Failed(errno),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Returned(value) => write!(formatter, "ok ({value})"),
            Self::Failed(errno) => errno.fmt(formatter),
            Self::Killed(signal) => write!(formatter, "killed by signal {signal}"),
            Self::Hung => formatter.write_str("no answer"),
            Self::NotMade(errno) => write!(formatter, "not made: {errno}"),
        }
    }
}

/// A forked process; killed and reaped when dropped.
pub(crate) struct Child {
    pid: i32,
    reaped: Option<i32>,
}

/// A wait status, or that the process is still there.
pub(crate) enum Fate {
    Alive,
    Exited(i32),
    Killed(i32),
}

impl Child {
    /// Forks; the child runs `body`, exits with its result and dies with its parent.
    pub(crate) fn spawn(body: impl FnOnce() -> i32) -> Result<Self, Errno> {
        // SAFETY: the worker that forks has one thread, so the child may run any code.
        let pid = unsafe { libc::fork() };
        if pid < 0 { Err(crate::sys::last_errno()) } else { Ok(Self::enter(pid, body)) }
    }

    /// Like [`Self::spawn`], by the raw clone call that libc's fork does not use.
    pub(crate) fn spawn_by_clone(body: impl FnOnce() -> i32) -> Result<Self, Errno> {
        let pid = syscall!(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0)?;
        Ok(Self::enter(pid as i32, body))
    }

    fn enter(pid: i32, body: impl FnOnce() -> i32) -> Self {
        if pid == 0 {
            let _ = syscall!(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            set_alarm(20);
            exit_now(body());
        }
        Self { pid, reaped: None }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Waits at most `limit`; an end that was seen once is remembered.
    pub(crate) fn wait(&mut self, limit: Duration) -> Fate {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.poll() {
                return if libc::WIFSIGNALED(status) {
                    Fate::Killed(libc::WTERMSIG(status))
                } else {
                    Fate::Exited(libc::WEXITSTATUS(status))
                };
            }
            if Instant::now() >= deadline {
                return Fate::Alive;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The raw wait status, once there is one.
    pub(crate) fn poll(&mut self) -> Option<i32> {
        if self.reaped.is_none() {
            let mut status = 0;
            // SAFETY: `status` is a live integer that the call may write.
            let pid = unsafe { libc::waitpid(self.pid, &raw mut status, libc::WNOHANG) };
            if pid == self.pid {
                self.reaped = Some(status);
            }
        }
        self.reaped
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.poll().is_none() {
            let _ = syscall!(libc::SYS_kill, self.pid, libc::SIGKILL);
            let mut status = 0;
            // SAFETY: `status` is a live integer; the child was just killed, so this ends.
            unsafe { libc::waitpid(self.pid, &raw mut status, 0) };
        }
    }
}

/// Leaves without running destructors or flushing what the parent buffered.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: `_exit` has no preconditions.
    unsafe { libc::_exit(code) }
}

pub(crate) fn set_alarm(seconds: u32) {
    // SAFETY: `alarm` has no preconditions.
    unsafe { libc::alarm(seconds) };
}

/// Makes this process the first to die when memory runs out, so that the flood's
/// accounting is judged and not the kernel's choice of a victim.
pub(crate) fn volunteer_for_oom() {
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
}

/// Runs `attempt` in a child and returns how it ended.
pub(crate) fn attempt_in_child(attempt: impl FnOnce() -> SysResult) -> Outcome {
    attempt_within(Duration::from_secs(5), attempt)
}

/// Like [`attempt_in_child`], for attempts that take their time.
pub(crate) fn attempt_within(limit: Duration, attempt: impl FnOnce() -> SysResult) -> Outcome {
    let mut ends = [0i32; 2];
    if let Err(errno) = syscall!(libc::SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC) {
        return Outcome::NotMade(errno);
    }
    let [reader, writer] = ends.map(i64::from);
    let spawned = Child::spawn(|| {
        let (kind, value) = match attempt() {
            Ok(value) => (0, value),
            Err(Errno(number)) => (1, i64::from(number)),
        };
        let message = [kind, value];
        let _ = syscall!(libc::SYS_write, writer, message.as_ptr(), size_of_val(&message));
        0
    });
    close(writer);
    let outcome = match spawned {
        Ok(mut child) => match child.wait(limit) {
            Fate::Alive => Outcome::Hung,
            Fate::Killed(signal) => Outcome::Killed(signal),
            Fate::Exited(_) => read_outcome(reader),
        },
        Err(errno) => Outcome::NotMade(errno),
    };
    close(reader);
    outcome
}

fn read_outcome(reader: i64) -> Outcome {
    let mut message = [0i64; 2];
    let size = size_of_val(&message);
    match syscall!(libc::SYS_read, reader, message.as_mut_ptr(), size) {
        Ok(read) if read as usize == size && message[0] == 0 => Outcome::Returned(message[1]),
        Ok(read) if read as usize == size => Outcome::Failed(Errno(message[1] as i32)),
        _ => Outcome::Hung,
    }
}
