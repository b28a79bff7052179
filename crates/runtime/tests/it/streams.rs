//! Commands whose output is followed.

use bytes::Bytes;
use sandcrate_backend::{ExecControl, ExecRequest, ExitStatus};
use sandcrate_protocol::ErrorKind;
use sandcrate_runtime::{CommandId, LogEvent, SessionOptions, Subscription};

use crate::bench::Bench;

async fn bench() -> Bench {
    let bench = Bench::with(|config| config.limits.commands = 3).await;
    bench.runtime.create_session(&Bench::spec("s", ""), SessionOptions::default()).await.unwrap();
    bench
}

async fn output(follower: &mut Subscription) -> (u64, Bytes) {
    match follower.next().await {
        Some(LogEvent::Output { id, data, .. }) => (id, data),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_went_away_finds_its_output_again() {
    let bench = bench().await;
    let id = bench.runtime.start_command("s", ExecRequest::shell("cat").piped()).await.unwrap();
    bench.runtime.write_command("s", &id, Bytes::from_static(b"one")).await.unwrap();
    let mut first = bench.runtime.follow_command("s", &id, None).unwrap();
    let (seen, data) = output(&mut first).await;
    assert_eq!(data, "one");
    drop(first);
    bench.runtime.write_command("s", &id, Bytes::from_static(b"two")).await.unwrap();
    bench.runtime.close_command_stdin("s", &id).unwrap();
    let mut second = bench.runtime.follow_command("s", &id, Some(seen)).unwrap();
    assert_eq!(output(&mut second).await.1, "two");
    let Some(LogEvent::Exit { exit, .. }) = second.next().await else { panic!("no end") };
    assert_eq!(exit.status, ExitStatus::Code(0));
    assert!(second.next().await.is_none());
    assert!(!bench.runtime.command("s", &id).unwrap().running);
}

#[tokio::test(start_paused = true)]
async fn a_followed_command_takes_signals_and_does_not_wait_for_the_queue() {
    let bench = bench().await;
    let runtime = bench.runtime.clone();
    let queued =
        tokio::spawn(async move { runtime.exec_in("s", ExecRequest::shell("sleep 60"), Bytes::new()).await });
    let id = bench.runtime.start_command("s", ExecRequest::shell("hang")).await.unwrap();
    bench.runtime.control_command("s", &id, ExecControl::Signal(2)).await.unwrap();
    let mut follower = bench.runtime.follow_command("s", &id, None).unwrap();
    let Some(LogEvent::Exit { exit, .. }) = follower.next().await else { panic!("no end") };
    assert_eq!(exit.status, ExitStatus::Signal(2));
    assert!(!queued.is_finished());
    queued.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn followed_commands_have_a_bound_and_unknown_ones_are_typed() {
    let bench = bench().await;
    for _ in 0..3 {
        bench.runtime.start_command("s", ExecRequest::shell("hang")).await.unwrap();
    }
    let error = bench.runtime.start_command("s", ExecRequest::shell("hang")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    let error = bench.runtime.command("s", &CommandId("99".to_owned())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ProcessNotFound);
    let error = bench.runtime.commands("nowhere").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SessionNotFound);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_session_is_told_to_whoever_follows() {
    let bench = bench().await;
    let id = bench.runtime.start_command("s", ExecRequest::shell("hang")).await.unwrap();
    let mut follower = bench.runtime.follow_command("s", &id, None).unwrap();
    bench.runtime.delete_session("s").await.unwrap();
    let Some(LogEvent::Failed { error, .. }) = follower.next().await else { panic!("no end") };
    assert_eq!(error.kind(), ErrorKind::SessionNotFound);
}
