//! What a person is told on stderr after the command: the time limit, and limits that fired.

use std::time::Duration;

use sandcrate_backend::{ExecExit, LimitHit};

use crate::units::{show_duration, show_size};

pub(super) fn after(exit: &ExecExit, timeout: Option<Duration>) -> Vec<String> {
    let mut lines = Vec::new();
    if exit.timed_out {
        let limit = timeout.map_or_else(String::new, |limit| format!(" of {}", show_duration(limit)));
        lines.push(format!(
            "the time limit{limit} was hit and the command was killed; raise it with --timeout"
        ));
    }
    lines.extend(exit.limits_hit.iter().map(limit));
    if exit.dropped_bytes > 0 {
        lines.push(format!(
            "{} of output were dropped because they were not read in time",
            show_size(exit.dropped_bytes)
        ));
    }
    lines
}

pub(crate) fn limit(hit: &LimitHit) -> String {
    match hit {
        LimitHit::Memory { oom_kills, limit_bytes, tmpfs_bytes } => {
            let killed = count(*oom_kills, "process killed", "processes killed");
            // Worth a word when files in memory are a good part of the cause.
            let files =
                tmpfs_bytes.filter(|bytes| *bytes >= limit_bytes / 8).map_or_else(String::new, |bytes| {
                    format!("; {} of it were files in /tmp and /dev/shm", show_size(bytes))
                });
            let limit = show_size(*limit_bytes);
            format!("the memory limit of {limit} was hit ({killed}){files}; raise it with --memory")
        }
        LimitHit::Pids { refused, limit } => {
            let refused = count(*refused, "new one refused", "new ones refused");
            format!("the limit of {limit} processes was hit ({refused}); raise it with --pids-limit")
        }
        LimitHit::Disk { used_bytes, limit_bytes } => format!(
            "the disk limit of {} was exceeded ({} used) and the command was ended; raise it with --quota",
            show_size(*limit_bytes),
            show_size(*used_bytes)
        ),
        other => format!("a limit was hit: {other:?}"),
    }
}

fn count(number: u64, one: &str, many: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {many}") }
}

#[cfg(test)]
mod tests {
    use sandcrate_backend::ExitStatus;

    use super::*;

    #[test]
    fn each_limit_names_itself_and_the_flag() {
        let exit = ExecExit {
            limits_hit: vec![
                LimitHit::Memory { oom_kills: 2, limit_bytes: 512 << 20, tmpfs_bytes: Some(100 << 20) },
                LimitHit::Pids { refused: 1, limit: 128 },
                LimitHit::Disk { used_bytes: 70 << 20, limit_bytes: 64 << 20 },
            ],
            dropped_bytes: 2048,
            ..ExecExit::new(ExitStatus::Signal(9), true)
        };
        assert_eq!(
            after(&exit, Some(Duration::from_secs(30))),
            [
                "the time limit of 30s was hit and the command was killed; raise it with --timeout",
                "the memory limit of 512M was hit (2 processes killed); 100M of it were files in /tmp and /dev/shm; \
                 raise it with --memory",
                "the limit of 128 processes was hit (1 new one refused); raise it with --pids-limit",
                "the disk limit of 64M was exceeded (70M used) and the command was ended; raise it with --quota",
                "2k of output were dropped because they were not read in time",
            ]
        );
    }
}
