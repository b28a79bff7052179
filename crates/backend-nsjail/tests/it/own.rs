//! What only this backend can get wrong, most of it seen in the runtime that it replaces (defects S, L, P and B of
//! its description).

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use sandcrate_backend::{
    Backend, BackendError, ExecRequest, Mount, MountAccess, Network, SessionId, SessionSpec,
};
use sandcrate_protocol::ErrorKind;
use tokio::runtime::Handle;

use crate::harness::{NsjailHarness, open};
use crate::sudden_death;

/// One nsjail under test.
pub(crate) struct Ground {
    pub(crate) nsjail: PathBuf,
    pub(crate) harness: Arc<NsjailHarness>,
}

pub(crate) type Outcome = Result<(), String>;

pub(crate) fn trials(
    name: &'static str,
    nsjail: &Path,
    harness: &Arc<NsjailHarness>,
    handle: &Handle,
) -> Vec<Trial> {
    let ground = Arc::new(Ground { nsjail: nsjail.to_owned(), harness: Arc::clone(harness) });
    let mut trials = Vec::new();
    macro_rules! facts {
        ($($fact:ident),* $(,)?) => {
            $({
                let (ground, handle) = (Arc::clone(&ground), handle.clone());
                let run = move || handle.block_on($fact(&ground)).map_err(Failed::from);
                trials.push(Trial::test(format!("{name}::own::{}", stringify!($fact)), run));
            })*
        };
    }
    facts!(
        a_colon_in_a_path_is_a_character,
        a_network_is_refused_with_the_reason,
        no_process_of_a_box_is_anybody_on_the_host,
        accounts_are_known_and_devices_can_be_written,
        nothing_ends_a_process_but_its_owner,
        an_id_is_no_part_of_a_path,
        two_instances_leave_each_other_alone,
        secrets_are_in_no_argument_list,
        an_nsjail_that_fails_is_no_exit_code,
        a_missing_nsjail_is_told,
        an_nsjail_that_cannot_be_used_is_told_by_the_probe,
        a_killed_daemon_leaves_nothing,
    );
    trials
}

async fn a_killed_daemon_leaves_nothing(ground: &Ground) -> Outcome {
    sudden_death::check(ground).await
}

fn spec(name: &str) -> SessionSpec {
    let id = SessionId::new(format!("own-{name}-{}", std::process::id()));
    SessionSpec::new(id.expect("an id"))
}

fn told(error: &BackendError) -> String {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

async fn text(backend: &dyn Backend, id: &SessionId, request: ExecRequest) -> Result<String, String> {
    let execution = backend.exec(id, request).await.map_err(|error| told(&error))?;
    let result = execution.collect(1 << 20).await.map_err(|error| told(&error))?;
    let text = String::from_utf8_lossy(&result.stdout).trim().to_owned();
    match result.exit.status.shell_code() {
        0 => Ok(text),
        code => Err(format!("exit {code}: {text} {}", String::from_utf8_lossy(&result.stderr))),
    }
}

/// Runs one script in a session of its own.
async fn once(ground: &Ground, spec: SessionSpec, script: &str) -> Result<String, String> {
    let backend = &*ground.harness.backend;
    let id = spec.id.clone();
    backend.start(spec).await.map_err(|error| told(&error))?;
    let seen = text(backend, &id, ExecRequest::shell(script)).await;
    backend.stop(&id).await.map_err(|error| told(&error))?;
    seen
}

fn equal(seen: &str, wanted: &str) -> Outcome {
    if seen == wanted { Ok(()) } else { Err(format!("{wanted:?} was expected, {seen:?} was seen")) }
}

/// S4.
async fn a_colon_in_a_path_is_a_character(ground: &Ground) -> Outcome {
    let source = ground.harness.scratch.path().join("etc:/x:rw");
    std::fs::create_dir_all(&source).map_err(|error| error.to_string())?;
    std::fs::write(source.join("file"), "of the colon").map_err(|error| error.to_string())?;
    let mut wanted = spec("colon");
    wanted.mounts = vec![Mount::new(&source, "/data:/etc", MountAccess::ReadOnly)];
    equal(
        &once(ground, wanted, "cat /data:/etc/file; ls /data:; ls /data 2> /dev/null || echo none").await?,
        "of the colonetc\nnone",
    )
}

/// S6.
async fn a_network_is_refused_with_the_reason(ground: &Ground) -> Outcome {
    for network in [Network::Host, Network::Isolated(Box::default())] {
        let mut wanted = spec("network");
        wanted.network = network;
        match ground.harness.backend.start(wanted).await {
            Err(error) if error.kind() == ErrorKind::Unsupported && error.to_string().contains("nsjail") => {}
            other => return Err(format!("{other:?}")),
        }
    }
    Ok(())
}

/// S13.
async fn no_process_of_a_box_is_anybody_on_the_host(ground: &Ground) -> Outcome {
    let backend = &*ground.harness.backend;
    let wanted = spec("identity");
    let id = wanted.id.clone();
    backend.start(wanted).await.map_err(|error| told(&error))?;
    text(backend, &id, ExecRequest::shell("sleep 65432 > /dev/null 2>&1 &")).await?;
    let deadline = Instant::now() + Duration::from_secs(10);
    // The shell's child becomes it a moment later.
    let owners = loop {
        let owners: Vec<u32> = processes("sleep\u{0}65432").map(|directory| owner(&directory)).collect();
        if !owners.is_empty() || Instant::now() > deadline {
            break owners;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let seen = text(backend, &id, ExecRequest::shell("cut -c1-22 /proc/self/uid_map | head -1; id -u")).await;
    backend.stop(&id).await.map_err(|error| told(&error))?;
    if !owners.contains(&(0x7000_0000 + 1000)) {
        return Err(format!("the box's process belongs to {owners:?}"));
    }
    if seen.as_ref().is_ok_and(|seen| seen.ends_with("\n1000")) { Ok(()) } else { Err(format!("{seen:?}")) }
}

/// B3, B4.
async fn accounts_are_known_and_devices_can_be_written(ground: &Ground) -> Outcome {
    let script = "echo x > /dev/null; echo x | tee /dev/stderr > /dev/null 2>&1; id -un; hostname; getent hosts localhost | wc -l";
    equal(&once(ground, spec("accounts"), script).await?, "box\nsandbox\n1")
}

/// P2: nsjail's own limits are 600 s of the clock and of the CPU, 1 MiB of a file and a low priority.
async fn nothing_ends_a_process_but_its_owner(ground: &Ground) -> Outcome {
    let nice = "cut -d' ' -f19 /proc/self/stat";
    let script = format!("ulimit -t; ulimit -f; {nice}; head -c 3000000 /dev/zero > big; wc -c < big");
    // Nobody can be raised above whoever started us.
    let own =
        std::process::Command::new("sh").args(["-c", nice]).output().map_err(|error| error.to_string())?;
    let own = String::from_utf8_lossy(&own.stdout).trim().to_owned();
    let seen = once(ground, spec("limits"), &script).await?;
    equal(&seen, &format!("unlimited\nunlimited\n{own}\n3000000"))
}

/// S10.
async fn an_id_is_no_part_of_a_path(ground: &Ground) -> Outcome {
    let backend = &*ground.harness.backend;
    let id = SessionId::new("../../../../tmp/climber/x").map_err(|error| error.to_string())?;
    backend.start(SessionSpec::new(id.clone())).await.map_err(|error| told(&error))?;
    let state = ground.harness.scratch.path().join("state/nsjail");
    let names = names_below(&state);
    backend.stop(&id).await.map_err(|error| told(&error))?;
    if names.iter().any(|name| name.contains("climber")) || Path::new("/tmp/climber").exists() {
        return Err(format!("the id became a path: {names:?}"));
    }
    Ok(())
}

/// L8.
async fn two_instances_leave_each_other_alone(ground: &Ground) -> Outcome {
    let backend = &*ground.harness.backend;
    let wanted = spec("two");
    let id = wanted.id.clone();
    backend.start(wanted.clone()).await.map_err(|error| told(&error))?;
    text(backend, &id, ExecRequest::shell("echo first > file")).await?;
    let other = open(&ground.harness.scratch.path().join("state"), &ground.nsjail).await;
    let seen = async {
        other.sweep().await.map_err(|error| told(&error))?;
        other.start(wanted).await.map_err(|error| told(&error))?;
        equal(&text(&other, &id, ExecRequest::shell("ls; echo second > file; cat file")).await?, "second")?;
        other.stop(&id).await.map_err(|error| told(&error))?;
        equal(&text(backend, &id, ExecRequest::shell("cat file")).await?, "first")
    }
    .await;
    other.shutdown().await;
    backend.stop(&id).await.map_err(|error| told(&error))?;
    seen
}

/// S16.
async fn secrets_are_in_no_argument_list(ground: &Ground) -> Outcome {
    let backend = &*ground.harness.backend;
    let wanted = spec("secret");
    let id = wanted.id.clone();
    backend.start(wanted).await.map_err(|error| told(&error))?;
    let script = "echo up; while ! [ -e go ]; do sleep 0.02; done";
    let request = ExecRequest::shell(script).env("TOKEN", "hunter2-and-more");
    let mut execution = backend.exec(&id, request).await.map_err(|error| told(&error))?;
    let first = execution.next().await;
    let found = processes("hunter2-and-more").count();
    let ended = text(backend, &id, ExecRequest::shell("touch go")).await;
    let end = execution.collect(1000).await.map_err(|error| told(&error));
    backend.stop(&id).await.map_err(|error| told(&error))?;
    ended?;
    end?;
    if found == 0 { Ok(()) } else { Err(format!("{found} argument lists tell it (after {first:?})")) }
}

/// B2: an nsjail that cannot confine a command gives an error with its reason, not exit code 255.
async fn an_nsjail_that_fails_is_no_exit_code(ground: &Ground) -> Outcome {
    let broken = ground.harness.scratch.path().join("broken-nsjail");
    // Beside it: where this runs, /tmp is the box's, and the program may lie there.
    let real = ground.harness.scratch.path().join("real-nsjail");
    std::fs::copy(&ground.nsjail, &real).map_err(|error| error.to_string())?;
    let real = real.display();
    // Holds sessions, and fails for commands.
    let script = format!(
        "#!/bin/sh\nif grep -q '^mode: EXECVE' \"$2\"; then echo '[E][x][1] broken on purpose' >&2; exit 255; fi\n\
         exec -a nsjail {real} \"$@\"\n"
    )
    .replacen("#!/bin/sh", "#!/bin/bash", 1);
    std::fs::write(&broken, script).map_err(|error| error.to_string())?;
    std::fs::set_permissions(&broken, std::fs::Permissions::from_mode(0o755))
        .map_err(|error| error.to_string())?;
    let backend = open(&ground.harness.scratch.path().join("broken-state"), &broken).await;
    let wanted = spec("broken");
    let id = wanted.id.clone();
    let started = backend.start(wanted).await.map_err(|error| told(&error));
    let outcome = match backend.exec(&id, ExecRequest::shell("true")).await {
        Ok(execution) => execution.collect(100).await,
        Err(error) => Err(error),
    };
    let files = backend.files(&id, sandcrate_backend::FileRequest::Stat { path: "/".to_owned() }).await;
    backend.shutdown().await;
    started?;
    for (what, error) in [("a command", outcome.map(drop).err()), ("a file", files.map(drop).err())] {
        match error {
            Some(error)
                if error.kind() == ErrorKind::Internal && told(&error).contains("broken on purpose") => {}
            other => return Err(format!("{what} gives {other:?}")),
        }
    }
    Ok(())
}

/// Before the first session, and without being run every time that somebody looks.
async fn an_nsjail_that_cannot_be_used_is_told_by_the_probe(ground: &Ground) -> Outcome {
    ground.harness.backend.probe().await.map_err(|error| told(&error))?;
    let (old, runs) =
        (ground.harness.scratch.path().join("old-nsjail"), ground.harness.scratch.path().join("runs"));
    let script =
        format!("#!/bin/sh\necho run >> {}\necho '[E][x][1] too old for this' >&2\nexit 1\n", runs.display());
    std::fs::write(&old, script).map_err(|error| error.to_string())?;
    std::fs::set_permissions(&old, std::fs::Permissions::from_mode(0o755))
        .map_err(|error| error.to_string())?;
    let backend = open(&ground.harness.scratch.path().join("old-state"), &old).await;
    let outcomes = [backend.probe().await, backend.probe().await];
    backend.shutdown().await;
    for outcome in outcomes {
        match outcome {
            Err(error)
                if error.kind() == ErrorKind::BackendUnavailable
                    && ["old-nsjail cannot be used", "too old for this", "install"]
                        .iter()
                        .all(|part| told(&error).contains(part)) => {}
            other => return Err(format!("{other:?}")),
        }
    }
    let runs = std::fs::read_to_string(runs).map_err(|error| error.to_string())?;
    equal(runs.trim(), "run")
}

async fn a_missing_nsjail_is_told(ground: &Ground) -> Outcome {
    let backend =
        open(&ground.harness.scratch.path().join("missing-state"), Path::new("/nowhere/nsjail")).await;
    let outcome = backend.probe().await;
    backend.shutdown().await;
    match outcome {
        Err(error)
            if error.kind() == ErrorKind::BackendUnavailable && told(&error).contains("/nowhere/nsjail") =>
        {
            Ok(())
        }
        other => Err(format!("{other:?}")),
    }
}

/// Directories in /proc of processes whose arguments hold the text.
pub(crate) fn processes(text: &str) -> impl Iterator<Item = PathBuf> + use<'_> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    let own = PathBuf::from(format!("/proc/{}", std::process::id()));
    entries.filter(move |path| {
        *path != own
            && std::fs::read(path.join("cmdline"))
                .is_ok_and(|line| String::from_utf8_lossy(&line).contains(text))
    })
}

fn owner(directory: &Path) -> u32 {
    std::fs::metadata(directory).map_or(0, |facts| facts.uid())
}

fn names_below(directory: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        names.push(entry.file_name().to_string_lossy().into_owned());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            names.extend(names_below(&entry.path()));
        }
    }
    names
}
