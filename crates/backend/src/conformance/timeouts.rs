//! Deadlines: on time, for the whole tree of the command, and for nothing else.

use std::time::Duration;

use tokio::time::Instant;

use super::bench::{Bench, TestBox};
use super::{Check, Need};
use crate::{Collected, ExecRequest, ExitStatus};

pub(super) fn cases() -> Vec<super::Case> {
    family!("timeouts" {
        [] a_deadline_is_kept_within_a_second_and_output_so_far_is_kept,
            a_command_that_ends_in_time_is_no_timeout,
            a_tree_that_ignores_signals_is_ended,
            a_daemon_of_the_command_does_not_survive,
            a_stopped_command_is_ended;
        [Need::KillOneCommand] a_deadline_ends_no_other_command,
            the_box_is_usable_after_a_deadline;
    })
}

/// Runs into the deadline and checks what every timeout has in common.
async fn overrun(session: &TestBox, script: &str, limit: Duration) -> Result<Collected, String> {
    let begin = Instant::now();
    let result = session.run(ExecRequest::shell(script).timeout(limit)).await?;
    let took = begin.elapsed();
    ensure!(took >= limit, "it ended after {took:?}, before its limit of {limit:?}");
    ensure!(took <= limit + Duration::from_secs(1), "it ended after {took:?}, with a limit of {limit:?}");
    ensure!(result.exit.timed_out, "it is not reported as a timeout: {:?}", result.exit);
    ensure_eq!(result.exit.status, ExitStatus::Signal(9), "the status");
    Ok(result)
}

async fn a_deadline_is_kept_within_a_second_and_output_so_far_is_kept(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let result =
        overrun(&session, "echo so far; echo bad >&2; sleep 60; echo never", Duration::from_secs(2)).await?;
    ensure_eq!(result.stdout[..], b"so far\n"[..], "stdout");
    ensure_eq!(result.stderr[..], b"bad\n"[..], "stderr");
    Ok(())
}

async fn a_command_that_ends_in_time_is_no_timeout(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let result = session.run(ExecRequest::shell("exit 4").timeout(Duration::from_secs(60))).await?;
    ensure!(!result.exit.timed_out, "it is reported as a timeout");
    ensure_eq!(result.exit.status, ExitStatus::Code(4), "the status");
    ensure!(result.exit.usage.wall < Duration::from_secs(30), "it took {:?}", result.exit.usage.wall);
    Ok(())
}

/// TM-01.
async fn a_tree_that_ignores_signals_is_ended(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let script =
        "trap '' TERM INT HUP; sh -c 'while :; do sleep 1; done' & echo $!; while :; do sleep 1; done";
    let result = overrun(&session, script, Duration::from_secs(2)).await?;
    session.until_gone(String::from_utf8_lossy(&result.stdout).trim()).await
}

/// TM-02: forked twice, in a session of its own, deaf to signals, with no pipe of ours.
async fn a_daemon_of_the_command_does_not_survive(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let script = "(setsid sh -c 'trap \"\" TERM INT HUP; echo $$ > daemon; while :; do sleep 1; done' \
                  < /dev/null > /dev/null 2>&1 &); while ! [ -s daemon ]; do sleep 0.05; done; cat daemon; sleep 60";
    let result = overrun(&session, script, Duration::from_secs(3)).await?;
    let pid = String::from_utf8_lossy(&result.stdout).trim().to_owned();
    ensure!(!pid.is_empty(), "the daemon did not come up before the deadline");
    session.until_gone(&pid).await
}

async fn a_stopped_command_is_ended(bench: &Bench) -> Check {
    let session = bench.start().await?;
    overrun(&session, "kill -STOP $$; sleep 60", Duration::from_secs(2)).await.map(drop)
}

async fn a_deadline_ends_no_other_command(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let beside = "echo up; while ! [ -e go ]; do sleep 0.05; done; echo done";
    let mut beside = session.live(ExecRequest::shell(beside)).await?;
    beside.until("up").await?;
    let left = session.text("sleep 60 > /dev/null 2>&1 & echo $!").await?;
    overrun(&session, "sleep 60", Duration::from_secs(1)).await?;
    ensure!(session.is_running(&left).await?, "the leftover of an earlier command is gone");
    session.text("touch go").await?;
    let (seen, exit) = beside.end().await?;
    ensure_eq!((seen.as_str(), exit.status), ("up\ndone\n", ExitStatus::Code(0)), "the command beside it");
    ensure!(!exit.timed_out, "the command beside it is reported as a timeout");
    Ok(())
}

async fn the_box_is_usable_after_a_deadline(bench: &Bench) -> Check {
    let session = bench.start().await?;
    session.text("echo kept > file; echo kept > /tmp/file").await?;
    overrun(&session, "sleep 60 & sleep 60", Duration::from_secs(1)).await?;
    ensure!(bench.backend.is_alive(&session.info.id).await, "the box is gone");
    ensure_eq!(session.text("cat file /tmp/file").await?, "kept\nkept", "the files");
    Ok(())
}
