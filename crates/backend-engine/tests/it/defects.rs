//! Defects of the reference that concern engines, by their numbers in its description; here the better behaviour
//! is shown on the real daemon.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use bollard::models::HostConfig;
use bollard::query_parameters::InspectContainerOptions;
use libtest_mimic::{Failed, Trial};
use sandcrate_backend::{
    Backend, BackendError, DiskLimit, ExecRequest, ExitStatus, FileRequest, LimitHit, Mount, MountAccess,
};
use sandcrate_backend_engine::{EngineBackend, EngineConfig, EngineKind, examine};
use sandcrate_protocol::{Control, ErrorKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use crate::daemon::Daemon;
use crate::own::{Check, PATIENCE, Place, ensure, eventually, sh, spec, text, told};
use crate::{IMAGE, image};

pub(crate) fn trials(place: &Place, handle: &tokio::runtime::Handle) -> Vec<Trial> {
    macro_rules! trials {
        ($($name:ident),+ $(,)?) => {
            vec![$({
                let (place, handle) = (place.clone(), handle.clone());
                Trial::test(format!("{}::defects::{}", place.kind, stringify!($name)), move || handle.block_on($name(place)))
            }),+]
        };
    }
    let mut all = trials![
        s2_s3_every_mount_of_the_host_is_checked,
        s6_a_box_without_a_network_reaches_no_loopback_of_the_host,
        s10_an_id_like_a_path_leaves_no_directory_elsewhere,
        s12_containers_are_hardened,
        s13_a_fork_bomb_is_bounded,
        s14_a_quota_is_counted_and_enforced,
        l5_l6_an_engine_that_hangs_is_told_and_holds_nobody_up,
        l5_a_container_that_comes_late_is_removed,
        l9_an_engine_that_comes_late_has_its_labels_and_its_sweep,
        b1_a_missing_directory_to_start_in_is_made,
        b6_programs_run_from_tmp_and_home_is_writable,
        an_oom_is_told_as_such,
        what_an_engine_is_can_be_asked,
    ];
    if place.kind == EngineKind::Docker {
        all.extend(trials![an_engine_that_maps_ids_is_usable]);
    }
    all
}

async fn s2_s3_every_mount_of_the_host_is_checked(place: Place) -> Check {
    let backend = place.backend("forbidden").await?;
    for source in ["/", "/etc", "/var", "/proc", "/usr", "/root/..", "/dev"] {
        let mut session = spec("forbidden")?;
        session.mounts.push(Mount::new(source, "/data", MountAccess::ReadOnly));
        let kind = backend.start(session).await.err().map(|error| error.kind());
        ensure!(kind == Some(ErrorKind::Denied), "a mount of {source} gave {kind:?}");
    }
    // By a link, too.
    let host = tempfile::tempdir_in(&place.scratch)?;
    std::os::unix::fs::symlink("/etc", host.path().join("link"))?;
    let mut session = spec("forbidden")?;
    session.mounts.push(Mount::new(host.path().join("link"), "/data", MountAccess::ReadOnly));
    let kind = backend.start(session).await.err().map(|error| error.kind());
    ensure!(kind == Some(ErrorKind::Denied), "a link to /etc gave {kind:?}");
    backend.shutdown().await;
    Ok(())
}

async fn s6_a_box_without_a_network_reaches_no_loopback_of_the_host(place: Place) -> Check {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let backend = place.backend("loopback").await?;
    let session = spec("loopback")?;
    backend.start(session.clone()).await.map_err(told)?;
    let script = format!(
        "python3 -c \"import socket; socket.create_connection(('127.0.0.1',{port}),2)\" 2>/dev/null && echo in || echo out"
    );
    ensure!(text(&backend, &session.id, &script).await? == "out", "the host's loopback was reached");
    backend.shutdown().await;
    Ok(())
}

async fn s10_an_id_like_a_path_leaves_no_directory_elsewhere(place: Place) -> Check {
    let backend = place.backend("paths").await?;
    for id in ["../../escape", "a/b", "--rm", "$(id)", "e\u{301} \u{1F980}"] {
        let session = spec(id)?;
        backend.start(session.clone()).await.map_err(told)?;
        ensure!(text(&backend, &session.id, "pwd").await? == "/workspace", "{id:?}");
        backend.stop(&session.id).await.map_err(told)?;
    }
    let strange = |directory: &std::path::Path| -> std::io::Result<bool> {
        let mut names = fs::read_dir(directory)?.flatten().map(|entry| entry.file_name());
        Ok(names.any(|name| name.to_string_lossy().contains("escape")))
    };
    ensure!(!strange(&place.scratch)? && !strange(std::path::Path::new("/var/tmp"))?, "a directory escaped");
    backend.shutdown().await;
    Ok(())
}

async fn s12_containers_are_hardened(place: Place) -> Check {
    let backend = place.backend("hardened").await?;
    let session = spec("hardened")?;
    let info = backend.start(session.clone()).await.map_err(told)?;
    let client = place.client()?;
    let seen = client.inspect_container(&info.backend_id, None::<InspectContainerOptions>).await?;
    let HostConfig { memory, memory_swap, pids_limit, readonly_rootfs, security_opt, privileged, .. } =
        seen.host_config.ok_or("no configuration")?;
    ensure!(
        memory == Some(512 << 20) && memory_swap == memory,
        "memory {memory:?}, with swap {memory_swap:?}"
    );
    ensure!(pids_limit == Some(130), "processes {pids_limit:?}");
    ensure!(
        readonly_rootfs == Some(true) && privileged != Some(true),
        "root {readonly_rootfs:?}, {privileged:?}"
    );
    let held = security_opt.unwrap_or_default();
    ensure!(held.iter().any(|option| option.starts_with("no-new-privileges")), "security options {held:?}");
    // What was set is what is there.
    let script = "python3 -c \"import re; print(*re.findall(r'^(?:Cap...|NoNewPrivs|Seccomp):\\s+(\\S+)', open('/proc/self/status').read(), re.M))\"";
    let status = text(&backend, &session.id, script).await?;
    let words: Vec<&str> = status.split(' ').collect();
    ensure!(words.iter().take(5).all(|set| set.trim_matches('0').is_empty()), "capabilities {status}");
    ensure!(words.get(5..7) == Some(&["1", "2"]), "no_new_privs and seccomp: {status}");
    backend.shutdown().await;
    Ok(())
}

async fn s13_a_fork_bomb_is_bounded(place: Place) -> Check {
    let backend = place.backend("forks").await?;
    let mut session = spec("forks")?;
    session.limits.pids = 16;
    backend.start(session.clone()).await.map_err(told)?;
    let script = "i=0; while [ $i -lt 60 ]; do sleep 1000 & i=$((i+1)); done 2>/dev/null; true";
    let ended = sh(&backend, &session.id, script).await?;
    let hit = ended.exit.limits_hit.iter().any(|hit| matches!(hit, LimitHit::Pids { .. }));
    ensure!(hit || ended.exit.status != ExitStatus::Code(0), "60 processes within 16: {ended:?}");
    backend.shutdown().await;
    Ok(())
}

async fn s14_a_quota_is_counted_and_enforced(place: Place) -> Check {
    let backend = place.backend("quota").await?;
    let mut session = spec("quota")?;
    session.limits.disk = DiskLimit::Accounted(5 << 20);
    backend.start(session.clone()).await.map_err(told)?;
    // Too quick to be seen on the way: it is counted afterwards, and before the next.
    let ended = sh(&backend, &session.id, "dd if=/dev/zero of=big bs=1M count=20 2>/dev/null").await?;
    let hit = ended.exit.limits_hit.iter().any(|hit| matches!(hit, LimitHit::Disk { .. }));
    ensure!(hit, "20 MiB within 5: {:?}", ended.exit.limits_hit);
    let next = backend.exec(&session.id, ExecRequest::shell("true")).await.err().map(|error| error.kind());
    ensure!(next == Some(ErrorKind::LimitExceeded), "the next command gave {next:?}");
    // By files it can be put right.
    backend.files(&session.id, FileRequest::Remove { path: "big".to_owned() }).await.map_err(told)?;
    ensure!(text(&backend, &session.id, "echo fine").await? == "fine", "after the file is gone");
    backend.shutdown().await;
    Ok(())
}

/// Something between us and the engine that can fall silent.
#[derive(Clone)]
struct Between {
    mode: Arc<AtomicU8>,
}

const PASS: u8 = 0;
/// Nothing passes.
const HANG: u8 = 1;
/// Requests pass, answers do not.
const MUTE: u8 = 2;

impl Between {
    fn start(place: &Place, name: &str) -> Result<(Self, EngineConfig), Failed> {
        let path = place.scratch.join(format!("{name}-{}.sock", place.kind));
        let listener = UnixListener::bind(&path)?;
        let between = Self { mode: Arc::new(AtomicU8::new(PASS)) };
        let (mode, engine) = (Arc::clone(&between.mode), place.socket.clone());
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let (mode, engine) = (Arc::clone(&mode), engine.clone());
                tokio::spawn(async move {
                    let Ok(far) = UnixStream::connect(engine).await else { return };
                    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
                    let requests = carry(near_in, far_out, Arc::clone(&mode), HANG);
                    let answers = carry(far_in, near_out, mode, MUTE);
                    tokio::join!(requests, answers);
                });
            }
        });
        let config = EngineConfig {
            socket: Some(path.display().to_string()),
            request_limit: Duration::from_secs(3),
            ..place.config(name)
        };
        Ok((between, config))
    }

    fn set(&self, mode: u8) {
        self.mode.store(mode, Ordering::SeqCst);
    }
}

/// Carries bytes while the mode is below `silent_from`; what comes meanwhile is swallowed, as if it hung.
async fn carry(
    mut from: tokio::net::unix::OwnedReadHalf,
    mut to: tokio::net::unix::OwnedWriteHalf,
    mode: Arc<AtomicU8>,
    silent: u8,
) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let now = mode.load(Ordering::SeqCst);
        if now == HANG || now == silent {
            continue;
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await;
}

/// The reference took a `docker run` that hangs for a success, and kept everybody waiting.
async fn l5_l6_an_engine_that_hangs_is_told_and_holds_nobody_up(place: Place) -> Check {
    let (between, config) = Between::start(&place, "hangs")?;
    let backend = EngineBackend::connect(place.kind, config).await.map_err(told)?;
    let (first, second) = (spec("hang-first")?, spec("hang-second")?);
    backend.start(first.clone()).await.map_err(told)?;
    between.set(HANG);
    let began = Instant::now();
    let (started, beside) = tokio::join!(backend.start(second.clone()), async {
        let said = text(&backend, &first.id, "echo on").await;
        (said, began.elapsed())
    });
    let kind = started.err().map(|error| error.kind());
    ensure!(kind == Some(ErrorKind::Timeout), "a start on an engine that hangs gave {kind:?}");
    ensure!(began.elapsed() < PATIENCE, "it took {:?}", began.elapsed());
    ensure!(
        beside.0? == "on" && beside.1 < Duration::from_secs(2),
        "a command beside it took {:?}",
        beside.1
    );
    let probe = backend.probe().await.err().map(|error| error.kind());
    ensure!(probe == Some(ErrorKind::BackendUnavailable), "a probe gave {probe:?}");
    between.set(PASS);
    backend.start(second.clone()).await.map_err(told)?;
    ensure!(text(&backend, &second.id, "echo back").await? == "back", "the session after it");
    backend.shutdown().await;
    Ok(())
}

async fn l5_a_container_that_comes_late_is_removed(place: Place) -> Check {
    let (between, config) = Between::start(&place, "late")?;
    let backend = EngineBackend::connect(place.kind, config).await.map_err(told)?;
    // What both speak is known before it falls silent.
    backend.probe().await.map_err(told)?;
    between.set(MUTE);
    let kind = backend.start(spec("late")?).await.err().map(|error| error.kind());
    ensure!(kind == Some(ErrorKind::Timeout), "a start on a mute engine gave {kind:?}");
    between.set(PASS);
    let gone = || place.containers("langbot.session_id=late").is_ok_and(|left| left == 0);
    eventually("the late container is gone", gone).await?;
    backend.shutdown().await;
    Ok(())
}

async fn l9_an_engine_that_comes_late_has_its_labels_and_its_sweep(place: Place) -> Check {
    let scratch = tempfile::Builder::new().prefix("sandcrate-late-").tempdir_in("/var/tmp")?;
    let mut daemon = Daemon::start(place.kind, scratch.path()).await?;
    daemon.import(IMAGE, image::build(scratch.path())?).await?;
    daemon.down()?;
    let backend = EngineBackend::open(place.kind, crate::config(&daemon, &scratch.path().join("state")))
        .await
        .map_err(told)?;
    ensure!(backend.probe().await.is_err(), "an engine that is not there answers");
    daemon.up().await?;
    let client = daemon.client().await?;
    // What a dead owner left is swept when the engine is heard of.
    let id = fs::read_to_string(scratch.path().join("state").join(place.kind.name()).join("id"))?;
    let left = bollard::models::ContainerCreateBody {
        image: Some(IMAGE.to_owned()),
        cmd: Some(vec!["true".to_owned()]),
        labels: Some(
            [("sandcrate.instance".to_owned(), id), ("sandcrate.owner".to_owned(), "0gone0".to_owned())]
                .into(),
        ),
        host_config: Some(HostConfig { network_mode: Some("none".to_owned()), ..Default::default() }),
        ..Default::default()
    };
    client.create_container(None::<bollard::query_parameters::CreateContainerOptions>, left).await?;
    backend.probe().await.map_err(told)?;
    let socket = daemon.socket();
    let swept = || crate::own::containers_with(&socket, "sandcrate.owner=0gone0").is_ok_and(|left| left == 0);
    eventually("the dead owner's container is gone", swept).await?;
    let session = spec("late-engine")?;
    let info = backend.start(session).await.map_err(told)?;
    let seen = client.inspect_container(&info.backend_id, None::<InspectContainerOptions>).await?;
    let labels = seen.config.and_then(|config| config.labels).unwrap_or_default();
    for label in ["langbot.box.instance_id", "sandcrate.instance", "sandcrate.owner"] {
        ensure!(labels.get(label).is_some_and(|value| !value.is_empty()), "{label} of {labels:?}");
    }
    backend.sweep().await.map_err(told)?;
    backend.shutdown().await;
    Ok(())
}

async fn b1_a_missing_directory_to_start_in_is_made(place: Place) -> Check {
    let backend = place.backend("workdir").await?;
    let mut session = spec("workdir")?;
    session.workdir = "/workspace/sub/dir".to_owned();
    backend.start(session.clone()).await.map_err(told)?;
    ensure!(text(&backend, &session.id, "pwd").await? == "/workspace/sub/dir", "where it started");
    let elsewhere = ExecRequest::shell("pwd").cwd("/proc/nowhere");
    let failed = match backend.exec(&session.id, elsewhere).await {
        Ok(execution) => execution.collect(1 << 10).await.err(),
        Err(error) => Some(error),
    };
    let kind = failed.map(|error| error.kind());
    ensure!(kind == Some(ErrorKind::Validation), "a directory that cannot be made gave {kind:?}");
    backend.shutdown().await;
    Ok(())
}

async fn b6_programs_run_from_tmp_and_home_is_writable(place: Place) -> Check {
    let backend = place.backend("tmp").await?;
    let session = spec("tmp")?;
    backend.start(session.clone()).await.map_err(told)?;
    let script = "printf '#!/bin/sh\necho ran\n' > /tmp/x; chmod +x /tmp/x; /tmp/x; echo kept > ~/f; cat ~/f";
    ensure!(text(&backend, &session.id, script).await? == "ran\nkept", "/tmp and home");
    backend.shutdown().await;
    Ok(())
}

/// Neither engine tells it of a process in the box; the cgroup does.
async fn an_oom_is_told_as_such(place: Place) -> Check {
    let backend = place.backend("oom").await?;
    let mut session = spec("oom")?;
    session.limits.memory_bytes = 64 << 20;
    backend.start(session.clone()).await.map_err(told)?;
    let ended = sh(&backend, &session.id, "exec python3 -c 'x = bytearray(200 << 20)'").await?;
    ensure!(ended.exit.status == ExitStatus::Signal(9), "it ended with {:?}", ended.exit.status);
    let hit = ended.exit.limits_hit.iter().any(|hit| matches!(hit, LimitHit::Memory { oom_kills: 1.., .. }));
    ensure!(hit, "the limits that were hit: {:?}", ended.exit.limits_hit);
    ensure!(text(&backend, &session.id, "echo on").await? == "on", "the session goes on");
    backend.shutdown().await;
    Ok(())
}

async fn what_an_engine_is_can_be_asked(place: Place) -> Check {
    let config = place.config("examined");
    let facts = examine(place.kind, &config).await.map_err(told)?;
    ensure!(!facts.version.is_empty() && facts.has_image && facts.seccomp, "{facts:?}");
    let missing = EngineConfig { image: "127.0.0.1:9/none:1".to_owned(), ..config.clone() };
    ensure!(!examine(place.kind, &missing).await.map_err(told)?.has_image, "an image that is nowhere");
    let absent = EngineConfig { socket: Some("/nonexistent/engine.sock".to_owned()), ..config };
    match examine(place.kind, &absent).await {
        Err(BackendError::Unavailable { .. }) => Ok(()),
        other => Err(format!("an engine that is not there: {other:?}").into()),
    }
}

async fn an_engine_that_maps_ids_is_usable(place: Place) -> Check {
    let scratch = tempfile::Builder::new().prefix("sandcrate-remap-").tempdir_in("/var/tmp")?;
    // The box's root is nobody on this host, and has to get to its own root.
    fs::set_permissions(scratch.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    // In the mount namespace of these tests only.
    for (file, name) in [("/etc/subuid", "uids"), ("/etc/subgid", "gids")] {
        let own = scratch.path().join(name);
        fs::write(&own, "nobody:1000000:65536\n")?;
        if !std::path::Path::new(file).exists() {
            return Err(format!("{file} is not there to be covered").into());
        }
        rustix::mount::mount_bind(&own, file)?;
    }
    let mut daemon =
        Daemon::start_with(place.kind, scratch.path(), &["--userns-remap=nobody:nogroup"]).await?;
    daemon.import(IMAGE, image::build(scratch.path())?).await?;
    let backend = EngineBackend::connect(place.kind, crate::config(&daemon, &scratch.path().join("state")))
        .await
        .map_err(told)?;
    let session = spec("mapped")?;
    let info = backend.start(session.clone()).await.map_err(told)?;
    let identity = info.enforcement.get(Control::Identity).map_or("", |finding| finding.by.as_str());
    ensure!(identity.contains("user namespace of the engine"), "identity: {identity}");
    let script = "id -u; echo w > f; echo h > ~/f; cat f ~/f; echo again > /dev/stdout";
    let seen = text(&backend, &session.id, script).await?;
    ensure!(seen == "0\nw\nh\nagain", "the box says {seen:?}");
    backend
        .files(&session.id, FileRequest::Write { path: "by-files".to_owned(), data: "x".into() })
        .await
        .map_err(told)?;
    ensure!(text(&backend, &session.id, "cat by-files").await? == "x", "a file written from outside");
    backend.stop(&session.id).await.map_err(told)?;
    backend.shutdown().await;
    daemon.down()?;
    for file in ["/etc/subuid", "/etc/subgid"] {
        rustix::mount::unmount(file, rustix::mount::UnmountFlags::DETACH)?;
    }
    Ok(())
}
