//! Outliving a time limit or a session.
//!
//! These run without the supervising half of the program: the process that the
//! sandbox started must itself be the stubborn one. Every process ends by its own
//! deadline, so a runtime that fails the test is not left with them for ever.

use std::time::{Duration, Instant};

use crate::child::exit_now;
use crate::report::{AttackResult, Usage, Verdict};
use crate::sys::{SysResult, syscall};

/// Ignores every signal that can be ignored, including the one on the parent's death.
fn ignore_everything() {
    for signal in (1..=64).filter(|signal| ![libc::SIGKILL, libc::SIGSTOP, libc::SIGCHLD].contains(signal)) {
        // SAFETY: ignoring a signal needs no handler; refused numbers only return an error.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let _ = syscall!(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, 0);
}

/// Forks by the raw call; true in the child.
fn forked(flags: i32) -> bool {
    syscall!(libc::SYS_clone, flags | libc::SIGCHLD, 0, 0, 0, 0) == Ok(0)
}

fn idle_until(deadline: Instant) {
    while Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A process that ends every 20 ms and leaves a successor, so that no list of processes stays true.
fn relay_until(deadline: Instant) -> ! {
    while Instant::now() < deadline {
        if !forked(0) {
            exit_now(0);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    exit_now(0)
}

fn detach_streams() {
    if let Ok(null) = crate::sys::open("/dev/null", libc::O_RDWR) {
        for stream in 0..3 {
            let _: SysResult = syscall!(libc::SYS_dup2, null, stream);
        }
    }
}

fn name_process(name: &std::ffi::CStr) {
    let _ = syscall!(libc::SYS_prctl, libc::PR_SET_NAME, name);
}

/// TM-01: ignores every signal and keeps running, with helpers in sessions of their own.
pub(crate) fn ignore(arguments: &[String]) -> AttackResult {
    let seconds: u64 = crate::resource::number(arguments, Some(15))?;
    let deadline = Instant::now() + Duration::from_secs(seconds);
    ignore_everything();
    for form in Form::ALL {
        if forked(0) {
            let _ = syscall!(libc::SYS_setsid);
            name_process(c"probe-ignore");
            form.live_until(deadline);
        }
    }
    println!("attempt: ignore all signals for {seconds} s, with {} helpers -> running", Form::ALL.len());
    idle_until(deadline);
    Ok(Verdict::Unsafe(format!("still running after {seconds} s")))
}

/// How a daemon stays.
#[derive(Clone, Copy)]
enum Form {
    Quiet,
    KeepsStreams,
    Relay,
    Stopped,
    Busy,
}

impl Form {
    const ALL: [Self; 4] = [Self::Quiet, Self::Relay, Self::Stopped, Self::Busy];

    fn parse(text: &str) -> Result<Vec<Self>, Usage> {
        Ok(match text {
            "all" => Self::ALL.to_vec(),
            "quiet" => vec![Self::Quiet],
            "streams" => vec![Self::KeepsStreams],
            "relay" => vec![Self::Relay],
            "stopped" => vec![Self::Stopped],
            "busy" => vec![Self::Busy],
            other => {
                return Err(Usage(format!("{other} is none of all, quiet, streams, relay, stopped, busy")));
            }
        })
    }

    fn live_until(self, deadline: Instant) -> ! {
        if !matches!(self, Self::KeepsStreams) {
            detach_streams();
        }
        match self {
            Self::Quiet | Self::KeepsStreams => idle_until(deadline),
            Self::Relay => relay_until(deadline),
            // A helper wakes the stopped process at the end, so that it ends too.
            Self::Stopped => {
                let stopped = std::process::id();
                if forked(0) {
                    idle_until(deadline);
                    let _ = syscall!(libc::SYS_kill, stopped, libc::SIGCONT);
                    exit_now(0);
                }
                let _ = syscall!(libc::SYS_kill, stopped, libc::SIGSTOP);
                idle_until(deadline);
            }
            Self::Busy => {
                while Instant::now() < deadline {
                    std::hint::black_box(deadline);
                }
            }
        }
        exit_now(0)
    }
}

fn stay(form: Form, deadline: Instant) -> ! {
    ignore_everything();
    name_process(c"probe-daemon");
    form.live_until(deadline)
}

/// TM-02: daemons by double fork and as siblings of this process.
pub(crate) fn daemon(arguments: &[String]) -> AttackResult {
    let (form, rest) = match arguments {
        [first, rest @ ..] if first.parse::<u64>().is_err() => (first.as_str(), rest),
        rest => ("all", rest),
    };
    let forms = Form::parse(form)?;
    let seconds: u64 = crate::resource::number(rest, Some(30))?;
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let count = forms.len() * 2;
    for form in forms {
        if forked(0) {
            let _ = syscall!(libc::SYS_setsid);
            if forked(0) {
                stay(form, deadline);
            }
            exit_now(0);
        }
        // The other daemon is a child of whoever started this process.
        if forked(libc::CLONE_PARENT) {
            let _ = syscall!(libc::SYS_setsid);
            stay(form, deadline);
        }
    }
    println!("attempt: {count} daemons for {seconds} s -> started");
    Ok(Verdict::Info(format!(
        "{count} daemons named probe-daemon live for {seconds} s; the host looks for them"
    )))
}
