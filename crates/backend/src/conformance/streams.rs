//! Standard output and standard error arrive apart, complete and byte by byte as written.

use super::Check;
use super::bench::{Bench, text_of};
use crate::{ExecEvent, ExecRequest};

pub(super) fn cases() -> Vec<super::Case> {
    family!("streams" {
        [] stdout_and_stderr_are_separate,
            all_256_byte_values_arrive_unchanged,
            nothing_is_added_to_output_without_a_newline,
            the_order_of_one_stream_is_kept,
            output_arrives_while_the_command_runs,
            the_exit_is_the_last_event,
            both_streams_flood_without_a_deadlock;
    })
}

async fn stdout_and_stderr_are_separate(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let result = session.sh("echo out; echo err >&2; echo out2").await?;
    ensure_eq!(result.stdout[..], b"out\nout2\n"[..], "stdout");
    ensure_eq!(result.stderr[..], b"err\n"[..], "stderr");
    ensure_eq!((result.stdout_bytes, result.stderr_bytes), (9, 4), "the counts");
    ensure_eq!(result.exit.dropped_bytes, 0, "dropped bytes");
    Ok(())
}

async fn all_256_byte_values_arrive_unchanged(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let escaped =
        |bytes: &mut dyn Iterator<Item = u8>| bytes.map(|byte| format!("\\{byte:03o}")).collect::<String>();
    let (up, down) = (escaped(&mut (0..=255)), escaped(&mut (0..=255).rev()));
    let result = session.sh(&format!("printf '{up}'; printf '{down}' >&2")).await?;
    ensure_eq!(result.stdout[..], (0..=255).collect::<Vec<u8>>()[..], "stdout");
    ensure_eq!(result.stderr[..], (0..=255).rev().collect::<Vec<u8>>()[..], "stderr");
    Ok(())
}

async fn nothing_is_added_to_output_without_a_newline(bench: &Bench) -> Check {
    let session = bench.start().await?;
    for (script, expected) in
        [("printf x", "x"), ("true", ""), ("printf '\\n\\n'", "\n\n"), ("printf ' x '", " x ")]
    {
        let result = session.sh(script).await?;
        ensure_eq!(result.stdout[..], *expected.as_bytes(), script);
    }
    Ok(())
}

async fn the_order_of_one_stream_is_kept(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let seen = session.text("seq 1 200000").await?;
    let expected: Vec<String> = (1..=200_000).map(|number| number.to_string()).collect();
    ensure!(seen == expected.join("\n"), "200000 numbers arrived as {} bytes in another order", seen.len());
    Ok(())
}

async fn output_arrives_while_the_command_runs(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let script = "echo first; while ! [ -e go ]; do sleep 0.05; done; echo second";
    let mut live = session.live(ExecRequest::shell(script)).await?;
    live.until("first").await?;
    // Only a reader that has seen the first line lets the command go on.
    session.text("touch go").await?;
    let (seen, _) = live.end().await?;
    ensure_eq!(seen, "first\nsecond\n", "all output");
    Ok(())
}

async fn the_exit_is_the_last_event(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let mut live = session.live(ExecRequest::shell("echo x; exit 3")).await?;
    live.end().await?;
    let after = live.execution.next().await;
    ensure!(after.is_none(), "after the exit came {after:?}");
    let mut missing = match bench.backend.exec(&session.info.id, ExecRequest::argv(["no-such-program"])).await
    {
        Ok(execution) => execution,
        Err(_) => return Ok(()),
    };
    let only = missing.next().await;
    ensure!(matches!(only, Some(ExecEvent::Failed(_))), "a command that did not start gave {only:?}");
    ensure!(missing.next().await.is_none(), "an event followed the failure");
    Ok(())
}

async fn both_streams_flood_without_a_deadlock(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let script = "head -c 4000000 /dev/zero >&2; head -c 5000000 /dev/zero; head -c 4000000 /dev/zero >&2";
    let result = session.sh(script).await?;
    text_of(&result).map(drop)?;
    ensure_eq!((result.stdout_bytes, result.stderr_bytes), (5_000_000, 8_000_000), "the counts");
    Ok(())
}
