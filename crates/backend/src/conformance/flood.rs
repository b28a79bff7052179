//! Output without end, and consumers without haste.

use std::time::Duration;

use super::Check;
use super::bench::{Bench, eventually};
use super::live::Live;
use crate::{ExecEvent, ExecExit, ExecRequest, ExitStatus};

pub(super) fn cases() -> Vec<super::Case> {
    family!("flood" {
        [] two_hundred_megabytes_are_counted_and_64_kib_kept,
            endless_output_costs_no_memory_and_ends_at_the_deadline,
            a_slow_consumer_gets_everything,
            a_stalled_consumer_does_not_hold_the_command_and_drops_are_counted;
    })
}

async fn two_hundred_megabytes_are_counted_and_64_kib_kept(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let live = session.live(ExecRequest::argv(["head", "-c", "200000000", "/dev/zero"])).await?;
    let result = live.execution.collect(64 << 10).await.map_err(|error| error.to_string())?;
    ensure_eq!((result.stdout_bytes, result.stderr_bytes), (200_000_000, 0), "the counts");
    ensure_eq!(result.stdout.len(), 64 << 10, "kept bytes");
    ensure_eq!(result.exit.dropped_bytes, 0, "dropped bytes");
    ensure_eq!(result.exit.status, ExitStatus::Code(0), "the status");
    Ok(())
}

/// RS-10. The bound leaves room for cases that run beside this one in the same process.
async fn endless_output_costs_no_memory_and_ends_at_the_deadline(bench: &Bench) -> Check {
    const ROOM: u64 = 256 << 20;
    let session = bench.start().await?;
    let before = own_memory()?;
    let mut live = session.live(ExecRequest::argv(["yes"]).timeout(Duration::from_secs(4))).await?;
    let (mut bytes, mut chunks) = (0_u64, 0_u64);
    let exit = loop {
        match live.execution.next().await {
            Some(ExecEvent::Output(_, data)) => {
                bytes += data.len() as u64;
                chunks += 1;
                if chunks.is_multiple_of(1024) {
                    let grown = own_memory()?.saturating_sub(before);
                    ensure!(grown < ROOM, "after {bytes} bytes of output memory has grown by {grown}");
                }
            }
            Some(ExecEvent::Exit(exit)) => break exit,
            other => return Err(format!("the flood ended with {other:?}")),
        }
    };
    ensure!(exit.timed_out, "the flood ended with {exit:?}");
    ensure!(bytes > 1 << 20, "a flood of 4 s gave {bytes} bytes only");
    ensure_eq!(
        session.text("echo usable").await.unwrap_or_else(|error| error),
        "usable",
        "the box afterwards"
    );
    Ok(())
}

/// Back-pressure: for less than 10 s the command waits.
async fn a_slow_consumer_gets_everything(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let mut live = session.live(ExecRequest::argv(["head", "-c", "33554432", "/dev/zero"])).await?;
    // Not a wait for a state: this is the slowness.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (bytes, exit) = drain(&mut live).await?;
    ensure_eq!((bytes, exit.dropped_bytes), (32 << 20, 0), "received and dropped bytes");
    Ok(())
}

async fn a_stalled_consumer_does_not_hold_the_command_and_drops_are_counted(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let mut live = session.live(ExecRequest::shell("head -c 67108864 /dev/zero; touch done")).await?;
    let done =
        || async { Ok(session.sh("[ -e done ]").await?.exit.status.eq(&ExitStatus::Code(0)).then_some(())) };
    eventually("the command ends without a reader", done).await?;
    let (bytes, exit) = drain(&mut live).await?;
    ensure!(exit.dropped_bytes > 0, "nothing was dropped, and {bytes} bytes were held");
    ensure_eq!(bytes + exit.dropped_bytes, 64 << 20, "received and dropped bytes together");
    Ok(())
}

async fn drain(live: &mut Live) -> Result<(u64, ExecExit), String> {
    let mut bytes = 0;
    loop {
        match live.execution.next().await {
            Some(ExecEvent::Output(_, data)) => bytes += data.len() as u64,
            Some(ExecEvent::Exit(exit)) => return Ok((bytes, exit)),
            other => return Err(format!("the output ended with {other:?}")),
        }
    }
}

/// Resident bytes of the process that holds the backend.
fn own_memory() -> Result<u64, String> {
    let status = std::fs::read_to_string("/proc/self/status").map_err(|error| error.to_string())?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
    let kib = kib.and_then(|text| text.parse::<u64>().ok()).ok_or("no VmRSS in /proc/self/status")?;
    Ok(kib << 10)
}
