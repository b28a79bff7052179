//! What is the engine backend's own: neighbours on one engine, engines that go and come back, owners that die.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bollard::models::ContainerCreateBody;
use bollard::query_parameters::{CreateContainerOptions, RemoveContainerOptions};
use libtest_mimic::{Failed, Trial};
use sandcrate_backend::{
    Backend, BackendError, Collected, ExecControl, ExecEvent, ExecRequest, ExitStatus, Mount, MountAccess,
    RootAccess, SessionId, SessionSpec,
};
use sandcrate_backend_engine::{EngineBackend, EngineConfig, EngineKind};
use sandcrate_protocol::ErrorKind;
use tokio::task::JoinSet;

use crate::daemon::Daemon;
use crate::{IMAGE, image};

pub(crate) type Check = Result<(), Failed>;

/// For what takes no time on an idle machine, on a loaded one.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Set in a program that is to be an owner and to die.
const OWNER_VARIABLE: &str = "SANDCRATE_TEST_OWNER";

macro_rules! ensure {
    ($holds:expr, $($message:tt)+) => {
        if !$holds {
            return Err(format!($($message)+).into());
        }
    };
}

pub(crate) use ensure;

/// What a trial needs to know of the shared daemon.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) kind: EngineKind,
    pub(crate) socket: PathBuf,
    pub(crate) scratch: PathBuf,
}

impl Place {
    pub(crate) fn config(&self, name: &str) -> EngineConfig {
        EngineConfig {
            socket: Some(self.socket.display().to_string()),
            image: IMAGE.to_owned(),
            ..EngineConfig::new(self.scratch.join(format!("state-{}-{name}", self.kind)))
        }
    }

    pub(crate) async fn backend(&self, name: &str) -> Result<Arc<EngineBackend>, Failed> {
        Ok(Arc::new(EngineBackend::connect(self.kind, self.config(name)).await.map_err(told)?))
    }

    pub(crate) fn containers(&self, label: &str) -> std::io::Result<usize> {
        containers_with(&self.socket, label)
    }

    pub(crate) fn client(&self) -> Result<bollard::Docker, Failed> {
        let path = self.socket.display().to_string();
        Ok(bollard::Docker::connect_with_unix(
            &path,
            120,
            &bollard::ClientVersion { major_version: 1, minor_version: 40 },
        )?)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "map_err hands it over")]
pub(crate) fn told(error: BackendError) -> Failed {
    let causes = std::iter::successors(std::error::Error::source(&error), |cause| cause.source());
    causes.fold(format!("{error}"), |text, cause| format!("{text}: {cause}")).into()
}

pub(crate) fn spec(name: &str) -> Result<SessionSpec, Failed> {
    Ok(SessionSpec::new(SessionId::new(name).map_err(told)?))
}

pub(crate) async fn sh(backend: &EngineBackend, id: &SessionId, script: &str) -> Result<Collected, Failed> {
    backend.exec(id, ExecRequest::shell(script)).await.map_err(told)?.collect(1 << 20).await.map_err(told)
}

pub(crate) async fn text(backend: &EngineBackend, id: &SessionId, script: &str) -> Result<String, Failed> {
    let done = sh(backend, id, script).await?;
    ensure!(done.exit.status == ExitStatus::Code(0), "`{script}` gave {done:?}");
    Ok(String::from_utf8_lossy(&done.stdout).trim_end().to_owned())
}

pub(crate) async fn eventually(what: &str, holds: impl Fn() -> bool) -> Check {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        ensure!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// How many containers the engine lists for a label, by the API and nothing of ours.
pub(crate) fn containers_with(socket: &Path, label: &str) -> std::io::Result<usize> {
    let filters = serde_json::json!({ "label": [label] }).to_string();
    let out = Command::new("curl")
        .args(["-s", "-G", "--unix-socket"])
        .arg(socket)
        .args(["--data-urlencode", "all=true", "--data-urlencode", &format!("filters={filters}")])
        .arg("http://engine/v1.40/containers/json")
        .output()?;
    let listed: Vec<serde_json::Value> = serde_json::from_slice(&out.stdout)?;
    Ok(listed.len())
}

/// Whether a process of this host was started with that argument.
fn on_host(argument: &str) -> bool {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| fs::read(entry.path().join("cmdline")).ok())
        .any(|line| line.split(|byte| *byte == 0).any(|part| part == argument.as_bytes()))
}

pub(crate) fn trials(daemon: &Daemon, scratch: &Path, handle: &tokio::runtime::Handle) -> Vec<Trial> {
    let place = Place { kind: daemon.kind, socket: daemon.socket(), scratch: scratch.to_owned() };
    macro_rules! trials {
        ($($name:ident),+ $(,)?) => {
            vec![$({
                let (place, handle) = (place.clone(), handle.clone());
                Trial::test(format!("{}::own::{}", place.kind, stringify!($name)), move || handle.block_on($name(place)))
            }),+]
        };
    }
    let mut all = crate::defects::trials(&place, handle);
    all.extend(crate::reviewed::trials(&place, handle));
    all.extend(trials![
        l8_two_runtimes_on_one_daemon_leave_each_other_alone,
        l15_a_stopped_daemon_is_told_and_its_return_heals,
        p1_a_terminated_process_is_gone_from_the_host,
        a_command_that_kills_its_keeper_ends_and_leaves_nothing,
        s11_an_option_like_image_name_is_refused,
        l6_a_missing_image_is_told_and_holds_nobody_up,
        an_image_without_a_c_library_is_told,
        s4_mounts_with_colons_are_what_they_say,
        l13_a_container_removed_by_somebody_else_is_told,
        a_writable_root_is_not_lost_by_a_restart,
        l10_a_dead_owner_leaves_nothing,
        a_hundred_sessions_at_once,
    ]);
    all
}

/// Each sweeps only what is dead and its own, and never a stranger's.
async fn l8_two_runtimes_on_one_daemon_leave_each_other_alone(place: Place) -> Check {
    let (one, two) = (place.backend("one").await?, place.backend("two").await?);
    let (first, second) = (spec("neighbour-1")?, spec("neighbour-2")?);
    one.start(first.clone()).await.map_err(told)?;
    two.start(second.clone()).await.map_err(told)?;
    let docker = place.client()?;
    let id = fs::read_to_string(place.config("one").state_dir.join(place.kind.name()).join("id"))?;
    let leftover = |name: &str, labels: &[(&str, &str)]| {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let body = ContainerCreateBody {
            image: Some(IMAGE.to_owned()),
            cmd: Some(vec!["true".to_owned()]),
            labels: Some(labels),
            host_config: Some(bollard::models::HostConfig {
                network_mode: Some("none".to_owned()),
                ..Default::default()
            }),
            ..Default::default()
        };
        let options = CreateContainerOptions { name: Some(name.to_owned()), ..Default::default() };
        docker.create_container(Some(options), body)
    };
    leftover(
        "dead-of-one",
        &[("langbot.box", "true"), ("sandcrate.instance", &id), ("sandcrate.owner", "0dead0")],
    )
    .await?;
    leftover("of-a-stranger", &[("langbot.box", "true"), ("langbot.session_id", "stranger")]).await?;
    two.sweep().await.map_err(told)?;
    ensure!(
        place.containers("sandcrate.owner=0dead0")? == 1,
        "another state directory's container was removed"
    );
    let swept = one.sweep().await.map_err(told)?;
    ensure!(place.containers("sandcrate.owner=0dead0")? == 0, "a dead container was left: {swept:?}");
    ensure!(place.containers("langbot.session_id=stranger")? == 1, "a stranger's container was removed");
    ensure!(text(&one, &first.id, "echo here").await? == "here", "the first session is gone");
    ensure!(text(&two, &second.id, "echo here").await? == "here", "the second session is gone");
    one.shutdown().await;
    ensure!(text(&two, &second.id, "echo here").await? == "here", "the second went with the first");
    two.shutdown().await;
    let force = RemoveContainerOptions { force: true, ..Default::default() };
    docker.remove_container("of-a-stranger", Some(force)).await?;
    Ok(())
}

async fn l15_a_stopped_daemon_is_told_and_its_return_heals(place: Place) -> Check {
    // Podman wants short paths.
    let scratch = tempfile::Builder::new().prefix("sandcrate-fickle-").tempdir_in("/var/tmp")?;
    let mut daemon = Daemon::start(place.kind, scratch.path()).await?;
    daemon.import(IMAGE, image::build(scratch.path())?).await?;
    let state = scratch.path().join("state");
    let backend = EngineBackend::connect(place.kind, crate::config(&daemon, &state)).await.map_err(told)?;
    let kept = spec("kept")?;
    backend.start(kept.clone()).await.map_err(told)?;
    daemon.down()?;
    let probe = backend.probe().await.err().map(|error| error.kind());
    ensure!(probe == Some(ErrorKind::BackendUnavailable), "a probe of a stopped daemon gave {probe:?}");
    let start = backend.start(spec("new")?).await.err().map(|error| error.kind());
    ensure!(start == Some(ErrorKind::BackendUnavailable), "a start on a stopped daemon gave {start:?}");
    match place.kind {
        EngineKind::Docker => {
            // Docker ends its containers with itself.
            let deadline = Instant::now() + PATIENCE;
            while backend.is_alive(&kept.id).await {
                ensure!(Instant::now() < deadline, "a dead session is told alive");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            let exec = backend.exec(&kept.id, ExecRequest::shell("true")).await;
            let failed = match exec {
                Ok(execution) => execution.collect(1).await.err(),
                Err(error) => Some(error),
            };
            let kind = failed.map(|error| error.kind());
            ensure!(kind == Some(ErrorKind::SessionNotFound), "a command in a dead box gave {kind:?}");
        }
        // Podman's live on without the service, and so does the session.
        EngineKind::Podman => {
            ensure!(text(&backend, &kept.id, "echo on").await? == "on", "the session is gone")
        }
    }
    backend.stop(&kept.id).await.map_err(told)?;
    daemon.up().await?;
    backend.probe().await.map_err(told)?;
    let again = spec("kept")?;
    backend.start(again.clone()).await.map_err(told)?;
    ensure!(text(&backend, &again.id, "echo back").await? == "back", "a box after the return");
    backend.shutdown().await;
    Ok(())
}

/// The reference only closes its own end.
async fn p1_a_terminated_process_is_gone_from_the_host(place: Place) -> Check {
    let backend = place.backend("terminated").await?;
    let session = spec("terminated")?;
    backend.start(session.clone()).await.map_err(told)?;
    let marker = format!("7{}", std::process::id());
    let script = format!("echo up; sleep {marker} & exec sleep {marker}");
    let mut execution = backend.exec(&session.id, ExecRequest::shell(script)).await.map_err(told)?;
    ensure!(matches!(execution.next().await, Some(ExecEvent::Output(..))), "it did not come up");
    eventually("the program is seen on the host", || on_host(&marker)).await?;
    execution.control(ExecControl::Terminate { grace: Duration::from_secs(5) }).await;
    let ended = execution.collect(1 << 10).await.map_err(told)?;
    ensure!(ended.exit.status == ExitStatus::Signal(15), "it ended with {:?}", ended.exit.status);
    eventually("nothing of it is on the host", || !on_host(&marker)).await?;
    backend.shutdown().await;
    Ok(())
}

async fn a_command_that_kills_its_keeper_ends_and_leaves_nothing(place: Place) -> Check {
    let backend = place.backend("keeper").await?;
    let session = spec("keeper")?;
    backend.start(session.clone()).await.map_err(told)?;
    let marker = format!("8{}", std::process::id());
    let beside = sh(&backend, &session.id, "sleep 1000 > /dev/null 2>&1 & echo $!").await?;
    let pid = String::from_utf8_lossy(&beside.stdout).trim().to_owned();
    let script = format!("setsid sleep {marker} & kill -9 $PPID; kill -9 1; sleep {marker}");
    let ended = sh(&backend, &session.id, &script).await?;
    ensure!(ended.exit.status == ExitStatus::Signal(9), "it ended with {:?}", ended.exit.status);
    eventually("nothing of it is on the host", || !on_host(&marker)).await?;
    let other = text(&backend, &session.id, &format!("kill -0 {pid} && echo lives")).await?;
    ensure!(other == "lives", "another command's leftover went with it");
    backend.shutdown().await;
    Ok(())
}

async fn s11_an_option_like_image_name_is_refused(place: Place) -> Check {
    let backend = place.backend("names").await?;
    for name in ["-v", "--privileged", "-v/:/host", "a b", "", "../../etc", "x\ny", "UPPER/Case", "$(id)"] {
        let mut session = spec("odd-image")?;
        session.image = Some(name.to_owned());
        let Err(error) = backend.start(session).await else {
            return Err(format!("an image named {name:?} was started").into());
        };
        let clear = [ErrorKind::Validation, ErrorKind::ImageUnavailable].contains(&error.kind());
        ensure!(clear, "{name:?} gave {:?}: {}", error.kind(), told(error).message().unwrap_or_default());
    }
    ensure!(place.containers("langbot.session_id=odd-image")? == 0, "a container was made");
    backend.shutdown().await;
    Ok(())
}

async fn l6_a_missing_image_is_told_and_holds_nobody_up(place: Place) -> Check {
    let backend = place.backend("missing").await?;
    let mut missing = spec("missing-image")?;
    // Nothing listens there, and no other host is asked.
    missing.image = Some("127.0.0.1:9/none:1".to_owned());
    let other = spec("beside")?;
    let (failed, started) = tokio::join!(backend.start(missing), backend.start(other.clone()));
    started.map_err(told)?;
    let Err(error) = failed else { return Err("an image that is nowhere was started".into()) };
    ensure!(error.kind() == ErrorKind::ImageUnavailable, "it gave {:?}", error.kind());
    let message = error.to_string();
    ensure!(message.contains("127.0.0.1:9/none:1") && message.contains("pulled"), "it says {message:?}");
    ensure!(text(&backend, &other.id, "echo fine").await? == "fine", "the session beside it");
    backend.shutdown().await;
    Ok(())
}

/// This test program is linked to one; the static build of the product is not.
async fn an_image_without_a_c_library_is_told(place: Place) -> Check {
    let scratch = tempfile::tempdir_in(&place.scratch)?;
    let tar = image::build_without_libraries(scratch.path())?;
    let daemon = Daemon::at(place.kind, &place.socket);
    daemon.import("localhost/sandcrate-bare:latest", tar).await?;
    let backend = place.backend("bare").await?;
    let mut bare = spec("bare")?;
    bare.image = Some("localhost/sandcrate-bare:latest".to_owned());
    let Err(error) = backend.start(bare).await else { return Err("it started".into()) };
    ensure!(error.kind() == ErrorKind::Unsupported, "it gave {:?}: {error}", error.kind());
    ensure!(error.to_string().contains("static"), "it says {error}");
    eventually("no container is left", || {
        place.containers("langbot.session_id=bare").is_ok_and(|left| left == 0)
    })
    .await?;
    backend.shutdown().await;
    Ok(())
}

async fn s4_mounts_with_colons_are_what_they_say(place: Place) -> Check {
    let backend = place.backend("colons").await?;
    let host = tempfile::Builder::new().prefix("a:b:ro:").tempdir_in(&place.scratch)?;
    fs::write(host.path().join("file"), "colon")?;
    let mut session = spec("colons:with/odd")?;
    session.mounts.push(Mount::new(host.path(), "/data:rw=x", MountAccess::ReadOnly));
    backend.start(session.clone()).await.map_err(told)?;
    let script = "cat '/data:rw=x/file'; echo x > '/data:rw=x/new' || echo refused";
    let seen = text(&backend, &session.id, script).await?;
    ensure!(seen == "colonrefused", "the box saw {seen:?}");
    // A comma is an option to Podman, whichever way it is told: there it is refused, never obeyed.
    let comma = tempfile::Builder::new().prefix("x,readonly=false,").tempdir_in(&place.scratch)?;
    let mut other = spec("commas")?;
    other.mounts.push(Mount::new(comma.path(), "/data", MountAccess::ReadOnly));
    let started = backend.start(other.clone()).await;
    match place.kind {
        EngineKind::Docker => {
            started.map_err(told)?;
            let seen = text(&backend, &other.id, "echo x > /data/new || echo refused").await?;
            ensure!(seen == "refused", "the box wrote to a read-only mount: {seen:?}");
        }
        EngineKind::Podman => {
            let kind = started.err().map(|error| error.kind());
            ensure!(kind == Some(ErrorKind::Unsupported), "a comma in a path gave {kind:?}");
        }
    }
    backend.shutdown().await;
    Ok(())
}

async fn l13_a_container_removed_by_somebody_else_is_told(place: Place) -> Check {
    let backend = place.backend("removed").await?;
    let session = spec("removed")?;
    let info = backend.start(session.clone()).await.map_err(told)?;
    let running = backend.exec(&session.id, ExecRequest::shell("echo up; sleep 1000")).await.map_err(told)?;
    let force = RemoveContainerOptions { force: true, ..Default::default() };
    place.client()?.remove_container(&info.backend_id, Some(force)).await?;
    let ended = running.collect(1 << 10).await.err().map(|error| error.kind());
    ensure!(ended == Some(ErrorKind::SessionNotFound), "the running command ended with {ended:?}");
    ensure!(!backend.is_alive(&session.id).await, "it is told alive");
    backend.stop(&session.id).await.map_err(told)?;
    backend.shutdown().await;
    Ok(())
}

async fn a_writable_root_is_not_lost_by_a_restart(place: Place) -> Check {
    let backend = place.backend("restart").await?;
    let mut session = spec("writable")?;
    session.root = RootAccess::Writable;
    backend.start(session.clone()).await.map_err(told)?;
    text(&backend, &session.id, "echo tool > /usr/local/bin/tool").await?;
    let kind = backend.restart(session.clone()).await.err().map(|error| error.kind());
    ensure!(kind == Some(ErrorKind::Unsupported), "a restart gave {kind:?}");
    let kept = text(&backend, &session.id, "cat /usr/local/bin/tool").await?;
    ensure!(kept == "tool", "the box after a refused restart has {kept:?}");
    backend.shutdown().await;
    Ok(())
}

/// An owner that is killed: its box goes at once, its files with the next sweep.
async fn l10_a_dead_owner_leaves_nothing(place: Place) -> Check {
    let state = place.config("owner").state_dir;
    let mut owner = Command::new(std::env::current_exe()?)
        .env(OWNER_VARIABLE, place.kind.name())
        .args([&place.socket, &state])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    if let Some(out) = owner.stdout.take() {
        BufReader::new(out).read_line(&mut line)?;
    }
    let marker = line.trim().to_owned();
    ensure!(!marker.is_empty() && on_host(&marker), "the owner did not come up: {line:?}");
    owner.kill()?;
    owner.wait()?;
    eventually("the box's processes are gone", || !on_host(&marker)).await?;
    let none = || place.containers("langbot.session_id=of-the-owner").is_ok_and(|left| left == 0);
    eventually("the container is gone", none).await?;
    let next = place.backend("owner").await?;
    next.sweep().await.map_err(told)?;
    let part = state.join(place.kind.name());
    let locks = || {
        fs::read_dir(&part)
            .map_or(0, |all| all.flatten().filter(|entry| entry.path().extension().is_some()).count())
    };
    eventually("only the living instance is left", || locks() == 1).await?;
    next.shutdown().await;
    Ok(())
}

/// The other side of the case above: a session with a command, until it is killed.
pub(crate) fn run_alone() -> Option<ExitCode> {
    let kind = match std::env::var(OWNER_VARIABLE).ok()?.as_str() {
        "docker" => EngineKind::Docker,
        _ => EngineKind::Podman,
    };
    let mut arguments = std::env::args().skip(1);
    let (socket, state) = (arguments.next()?, arguments.next()?);
    let runtime = tokio::runtime::Runtime::new().ok()?;
    let lived: Result<(), Failed> = runtime.block_on(async {
        let config =
            EngineConfig { socket: Some(socket), image: IMAGE.to_owned(), ..EngineConfig::new(state) };
        let backend = EngineBackend::connect(kind, config).await.map_err(told)?;
        let session = spec("of-the-owner")?;
        backend.start(session.clone()).await.map_err(told)?;
        let marker = format!("9{}", std::process::id());
        let script = format!("sleep {marker} & echo up; wait");
        let mut execution = backend.exec(&session.id, ExecRequest::shell(script)).await.map_err(told)?;
        execution.next().await;
        while !on_host(&marker) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        writeln!(std::io::stdout(), "{marker}")?;
        std::future::pending().await
    });
    if let Err(error) = lived {
        eprintln!("the owner failed: {}", error.message().unwrap_or_default());
    }
    Some(ExitCode::FAILURE)
}

async fn a_hundred_sessions_at_once(place: Place) -> Check {
    let backend = place.backend("hundred").await?;
    let began = Instant::now();
    let mut starts: JoinSet<Check> = JoinSet::new();
    for number in 0..100 {
        let (backend, session) = (Arc::clone(&backend), spec(&format!("hundred-{number}"))?);
        starts.spawn(async move {
            backend.start(session.clone()).await.map_err(told)?;
            let seen = text(&backend, &session.id, &format!("echo {number}")).await?;
            ensure!(seen == number.to_string(), "session {number} said {seen:?}");
            Ok(())
        });
    }
    while let Some(done) = starts.join_next().await {
        done??;
    }
    eprintln!("{}: 100 sessions started and used in {:?}", place.kind, began.elapsed());
    backend.shutdown().await;
    ensure!(place.containers("langbot.session_id=hundred-7")? == 0, "containers are left");
    Ok(())
}
