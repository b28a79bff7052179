//! What a command leaves behind: it does not hold the reply, it lives on, and it is reaped.

use std::time::Duration;

use tokio::time::Instant;

use super::Check;
use super::bench::{Bench, eventually};
use crate::ExecRequest;

pub(super) fn cases() -> Vec<super::Case> {
    family!("background" {
        [] a_background_child_does_not_delay_the_reply_and_survives_it,
            a_background_child_can_go_on_writing,
            fifty_leftovers_are_bounded_and_not_fatal,
            orphans_leave_no_zombies,
            leftovers_end_with_the_box;
    })
}

/// TM-05: the child holds our pipe open.
async fn a_background_child_does_not_delay_the_reply_and_survives_it(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let begin = Instant::now();
    let pid = session.text("sleep 60 & echo $!").await?;
    ensure!(begin.elapsed() < Duration::from_secs(10), "the reply took {:?}", begin.elapsed());
    for _ in 0..3 {
        ensure!(session.is_running(&pid).await?, "the child is gone");
    }
    Ok(())
}

/// A closed pipe would kill it with SIGPIPE, a full one would stop it.
async fn a_background_child_can_go_on_writing(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let child = "(while ! [ -e go ]; do sleep 0.05; done; head -c 1000000 /dev/zero && touch written) &";
    session.text(&format!("{child} echo reply")).await?;
    session.text("touch go").await?;
    let written = || async { Ok(session.text("ls").await?.contains("written").then_some(())) };
    eventually("the child has written 1 MB after the reply", written).await
}

async fn fifty_leftovers_are_bounded_and_not_fatal(bench: &Bench) -> Check {
    let session = bench.start().await?;
    for number in 0..50 {
        let seen = session.text(&format!("sleep 60 & echo hi {number}")).await?;
        ensure_eq!(seen, format!("hi {number}"), "the reply with leftovers");
    }
    ensure_eq!(session.text("echo usable").await?, "usable", "the box with 50 leftovers");
    Ok(())
}

async fn orphans_leave_no_zombies(bench: &Bench) -> Check {
    let session = bench.start().await?;
    session.text("i=0; while [ $i -lt 30 ]; do (sleep 0.01 &); i=$((i+1)); done").await?;
    let count = "n=0; for f in /proc/[0-9]*/stat; do { read -r line < $f; } 2> /dev/null || continue; \
                 case ${line##*) } in Z*) n=$((n+1));; esac; done; echo $n";
    let none = || async { Ok((session.text(count).await? == "0").then_some(())) };
    eventually("no zombie is left in the box", none).await
}

/// The check is the bench's: after the stop no process of the session is on the host.
async fn leftovers_end_with_the_box(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let daemon =
        "setsid sh -c 'trap \"\" TERM INT HUP; while :; do sleep 1; done' > /dev/null 2>&1 & echo up";
    for _ in 0..5 {
        ensure_eq!(session.text(daemon).await?, "up", "the starter");
    }
    let begin = Instant::now();
    session.stop().await?;
    ensure!(begin.elapsed() < Duration::from_secs(10), "the stop took {:?}", begin.elapsed());
    ensure!(session.outcome(ExecRequest::shell("true")).await.is_err(), "the box still runs commands");
    Ok(())
}
