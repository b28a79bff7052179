//! What a caller does to a running command: signal, kill, drop, stop of the box under it.

use sandcrate_protocol::ErrorKind;
use tokio::time::timeout;

use super::Check;
use super::Need;
use super::bench::{Bench, PATIENCE, TestBox};
use super::live::Live;
use crate::{ExecControl, ExecEvent, ExecRequest, ExitStatus};

pub(super) fn cases() -> Vec<super::Case> {
    family!("control" {
        [] a_signal_reaches_the_trap_of_the_command,
            a_signal_ends_a_program_that_has_no_trap,
            a_kill_ends_the_tree,
            a_stubborn_program_is_killed_after_its_grace,
            an_execution_dropped_after_its_exit_ends_nothing,
            control_of_an_ended_command_is_refused,
            a_stop_ends_running_commands;
        // Told by a second command, which must not end with the first.
        [Need::KillOneCommand] a_dropped_execution_ends_its_tree,
            a_terminated_program_leaves_nothing_behind,
            a_stubborn_program_ends_alone;
    })
}

/// A tree of which a member is deaf to every signal but SIGKILL; prints that member's pid.
const TREE: &str = "sh -c 'trap \"\" TERM INT HUP; while :; do sleep 1; done' & echo $!; sleep 60";

async fn a_signal_reaches_the_trap_of_the_command(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let script = "trap 'echo got it; exit 3' TERM; echo ready; while :; do sleep 0.05; done";
    let mut live = session.live(ExecRequest::shell(script)).await?;
    live.until("ready").await?;
    ensure!(live.execution.control(ExecControl::Signal(15)).await, "the command takes no control");
    let (seen, exit) = live.end().await?;
    ensure_eq!((seen.as_str(), exit.status), ("ready\ngot it\n", ExitStatus::Code(3)), "output and status");
    Ok(())
}

async fn a_signal_ends_a_program_that_has_no_trap(bench: &Bench) -> Check {
    let session = bench.start().await?;
    for signal in [15, 2, 1, 9] {
        let mut live = session.live(ExecRequest::shell("echo ready; exec sleep 60")).await?;
        live.until("ready").await?;
        ensure!(live.execution.control(ExecControl::Signal(signal)).await, "the command takes no control");
        let (_, exit) = live.end().await?;
        ensure_eq!(exit.status, ExitStatus::Signal(signal), "the status");
        ensure!(!exit.timed_out, "a signal is no timeout");
    }
    Ok(())
}

async fn a_kill_ends_the_tree(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let mut live = session.live(ExecRequest::shell(TREE)).await?;
    let pid = live.line().await?;
    ensure!(live.execution.control(ExecControl::Kill).await, "the command takes no control");
    let (_, exit) = live.end().await?;
    ensure_eq!(exit.status, ExitStatus::Signal(9), "the status");
    ensure!(!exit.timed_out, "a kill is no timeout");
    session.until_gone(&pid).await
}

async fn a_stubborn_program_is_killed_after_its_grace(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let script = "trap 'echo no' TERM; echo ready; while :; do sleep 0.05; done";
    let mut live = session.live(ExecRequest::shell(script)).await?;
    live.until("ready").await?;
    let grace = std::time::Duration::from_millis(300);
    let began = std::time::Instant::now();
    ensure!(live.execution.control(ExecControl::Terminate { grace }).await, "the command takes no control");
    let (seen, exit) = live.end().await?;
    ensure_eq!((seen.as_str(), exit.status), ("ready\nno\n", ExitStatus::Signal(9)), "output and status");
    ensure!(began.elapsed() >= grace, "it had no grace");
    ensure!(!exit.timed_out, "a stop is no timeout");
    Ok(())
}

async fn a_terminated_program_leaves_nothing_behind(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let script = "setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' & echo $!; exec sleep 60";
    let mut live = session.live(ExecRequest::shell(script)).await?;
    let pid = live.line().await?;
    let grace = std::time::Duration::from_secs(30);
    ensure!(live.execution.control(ExecControl::Terminate { grace }).await, "the command takes no control");
    let (_, exit) = live.end().await?;
    ensure_eq!(exit.status, ExitStatus::Signal(15), "the status");
    session.until_gone(&pid).await?;
    ensure_eq!(session.text("echo still").await?, "still", "the box");
    Ok(())
}

async fn a_stubborn_program_ends_alone(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let (left, _) = session.live(ExecRequest::shell("sleep 60 >/dev/null & echo $!")).await?.end().await?;
    let mut other = session.live(ExecRequest::shell("echo ready; read line; echo got $line").piped()).await?;
    other.until("ready").await?;
    let script = "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 60' & echo $!; while :; do sleep 1; done";
    let mut live = session.live(ExecRequest::shell(script)).await?;
    let pid = live.line().await?;
    let grace = std::time::Duration::from_millis(100);
    ensure!(live.execution.control(ExecControl::Terminate { grace }).await, "the command takes no control");
    let (_, exit) = live.end().await?;
    ensure_eq!(exit.status, ExitStatus::Signal(9), "the status");
    session.until_gone(&pid).await?;
    let stdin = other.execution.take_stdin().ok_or("the other command has no pipe")?;
    ensure!(stdin.send("word\n".into()).await.is_ok(), "the other command takes no input");
    let (seen, exit) = other.end().await?;
    ensure_eq!((seen.as_str(), exit.status), ("ready\ngot word\n", ExitStatus::Code(0)), "the other command");
    ensure_eq!(
        session.text(&format!("kill -0 {} && echo there", left.trim())).await?,
        "there",
        "what was left"
    );
    Ok(())
}

async fn a_dropped_execution_ends_its_tree(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let mut live = session.live(ExecRequest::shell(TREE)).await?;
    let pid = live.line().await?;
    let controller = live.execution.controller();
    drop(live);
    session.until_gone(&pid).await?;
    drop(controller);
    ensure!(bench.backend.is_alive(&session.info.id).await, "the box is gone with the command");
    Ok(())
}

async fn an_execution_dropped_after_its_exit_ends_nothing(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let mut live = session.live(ExecRequest::shell("sleep 60 & echo $!")).await?;
    let (pid, _) = live.end().await?;
    drop(live);
    // Were the leftover killed by the drop, it would be gone within these.
    for _ in 0..5 {
        ensure!(session.is_running(pid.trim()).await?, "the leftover is gone");
    }
    Ok(())
}

async fn control_of_an_ended_command_is_refused(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let mut live = session.live(ExecRequest::shell("true")).await?;
    let controller = live.execution.controller();
    live.end().await?;
    timeout(PATIENCE, controller.closed())
        .await
        .map_err(|_| "an ended command still takes control".to_owned())?;
    ensure!(!live.execution.control(ExecControl::Kill).await, "an ended command takes a kill");
    Ok(())
}

async fn a_stop_ends_running_commands(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let (one, two) = (running(&session).await?, running(&session).await?);
    timeout(PATIENCE, session.stop()).await.map_err(|_| "the stop did not end".to_owned())??;
    for mut live in [one, two] {
        loop {
            match timeout(PATIENCE, live.execution.next()).await {
                Ok(Some(ExecEvent::Output(..))) => {}
                Ok(Some(ExecEvent::Exit(exit))) => {
                    ensure!(exit.status != ExitStatus::Code(0), "a stopped command succeeded");
                    break;
                }
                Ok(Some(ExecEvent::Failed(error))) if error.kind() == ErrorKind::SessionNotFound => break,
                other => return Err(format!("a command under a stop ended with {other:?}")),
            }
        }
    }
    Ok(())
}

async fn running(session: &TestBox) -> Result<Live, String> {
    let mut live = session.live(ExecRequest::shell(TREE)).await?;
    live.line().await?;
    Ok(live)
}
