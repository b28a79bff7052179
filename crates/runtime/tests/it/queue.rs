//! Collected commands: creation once, order, timeouts.

use std::time::Duration;

use bytes::Bytes;
use sandcrate_backend::{BackendError, ExecRequest};
use sandcrate_protocol::ErrorKind;
use sandcrate_runtime::OnTimeout;
use tokio::time::Instant;

use crate::bench::Bench;

#[tokio::test(start_paused = true)]
async fn a_session_is_made_once_however_many_ask_at_the_same_time() {
    let bench = Bench::slow_start(Duration::from_secs(1)).await;
    let calls = (0..50).map(|_| {
        let runtime = bench.runtime.clone();
        tokio::spawn(async move { runtime.exec(&Bench::spec("s", "echo hi"), OnTimeout::EndSession).await })
    });
    for call in calls.collect::<Vec<_>>() {
        let outcome = call.await.unwrap().unwrap();
        assert_eq!(outcome.collected.stdout, "hi\n");
    }
    assert_eq!((bench.backend.calls().start, bench.backend.calls().exec), (1, 50));
}

#[tokio::test(start_paused = true)]
async fn everybody_who_waited_for_a_failed_creation_hears_of_it_and_the_next_tries_again() {
    let bench = Bench::slow_start(Duration::from_secs(1)).await;
    bench.backend.fail_next_start(BackendError::invalid("image", "is nowhere"));
    let calls: Vec<_> = (0..5)
        .map(|_| {
            let runtime = bench.runtime.clone();
            tokio::spawn(
                async move { runtime.exec(&Bench::spec("s", "echo hi"), OnTimeout::EndSession).await },
            )
        })
        .collect();
    for call in calls {
        let error = call.await.unwrap().unwrap_err();
        assert_eq!((error.kind(), error.to_string()), (ErrorKind::Validation, "image is nowhere".to_owned()));
    }
    assert_eq!(bench.backend.calls().start, 1);
    assert!(bench.runtime.session("s").is_err(), "a session that never was is not listed");
    bench.runtime.exec(&Bench::spec("s", "echo hi"), OnTimeout::EndSession).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn commands_of_one_session_queue_and_of_two_do_not() {
    let bench = Bench::new().await;
    let began = Instant::now();
    let run = |id: &'static str| {
        let runtime = bench.runtime.clone();
        tokio::spawn(async move { runtime.exec(&Bench::spec(id, "sleep 5"), OnTimeout::EndSession).await })
    };
    let (first, second, other) = (run("a"), run("a"), run("b"));
    other.await.unwrap().unwrap();
    assert_eq!(began.elapsed().as_secs(), 5);
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
    assert_eq!(began.elapsed().as_secs(), 10, "the second waits for the first, on its own clock");
}

#[tokio::test(start_paused = true)]
async fn a_command_with_input_waits_for_its_turn_like_any_other() {
    let bench = Bench::new().await;
    let runtime = bench.runtime.clone();
    let began = Instant::now();
    let first =
        tokio::spawn(async move { runtime.exec(&Bench::spec("s", "sleep 5"), OnTimeout::EndSession).await });
    tokio::task::yield_now().await;
    let input = Bytes::from("some words ".repeat(20_000));
    let request = ExecRequest::shell("cat").piped();
    let outcome = bench.runtime.exec_in("s", request, input.clone()).await.unwrap();
    assert_eq!(began.elapsed().as_secs(), 5);
    assert!(outcome.collected.stdout == input, "{} bytes", outcome.collected.stdout_bytes);
    first.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn l1_a_command_queued_behind_a_timeout_runs_in_a_new_box() {
    let bench = Bench::new().await;
    let mut stuck = Bench::spec("s", "hang");
    stuck.timeout_sec = 3;
    let runtime = bench.runtime.clone();
    let first = tokio::spawn(async move { runtime.exec(&stuck, OnTimeout::EndSession).await });
    tokio::task::yield_now().await;
    let second = bench.runtime.exec(&Bench::spec("s", "echo after"), OnTimeout::EndSession).await.unwrap();
    assert!(first.await.unwrap().unwrap().collected.exit.timed_out);
    assert_eq!(second.collected.stdout, "after\n");
    assert_eq!((bench.backend.calls().start, bench.backend.calls().stop), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_timeout_ends_the_session_only_by_langbots_contract() {
    let bench = Bench::new().await;
    let mut stuck = Bench::spec("s", "hang");
    stuck.timeout_sec = 3;
    let outcome = bench.runtime.exec(&stuck, OnTimeout::EndCommand).await.unwrap();
    assert!(outcome.collected.exit.timed_out && bench.runtime.session("s").is_ok());
    bench.runtime.exec(&stuck, OnTimeout::EndSession).await.unwrap();
    assert_eq!(bench.runtime.session("s").unwrap_err().to_string(), "session s not found");
    assert!(bench.backend.sessions().is_empty());
}

#[tokio::test(start_paused = true)]
async fn l2_a_command_whose_session_is_deleted_is_an_error_and_not_a_result() {
    let bench = Bench::new().await;
    let runtime = bench.runtime.clone();
    let call =
        tokio::spawn(async move { runtime.exec(&Bench::spec("s", "hang"), OnTimeout::EndSession).await });
    while bench.backend.calls().exec == 0 {
        tokio::task::yield_now().await;
    }
    bench.runtime.delete_session("s").await.unwrap();
    let error = call.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SessionNotFound);
    assert_eq!(error.to_string(), "session s ended while the command ran: it was deleted");
}

#[tokio::test(start_paused = true)]
async fn l3_a_late_timeout_does_not_hit_a_successor_of_the_same_name() {
    let bench = Bench::new().await;
    let runtime = bench.runtime.clone();
    let stuck = tokio::spawn(async move {
        let mut spec = Bench::spec("s", "hang");
        spec.timeout_sec = 3;
        runtime.exec(&spec, OnTimeout::EndSession).await
    });
    while bench.backend.calls().exec == 0 {
        tokio::task::yield_now().await;
    }
    bench.runtime.delete_session("s").await.unwrap();
    bench.runtime.exec(&Bench::spec("s", "echo hi"), OnTimeout::EndSession).await.unwrap();
    let successor = bench.runtime.session("s").unwrap().info.backend_session_id;
    stuck.await.unwrap().unwrap_err();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(bench.runtime.session("s").unwrap().info.backend_session_id, successor);
}

#[tokio::test(start_paused = true)]
async fn l13_a_dead_box_is_replaced_before_the_next_command() {
    let bench = Bench::new().await;
    let spec = Bench::spec("s", "echo hi");
    bench.runtime.exec(&spec, OnTimeout::EndSession).await.unwrap();
    let first = bench.runtime.session("s").unwrap().info;
    bench.backend.kill_box(&sandcrate_backend::SessionId::new("s").unwrap(), "struck by lightning");
    bench.runtime.exec(&spec, OnTimeout::EndSession).await.unwrap();
    let second = bench.runtime.session("s").unwrap().info;
    assert_ne!(first.backend_session_id, second.backend_session_id);
    assert_eq!(first.created_at, second.created_at, "it is the same session");
}

#[tokio::test(start_paused = true)]
async fn the_queue_has_a_bound_that_says_its_name() {
    let bench = Bench::with(|config| config.limits.queued_commands = 2).await;
    let run = || {
        let runtime = bench.runtime.clone();
        tokio::spawn(async move { runtime.exec(&Bench::spec("s", "sleep 5"), OnTimeout::EndSession).await })
    };
    let calls = [run(), run(), run()];
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    let error = run().await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert!(error.to_string().contains("limits.queued_commands"), "{error}");
    for call in calls {
        call.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn output_is_kept_to_the_limit_and_counted_to_the_end() {
    let bench = Bench::new().await;
    let outcome = bench.runtime.exec(&Bench::spec("s", "flood"), OnTimeout::EndSession).await.unwrap();
    assert_eq!(outcome.collected.stdout.len(), 1 << 20);
    assert_eq!(outcome.collected.stdout_bytes, 40 * (64 << 10));
}

#[tokio::test(start_paused = true)]
async fn an_empty_command_is_refused_before_anything_starts() {
    let bench = Bench::new().await;
    let error = bench.runtime.exec(&Bench::spec("s", "  "), OnTimeout::EndSession).await.unwrap_err();
    assert_eq!(error.to_string(), "cmd must not be empty");
    assert_eq!(bench.backend.calls().start, 0);
}
