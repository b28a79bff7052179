//! How a command ended.

use super::Check;
use super::bench::Bench;
use crate::{ExecRequest, ExitStatus};

pub(super) fn cases() -> Vec<super::Case> {
    family!("exits" {
        [] exit_codes_are_reported,
            a_signal_is_reported_as_one,
            a_program_reports_as_a_shell_does,
            one_failure_does_not_touch_the_next_command;
    })
}

async fn exit_codes_are_reported(bench: &Bench) -> Check {
    let session = bench.start().await?;
    for code in [0, 1, 7, 126, 127, 137, 255] {
        let result = session.sh(&format!("exit {code}")).await?;
        ensure_eq!(result.exit.status, ExitStatus::Code(code), "the status");
        ensure_eq!(result.exit.status.shell_code(), code, "the shell's code");
        ensure!(!result.exit.timed_out, "an exit with {code} is no timeout");
    }
    Ok(())
}

async fn a_signal_is_reported_as_one(bench: &Bench) -> Check {
    let session = bench.start().await?;
    // PIPE among them: a daemon ignores it, its commands must not.
    for (name, number) in [("KILL", 9), ("TERM", 15), ("SEGV", 11), ("INT", 2), ("PIPE", 13), ("USR1", 10)] {
        let result = session.sh(&format!("kill -{name} $$; sleep 5; echo survived")).await?;
        ensure_eq!(result.exit.status, ExitStatus::Signal(number), name);
        ensure_eq!(result.exit.status.shell_code(), 128 + number, name);
    }
    Ok(())
}

async fn a_program_reports_as_a_shell_does(bench: &Bench) -> Check {
    let session = bench.start().await?;
    for (program, code) in [("true", 0), ("false", 1)] {
        let result = session.run(ExecRequest::argv([program])).await?;
        ensure_eq!(result.exit.status, ExitStatus::Code(code), program);
    }
    Ok(())
}

async fn one_failure_does_not_touch_the_next_command(bench: &Bench) -> Check {
    let session = bench.start().await?;
    ensure_eq!(session.sh("kill -9 $$").await?.exit.status, ExitStatus::Signal(9), "the first command");
    let result = session.sh("echo fine").await?;
    ensure_eq!((&result.stdout[..], result.exit.status), (&b"fine\n"[..], ExitStatus::Code(0)), "the next");
    ensure!(result.exit.limits_hit.is_empty(), "it reports {:?}", result.exit.limits_hit);
    Ok(())
}
