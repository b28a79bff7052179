//! What a person is told on stderr after the command: the time limit, limits that fired, and what was refused.

use std::time::Duration;

use sandcrate_backend::{ExecExit, LimitHit};
use sandcrate_protocol::network::Denial;

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
    lines.extend(denials(&exit.denials));
    lines
}

/// A screen of them; the document has all.
const SHOWN_DENIALS: usize = 8;

pub(crate) fn denials(denials: &[Denial]) -> Vec<String> {
    // Names in them are the command's choice; control characters would let it paint our terminal.
    let clean = |text: String| text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    let mut lines: Vec<String> =
        denials.iter().take(SHOWN_DENIALS).map(|denial| clean(denial.to_string())).collect();
    if denials.len() > SHOWN_DENIALS {
        lines.push(format!("{} more were denied; -o json has them all", denials.len() - SHOWN_DENIALS));
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
    fn denials_say_what_to_do_and_do_not_flood() {
        use sandcrate_protocol::network::DenialKind;

        let denial =
            Denial::new(DenialKind::Connect, "tcp 10.0.0.1:80\x1b[2J", "never: private", "ask the operator");
        let lines = denials(&vec![denial; 10]);
        assert_eq!(lines.len(), SHOWN_DENIALS + 1);
        let first = "denied connect: tcp 10.0.0.1:80\u{fffd}[2J by `never: private`: ask the operator";
        assert_eq!((lines[0].as_str(), lines[SHOWN_DENIALS].starts_with("2 more")), (first, true));
    }

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
