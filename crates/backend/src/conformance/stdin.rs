//! Standard input: what the caller sends, its end, and commands that do not care.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use super::Check;
use super::bench::{Bench, PATIENCE, TestBox, text_of};
use crate::{Collected, ExecRequest};

pub(super) fn cases() -> Vec<super::Case> {
    family!("stdin" {
        [] piped_input_is_delivered_byte_by_byte_and_ends,
            input_of_8_mib_arrives_whole,
            input_arrives_while_the_command_runs,
            a_command_that_does_not_read_does_not_hang_the_caller,
            input_to_a_command_that_has_ended_is_refused,
            closed_input_is_at_its_end_at_once;
    })
}

/// Runs a command with the input sent beside it.
async fn fed(session: &TestBox, request: ExecRequest, input: Bytes) -> Result<Collected, String> {
    let mut live = session.live(request.piped()).await?;
    let stdin = live.execution.take_stdin().ok_or("a piped command has no stdin")?;
    let (result, ()) = tokio::join!(live.execution.collect(16 << 20), feed(stdin, input));
    result.map_err(|error| error.to_string())
}

/// Sends all in pieces; a command that closes its input early ends it.
async fn feed(stdin: mpsc::Sender<Bytes>, mut input: Bytes) {
    while !input.is_empty() {
        let piece = input.split_to(input.len().min(64 << 10));
        if stdin.send(piece).await.is_err() {
            return;
        }
    }
}

async fn piped_input_is_delivered_byte_by_byte_and_ends(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let all: Vec<u8> = (0..=255).collect();
    let result = fed(&session, ExecRequest::argv(["cat"]), all.clone().into()).await?;
    ensure_eq!(result.stdout[..], all[..], "what cat gave back");
    let result = fed(&session, ExecRequest::shell("cat; echo end"), Bytes::new()).await?;
    ensure_eq!(result.stdout[..], b"end\n"[..], "after an input of no bytes");
    Ok(())
}

async fn input_of_8_mib_arrives_whole(bench: &Bench) -> Check {
    let session = bench.start().await?;
    // A period that no buffer size divides: a lost or doubled piece shows.
    let input: Bytes = (0..8_u32 << 20).map(|index| (index % 251) as u8).collect();
    let count = text_of(&fed(&session, ExecRequest::argv(["wc", "-c"]), input.clone()).await?)?;
    ensure_eq!(count.trim(), "8388608", "bytes counted in the box");
    let echoed = fed(&session, ExecRequest::argv(["cat"]), input.clone()).await?;
    ensure!(echoed.stdout == input, "cat gave back {} other bytes", echoed.stdout_bytes);
    Ok(())
}

async fn input_arrives_while_the_command_runs(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let script = "while read -r line; do echo \"got $line\"; done; echo end";
    let mut live = session.live(ExecRequest::shell(script).piped()).await?;
    let stdin = live.execution.take_stdin().ok_or("a piped command has no stdin")?;
    for word in ["one", "two"] {
        stdin.send(Bytes::from(format!("{word}\n"))).await.map_err(|_| "the input is closed")?;
        live.until(&format!("got {word}\n")).await?;
    }
    drop(stdin);
    let (seen, _) = live.end().await?;
    ensure_eq!(seen, "got one\ngot two\nend\n", "all output");
    Ok(())
}

async fn a_command_that_does_not_read_does_not_hang_the_caller(bench: &Bench) -> Check {
    let session = bench.start().await?;
    for script in ["echo end", "sleep 0.5; echo end", "exec <&-; sleep 0.5; echo end"] {
        let input = Bytes::from(vec![0; 8 << 20]);
        let fed = timeout(PATIENCE, fed(&session, ExecRequest::shell(script), input)).await;
        let seen = text_of(&fed.map_err(|_| format!("`{script}` with 8 MiB of input hung"))??)?;
        ensure_eq!(seen, "end", script);
    }
    Ok(())
}

async fn input_to_a_command_that_has_ended_is_refused(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let mut live = session.live(ExecRequest::shell("exit 0").piped()).await?;
    let stdin = live.execution.take_stdin().ok_or("a piped command has no stdin")?;
    live.end().await?;
    timeout(PATIENCE, stdin.closed()).await.map_err(|_| "the input of an ended command stays open".to_owned())
}

async fn closed_input_is_at_its_end_at_once(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let begin = Instant::now();
    ensure_eq!(session.text("cat; echo end").await?, "end", "the output");
    ensure!(begin.elapsed() < Duration::from_secs(10), "it took {:?}", begin.elapsed());
    let mut live = session.live(ExecRequest::shell("true")).await?;
    ensure!(live.execution.take_stdin().is_none(), "a command without input has a sender");
    live.end().await.map(drop)
}
