//! Directories of the host in a box.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use sandcrate_protocol::ErrorKind;

use super::bench::{Bench, chain, fails};
use super::{Check, Need};
use crate::{ExitStatus, MAX_MOUNTS, Mount, MountAccess, SessionSpec};

pub(super) fn cases() -> Vec<super::Case> {
    family!("mounts" {
        [Need::HostMounts] a_read_write_mount_is_seen_from_both_sides,
            new_files_have_the_owner_of_the_directory,
            a_read_only_mount_refuses_every_write,
            a_mount_on_workspace_replaces_the_private_one,
            private_directories_are_empty_and_the_boxs_own_whatever_came_before,
            a_nested_target_shows_both_mounts_in_any_order,
            a_single_file_can_be_mounted,
            a_missing_source_is_named,
            a_refused_source_is_denied,
            a_link_to_a_refused_source_is_denied,
            a_reserved_target_is_refused,
            too_many_mounts_are_over_the_limit,
            the_source_is_left_as_it_was_after_the_stop;
    })
}

fn mount(source: impl Into<PathBuf>, target: &str, access: MountAccess) -> Mount {
    Mount::new(source, target, access)
}

fn with(bench: &Bench, mounts: Vec<Mount>) -> Result<SessionSpec, String> {
    Ok(SessionSpec { mounts, ..bench.spec()? })
}

fn put(path: &Path, text: &str) -> Check {
    fs::write(path, text).map_err(|error| format!("writing {}: {error}", path.display()))
}

fn get(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("reading {}: {error}", path.display()))
}

async fn a_read_write_mount_is_seen_from_both_sides(bench: &Bench) -> Check {
    let host = bench.harness.host_dir()?;
    put(&host.join("by-host"), "host")?;
    let session = bench.start_spec(with(bench, vec![mount(&host, "/data", MountAccess::ReadWrite)])?).await?;
    ensure_eq!(session.text("cat /data/by-host; printf box > /data/by-box").await?, "host", "in the box");
    ensure_eq!(get(&host.join("by-box"))?, "box", "on the host");
    put(&host.join("later"), "later")?;
    ensure_eq!(session.text("cat /data/later; rm /data/later /data/by-host").await?, "later", "a later file");
    ensure!(
        !host.join("later").exists() && !host.join("by-host").exists(),
        "the removal is not seen on the host"
    );
    Ok(())
}

async fn new_files_have_the_owner_of_the_directory(bench: &Bench) -> Check {
    let host = bench.harness.host_dir()?;
    let owner = fs::metadata(&host).map_err(|error| error.to_string())?.uid();
    let session = bench.start_spec(with(bench, vec![mount(&host, "/data", MountAccess::ReadWrite)])?).await?;
    session
        .text("mkdir /data/folder; echo x > /data/folder/file; [ -O /data ] && [ -O /data/folder/file ]")
        .await?;
    for name in ["folder", "folder/file"] {
        let seen = fs::metadata(host.join(name)).map_err(|error| format!("{name}: {error}"))?.uid();
        ensure_eq!(seen, owner, format!("the owner of {name} on the host"));
    }
    Ok(())
}

async fn a_read_only_mount_refuses_every_write(bench: &Bench) -> Check {
    let host = bench.harness.host_dir()?;
    put(&host.join("file"), "kept")?;
    let session = bench.start_spec(with(bench, vec![mount(&host, "/data", MountAccess::ReadOnly)])?).await?;
    ensure_eq!(session.text("cat /data/file").await?, "kept", "a read");
    for write in [
        "echo x > /data/new",
        "echo x > /data/file",
        "rm /data/file",
        "chmod 777 /data/file",
        "mkdir /data/d",
    ] {
        let status = session.sh(write).await?.exit.status;
        ensure!(status != ExitStatus::Code(0), "`{write}` succeeded on a read-only mount");
    }
    ensure_eq!(get(&host.join("file"))?, "kept", "the file on the host");
    Ok(())
}

async fn a_mount_on_workspace_replaces_the_private_one(bench: &Bench) -> Check {
    let host = bench.harness.host_dir()?;
    put(&host.join("file"), "mine")?;
    let session =
        bench.start_spec(with(bench, vec![mount(&host, "/workspace/", MountAccess::ReadWrite)])?).await?;
    ensure_eq!(session.text("pwd -P; cat file; echo x > new").await?, "/workspace\nmine", "the workspace");
    ensure_eq!(get(&host.join("new"))?, "x\n", "the new file on the host");
    Ok(())
}

/// Boxes with and without a mount on /workspace in turns: what was made ready for one kind must not reach the other.
async fn private_directories_are_empty_and_the_boxs_own_whatever_came_before(bench: &Bench) -> Check {
    let host = bench.harness.host_dir()?;
    put(&host.join("shared"), "shared")?;
    let look = "ls -A /workspace ~; touch /workspace/mine ~/mine && id -u && stat -c %u:%a /workspace ~";
    let (mut plain, mut mounted) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let session = bench.start().await?;
        plain.push(session.text(look).await?);
        session.stop().await?;
        let mounts = vec![mount(&host, "/workspace", MountAccess::ReadWrite)];
        let session = bench.start_spec(with(bench, mounts)?).await?;
        mounted.push(session.text("ls -A /workspace ~; rm -f /workspace/mine; touch ~/mine").await?);
        session.stop().await?;
    }
    ensure!(plain.iter().all(|seen| !seen.contains("mine")), "files of another box: {plain:?}");
    ensure!(mounted.iter().all(|seen| seen.contains("shared") && !seen.contains("mine")), "{mounted:?}");
    plain.dedup();
    ensure_eq!(plain.len(), 1, "boxes alike look alike");
    Ok(())
}

async fn a_nested_target_shows_both_mounts_in_any_order(bench: &Bench) -> Check {
    let (outer, inner) = (bench.harness.host_dir()?, bench.harness.host_dir()?);
    fs::create_dir(outer.join("inner")).map_err(|error| error.to_string())?;
    put(&outer.join("file"), "outer")?;
    put(&inner.join("file"), "inner")?;
    let mounts = vec![
        mount(&inner, "/data/inner", MountAccess::ReadWrite),
        mount(&outer, "/data", MountAccess::ReadOnly),
    ];
    let reversed = mounts.iter().rev().cloned().collect();
    for mounts in [mounts, reversed] {
        let session = bench.start_spec(with(bench, mounts)?).await?;
        let seen =
            session.text("cat /data/file; echo; cat /data/inner/file; echo x > /data/inner/new").await?;
        ensure_eq!(seen, "outer\ninner", "both files");
        ensure!(
            session.sh("echo x > /data/new").await?.exit.status != ExitStatus::Code(0),
            "the outer is written"
        );
    }
    Ok(())
}

async fn a_single_file_can_be_mounted(bench: &Bench) -> Check {
    let host = bench.harness.host_dir()?;
    put(&host.join("settings"), "one file")?;
    put(&host.join("other"), "not this")?;
    let source = host.join("settings");
    let session =
        bench.start_spec(with(bench, vec![mount(source, "/data/settings", MountAccess::ReadOnly)])?).await?;
    ensure_eq!(session.text("cat /data/settings; echo; ls /data").await?, "one file\nsettings", "the mount");
    Ok(())
}

async fn a_missing_source_is_named(bench: &Bench) -> Check {
    let missing = bench.harness.host_dir()?.join("not-there");
    let start =
        bench.backend.start(with(bench, vec![mount(&missing, "/data", MountAccess::ReadOnly)])?).await;
    let Err(error) = start else { return Err("a missing source was mounted".to_owned()) };
    let refused = [ErrorKind::Validation, ErrorKind::Denied].contains(&error.kind());
    ensure!(refused, "a missing source gave {:?}: {}", error.kind(), chain(&error));
    ensure!(error.to_string().contains("not-there"), "the message does not name the path: {error}");
    Ok(())
}

/// AP-01, AP-04.
async fn a_refused_source_is_denied(bench: &Bench) -> Check {
    for source in ["/", "/etc", "/usr/share", "/proc", "/sys", "/dev", "/var", "/root", "/home/../etc"] {
        for access in [MountAccess::ReadOnly, MountAccess::ReadWrite] {
            let start = bench.backend.start(with(bench, vec![mount(source, "/data", access)])?).await;
            fails(source, start, ErrorKind::Denied, "")?;
        }
    }
    Ok(())
}

/// AP-02.
async fn a_link_to_a_refused_source_is_denied(bench: &Bench) -> Check {
    let host = bench.harness.host_dir()?;
    for (name, to) in [("direct", "/etc"), ("climbing", "../../../../../../../../etc"), ("root", "/")] {
        symlink(to, host.join(name)).map_err(|error| error.to_string())?;
        let start =
            bench.backend.start(with(bench, vec![mount(host.join(name), "/data", MountAccess::ReadOnly)])?);
        fails(name, start.await, ErrorKind::Denied, "")?;
    }
    let below = mount(host.join("root/etc"), "/data", MountAccess::ReadOnly);
    fails("below a link", bench.backend.start(with(bench, vec![below])?).await, ErrorKind::Denied, "")
}

/// AP-08.
async fn a_reserved_target_is_refused(bench: &Bench) -> Check {
    let host = bench.harness.host_dir()?;
    for target in
        ["/", "/usr", "/usr/local/x", "/proc", "/etc", "/dev/shm", "/tmp", "/run", "data", "/data/../etc"]
    {
        let start =
            bench.backend.start(with(bench, vec![mount(&host, target, MountAccess::ReadOnly)])?).await;
        fails(target, start, ErrorKind::Validation, "mount target")?;
    }
    let twice =
        vec![mount(&host, "/data", MountAccess::ReadOnly), mount(&host, "/data/", MountAccess::ReadOnly)];
    fails("twice", bench.backend.start(with(bench, twice)?).await, ErrorKind::Validation, "mount target")
}

async fn too_many_mounts_are_over_the_limit(bench: &Bench) -> Check {
    let host = bench.harness.host_dir()?;
    let many = |count: usize| -> Vec<Mount> {
        (0..count).map(|index| mount(&host, &format!("/data/{index}"), MountAccess::ReadOnly)).collect()
    };
    let session = bench.start_spec(with(bench, many(MAX_MOUNTS))?).await?;
    ensure_eq!(session.text("ls /data | wc -l").await?.trim(), MAX_MOUNTS.to_string(), "the mounts");
    let over = bench.backend.start(with(bench, many(MAX_MOUNTS + 1))?).await;
    fails("one more", over, ErrorKind::LimitExceeded, "mounts")
}

async fn the_source_is_left_as_it_was_after_the_stop(bench: &Bench) -> Check {
    let host = bench.harness.host_dir()?;
    put(&host.join("file"), "kept")?;
    let before = fs::metadata(&host).map_err(|error| error.to_string())?;
    let session = bench.start_spec(with(bench, vec![mount(&host, "/data", MountAccess::ReadWrite)])?).await?;
    session.text("cat /data/file").await?;
    session.stop().await?;
    let after = fs::metadata(&host).map_err(|error| error.to_string())?;
    ensure_eq!(
        (after.uid(), after.gid(), after.mode()),
        (before.uid(), before.gid(), before.mode()),
        "the directory"
    );
    ensure_eq!(get(&host.join("file"))?, "kept", "the file");
    Ok(())
}
