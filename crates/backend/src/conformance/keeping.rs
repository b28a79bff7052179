//! What stays when a box is made anew or comes back, and where a session's own files appear.

use std::path::PathBuf;

use sandcrate_protocol::ErrorKind;

use super::Check;
use super::Need;
use super::bench::{Bench, TestBox, chain, fails};
use crate::{DiskLimit, ExecRequest, LimitHit, Mount, MountAccess, RootAccess, SessionSpec};

pub(super) fn cases() -> Vec<super::Case> {
    family!("keeping" {
        [] the_workspace_appears_where_it_is_asked_for,
            a_restart_keeps_the_private_files,
            a_restart_ends_what_ran,
            a_restart_of_an_unknown_session_is_not_found;
        [Need::HostMounts] a_restart_takes_other_mounts,
            a_source_that_leads_out_of_its_root_is_refused,
            a_missing_source_is_made_below_its_root_only,
            a_quota_on_a_shared_directory_ends_the_command_and_stops_the_next;
        [Need::KeptStorage] kept_files_come_back_with_the_next_session,
            kept_storage_of_any_depth_is_removed;
        [Need::KeptStorage, Need::HiddenHostPaths] the_mount_table_does_not_tell_where_kept_files_lie;
        [Need::KeptStorage, Need::WritableRoot, Need::KeptRoot] a_writable_root_comes_back;
        [Need::KeptStorage, Need::HardDiskQuota] a_hard_quota_holds_over_every_life;
    })
}

async fn restart(session: &TestBox, spec: SessionSpec) -> Result<TestBox, String> {
    let info = session.backend.restart(spec).await.map_err(|error| format!("restart: {}", chain(&error)))?;
    Ok(TestBox { backend: session.backend.clone(), info })
}

async fn the_workspace_appears_where_it_is_asked_for(bench: &Bench) -> Check {
    let mut spec = bench.spec()?;
    spec.workspace = "/project".to_owned();
    spec.workdir = "/project/src".to_owned();
    let session = bench.start_spec(spec).await?;
    ensure_eq!(
        session.text("pwd; echo x > ../file && cat /project/file").await?,
        "/project/src\nx",
        "the place"
    );
    let mut reserved = bench.spec()?;
    reserved.workspace = "/usr".to_owned();
    fails("a reserved place", bench.backend.start(reserved).await, ErrorKind::Validation, "reserved")
}

async fn a_restart_keeps_the_private_files(bench: &Bench) -> Check {
    let spec = bench.spec()?;
    let session = bench.start_spec(spec.clone()).await?;
    session
        .text("mkdir -p a/b && echo kept > a/b/file && echo home > ~/file && echo gone > /tmp/file")
        .await?;
    let again = restart(&session, spec).await?;
    ensure!(again.info.backend_id != session.info.backend_id, "it is the same box");
    ensure_eq!(again.text("cat a/b/file ~/file; ls /tmp").await?, "kept\nhome", "the files");
    ensure_eq!(
        again.text("echo more >> a/b/file && rm ~/file && cat a/b/file").await?,
        "kept\nmore",
        "writing"
    );
    Ok(())
}

async fn a_restart_ends_what_ran(bench: &Bench) -> Check {
    let spec = bench.spec()?;
    let session = bench.start_spec(spec.clone()).await?;
    let mut live = session.live(ExecRequest::shell("echo ready; sleep 60")).await?;
    live.until("ready").await?;
    let again = restart(&session, spec).await?;
    ensure!(live.end().await.is_err(), "the command of the old box has an exit");
    ensure_eq!(again.text("echo fresh").await?, "fresh", "the new box");
    Ok(())
}

async fn a_restart_of_an_unknown_session_is_not_found(bench: &Bench) -> Check {
    let spec = bench.spec()?;
    fails("a restart", bench.backend.restart(spec).await, ErrorKind::SessionNotFound, "")
}

async fn a_restart_takes_other_mounts(bench: &Bench) -> Check {
    let shared = bench.harness.host_dir()?;
    std::fs::write(shared.join("file"), "shared\n").map_err(|error| error.to_string())?;
    let mut spec = bench.spec()?;
    let session = bench.start_spec(spec.clone()).await?;
    session.text("echo private > mine").await?;
    spec.mounts.push(Mount::new(&shared, "/workspace/.skills/one", MountAccess::ReadOnly));
    let again = restart(&session, spec).await?;
    ensure_eq!(again.text("cat mine .skills/one/file").await?, "private\nshared", "both");
    Ok(())
}

async fn a_source_that_leads_out_of_its_root_is_refused(bench: &Bench) -> Check {
    let (root, outside) = (bench.harness.host_dir()?, bench.harness.host_dir()?);
    let link = root.join("link");
    std::os::unix::fs::symlink(&outside, &link).map_err(|error| error.to_string())?;
    let mut spec = bench.spec()?;
    let mut mount = Mount::new(&link, "/workspace", MountAccess::ReadWrite);
    mount.within = Some(root.canonicalize().map_err(|error| error.to_string())?);
    spec.mounts.push(mount);
    fails("a link out of the root", bench.backend.start(spec).await, ErrorKind::Denied, "outside")
}

async fn a_missing_source_is_made_below_its_root_only(bench: &Bench) -> Check {
    let root = bench.harness.host_dir()?.canonicalize().map_err(|error| error.to_string())?;
    let outside = bench.harness.host_dir()?;
    let missing = |source: PathBuf| {
        let mut mount = Mount::new(source, "/workspace", MountAccess::ReadWrite);
        (mount.within, mount.create) = (Some(root.clone()), true);
        mount
    };
    let mut spec = bench.spec()?;
    spec.mounts = vec![missing(root.join("made/for/you"))];
    let session = bench.start_spec(spec).await?;
    session.text("echo x > file").await?;
    ensure!(root.join("made/for/you/file").exists(), "the file is not on the host");
    std::os::unix::fs::symlink(&outside, root.join("link")).map_err(|error| error.to_string())?;
    let mut spec = bench.spec()?;
    spec.mounts = vec![missing(root.join("link/new"))];
    fails("through a link", bench.backend.start(spec).await, ErrorKind::Denied, "cannot be made")?;
    ensure!(!outside.join("new").exists(), "a directory was made outside the root");
    Ok(())
}

async fn a_quota_on_a_shared_directory_ends_the_command_and_stops_the_next(bench: &Bench) -> Check {
    let shared = bench.harness.host_dir()?;
    let mut mount = Mount::new(&shared, "/workspace", MountAccess::ReadWrite);
    mount.quota = Some(DiskLimit::Accounted(5 << 20));
    let mut spec = bench.spec()?;
    spec.mounts = vec![mount];
    let session = bench.start_spec(spec).await?;
    let small = session.run(ExecRequest::shell("head -c 1048576 /dev/zero > small")).await?;
    ensure!(small.exit.limits_hit.is_empty(), "within the quota: {:?}", small.exit.limits_hit);
    let large = session.run(ExecRequest::shell("head -c 20971520 /dev/zero > large; sleep 30")).await?;
    ensure!(
        large
            .exit
            .limits_hit
            .iter()
            .any(|hit| matches!(hit, LimitHit::Disk { limit_bytes, .. } if *limit_bytes == 5 << 20)),
        "no disk limit was reported: {:?}",
        large.exit
    );
    let next = bench.backend.exec(&session.info.id, ExecRequest::shell("true")).await;
    fails("a command over the quota", next, ErrorKind::LimitExceeded, "quota")?;
    std::fs::remove_file(shared.join("large")).map_err(|error| error.to_string())?;
    ensure_eq!(session.text("echo again").await?, "again", "after the clean-up");
    Ok(())
}

fn kept_spec(bench: &Bench) -> Result<(SessionSpec, PathBuf), String> {
    let directory = bench.harness.host_dir()?.join("kept/files");
    let mut spec = bench.spec()?;
    spec.storage = Some(directory.clone());
    Ok((spec, directory))
}

async fn kept_files_come_back_with_the_next_session(bench: &Bench) -> Check {
    let (spec, directory) = kept_spec(bench)?;
    for life in 1..=3 {
        let session = bench.start_spec(spec.clone()).await?;
        session.text("echo life >> diary; echo home > ~/file; echo gone > /tmp/file").await?;
        ensure_eq!(session.text("wc -l < diary").await?, life.to_string(), "lives in the diary");
        session.stop().await?;
    }
    let removed = bench.backend.remove_storage(&directory).await;
    removed.map_err(|error| format!("remove: {}", chain(&error)))?;
    ensure!(!directory.exists(), "the directory is still there");
    bench.backend.remove_storage(&directory).await.map_err(|error| format!("again: {}", chain(&error)))
}

async fn the_mount_table_does_not_tell_where_kept_files_lie(bench: &Bench) -> Check {
    let (spec, directory) = kept_spec(bench)?;
    let session = bench.start_spec(spec).await?;
    let places = session.text("cat /proc/self/mountinfo").await?;
    ensure!(!places.contains("kept/files"), "the mount table tells where the files lie: {places}");
    session.stop().await?;
    bench.backend.remove_storage(&directory).await.map_err(|error| format!("remove: {}", chain(&error)))
}

async fn kept_storage_of_any_depth_is_removed(bench: &Bench) -> Check {
    let (spec, directory) = kept_spec(bench)?;
    let session = bench.start_spec(spec).await?;
    // Deeper than there are descriptors to walk it with, in a few commands.
    let script = "p=$(printf 'd/%.0s' $(seq 1500)); mkdir -p $p && cd $p && mkdir x && chmod 0 x";
    session.text(script).await?;
    session.stop().await?;
    let removed = bench.backend.remove_storage(&directory).await;
    removed.map_err(|error| format!("remove: {}", chain(&error)))?;
    ensure!(!directory.exists(), "the directory is still there");
    Ok(())
}

async fn a_writable_root_comes_back(bench: &Bench) -> Check {
    let (mut spec, directory) = kept_spec(bench)?;
    spec.root = RootAccess::Writable;
    let session = bench.start_spec(spec.clone()).await?;
    session.text("echo tool > /usr/local/bin/tool && rm -f /etc/hostname && echo var > /var/file").await?;
    session.stop().await?;
    let again = bench.start_spec(spec).await?;
    ensure_eq!(
        again.text("cat /usr/local/bin/tool /var/file; test -e /etc/hostname || echo none").await?,
        "tool\nvar\nnone",
        "the root"
    );
    again.stop().await?;
    bench.backend.remove_storage(&directory).await.map_err(|error| format!("remove: {}", chain(&error)))
}

async fn a_hard_quota_holds_over_every_life(bench: &Bench) -> Check {
    let (mut spec, directory) = kept_spec(bench)?;
    spec.limits.disk = DiskLimit::Hard(8 << 20);
    let session = bench.start_spec(spec.clone()).await?;
    session.text("head -c 5242880 /dev/zero > first").await?;
    session.stop().await?;
    let again = bench.start_spec(spec).await?;
    let result = again.run(ExecRequest::shell("head -c 5242880 /dev/zero > second; wc -c < first")).await?;
    let stopped = result.exit.limits_hit.iter().any(|hit| matches!(hit, LimitHit::Disk { .. }))
        || String::from_utf8_lossy(&result.stderr).to_lowercase().contains("space left")
        || String::from_utf8_lossy(&result.stderr).contains("quota");
    ensure!(stopped, "more than the quota was written: {result:?}");
    again.stop().await?;
    bench.backend.remove_storage(&directory).await.map_err(|error| format!("remove: {}", chain(&error)))
}
