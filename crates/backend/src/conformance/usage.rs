//! What a command used.

use std::time::Duration;

use super::Check;
use super::bench::{Bench, text_of};

pub(super) fn cases() -> Vec<super::Case> {
    family!("usage" {
        [] wall_time_is_what_passed,
            a_busy_loop_has_used_cpu_time,
            cpu_time_of_children_counts,
            an_idle_command_has_used_almost_none,
            peak_memory_is_at_least_what_was_touched;
    })
}

async fn wall_time_is_what_passed(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let wall = session.sh("sleep 0.4").await?.exit.usage.wall;
    ensure!(wall >= Duration::from_millis(400), "a sleep of 0.4 s took {wall:?}");
    ensure!(wall < Duration::from_secs(10), "a sleep of 0.4 s took {wall:?}");
    Ok(())
}

const LOOP: &str = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";

async fn a_busy_loop_has_used_cpu_time(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let usage = session.sh(LOOP).await?.exit.usage;
    ensure!(usage.user >= Duration::from_millis(10), "a busy loop used {usage:?}");
    let used = usage.user + usage.system;
    ensure!(used <= usage.wall * 2, "one busy process used {used:?} in {:?}", usage.wall);
    Ok(())
}

async fn cpu_time_of_children_counts(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let usage = session.sh(&format!("({LOOP}); true")).await?.exit.usage;
    ensure!(usage.user >= Duration::from_millis(10), "a busy child used {usage:?}");
    Ok(())
}

/// Usage is the command's: not what ran before it in the same box.
async fn an_idle_command_has_used_almost_none(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let busy = session.sh(&format!("{LOOP}; {LOOP}; {LOOP}")).await?.exit.usage;
    let idle = session.sh("sleep 0.1").await?.exit.usage;
    ensure!(idle.user < busy.user, "an idle command used {idle:?}, the busy one before it {busy:?}");
    Ok(())
}

async fn peak_memory_is_at_least_what_was_touched(bench: &Bench) -> Check {
    let session = bench.start().await?;
    // `tail` holds everything that has no newline in it.
    let result = session.sh("head -c 64000000 /dev/zero | tail | wc -c").await?;
    ensure_eq!(text_of(&result)?.trim(), "64000000", "bytes through the command");
    if let Some((peak, scope)) = result.exit.usage.peak_memory {
        ensure!(peak >= 64_000_000, "64 MB were touched, the peak of the {scope:?} is {peak}");
        ensure!(peak < 512 << 20, "64 MB were touched, the peak of the {scope:?} is {peak}");
    }
    Ok(())
}
