//! What a review of the backend found, each shown on the real daemon to hold now.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use bollard::query_parameters::InspectContainerOptions;
use libtest_mimic::{Failed, Trial};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use sandcrate_backend::{Backend, DiskLimit, LimitHit, Mount, MountAccess};
use sandcrate_backend_engine::EngineKind;
use sandcrate_protocol::{Control, ErrorKind};

use crate::image;
use crate::own::{Check, PATIENCE, Place, ensure, sh, spec, text, told};

/// Nothing listens there, and no other host is asked.
const NOWHERE: &str = "127.0.0.1:9/none:1";

pub(crate) fn trials(place: &Place, handle: &tokio::runtime::Handle) -> Vec<Trial> {
    macro_rules! trials {
        ($($name:ident),+ $(,)?) => {
            vec![$({
                let (place, handle) = (place.clone(), handle.clone());
                Trial::test(format!("{}::reviewed::{}", place.kind, stringify!($name)), move || handle.block_on($name(place)))
            }),+]
        };
    }
    trials![
        a_read_only_share_is_read_only_below_nested_mounts,
        a_mount_at_home_wins_and_the_guests_place_is_refused,
        a_failed_restart_keeps_the_files,
        what_an_image_declares_is_bounded,
        a_pull_that_nobody_waits_for_is_given_up,
    ]
}

async fn a_read_only_share_is_read_only_below_nested_mounts(place: Place) -> Check {
    let backend = place.backend("nested").await?;
    let host = tempfile::tempdir_in(&place.scratch)?;
    let nested = host.path().join("nested");
    fs::create_dir(&nested)?;
    fs::write(host.path().join("file"), "seen")?;
    mount("tmpfs", &nested, "tmpfs", MountFlags::empty(), None)?;
    let mut session = spec("nested")?;
    session.mounts.push(Mount::new(host.path(), "/data", MountAccess::ReadOnly));
    let started = backend.start(session.clone()).await.map_err(told);
    let seen = match started {
        Ok(_) => {
            text(&backend, &session.id, "cat /data/file; echo x > /data/nested/new || echo refused").await
        }
        Err(error) => Err(error),
    };
    let written = nested.join("new").exists();
    backend.shutdown().await;
    unmount(&nested, UnmountFlags::DETACH)?;
    let seen = seen?;
    ensure!(seen == "seenrefused" && !written, "the box wrote below a nested mount: {seen:?}");
    Ok(())
}

async fn a_mount_at_home_wins_and_the_guests_place_is_refused(place: Place) -> Check {
    let backend = place.backend("home").await?;
    let host = tempfile::tempdir_in(&place.scratch)?;
    fs::write(host.path().join("file"), "mine")?;
    let mut session = spec("home")?;
    session.mounts.push(Mount::new(host.path(), "/root", MountAccess::ReadOnly));
    backend.start(session.clone()).await.map_err(told)?;
    ensure!(text(&backend, &session.id, "cat ~/file").await? == "mine", "the mount at home");
    for target in ["/.sandcrate", "/.sandcrate/link", "/.sandcrate/other"] {
        let mut session = spec("reserved")?;
        session.mounts.push(Mount::new(host.path(), target, MountAccess::ReadOnly));
        let Err(error) = backend.start(session).await else {
            return Err(format!("{target} was taken").into());
        };
        let clear = error.kind() == ErrorKind::Validation && error.to_string().contains("mount target");
        ensure!(clear, "{target} gave {error}");
    }
    backend.shutdown().await;
    Ok(())
}

/// Private directories of boxes that are there.
fn workspaces(state: &Path) -> usize {
    let below = |path: &Path| -> Vec<_> {
        fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    };
    let boxes = below(state).into_iter().flat_map(|instance| below(&instance));
    boxes.filter(|directory| directory.join("workspace").is_dir()).count()
}

async fn a_failed_restart_keeps_the_files(place: Place) -> Check {
    let backend = place.backend("again").await?;
    let state = place.config("again").state_dir.join(place.kind.name());
    let session = spec("again")?;
    backend.start(session.clone()).await.map_err(told)?;
    text(&backend, &session.id, "echo work > f; echo home > ~/f").await?;
    let mut denied = session.clone();
    denied.mounts.push(Mount::new("/etc", "/data", MountAccess::ReadOnly));
    let kind = backend.restart(denied).await.err().map(|error| error.kind());
    ensure!(kind == Some(ErrorKind::Denied), "a restart with /etc gave {kind:?}");
    ensure!(text(&backend, &session.id, "cat f").await? == "work", "the old box went before the check");
    let mut missing = session.clone();
    missing.image = Some(NOWHERE.to_owned());
    for _ in 0..2 {
        let kind = backend.restart(missing.clone()).await.err().map(|error| error.kind());
        ensure!(kind == Some(ErrorKind::ImageUnavailable), "a restart without an image gave {kind:?}");
        ensure!(!backend.is_alive(&session.id).await, "there is no box");
    }
    backend.start(session.clone()).await.map_err(told)?;
    let seen = text(&backend, &session.id, "cat f ~/f").await?;
    ensure!(seen == "work\nhome", "after a failed restart the files are {seen:?}");
    let kind = backend.restart(missing).await.err().map(|error| error.kind());
    ensure!(kind == Some(ErrorKind::ImageUnavailable), "a restart without an image gave {kind:?}");
    ensure!(workspaces(&state) == 1, "the files are kept once");
    backend.stop(&session.id).await.map_err(told)?;
    ensure!(workspaces(&state) == 0, "the files outlive their session");
    backend.shutdown().await;
    Ok(())
}

/// Makes an image that declares things; by the API and nothing of ours.
fn import(place: &Place, name: &str, changes: &[&str]) -> Result<(), Failed> {
    let scratch = tempfile::tempdir_in(&place.scratch)?;
    let tar = scratch.path().join("declares.tar");
    fs::write(&tar, image::build(scratch.path())?)?;
    let escaped = |text: &str| text.replace(' ', "%20").replace('=', "%3D").replace('/', "%2F");
    let changes: String = changes.iter().map(|change| format!("&changes={}", escaped(change))).collect();
    let out = Command::new("curl")
        .args(["-sS", "-f", "-X", "POST", "-H", "Content-Type: application/x-tar", "--unix-socket"])
        .arg(&place.socket)
        .arg("--data-binary")
        .arg(format!("@{}", tar.display()))
        .arg(format!(
            "http://engine/v1.40/images/create?fromSrc=-&repo={}&tag=latest{changes}",
            escaped(name)
        ))
        .output()?;
    match out.status.success() {
        true => Ok(()),
        false => Err(format!("the import failed: {}", String::from_utf8_lossy(&out.stderr)).into()),
    }
}

async fn what_an_image_declares_is_bounded(place: Place) -> Check {
    let mut changes = vec!["ENV DECLARED=here", "ENV HOME=/nowhere", "VOLUME /vol"];
    if place.kind == EngineKind::Docker {
        changes.push("HEALTHCHECK --interval=1s CMD sleep 4242");
    }
    import(&place, "localhost/sandcrate-declares", &changes)?;
    let backend = place.backend("declares").await?;
    let mut session = spec("declares")?;
    session.image = Some("localhost/sandcrate-declares:latest".to_owned());
    session.limits.disk = DiskLimit::Accounted(5 << 20);
    session.env = vec![("ASKED".to_owned(), "too".to_owned())];
    let info = backend.start(session.clone()).await.map_err(told)?;
    let seen = text(&backend, &session.id, "echo $DECLARED $ASKED $HOME").await?;
    ensure!(seen == "here too /root", "the environment of a command is {seen:?}");
    let disk = info.enforcement.get(Control::Disk).map_or("", |finding| finding.by.as_str());
    ensure!(disk.contains("/vol"), "the record says of the disk: {disk}");
    let seen = place.client()?.inspect_container(&info.backend_id, None::<InspectContainerOptions>).await?;
    let check = seen.config.and_then(|config| config.healthcheck).and_then(|check| check.test);
    let none = check.as_ref().is_none_or(|test| test.is_empty() || test == &["NONE"]);
    ensure!(none, "the image's health check runs: {check:?}");
    let ended = sh(&backend, &session.id, "dd if=/dev/zero of=/vol/big bs=1M count=20 2>/dev/null").await?;
    let hit = ended.exit.limits_hit.iter().any(|hit| matches!(hit, LimitHit::Disk { .. }));
    ensure!(hit, "20 MiB in a volume within 5: {:?}", ended.exit.limits_hit);
    backend.shutdown().await;
    Ok(())
}

async fn a_pull_that_nobody_waits_for_is_given_up(place: Place) -> Check {
    // A registry that takes connections and never says a word.
    let (registry, other) = (
        tokio::net::TcpListener::bind("127.0.0.1:0").await?,
        tokio::net::TcpListener::bind("127.0.0.1:0").await?,
    );
    let image = format!("{}/silent:1", registry.local_addr()?);
    let backend = place.backend("abandoned").await?;
    let mut silent = spec("abandoned")?;
    silent.image = Some(image);
    let left = tokio::time::timeout(Duration::from_secs(2), backend.start(silent.clone())).await;
    ensure!(left.is_err(), "a pull from a silent registry ended: {left:?}");
    // Its id is free at once, and others wait for nothing.
    let session = spec("abandoned")?;
    backend.start(session.clone()).await.map_err(told)?;
    ensure!(text(&backend, &session.id, "echo here").await? == "here", "a box with the same id");
    silent.id = spec("waits")?.id;
    silent.image = Some(format!("{}/silent:1", other.local_addr()?));
    let waits = std::sync::Arc::clone(&backend);
    let start = tokio::spawn(async move { waits.start(silent).await });
    // From here on it is being pulled.
    let connection = tokio::time::timeout(PATIENCE, other.accept()).await??;
    let began = Instant::now();
    backend.shutdown().await;
    ensure!(began.elapsed() < PATIENCE, "the shutdown took {:?}", began.elapsed());
    let kind = start.await?.err().map(|error| error.kind());
    ensure!(kind == Some(ErrorKind::BackendUnavailable), "the start that was shut down gave {kind:?}");
    drop((registry, connection));
    Ok(())
}
