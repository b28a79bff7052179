//! Many at once: sessions and commands do not mix.

use bytes::Bytes;
use tokio::task::JoinSet;

use super::Check;
use super::bench::{Bench, TestBox, text_of};
use crate::{ExecRequest, ExitStatus};

pub(super) fn cases() -> Vec<super::Case> {
    family!("concurrency" {
        [] sixteen_sessions_with_four_commands_each_do_not_mix,
            thirty_two_commands_of_one_session_do_not_mix,
            inputs_of_commands_at_once_do_not_mix,
            a_long_command_does_not_hold_back_another,
            sessions_start_and_stop_beside_each_other;
    })
}

async fn all(mut tasks: JoinSet<Check>) -> Check {
    while let Some(done) = tasks.join_next().await {
        done.map_err(|error| format!("a task failed: {error}"))??;
    }
    Ok(())
}

/// A command whose output and exit code say which one it is.
async fn tagged(session: TestBox, number: u32) -> Check {
    let tag = format!("{}/{number}", session.info.id);
    let script = format!("sleep 0.2; echo \"$TAG out\"; echo \"$TAG err\" >&2; seq 1 2000; exit {number}");
    let result = session.run(ExecRequest::shell(script).env("TAG", &tag)).await?;
    ensure_eq!(result.exit.status, ExitStatus::Code(number.cast_signed()), format!("the status of {tag}"));
    let numbers: String = (1..=2000).map(|number| format!("{number}\n")).collect();
    ensure_eq!(
        result.stdout[..],
        *format!("{tag} out\n{numbers}").as_bytes(),
        format!("the stdout of {tag}")
    );
    ensure_eq!(result.stderr[..], *format!("{tag} err\n").as_bytes(), format!("the stderr of {tag}"));
    Ok(())
}

async fn sixteen_sessions_with_four_commands_each_do_not_mix(bench: &Bench) -> Check {
    let mut tasks = JoinSet::new();
    let specs = (0..16).map(|_| bench.spec()).collect::<Result<Vec<_>, _>>()?;
    let mut starts = JoinSet::new();
    for spec in specs {
        let backend = std::sync::Arc::clone(&bench.backend);
        starts.spawn(async move { Bench::start_on(&backend, spec).await });
    }
    while let Some(started) = starts.join_next().await {
        let session = started.map_err(|error| format!("a start failed: {error}"))??;
        for number in 1..=4 {
            tasks.spawn(tagged(session.clone(), number));
        }
    }
    all(tasks).await
}

async fn thirty_two_commands_of_one_session_do_not_mix(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let mut tasks = JoinSet::new();
    for number in 1..=32 {
        tasks.spawn(tagged(session.clone(), number));
    }
    all(tasks).await
}

async fn inputs_of_commands_at_once_do_not_mix(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let mut tasks = JoinSet::new();
    for number in 0_u8..8 {
        let session = session.clone();
        tasks.spawn(async move {
            let mut live = session.live(ExecRequest::argv(["cat"]).piped()).await?;
            let stdin = live.execution.take_stdin().ok_or("a piped command has no stdin")?;
            let input = Bytes::from(vec![number; 300_000]);
            let send = async { stdin.send(input.clone()).await.map(|()| drop(stdin)) };
            let (result, _) = tokio::join!(live.execution.collect(1 << 20), send);
            let result = result.map_err(|error| error.to_string())?;
            ensure!(result.stdout == input, "command {number} got back {} other bytes", result.stdout_bytes);
            Ok(())
        });
    }
    all(tasks).await
}

async fn a_long_command_does_not_hold_back_another(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let mut long =
        session.live(ExecRequest::shell("echo up; while ! [ -e go ]; do sleep 0.05; done")).await?;
    long.until("up").await?;
    // Only a command beside the long one can end it.
    text_of(&session.run(ExecRequest::shell("touch go")).await?)?;
    long.end().await.map(drop)
}

async fn sessions_start_and_stop_beside_each_other(bench: &Bench) -> Check {
    let witness = bench.start().await?;
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let specs = (0..3).map(|_| bench.spec()).collect::<Result<Vec<_>, _>>()?;
        let backend = std::sync::Arc::clone(&bench.backend);
        tasks.spawn(async move {
            for spec in specs {
                let session = Bench::start_on(&backend, spec).await?;
                ensure_eq!(
                    session.text("cat /workspace/x 2> /dev/null; echo x > x; cat x").await?,
                    "x",
                    "a box"
                );
                session.stop().await?;
            }
            Ok(())
        });
    }
    all(tasks).await?;
    ensure_eq!(witness.text("echo fine").await?, "fine", "a session that was there all the time");
    Ok(())
}
