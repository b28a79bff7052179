//! Managed processes and the line to them.

use std::time::Duration;

use bytes::Bytes;
use sandcrate_protocol::{ErrorKind, ProcessInfo, ProcessSpec, ProcessStatus};
use sandcrate_runtime::{InitSource, LogEvent, Placement, RelayEvent, SessionOptions};

use crate::bench::Bench;

async fn bench() -> Bench {
    let bench = Bench::new().await;
    bench.runtime.create_session(&Bench::spec("s", ""), SessionOptions::default()).await.unwrap();
    bench
}

fn process(id: &str, command: &str) -> ProcessSpec {
    let mut words = command.split(' ').map(str::to_owned);
    let mut spec = ProcessSpec::new(words.next().unwrap());
    spec.args = words.collect();
    spec.process_id = id.to_owned();
    spec
}

async fn exited(bench: &Bench, id: &str) -> ProcessInfo {
    ended(bench, "s", id).await
}

async fn ended(bench: &Bench, session: &str, id: &str) -> ProcessInfo {
    for _ in 0..1000 {
        let info = bench.runtime.process(session, id).unwrap();
        if info.status == ProcessStatus::Exited {
            return info;
        }
        tokio::task::yield_now().await;
    }
    panic!("process {id} does not end");
}

fn line(text: &str) -> RelayEvent {
    RelayEvent::Line(Bytes::copy_from_slice(text.as_bytes()))
}

#[tokio::test(start_paused = true)]
async fn lines_go_both_ways_and_a_second_attachment_is_a_conflict() {
    let bench = bench().await;
    let info = bench.runtime.start_process("s", &process("default", "cat")).await.unwrap();
    assert_eq!((info.status, info.attached), (ProcessStatus::Running, false));
    let mut first = bench.runtime.attach_process("s", "default", false).await.unwrap();
    assert!(bench.runtime.process("s", "default").unwrap().attached);
    first.writer.send_line(Bytes::from_static(b"ping")).await.unwrap();
    assert_eq!(first.reader.next().await, line("ping"));
    let error = bench.runtime.attach_process("s", "default", false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ProcessConflict, "P6: refused, not kept waiting");
    let runtime = bench.runtime.clone();
    let second = tokio::spawn(async move { runtime.attach_process("s", "default", true).await });
    tokio::task::yield_now().await;
    drop(first);
    let mut second = second.await.unwrap().unwrap();
    second.writer.send_line(Bytes::from_static(b"pong")).await.unwrap();
    // P12: the last line was handed out and never acknowledged, so it comes again.
    assert_eq!(second.reader.next().await, line("ping"));
    assert_eq!(second.reader.next().await, line("pong"));
}

#[tokio::test(start_paused = true)]
async fn lines_delivered_together_come_again_together_and_are_bounded() {
    let bench = bench().await;
    bench.runtime.start_process("s", &process("p", "cat")).await.unwrap();
    let mut first = bench.runtime.attach_process("s", "p", false).await.unwrap();
    assert_eq!(first.reader.another(), None, "nothing was said yet");
    first.writer.send_line(Bytes::from_static(b"one\ntwo\nthree\nfour")).await.unwrap();
    assert_eq!(first.reader.next().await, line("one"));
    assert_eq!(first.reader.next().await, line("two"));
    assert_eq!(first.reader.another(), Some(line("three")));
    drop(first);
    let mut second = bench.runtime.attach_process("s", "p", false).await.unwrap();
    assert_eq!(
        second.reader.next().await,
        line("two"),
        "the first was delivered, these two may not have been"
    );
    assert_eq!(second.reader.another(), Some(line("three")));
    assert_eq!(second.reader.another(), Some(line("four")));
    assert_eq!(second.reader.another(), None);
    second.writer.send_line(Bytes::from(vec![b'\n'; 1000])).await.unwrap();
    let mut lines = 0;
    while lines < 1001 {
        assert_eq!(second.reader.next().await, line(""));
        let together = 1 + std::iter::from_fn(|| second.reader.another()).count();
        assert!(together <= 256, "{together} at once");
        lines += together;
    }
    assert_eq!(lines, 1001, "none is lost between one delivery and the next");
}

#[tokio::test(start_paused = true)]
async fn p5_what_a_process_said_before_its_end_can_still_be_attached_once() {
    let bench = bench().await;
    bench.runtime.start_process("s", &process("p", "echo last words")).await.unwrap();
    exited(&bench, "p").await;
    let mut attached = bench.runtime.attach_process("s", "p", false).await.unwrap();
    assert_eq!(attached.reader.next().await, line("last words"));
    assert_eq!(attached.reader.next().await, RelayEvent::Exited { exit_code: Some(0) });
    drop(attached);
    let error = bench.runtime.attach_process("s", "p", false).await.unwrap_err();
    assert_eq!(error.to_string(), "managed process p in session s is not running");
}

#[tokio::test(start_paused = true)]
async fn p7_an_exited_process_always_has_its_code_and_time() {
    let bench = bench().await;
    bench.runtime.start_process("s", &process("p", "exit 3")).await.unwrap();
    let info = exited(&bench, "p").await;
    assert_eq!(info.exit_code, Some(3));
    assert!(info.exited_at.is_some());
}

#[tokio::test(start_paused = true)]
async fn the_same_id_replaces_the_process_and_stop_forgets_it() {
    let bench = bench().await;
    bench.runtime.start_process("s", &process("p", "hang")).await.unwrap();
    bench.runtime.start_process("s", &process("p", "stubborn")).await.unwrap();
    assert_eq!(bench.runtime.processes("s").unwrap().len(), 1);
    let began = tokio::time::Instant::now();
    bench.runtime.stop_process("s", "p").await.unwrap();
    assert_eq!(began.elapsed(), Duration::from_secs(5), "a stubborn one is killed after its grace");
    let error = bench.runtime.process("s", "p").unwrap_err();
    assert_eq!(error.to_string(), "session s has no managed process with process_id=p");
}

#[tokio::test(start_paused = true)]
async fn output_waits_for_its_reader_and_a_flood_costs_bounded_memory() {
    let bench = bench().await;
    bench.runtime.start_process("s", &process("p", "flood")).await.unwrap();
    exited(&bench, "p").await;
    let mut log = bench.runtime.process_log("s", "p").unwrap();
    let (mut kept, mut ended) = (0, false);
    while let Some(event) = log.next().await {
        match event {
            LogEvent::Output { data, .. } => kept += data.len(),
            LogEvent::Exit { .. } => ended = true,
            other => panic!("{other:?}"),
        }
    }
    assert!(ended && kept == 1 << 20, "{kept}");
}

#[tokio::test(start_paused = true)]
async fn stderr_is_shown_with_the_process() {
    let bench = bench().await;
    bench.runtime.start_process("s", &process("p", "complain about everything")).await.unwrap();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(bench.runtime.process("s", "p").unwrap().stderr_preview, "about everything");
}

#[tokio::test(start_paused = true)]
async fn p10_processes_have_a_bound_and_ended_ones_are_forgotten_beyond_theirs() {
    let bench = Bench::with(|config| {
        config.limits.processes = 2;
        config.limits.exited_processes = 3;
    })
    .await;
    bench.runtime.create_session(&Bench::spec("s", ""), SessionOptions::default()).await.unwrap();
    for id in ["a", "b"] {
        bench.runtime.start_process("s", &process(id, "hang")).await.unwrap();
    }
    let error = bench.runtime.start_process("s", &process("c", "hang")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    bench.runtime.stop_process("s", "b").await.unwrap();
    for number in 0..10 {
        bench.runtime.start_process("s", &process(&format!("e{number}"), "exit 0")).await.unwrap();
        exited(&bench, &format!("e{number}")).await;
    }
    bench.runtime.start_process("s", &process("last", "hang")).await.unwrap();
    let left: Vec<_> =
        bench.runtime.processes("s").unwrap().into_iter().map(|info| info.process_id).collect();
    assert_eq!(left, ["a", "e7", "e8", "e9", "last"]);
}

#[tokio::test(start_paused = true)]
async fn ended_processes_of_workspaces_are_forgotten_by_number_and_age() {
    let bench = Bench::new().await;
    let source = InitSource { known: true, base_dir: "/".into() };
    let limits = serde_json::json!({"max_completed_processes": 2, "completed_process_retention_sec": 60});
    bench.runtime.init(&serde_json::json!({ "limits": limits }), &source).unwrap();
    let sessions = [("w1", "a"), ("w2", "b")]
        .map(|(workspace, id)| Placement::new("i", workspace, 1).physical(id).unwrap());
    let (one, two, plain) = (sessions[0].as_str(), sessions[1].as_str(), "s");
    for id in [one, two, plain] {
        bench.runtime.create_session(&Bench::spec(id, ""), SessionOptions::default()).await.unwrap();
    }
    let names = |id: &str| -> Vec<String> {
        bench.runtime.processes(id).unwrap().into_iter().map(|info| info.process_id).collect()
    };
    for (session, id) in [(one, "e1"), (two, "e2"), (plain, "e3"), (one, "e4")] {
        bench.runtime.start_process(session, &process(id, "exit 0")).await.unwrap();
        ended(&bench, session, id).await;
        tokio::time::advance(Duration::from_millis(10)).await;
    }
    bench.runtime.start_process(two, &process("live", "hang")).await.unwrap();
    assert_eq!((names(one), names(two)), (vec!["e4".to_owned()], vec!["e2".to_owned(), "live".to_owned()]));
    // The reaper looks every few seconds.
    tokio::time::sleep(Duration::from_secs(70)).await;
    assert_eq!((names(one), names(two)), (vec![], vec!["live".to_owned()]));
    assert_eq!(names(plain), ["e3"], "sessions without a workspace keep theirs by number alone");
}

#[tokio::test(start_paused = true)]
async fn a_bound_of_memory_that_nothing_holds_is_refused() {
    let bench = bench().await;
    let mut spec = process("p", "hang");
    spec.memory_mb = 64;
    let error = bench.runtime.start_process("s", &spec).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unenforceable);
    assert!(error.to_string().contains("memory_mb"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn deleting_the_session_ends_its_processes_and_their_relay() {
    let bench = bench().await;
    bench.runtime.start_process("s", &process("p", "hang")).await.unwrap();
    let mut attached = bench.runtime.attach_process("s", "p", false).await.unwrap();
    bench.runtime.delete_session("s").await.unwrap();
    assert_eq!(attached.reader.next().await, RelayEvent::Exited { exit_code: None });
    let error = attached.writer.send_line(Bytes::from_static(b"x")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ProcessConflict);
}
