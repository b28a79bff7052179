//! Floods that the runtime itself must stand: output, long lines, deep trees, odd names.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sandcrate_backend::Backend;
use sandcrate_backend::conformance::Check;
use sandcrate_backend::{
    DiskLimit, ExecEvent, ExecRequest, ExitStatus, FileKind, FileReply, FileRequest, RootAccess, Stream,
};

use super::stage::{AttackBox, QUOTA, Stage, chain, ensure};
use super::{Special, specials};
use crate::host_state;

pub(super) fn all() -> Vec<Special> {
    specials![
        rs_03_private_memory_of_a_process_is_limited,
        rs_10_a_flood_of_output_leaves_the_runtimes_memory_flat,
        rs_11_a_very_long_line_holds_nothing_up,
        rs_14_a_deep_tree_goes_with_its_session,
        rs_14_a_deep_tree_can_be_removed_by_the_file_interface,
        rs_17_odd_names_are_listed_and_read,
    ]
}

/// What holds of RS-03 without cgroups, too.
async fn rs_03_private_memory_of_a_process_is_limited(stage: &Stage) -> Check {
    let _quiet = stage.quiet.read().await;
    let session = stage.open(RootAccess::ReadOnly).await?;
    let seen = session.attack("rs_mem", &["300".to_owned()]).await?;
    let tried = seen.output.contains("attempt: 300 MiB private -> ");
    ensure!(tried && !seen.breaches().any(|breach| breach.contains("private")), "{}", seen.told());
    session.is_usable().await?;
    session.stop().await
}

/// Ten times the memory of the whole test would show what is kept.
const FLOOD_BYTES: u64 = 10 << 30;
/// Beside other trials; the flood is three hundred times as much.
const FLAT_BYTES: u64 = 32 << 20;

async fn rs_10_a_flood_of_output_leaves_the_runtimes_memory_flat(stage: &Stage) -> Check {
    let _quiet = stage.quiet.read().await;
    let session = stage.open(RootAccess::ReadOnly).await?;
    let request =
        ExecRequest::shell(format!("head -c {FLOOD_BYTES} /dev/zero")).timeout(Duration::from_secs(120));
    let mut running = stage.backend.exec(&session.info.id, request).await.map_err(|error| chain(&error))?;
    let before = host_state::resident_bytes(std::process::id())?;
    let (mut seen, mut peak, mut next_look) = (0_u64, before, 0);
    let exit = loop {
        match running.next().await {
            Some(ExecEvent::Output(Stream::Stdout, data)) => seen += data.len() as u64,
            Some(ExecEvent::Exit(exit)) => break exit,
            other => return Err(format!("after {seen} bytes: {other:?}")),
        }
        if seen >= next_look {
            next_look = seen + (64 << 20);
            peak = peak.max(host_state::resident_bytes(std::process::id())?);
        }
    };
    ensure!(
        exit.status == ExitStatus::Code(0) && seen + exit.dropped_bytes == FLOOD_BYTES,
        "{seen} bytes came: {exit:?}"
    );
    ensure!(peak < before + FLAT_BYTES, "resident memory grew from {before} to {peak} bytes");
    session.stop().await
}

async fn rs_11_a_very_long_line_holds_nothing_up(stage: &Stage) -> Check {
    let session = stage.open(RootAccess::ReadOnly).await?;
    let line = "head -c 200000 /dev/zero | tr '\\0' x";
    let script = format!("{line}; echo; {line} >&2; echo >&2; echo after; echo after >&2");
    // A long-lived process is an exec without a deadline.
    let result = tokio::time::timeout(Duration::from_secs(30), session.run(ExecRequest::shell(script))).await;
    let result = result.map_err(|_| "the process did not end")??;
    for stream in [&result.stdout, &result.stderr] {
        ensure!(stream.len() == 200_007 && stream.ends_with(b"x\nafter\n"), "{} bytes came", stream.len());
    }
    session.stop().await
}

async fn deep_tree(session: &AttackBox) -> Check {
    let seen = session.attack("rs_deep", &["/workspace".to_owned()]).await?;
    ensure!(seen.verdict().starts_with("INFO: 3000 directories"), "{}", seen.told());
    Ok(())
}

async fn rs_14_a_deep_tree_goes_with_its_session(stage: &Stage) -> Check {
    let _quiet = stage.quiet.read().await;
    for disk in [DiskLimit::Accounted(QUOTA), DiskLimit::Hard(QUOTA)] {
        let mut spec = stage.spec().await?;
        spec.limits.disk = disk;
        let before = storages(stage)?;
        let session = stage.open_spec(spec).await?;
        deep_tree(&session).await?;
        let made: Vec<PathBuf> = storages(stage)?.into_iter().filter(|path| !before.contains(path)).collect();
        let holding: Vec<&PathBuf> = made.iter().filter(|path| holds_deep_tree(path, 3)).collect();
        let expected = usize::from(matches!(disk, DiskLimit::Accounted(_)));
        ensure!(holding.len() == expected, "{disk:?}: the tree is in {holding:?} of {made:?}");
        let own = holding.first().map(|path| (*path).clone());
        session.stop().await?;
        if let Some(own) = own {
            ensure!(!own.exists(), "{} is still there", own.display());
        }
    }
    Ok(())
}

/// Looks for the top of the tree only; how the storage is laid out is its own business.
fn holds_deep_tree(directory: &Path, depth: usize) -> bool {
    let inner =
        || host_state::directories_in(directory).iter().any(|inner| holds_deep_tree(inner, depth - 1));
    directory.join("deep/deep").exists() || (depth > 0 && inner())
}

/// Private storage directories of all live boxes.
fn storages(stage: &Stage) -> Result<Vec<PathBuf>, String> {
    host_state::storage_directories(&stage.host.scratch.join("state"))
}

async fn rs_14_a_deep_tree_can_be_removed_by_the_file_interface(stage: &Stage) -> Check {
    let _quiet = stage.quiet.read().await;
    let session = stage.open(RootAccess::ReadOnly).await?;
    deep_tree(&session).await?;
    let removed = session.file(FileRequest::Remove { path: "/workspace/deep".to_owned() }).await;
    ensure!(removed.is_ok(), "removing: {removed:?}");
    ensure!(session.text("ls -A /workspace").await?.is_empty(), "something is left");
    session.stop().await
}

async fn rs_17_odd_names_are_listed_and_read(stage: &Stage) -> Check {
    let _quiet = stage.quiet.read().await;
    let session = stage.open(RootAccess::ReadOnly).await?;
    let seen = session.attack("rs_names", &["/workspace".to_owned()]).await?;
    ensure!(seen.verdict().starts_with("INFO:"), "{}", seen.told());
    let count: usize =
        session.text("ls -A /workspace/odd -b | wc -l").await?.parse().map_err(|_| "wc gave no number")?;
    let listed = match session.file(FileRequest::List { path: "/workspace/odd".to_owned() }).await {
        Ok(FileReply::Entries(entries)) => entries,
        other => return Err(format!("listing odd names: {other:?}")),
    };
    ensure!(listed.len() == count && count > 25, "{} of {count} entries are listed", listed.len());
    for entry in &listed {
        let path = format!("/workspace/odd/{}", entry.name);
        let read = session.file(FileRequest::Read { path, offset: 0, limit: 4096 }).await;
        let lossy = entry.name.contains('\u{fffd}');
        let plain =
            entry.kind == FileKind::File && !["hard", "sparse", "unreadable"].contains(&entry.name.as_str());
        match read {
            // The attack wrote each name into its own file.
            Ok(FileReply::Data { data, .. }) if plain => {
                ensure!(data == entry.name.as_bytes(), "{:?} reads {data:?}", entry.name);
            }
            Err(error) if plain && !lossy => return Err(format!("{:?}: {}", entry.name, chain(&error))),
            _ => {}
        }
    }
    session.is_usable().await?;
    session.stop().await
}
