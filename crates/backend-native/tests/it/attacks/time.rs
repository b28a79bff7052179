//! Outliving a deadline, a command or a session, judged by the processes that the host sees.

use std::time::Duration;

use sandcrate_backend::conformance::Check;
use sandcrate_backend::{
    Backend, Collected, ExecEvent, ExecRequest, ExitStatus, Mount, MountAccess, RootAccess,
};

use super::stage::{AttackBox, PATIENCE, Stage, ensure, eventually};
use super::{Special, specials};
use crate::host_state;

pub(super) fn all() -> Vec<Special> {
    specials![
        tm_01_a_deadline_ends_what_ignores_every_signal,
        tm_02_daemons_go_with_their_session,
        tm_02_daemons_go_with_the_deadline_of_their_command,
        tm_05_a_background_job_lives_as_long_as_its_session,
        tm_09_who_stops_new_commands_does_not_hold_init_up,
        tm_10_who_holds_a_shared_program_does_not_hold_init_up,
    ]
}

const LIMIT: Duration = Duration::from_secs(3);
/// From the limit to the result, on an idle machine.
const SLACK: Duration = Duration::from_millis(500);

/// A box whose attack program has a path that no other process on the machine has, and that path.
async fn marked_box(stage: &Stage) -> Result<(AttackBox, String), String> {
    let mut spec = stage.spec().await?;
    let target = format!("/opt/{}", spec.id);
    spec.mounts = vec![Mount::new(stage.probe().await?, target.clone(), MountAccess::ReadOnly)];
    Ok((stage.open_spec(spec).await?, format!("{target}/probe")))
}

async fn until_none(marker: &str) -> Check {
    let none = || async { Ok(host_state::processes_with(marker)?.is_empty().then_some(())) };
    eventually(&format!("no process of {marker} is left on the host"), none).await
}

async fn overrun(session: &AttackBox, argv: &[&str]) -> Result<Collected, String> {
    let result = session.run(ExecRequest::argv(argv.iter().copied()).timeout(LIMIT)).await?;
    ensure!(result.exit.timed_out, "it is not reported as a timeout: {:?}", result.exit);
    ensure!(result.exit.usage.wall >= LIMIT, "it ended before its limit: {:?}", result.exit);
    ensure!(result.exit.status == ExitStatus::Signal(9), "it ended by {:?}", result.exit.status);
    Ok(result)
}

async fn tm_01_a_deadline_ends_what_ignores_every_signal(stage: &Stage) -> Check {
    let mut times = Vec::new();
    // Alone, and again when something outside this test held it up.
    for _ in 0..3 {
        let (session, probe) = marked_box(stage).await?;
        let _alone = stage.quiet.write().await;
        let result = overrun(&session, &[&probe, "tm_ignore", "15"]).await?;
        until_none(&probe).await?;
        session.stop().await?;
        times.push(result.exit.usage.wall);
        if result.exit.usage.wall <= LIMIT + SLACK {
            return Ok(());
        }
    }
    Err(format!("it took {times:?} with a limit of {LIMIT:?}"))
}

async fn tm_02_daemons_go_with_their_session(stage: &Stage) -> Check {
    let _quiet = stage.quiet.read().await;
    let (session, probe) = marked_box(stage).await?;
    let result = session
        .run(ExecRequest::argv([&probe, "tm_daemon", "all", "60"]).timeout(Duration::from_secs(20)))
        .await?;
    ensure!(result.exit.status == ExitStatus::Code(0), "the attack failed: {:?}", result.exit);
    // One of them hands itself on from child to child and is not seen at every look.
    let alive = || async { Ok((host_state::processes_with(&probe)?.len() >= 8).then_some(())) };
    eventually("daemons live, as they may in a live session", alive).await?;
    session.is_usable().await?;
    session.stop().await?;
    // Gone when the stop returns: there is nothing to wait for.
    let left = host_state::processes_with(&probe)?;
    ensure!(left.is_empty(), "{left:?} outlived their session");
    Ok(())
}

async fn tm_02_daemons_go_with_the_deadline_of_their_command(stage: &Stage) -> Check {
    let _quiet = stage.quiet.read().await;
    let (session, probe) = marked_box(stage).await?;
    overrun(&session, &["sh", "-c", &format!("{probe} tm_daemon all 60 < /dev/null; sleep 60")]).await?;
    until_none(&probe).await?;
    session.stop().await
}

async fn tm_05_a_background_job_lives_as_long_as_its_session(stage: &Stage) -> Check {
    let _quiet = stage.quiet.read().await;
    let session = stage.open(RootAccess::ReadOnly).await?;
    // Told from every other sleep on the machine by its fraction.
    let job = format!("300.{}", session.info.id.as_str().replace(|c: char| !c.is_ascii_digit(), ""));
    let result = session
        .run(ExecRequest::shell(format!("(sleep {job} &) ; exit")).timeout(Duration::from_secs(20)))
        .await?;
    ensure!(result.exit.status == ExitStatus::Code(0) && !result.exit.timed_out, "{:?}", result.exit);
    session.is_usable().await?;
    let alive = host_state::processes_with(&job)?;
    ensure!(alive.len() == 1, "the job should live in its session, but {alive:?} do");
    stage.backend.stop(&session.info.id).await.map_err(|error| error.to_string())?;
    let left = host_state::processes_with(&job)?;
    ensure!(left.is_empty(), "{left:?} outlived their session");
    Ok(())
}

/// A command that is being started has the others' id before it is a program: they can stop it there.
async fn tm_09_who_stops_new_commands_does_not_hold_init_up(stage: &Stage) -> Check {
    let _quiet = stage.quiet.read().await;
    let mut spec = stage.spec().await?;
    // Only then would init lend its memory, and wait.
    spec.mounts.clear();
    let session = stage.open_spec(spec).await?;
    let backend = &stage.backend;
    let stopper = ExecRequest::shell("echo at work; while :; do kill -STOP -1; done").timeout(PATIENCE * 3);
    let mut stopper = backend.exec(&session.info.id, stopper).await.map_err(|error| error.to_string())?;
    ensure!(matches!(stopper.next().await, Some(ExecEvent::Output(..))), "the attack did not begin");
    let limit = Duration::from_millis(300);
    for _ in 0..5 {
        let result = session.run(ExecRequest::argv(["true"]).timeout(limit)).await?;
        ensure!(
            result.exit.timed_out || result.exit.status == ExitStatus::Code(0),
            "a command ended by {:?}",
            result.exit
        );
    }
    // Its caller is gone, and with him the command.
    drop(stopper);
    // The last one that it stopped stays so until its own limit.
    let usable = || async {
        let request = ExecRequest::shell("echo usable").timeout(LIMIT);
        Ok((session.run(request).await?.stdout == "usable\n").then_some(()))
    };
    eventually("the session is usable again", usable).await?;
    session.stop().await
}

/// Takes a lease on a file, so that whoever opens it waits, says so, and keeps it until its input ends.
const HOLD: &str = "import fcntl, signal, sys; signal.signal(signal.SIGIO, signal.SIG_IGN); \
    file = open(sys.argv[1], 'rb'); fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK); \
    print('held', flush=True); sys.stdin.read()";

/// A program in a shared directory can be kept from being opened, by whatever way it is reached.
async fn tm_10_who_holds_a_shared_program_does_not_hold_init_up(stage: &Stage) -> Check {
    let _quiet = stage.quiet.read().await;
    let mut spec = stage.spec().await?;
    let source = stage.host.directory("held-")?;
    std::fs::copy("/bin/true", source.join("tool")).map_err(|error| error.to_string())?;
    spec.mounts = vec![Mount::new(source.clone(), "/both", MountAccess::ReadOnly)];
    let session = stage.open_spec(spec).await?;
    session
        .text("echo kept > keep; ln -s /both/tool link; printf '#!/both/tool\\n' > script; chmod +x script")
        .await?;
    let mut holder = std::process::Command::new("python3");
    holder.args(["-c", HOLD]).arg(source.join("tool"));
    holder.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut holder = holder.spawn().map_err(|error| format!("python3: {error}"))?;
    let mut said = [0; 5];
    let held = holder.stdout.as_mut().map(|stdout| std::io::Read::read_exact(stdout, &mut said));
    ensure!(matches!(held, Some(Ok(()))) && said == *b"held\n", "the attack did not begin: {held:?}");
    for program in ["/both/tool", "./link", "./script"] {
        let limit = Duration::from_millis(300);
        let result = session.run(ExecRequest::argv([program]).timeout(limit)).await?;
        ensure!(result.exit.timed_out, "{program} was not held: {:?}", result.exit);
        let kept = session.text("cat keep").await?;
        ensure!(kept == "kept", "the box after {program} has {kept:?}");
    }
    drop(holder.stdin.take());
    holder.wait().map_err(|error| error.to_string())?;
    session.stop().await
}
