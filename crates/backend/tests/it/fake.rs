//! The fake backend keeps the trait's contract.

use std::time::Duration;

use bytes::Bytes;
use sandcrate_backend::fake::{FakeBackend, FakeScript};
use sandcrate_backend::{
    Backend, BackendError, ExecControl, ExecRequest, ExitStatus, FileKind, FileReply, FileRequest, LimitHit,
    SessionId, SessionSpec, Strictness,
};
use tokio::time::Instant;

fn id(name: &str) -> SessionId {
    SessionId::new(name).unwrap()
}

async fn with_session(backend: &FakeBackend) -> SessionId {
    backend.start(SessionSpec::new(id("s"))).await.unwrap().id
}

fn request() -> ExecRequest {
    ExecRequest::shell("anything")
}

#[tokio::test]
async fn sessions_start_once_and_stop_twice() {
    let fake = FakeBackend::scripted([]);
    let session = with_session(&fake).await;
    assert!(fake.is_alive(&session).await);
    let again = fake.start(SessionSpec::new(session.clone())).await;
    assert!(matches!(again, Err(BackendError::SessionExists { .. })));
    fake.stop(&session).await.unwrap();
    fake.stop(&session).await.unwrap();
    assert!(!fake.is_alive(&session).await);
    let gone = fake.exec(&session, request()).await;
    assert!(matches!(gone, Err(BackendError::SessionNotFound { .. })));
    let calls = fake.calls();
    assert_eq!((calls.start, calls.stop, calls.exec), (2, 2, 1));
}

#[tokio::test(start_paused = true)]
async fn scripts_play_in_order_on_the_clock_of_tokio() {
    let script = FakeScript::new()
        .stdout("a")
        .wait(Duration::from_secs(5))
        .stderr("b")
        .stdout("c")
        .hitting(LimitHit::Pids { refused: 1, limit: 2 })
        .exit(7);
    let fake = FakeBackend::scripted([script]);
    let session = with_session(&fake).await;
    let result = fake.exec(&session, request()).await.unwrap().collect(10).await.unwrap();
    assert_eq!((&result.stdout[..], &result.stderr[..]), (&b"ac"[..], &b"b"[..]));
    assert_eq!(result.exit.status, ExitStatus::Code(7));
    assert_eq!(result.exit.usage.wall, Duration::from_secs(5));
    assert_eq!(result.exit.limits_hit.len(), 1);
    let next = fake.exec(&session, request()).await.unwrap().collect(10).await.unwrap();
    assert_eq!(next.exit.status, ExitStatus::Code(0), "after the list, commands just succeed");
}

#[tokio::test]
async fn a_chooser_sees_the_session_and_the_request() {
    let fake = FakeBackend::new(|session, request| {
        FakeScript::new().stdout(format!("{session} {}", request.program()))
    });
    let session = with_session(&fake).await;
    let execution = fake.exec(&session, ExecRequest::argv(["ls", "-l"])).await.unwrap();
    assert_eq!(&execution.collect(100).await.unwrap().stdout[..], b"s ls");
}

#[tokio::test(start_paused = true)]
async fn a_deadline_kills_and_keeps_the_output_so_far() {
    let fake = FakeBackend::scripted([FakeScript::new().stdout("so far").hang()]);
    let session = with_session(&fake).await;
    let begin = Instant::now();
    let execution = fake.exec(&session, request().timeout(Duration::from_secs(3))).await.unwrap();
    let result = execution.collect(100).await.unwrap();
    assert_eq!(begin.elapsed(), Duration::from_secs(3));
    assert!(result.exit.timed_out);
    assert_eq!((result.exit.status, &result.stdout[..]), (ExitStatus::Signal(9), &b"so far"[..]));
    assert!(fake.is_alive(&session).await);
}

#[tokio::test]
async fn signals_end_a_command_unless_it_ignores_them_and_a_kill_always_does() {
    let scripts = [FakeScript::new().hang(), FakeScript::new().ignoring_signals().hang()];
    let fake = FakeBackend::scripted(scripts);
    let session = with_session(&fake).await;

    let polite = fake.exec(&session, request()).await.unwrap();
    assert!(polite.control(ExecControl::Signal(15)).await);
    assert_eq!(polite.collect(0).await.unwrap().exit.status, ExitStatus::Signal(15));

    let stubborn = fake.exec(&session, request()).await.unwrap();
    assert!(stubborn.control(ExecControl::Signal(15)).await);
    assert!(stubborn.control(ExecControl::Kill).await);
    assert_eq!(stubborn.collect(0).await.unwrap().exit.status, ExitStatus::Signal(9));
}

#[tokio::test]
async fn standard_input_is_echoed_up_to_its_end() {
    let fake = FakeBackend::scripted([FakeScript::new().echo_stdin().stdout("!")]);
    let session = with_session(&fake).await;
    let mut execution = fake.exec(&session, request().piped()).await.unwrap();
    let stdin = execution.take_stdin().unwrap();
    stdin.send(Bytes::from_static(b"hello")).await.unwrap();
    drop(stdin);
    assert_eq!(&execution.collect(100).await.unwrap().stdout[..], b"hello!");
}

#[tokio::test]
async fn a_box_that_ends_fails_its_commands() {
    for stopped in [true, false] {
        let fake = FakeBackend::scripted([FakeScript::new().hang()]);
        let session = with_session(&fake).await;
        let execution = fake.exec(&session, request()).await.unwrap();
        if stopped {
            fake.stop(&session).await.unwrap();
        } else {
            fake.kill_box(&session, "init is gone");
        }
        let error = execution.collect(0).await.unwrap_err();
        assert!(matches!(error, BackendError::SessionEnded { .. }), "{error}");
        assert!(!fake.is_alive(&session).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_execution_ends_its_command() {
    let fake = FakeBackend::scripted([FakeScript::new().hang()]);
    let session = with_session(&fake).await;
    let execution = fake.exec(&session, request()).await.unwrap();
    let controller = execution.controller();
    drop(execution);
    controller.closed().await;
}

#[tokio::test]
async fn failures_can_be_asked_for_at_every_step() {
    let refusal = FakeScript::refused(BackendError::CommandNotFound { program: "x".into() });
    let fake = FakeBackend::scripted([refusal]);
    fake.set_unavailable(Some("switched off"));
    assert!(matches!(fake.probe().await, Err(BackendError::Unavailable { .. })));
    let start = fake.start(SessionSpec::new(id("s"))).await;
    assert!(matches!(start, Err(BackendError::Unavailable { .. })));
    fake.set_unavailable(None);
    fake.fail_next_start(BackendError::invalid("memory", "is too small"));
    let start = fake.start(SessionSpec::new(id("s"))).await;
    assert!(matches!(start, Err(BackendError::Invalid { .. })));

    let session = with_session(&fake).await;
    let failed = fake.exec(&session, request()).await.unwrap().collect(0).await;
    assert!(matches!(failed, Err(BackendError::CommandNotFound { .. })));
    let invalid = fake.exec(&session, request().env("A=B", "")).await;
    assert!(matches!(invalid, Err(BackendError::Invalid { .. })));
}

#[tokio::test]
async fn nothing_is_enforced_and_the_record_says_so() {
    let fake = FakeBackend::scripted([]);
    let info = fake.start(SessionSpec::new(id("s"))).await.unwrap();
    for control in sandcrate_protocol::Control::ALL {
        assert!(info.enforcement.get(control).is_some() && !info.enforcement.holds(control));
    }
    let strictness = Strictness::Require(vec![sandcrate_protocol::Control::Memory]);
    let strict = fake.start(SessionSpec { strictness, ..SessionSpec::new(id("t")) }).await;
    assert!(matches!(strict, Err(BackendError::Unenforceable { .. })));
}

#[tokio::test(start_paused = true)]
async fn of_two_slow_starts_of_one_id_exactly_one_wins() {
    let fake = FakeBackend::scripted([]).with_start_delay(Duration::from_secs(1));
    let (one, two) =
        tokio::join!(fake.start(SessionSpec::new(id("s"))), fake.start(SessionSpec::new(id("s"))));
    assert_eq!([one.is_ok(), two.is_ok()].iter().filter(|ok| **ok).count(), 1);
    fake.shutdown().await;
    assert!(fake.sessions().is_empty());
}

#[tokio::test]
async fn files_live_in_memory_per_session() {
    let fake = FakeBackend::scripted([]);
    let session = with_session(&fake).await;
    let ask = |request| fake.files(&session, request);
    let write = |path: &str, data: &'static [u8]| FileRequest::Write {
        path: path.to_owned(),
        data: Bytes::from_static(data),
    };
    ask(write("a/b.txt", b"0123456789")).await.unwrap();
    let part = FileRequest::Read { path: "/workspace/a/b.txt".into(), offset: 4, limit: 3 };
    let expected = FileReply::Data { data: Bytes::from_static(b"456"), file_bytes: 10 };
    assert_eq!(ask(part).await.unwrap(), expected);
    for data in [&b"ab"[..], b"c"] {
        let data = Bytes::from_static(data);
        ask(FileRequest::Append { path: "a/new/log".into(), data }).await.unwrap();
    }
    let whole = FileRequest::Read { path: "a/new/log".into(), offset: 0, limit: 9 };
    let expected = FileReply::Data { data: Bytes::from_static(b"abc"), file_bytes: 3 };
    assert_eq!(ask(whole).await.unwrap(), expected);
    ask(FileRequest::Remove { path: "a/new".into() }).await.unwrap();
    ask(FileRequest::Rename { from: "a".into(), to: "/tmp/c".into() }).await.unwrap();
    let FileReply::Entry(entry) = ask(FileRequest::Stat { path: "/tmp/c/b.txt".into() }).await.unwrap()
    else {
        panic!("a stat gives an entry");
    };
    assert_eq!((entry.name.as_str(), entry.kind, entry.bytes), ("b.txt", FileKind::File, 10));
    ask(FileRequest::MakeDir { path: "../../tmp/c/d".into() }).await.unwrap();
    let FileReply::Entries(entries) = ask(FileRequest::List { path: "/tmp/c".into() }).await.unwrap() else {
        panic!("a list gives entries");
    };
    let names: Vec<_> = entries.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["b.txt", "d"]);
    assert!(matches!(ask(write("/tmp/c", b"")).await, Err(BackendError::FileFailed { .. })));
    assert!(matches!(ask(write("/tmp/c/b.txt/x", b"")).await, Err(BackendError::FileFailed { .. })));
    ask(FileRequest::Remove { path: "/tmp/c".into() }).await.unwrap();
    let gone = ask(FileRequest::Read { path: "/tmp/c/b.txt".into(), offset: 0, limit: 1 }).await;
    assert!(matches!(gone, Err(BackendError::FileNotFound { .. })));
}

#[tokio::test]
async fn an_isolated_network_is_stored_reported_and_forwarded_to() {
    use sandcrate_backend::{Isolation, Network, NetworkReport};
    use sandcrate_protocol::ErrorKind;
    use sandcrate_protocol::network::{Counters, Policy};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let id = SessionId::new("s").unwrap();
    let mut spec = SessionSpec::new(id.clone());
    spec.network = Network::Isolated(Box::default());
    let without = FakeBackend::scripted([]);
    assert_eq!(without.start(spec.clone()).await.unwrap_err().kind(), ErrorKind::Unsupported);

    let backend = FakeBackend::scripted([]).with_network();
    backend.start(spec).await.unwrap();
    let isolation = Isolation { policy: Policy::public(), ..Isolation::default() };
    backend.set_network(&id, isolation.clone()).await.unwrap();
    assert_eq!(backend.spec(&id).unwrap().network, Network::Isolated(Box::new(isolation.clone())));
    let report = NetworkReport {
        counters: Counters { bytes_sent: 7, ..Counters::default() },
        ..NetworkReport::default()
    };
    backend.set_report(&id, report.clone());
    assert_eq!(backend.network(&id).await.unwrap(), report);

    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    backend.forward(&id, 80, theirs.into()).await.unwrap();
    ours.set_nonblocking(true).unwrap();
    let mut ours = tokio::net::UnixStream::from_std(ours).unwrap();
    ours.write_all(b"ping").await.unwrap();
    ours.shutdown().await.unwrap();
    let mut echoed = String::new();
    ours.read_to_string(&mut echoed).await.unwrap();
    assert_eq!(echoed, "ping");

    let plain = SessionId::new("plain").unwrap();
    backend.start(SessionSpec::new(plain.clone())).await.unwrap();
    assert_eq!(backend.network(&plain).await.unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(
        backend.set_network(&plain, Isolation::default()).await.unwrap_err().kind(),
        ErrorKind::Unsupported
    );
}
