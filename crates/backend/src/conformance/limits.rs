//! Limits that fire: reported once, with the command they hit, and the box goes on.

use std::time::Duration;

use sandcrate_protocol::{Control, ErrorKind};

use super::bench::{Bench, TestBox, eventually, fails};
use super::{Check, Need};
use crate::{DiskLimit, ExecRequest, ExitStatus, LimitHit, SessionSpec};

pub(super) fn cases() -> Vec<super::Case> {
    family!("limits" {
        [] a_limit_of_zero_is_refused;
        [Need::Enforced(Control::Memory)] too_much_memory_is_reported_and_the_box_survives,
            a_limit_that_fired_is_not_reported_for_the_next_command,
            memory_of_all_processes_counts_together, one_command_can_have_less_memory_than_its_box;
        [Need::Enforced(Control::Pids)] too_many_processes_are_reported_and_the_box_survives;
        [Need::Enforced(Control::Tmpfs)] tmp_is_bounded;
        [Need::Enforced(Control::Rlimits)] open_files_are_bounded_and_core_dumps_off;
        [Need::Enforced(Control::Disk)] too_much_on_disk_is_reported_and_ends_the_command;
        [Need::HardDiskQuota] a_hard_disk_quota_fails_the_write;
    })
}

const MEMORY: u64 = 64 << 20;
/// `tail` holds everything that has no newline in it.
const EATER: &str = "head -c 400000000 /dev/zero | tail";

async fn small_box(bench: &Bench) -> Result<TestBox, String> {
    let mut spec = bench.spec()?;
    spec.limits.memory_bytes = MEMORY;
    // The tmpfs is part of the memory.
    spec.limits.tmp_bytes = 8 << 20;
    bench.start_spec(spec).await
}

async fn a_limit_of_zero_is_refused(bench: &Bench) -> Check {
    type Change = fn(&mut SessionSpec);
    let changes: [(&str, Change); 3] = [
        ("memory_bytes", |spec| spec.limits.memory_bytes = 0),
        ("pids", |spec| spec.limits.pids = 0),
        ("cpu_millis", |spec| spec.limits.cpu_millis = 0),
    ];
    for (field, change) in changes {
        let mut spec = bench.spec()?;
        change(&mut spec);
        fails(field, bench.backend.start(spec).await, ErrorKind::Validation, field)?;
    }
    Ok(())
}

async fn too_much_memory_is_reported_and_the_box_survives(bench: &Bench) -> Check {
    let session = small_box(bench).await?;
    ensure!(session.info.enforcement.holds(Control::Memory), "the record does not hold Memory");
    let exit = session.sh(EATER).await?.exit;
    ensure!(exit.status != ExitStatus::Code(0), "the command got 400 MB under a limit of 64 MiB");
    let hit = exit.limits_hit.iter().any(|hit| {
        matches!(hit, LimitHit::Memory { oom_kills, limit_bytes, .. } if *oom_kills > 0 && *limit_bytes == MEMORY)
    });
    ensure!(hit, "no memory limit of {MEMORY} in {:?}", exit.limits_hit);
    ensure_eq!(session.text("echo usable").await?, "usable", "the box afterwards");
    Ok(())
}

async fn a_limit_that_fired_is_not_reported_for_the_next_command(bench: &Bench) -> Check {
    let session = small_box(bench).await?;
    for _ in 0..2 {
        let exit = session.sh(EATER).await?.exit;
        ensure!(!exit.limits_hit.is_empty(), "nothing is reported for the command that was hit");
        let next = session.sh("true").await?.exit;
        ensure!(next.limits_hit.is_empty(), "the next command reports {:?}", next.limits_hit);
    }
    Ok(())
}

/// Four processes of 24 MiB each: every one fits, together they do not.
async fn memory_of_all_processes_counts_together(bench: &Bench) -> Check {
    let session = small_box(bench).await?;
    let part = "(head -c 24000000 /dev/zero; sleep 3) | tail > /dev/null";
    let exit = session.sh(&format!("{part} & {part} & {part} & {part} & wait")).await?.exit;
    let hit = exit.limits_hit.iter().any(|hit| matches!(hit, LimitHit::Memory { .. }));
    ensure!(hit, "four times 24 MB under a limit of 64 MiB reports {exit:?}");
    Ok(())
}

/// A backend without a bound for one command says so, by the name that callers know it by.
async fn one_command_can_have_less_memory_than_its_box(bench: &Bench) -> Check {
    const OWN: u64 = 32 << 20;
    // Held for a while, so that it is in use at once.
    const HOLD: &str = "head -c 80000000 /dev/zero | tail | wc -c";
    let mut spec = bench.spec()?;
    spec.limits.memory_bytes = 256 << 20;
    let session = bench.start_spec(spec).await?;
    ensure_eq!(session.text(HOLD).await?, "80000000", "a command that only the box bounds");
    let bounded = |script: &str| session.outcome(ExecRequest::shell(script).memory(OWN));
    let first = match bounded(HOLD).await {
        Err(error) if matches!(bench.backend.name(), "docker" | "podman") => {
            return fails("memory_mb", Err::<(), _>(error), ErrorKind::Unenforceable, "memory_mb");
        }
        first => first.map_err(|error| format!("a command with a bound of its own: {error}"))?,
    };
    for exit in [
        first.exit,
        bounded(&format!("({HOLD}) & wait; sh -c '{HOLD}'")).await.map_err(|e| e.to_string())?.exit,
    ] {
        let hit = exit
            .limits_hit
            .iter()
            .any(|hit| matches!(hit, LimitHit::Memory { oom_kills, limit_bytes: OWN, .. } if *oom_kills > 0));
        ensure!(hit, "80 MB under a bound of 32 MiB report {exit:?}");
    }
    let small =
        bounded("head -c 4000000 /dev/zero | tail | wc -c").await.map_err(|error| error.to_string())?;
    ensure_eq!(small.stdout.trim_ascii_end(), b"4000000", "what fits");
    ensure!(small.exit.limits_hit.is_empty(), "what fits reports {:?}", small.exit.limits_hit);
    // Out of memory before it is a program, which harms it alone.
    let crowded = ExecRequest::argv(["true"]).memory(512 << 10);
    let crowded =
        (0..6).fold(crowded, |request, index| request.env(format!("V{index}"), "x".repeat(100_000)));
    let crowded = session.outcome(crowded).await;
    let succeeded = crowded.as_ref().is_ok_and(|result| result.exit.status == ExitStatus::Code(0));
    ensure!(!succeeded, "600 kB of variables under a bound of 512 KiB gave {crowded:?}");
    ensure_eq!(session.text(HOLD).await?, "80000000", "the next command, which only the box bounds");
    Ok(())
}

async fn too_many_processes_are_reported_and_the_box_survives(bench: &Bench) -> Check {
    let mut spec = bench.spec()?;
    spec.limits.pids = 24;
    let session = bench.start_spec(spec).await?;
    ensure!(session.info.enforcement.holds(Control::Pids), "the record does not hold Pids");
    let exit = session.sh("i=0; while [ $i -lt 60 ]; do sleep 1 & i=$((i+1)); done; wait").await?.exit;
    let hit = exit
        .limits_hit
        .iter()
        .any(|hit| matches!(hit, LimitHit::Pids { refused, limit: 24 } if *refused > 0));
    ensure!(hit, "60 processes under a limit of 24 report {exit:?}");
    // Until the leftovers end there may be no room for another command.
    let clean = || async {
        match session.outcome(ExecRequest::shell("echo usable")).await {
            Ok(result) if result.stdout == "usable\n" && result.exit.limits_hit.is_empty() => Ok(Some(())),
            _ => Ok(None),
        }
    };
    eventually("the box is usable and reports no limit", clean).await
}

async fn tmp_is_bounded(bench: &Bench) -> Check {
    let mut spec = bench.spec()?;
    spec.limits.tmp_bytes = 8 << 20;
    let session = bench.start_spec(spec).await?;
    session.text("head -c 4000000 /dev/zero > /tmp/fits").await?;
    let over = session.sh("head -c 32000000 /dev/zero > /tmp/over").await?.exit;
    ensure!(over.status != ExitStatus::Code(0), "32 MB fit into a /tmp of 8 MiB");
    ensure_eq!(session.text("rm /tmp/over; echo x > /tmp/x; cat /tmp/x").await?, "x", "/tmp afterwards");
    Ok(())
}

async fn open_files_are_bounded_and_core_dumps_off(bench: &Bench) -> Check {
    let mut spec = bench.spec()?;
    spec.limits.open_files = 200;
    let session = bench.start_spec(spec).await?;
    ensure_eq!(session.text("ulimit -n; ulimit -H -n; ulimit -c").await?, "200\n200\n0", "the limits");
    Ok(())
}

async fn too_much_on_disk_is_reported_and_ends_the_command(bench: &Bench) -> Check {
    const BOUND: u64 = 16 << 20;
    let mut spec = bench.spec()?;
    spec.limits.disk = DiskLimit::Accounted(BOUND);
    let session = bench.start_spec(spec).await?;
    let request =
        ExecRequest::shell("head -c 64000000 /dev/zero > big; sleep 60").timeout(Duration::from_secs(40));
    let exit = session.run(request).await?.exit;
    let hit = exit
        .limits_hit
        .iter()
        .any(|hit| matches!(hit, LimitHit::Disk { used_bytes, limit_bytes: BOUND } if *used_bytes > BOUND));
    ensure!(hit && !exit.timed_out, "64 MB over a bound of 16 MiB report {exit:?}");
    ensure!(exit.status != ExitStatus::Code(0), "the command succeeded");
    Ok(())
}

async fn a_hard_disk_quota_fails_the_write(bench: &Bench) -> Check {
    let mut spec = bench.spec()?;
    spec.limits.disk = DiskLimit::Hard(16 << 20);
    let session = bench.start_spec(spec).await?;
    session.text("head -c 4000000 /dev/zero > fits").await?;
    let over = session.sh("head -c 64000000 /dev/zero > over").await?.exit;
    ensure!(over.status != ExitStatus::Code(0), "64 MB fit into a quota of 16 MiB");
    let bytes: u64 = session.text("wc -c < over").await?.trim().parse().map_err(|_| "wc gave no number")?;
    ensure!(bytes <= 16 << 20, "{bytes} bytes were written under a quota of 16 MiB");
    ensure_eq!(session.text("rm over; echo x > x; cat x").await?, "x", "the disk afterwards");
    Ok(())
}
