//! The fold over a command's events.

use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use sandcrate_backend::{
    BackendError, Collected, ExecControl, ExecEvent, ExecExit, Execution, ExitStatus, SessionId, StdinMode,
    Stream,
};

fn exit(code: i32) -> ExecEvent {
    ExecEvent::Exit(ExecExit::new(ExitStatus::Code(code), false))
}

fn out(stream: Stream, data: &'static str) -> ExecEvent {
    ExecEvent::Output(stream, Bytes::from_static(data.as_bytes()))
}

async fn fold(events: Vec<ExecEvent>, keep: usize) -> Result<Collected, BackendError> {
    let (execution, ends) = Execution::channel(StdinMode::Closed);
    let feed = tokio::spawn(async move {
        for event in events {
            ends.events.send(event).await.unwrap();
        }
    });
    let folded = execution.collect(keep).await;
    feed.await.unwrap();
    folded
}

#[tokio::test]
async fn streams_are_kept_apart_and_in_order() {
    let events = vec![
        out(Stream::Stdout, "one "),
        out(Stream::Stderr, "oops"),
        out(Stream::Stdout, ""),
        out(Stream::Stdout, "two"),
        exit(3),
    ];
    let all = fold(events, 100).await.unwrap();
    assert_eq!((&all.stdout[..], &all.stderr[..]), (&b"one two"[..], &b"oops"[..]));
    assert_eq!((all.stdout_bytes, all.stderr_bytes), (7, 4));
    assert_eq!(all.exit.status, ExitStatus::Code(3));
}

#[tokio::test]
async fn only_the_first_bytes_are_kept_and_all_are_counted() {
    let events = || vec![out(Stream::Stdout, "12345"), out(Stream::Stdout, "67890"), exit(0)];
    for keep in [0, 1, 5, 7, 10, 11] {
        let all = fold(events(), keep).await.unwrap();
        assert_eq!(&all.stdout[..], &b"1234567890"[..keep.min(10)]);
        assert_eq!(all.stdout_bytes, 10);
    }
}

#[tokio::test]
async fn a_failure_is_the_result_whatever_was_written_before() {
    let session = SessionId::new("gone").unwrap();
    let failure = ExecEvent::Failed(BackendError::SessionEnded { session, why: "killed".into() });
    let error = fold(vec![out(Stream::Stdout, "partly"), failure], 100).await.unwrap_err();
    assert!(matches!(error, BackendError::SessionEnded { .. }), "{error}");
}

#[tokio::test]
async fn an_end_without_a_last_event_is_a_fault_of_the_backend() {
    let error = fold(vec![out(Stream::Stdout, "partly")], 100).await.unwrap_err();
    assert!(matches!(error, BackendError::Failed { .. }), "{error}");
}

#[tokio::test]
async fn collecting_ends_standard_input() {
    let (execution, mut ends) = Execution::channel(StdinMode::Piped);
    let command = tokio::spawn(async move {
        assert_eq!(ends.stdin.recv().await, None);
        ends.events.send(exit(0)).await.unwrap();
    });
    assert_eq!(execution.collect(0).await.unwrap().exit.status, ExitStatus::Code(0));
    command.await.unwrap();
}

#[tokio::test]
async fn closed_input_is_at_its_end_from_the_start() {
    let (mut execution, mut ends) = Execution::channel(StdinMode::Closed);
    assert!(execution.take_stdin().is_none());
    assert_eq!(ends.stdin.recv().await, None);
}

#[tokio::test]
async fn a_dropped_execution_is_noticed_even_while_a_controller_lives() {
    let (execution, ends) = Execution::channel(StdinMode::Closed);
    let controller = execution.controller();
    drop(execution);
    ends.events.closed().await;
    drop(ends);
    assert!(controller.send(ExecControl::Kill).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_does_not_read_is_felt_by_the_sender() {
    let (mut execution, ends) = Execution::channel(StdinMode::Closed);
    let mut queued = 0;
    let one = || ends.events.send(out(Stream::Stdout, "x"));
    while tokio::time::timeout(Duration::from_secs(1), one()).await.is_ok() {
        queued += 1;
        assert!(queued < 100, "the queue is bounded");
    }
    assert!(execution.next().await.is_some());
    assert!(tokio::time::timeout(Duration::from_secs(1), one()).await.is_ok());
}

#[test]
fn a_signal_shows_as_a_shell_shows_it() {
    assert_eq!(ExitStatus::Signal(9).shell_code(), 137);
    assert_eq!(ExitStatus::Code(7).shell_code(), 7);
}

proptest! {
    #[test]
    fn any_chunking_folds_to_the_same_result(
        chunks in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..40)), 0..30),
        keep in 0_usize..200,
    ) {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let mut events = Vec::new();
        for (to_stderr, data) in &chunks {
            let (stream, all) =
                if *to_stderr { (Stream::Stderr, &mut stderr) } else { (Stream::Stdout, &mut stdout) };
            all.extend_from_slice(data);
            events.push(ExecEvent::Output(stream, Bytes::copy_from_slice(data)));
        }
        events.push(exit(0));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let folded = runtime.block_on(fold(events, keep)).unwrap();
        prop_assert_eq!(&folded.stdout[..], &stdout[..keep.min(stdout.len())]);
        prop_assert_eq!(&folded.stderr[..], &stderr[..keep.min(stderr.len())]);
        prop_assert_eq!((folded.stdout_bytes, folded.stderr_bytes), (stdout.len() as u64, stderr.len() as u64));
    }
}
