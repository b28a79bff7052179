//! Directories of the host that a box may write, seen from the host afterwards, and the writable root.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use sandcrate_backend::conformance::Check;
use sandcrate_backend::{Backend, Mount, MountAccess, RootAccess};
use sandcrate_protocol::ErrorKind;

use super::stage::{Stage, chain, ensure};
use super::table::{OWN_TARGETS, shows_no_host_path};
use super::{Special, specials};

pub(super) fn all() -> Vec<Special> {
    specials![
        fs_23_no_setuid_file_is_left_in_a_shared_directory,
        fs_23_no_setuid_file_is_left_in_private_storage,
        fs_23_a_setuid_file_of_root_keeps_a_directory_from_being_shared,
        fs_24_a_device_of_a_shared_directory_is_dead,
        writable_root_fs_16_changes_stay_in_the_box,
        writable_root_fs_23_no_setuid_file_is_left_in_a_shared_directory,
        fs_22_a_box_with_accounted_storage_shows_no_host_path,
    ]
}

async fn fs_23_no_setuid_file_is_left_in_a_shared_directory(stage: &Stage) -> Check {
    leave_setuid_files(stage, RootAccess::ReadOnly).await
}

async fn writable_root_fs_23_no_setuid_file_is_left_in_a_shared_directory(stage: &Stage) -> Check {
    leave_setuid_files(stage, RootAccess::Writable).await
}

/// The directory is the test's own: of root when root runs this, which is the dangerous case.
async fn leave_setuid_files(stage: &Stage, root: RootAccess) -> Check {
    let _quiet = stage.quiet.read().await;
    let shared = stage.host.directory("shared-")?;
    let mut spec = stage.spec().await?;
    spec.root = root;
    spec.mounts.push(mount(&shared, MountAccess::ReadWrite));
    let session = stage.open_spec(spec).await?;
    let seen = session.attack("fs_suidfile", &["/workspace".to_owned()]).await?;
    ensure!(seen.verdict().starts_with("SAFE:"), "{}", seen.told());
    session.stop().await?;
    let left = walk(&shared)?;
    ensure!(left.len() > 10, "the attack left only {} files to look at", left.len());
    for path in left {
        let facts = fs::symlink_metadata(&path).map_err(|error| error.to_string())?;
        let name = path.display();
        ensure!(facts.mode() & 0o6000 == 0, "{name} has mode {:o} and is of {}", facts.mode(), facts.uid());
        let mut value = [0_u8; 64];
        let capability = rustix::fs::lgetxattr(&path, "security.capability", &mut value);
        ensure!(capability.is_err(), "{name} has file capabilities");
    }
    fs::remove_dir_all(&shared).map_err(|error| format!("the host cannot remove what was left: {error}"))
}

/// Where the host itself keeps the files, a setuid bit counts as much.
async fn fs_23_no_setuid_file_is_left_in_private_storage(stage: &Stage) -> Check {
    let _quiet = stage.quiet.read().await;
    let mut spec = stage.spec().await?;
    spec.limits.disk = sandcrate_backend::DiskLimit::Accounted(super::stage::QUOTA);
    let session = stage.open_spec(spec).await?;
    for directory in ["/workspace", "/tmp", "/dev/shm"] {
        let seen = session.attack("fs_suidfile", &[directory.to_owned()]).await?;
        ensure!(seen.verdict().starts_with("SAFE:"), "{directory}: {}", seen.told());
    }
    session.stop().await
}

async fn fs_23_a_setuid_file_of_root_keeps_a_directory_from_being_shared(stage: &Stage) -> Check {
    for (mode, place) in [(0o4755, "tool"), (0o2755, "tool"), (0o6755, "deep/er/tool")] {
        let shared = stage.host.directory("setuid-")?;
        let tool = shared.join(place);
        let made = (|| {
            fs::create_dir_all(tool.parent().unwrap_or(&shared))?;
            fs::write(&tool, "#!/bin/true\n")?;
            fs::set_permissions(&tool, PermissionsExt::from_mode(mode))
        })();
        made.map_err(|error| error.to_string())?;
        let mut spec = stage.spec().await?;
        spec.mounts.push(mount(&shared, MountAccess::ReadWrite));
        match stage.backend.start(spec).await {
            Err(error) if error.kind() == ErrorKind::Denied && error.to_string().contains("tool") => {}
            Err(error) => return Err(format!("{mode:o}: refused as {:?}: {}", error.kind(), chain(&error))),
            Ok(_) => {
                return Err(format!(
                    "a directory with a file of mode {mode:o} of root's is shared for writing"
                ));
            }
        }
        let mut spec = stage.spec().await?;
        spec.mounts.push(mount(&shared, MountAccess::ReadOnly));
        let session = stage.open_spec(spec).await?;
        let seen = session.text(&format!("(echo x >> {place}) 2>/dev/null && echo written; true")).await?;
        ensure!(seen.is_empty(), "a file of a read-only share was written");
        session.stop().await?;
        let now = fs::metadata(&tool).map_err(|error| error.to_string())?;
        ensure!(now.mode() & 0o7777 == mode && now.len() == 12, "the tool changed: {now:?}");
    }
    Ok(())
}

async fn fs_24_a_device_of_a_shared_directory_is_dead(stage: &Stage) -> Check {
    let shared = stage.host.directory("device-")?;
    for (name, device) in [("null", (1, 3)), ("zero", (1, 5))] {
        let (path, device) = (shared.join(name), rustix::fs::makedev(device.0, device.1));
        mknodat(CWD, &path, FileType::CharacterDevice, Mode::from_raw_mode(0o666), device)
            .and_then(|()| rustix::fs::chmod(&path, Mode::from_raw_mode(0o666)))
            .map_err(|error| format!("making {}: {error}", path.display()))?;
    }
    let mut spec = stage.spec().await?;
    spec.mounts.push(mount(&shared, MountAccess::ReadWrite));
    let session = stage.open_spec(spec).await?;
    let seen = session.attack("fs_workspace_dev", &["/workspace".to_owned()]).await?;
    ensure!(
        seen.output.contains("found node /workspace/null"),
        "the attack did not see the node: {}",
        seen.output
    );
    ensure!(seen.verdict().starts_with("SAFE:"), "{}", seen.told());
    session.stop().await
}

/// How FS-16 differs with a writable root: files of the system can be made and changed, by an overlay of the box's
/// own; mounts still cannot be changed, what is no overlay is still read-only, and the host keeps what it had.
async fn writable_root_fs_16_changes_stay_in_the_box(stage: &Stage) -> Check {
    const HOST_FILES: [&str; 5] =
        ["/etc/passwd", "/etc/hosts", "/usr/bin/env", "/bin/sh", "/etc/nsswitch.conf"];
    let _quiet = stage.quiet.read().await;
    let facts = || {
        HOST_FILES
            .map(|path| fs::metadata(path).map(|now| (now.mode(), now.mtime(), now.ctime(), now.len())).ok())
    };
    let before = facts();
    let session = stage.open(RootAccess::Writable).await?;
    let seen = session.attack("fs_ro", &[]).await?;
    let breaches: Vec<&str> = seen.breaches().collect();
    ensure!(!breaches.is_empty(), "nothing of a writable root can be changed: {}", seen.told());
    for breach in breaches {
        let remount = breach.contains("mount");
        let closed =
            ["in /proc", "in /dev", "in /boot", "(/proc", "(/dev"].iter().any(|place| breach.contains(place));
        ensure!(!remount && !closed, "{breach}: {}", seen.told());
    }
    session.text("echo changed > /etc/passwd; echo changed > /etc/nsswitch.conf; rm /usr/bin/env; touch /usr/new-in-the-box").await?;
    session.stop().await?;
    ensure!(facts() == before, "files of the host changed: {before:?} became {:?}", facts());
    ensure!(!Path::new("/usr/new-in-the-box").exists(), "a file of the box is on the host");
    Ok(())
}

/// The suite's hard quota has a file system of its own; the default does not.
async fn fs_22_a_box_with_accounted_storage_shows_no_host_path(stage: &Stage) -> Check {
    let mut spec = stage.spec().await?;
    spec.limits.disk = sandcrate_backend::DiskLimit::Accounted(super::stage::QUOTA);
    let session = stage.open_spec(spec).await?;
    let targets: Vec<String> = OWN_TARGETS.iter().map(|target| (*target).to_owned()).collect();
    let seen = session.attack("fs_prop", &targets).await?;
    ensure!(seen.verdict().starts_with("SAFE:"), "{}", seen.told());
    shows_no_host_path(&seen)?;
    session.stop().await
}

fn mount(source: &Path, access: MountAccess) -> Mount {
    Mount::new(source, "/workspace", access)
}

/// Everything below a directory.
fn walk(root: &Path) -> Result<Vec<PathBuf>, String> {
    let (mut pending, mut found) = (vec![root.to_owned()], Vec::new());
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))? {
            let entry = entry.map_err(|error| error.to_string())?;
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                pending.push(entry.path());
            }
            found.push(entry.path());
        }
    }
    Ok(found)
}
