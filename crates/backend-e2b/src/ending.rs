//! How a program ended, as its sandbox tells it.

use std::time::Duration;

use sandcrate_backend::{ExecExit, ExitStatus, LimitHit, MemoryScope};
use sandcrate_e2b_wire::process::{self, Ended, signal_of};

/// A code, or the signal that the text names.
pub(crate) fn exit_of(ended: &Ended) -> ExitStatus {
    match signal_of(&ended.status) {
        Some(signal) if !ended.exited => ExitStatus::Signal(signal),
        _ => ExitStatus::Code(ended.exit_code),
    }
}

/// What it used: all of it where the endpoint is one of ours, else the time that passed.
pub(crate) fn usage_of(ended: &Ended, wall: Duration, exit: &mut ExecExit) {
    exit.usage.wall = wall;
    let Some(details) = &ended.sandcrate else { return };
    exit.usage.user = Duration::from_micros(details.user_micros);
    exit.usage.system = Duration::from_micros(details.system_micros);
    let scope = if details.peak_of_process { MemoryScope::Process } else { MemoryScope::Session };
    exit.usage.peak_memory = details.peak_memory_bytes.map(|bytes| (bytes, scope));
    exit.dropped_bytes = details.dropped_bytes;
    exit.limits_hit = details.limits_hit.iter().map(limit_hit).collect();
}

fn limit_hit(hit: &process::LimitHit) -> LimitHit {
    match *hit {
        process::LimitHit::Memory { oom_kills, limit_bytes, tmpfs_bytes } => {
            LimitHit::Memory { oom_kills, limit_bytes, tmpfs_bytes }
        }
        process::LimitHit::Pids { refused, limit } => LimitHit::Pids { refused, limit },
        process::LimitHit::Disk { used_bytes, limit_bytes } => LimitHit::Disk { used_bytes, limit_bytes },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(exit_code: i32, exited: bool, status: &str) -> Ended {
        Ended { exit_code, exited, status: status.to_owned(), ..Ended::default() }
    }

    #[test]
    fn signals_are_told_from_codes() {
        assert_eq!(exit_of(&ended(3, true, "exit status 3")), ExitStatus::Code(3));
        assert_eq!(exit_of(&ended(-1, false, "signal: killed")), ExitStatus::Signal(9));
        assert_eq!(
            exit_of(&ended(-1, false, "signal: segmentation fault (core dumped)")),
            ExitStatus::Signal(11)
        );
        // A shell's way of telling a signal is a code like any other.
        assert_eq!(exit_of(&ended(137, true, "exit status 137")), ExitStatus::Code(137));
    }
}
