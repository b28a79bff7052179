//! What an endpoint can do to its client, told by the mock.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sandcrate_backend::{Backend, ExecEvent, ExecRequest, ExitStatus, SessionSpec, Strictness};
use sandcrate_backend_e2b::{E2bBackend, E2bConfig, E2bSettings};
use sandcrate_e2b_wire::connect::Code;
use sandcrate_protocol::{Control, ErrorKind, State};
use serde_json::json;

use crate::golden::{open, spec};
use crate::mock::{Mock, Play};

pub(crate) async fn an_endpoint_of_before_is_asked_by_its_own_address() {
    let state = tempfile::tempdir().unwrap();
    let mock = Mock::start().await;
    mock.endpoint.old.store(true, Ordering::Release);
    let backend = open(&mock, state.path()).await;
    backend.start(spec("old")).await.unwrap();
    assert_eq!(mock.calls("POST", "/sandboxes").len(), 1);
    backend.shutdown().await;
}

pub(crate) async fn what_is_missing_is_said_by_the_probe_and_a_client_can_bring_it() {
    let state = tempfile::tempdir().unwrap();
    let mock = Mock::start().await;
    let config = E2bConfig { environment: E2bSettings::default(), ..E2bConfig::new(state.path()) };
    let backend = E2bBackend::open(config).await.unwrap();
    let missing = backend.probe().await.unwrap_err();
    assert!(missing.to_string().contains("E2B_API_KEY"), "{missing}");
    let section = |key: &str| {
        let pairs = [("api_key", key), ("api_url", mock.url.as_str()), ("template", "")];
        pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into_iter().collect::<BTreeMap<_, _>>()
    };
    backend.configure(&section("refused"));
    let refused = backend.probe().await.unwrap_err();
    assert!(refused.to_string().contains("does not take the API key"), "{refused}");
    assert_eq!(backend.start(spec("x")).await.unwrap_err().kind(), ErrorKind::BackendUnavailable);
    backend.configure(&section("fine"));
    backend.probe().await.unwrap();
    backend.start(spec("x")).await.unwrap();
    assert_eq!(mock.last_key().as_deref(), Some("fine"));
    backend.shutdown().await;
}

pub(crate) async fn a_stream_that_is_cut_is_taken_up_again() {
    let state = tempfile::tempdir().unwrap();
    let mock = Mock::start().await;
    mock.play(|_| Some(Play::IsCut { before: "one ", after: "two" }));
    let backend = open(&mock, state.path()).await;
    let id = backend.start(spec("cut")).await.unwrap().id;
    let done = backend.exec(&id, ExecRequest::shell("long")).await.unwrap().collect(1 << 20).await.unwrap();
    assert_eq!(&done.stdout[..], b"one two");
    assert_eq!(done.exit.status, ExitStatus::Code(0));
    assert_eq!(mock.calls("POST", "/process.Process/Connect").len(), 1);
    backend.shutdown().await;
}

pub(crate) async fn a_deadline_kills_the_program_and_what_it_started() {
    let state = tempfile::tempdir().unwrap();
    let mock = Mock::start().await;
    mock.play(|_| Some(Play::Hangs));
    let backend = open(&mock, state.path()).await;
    let id = backend.start(spec("slow")).await.unwrap().id;
    let request = ExecRequest::shell("sleep 60").timeout(Duration::from_millis(300));
    let done = backend.exec(&id, request).await.unwrap().collect(1 << 20).await.unwrap();
    assert!(done.exit.timed_out);
    assert_eq!(done.exit.status, ExitStatus::Signal(9));
    let signals = mock.calls("POST", "/process.Process/SendSignal");
    assert_eq!(signals[0]["signal"], "SIGNAL_SIGKILL");
    // An endpoint that is none of ours ends one process: the rest is found by its mark.
    let mark = mock.commands()[0]["process"]["envs"]["SANDCRATE_COMMAND"].as_str().unwrap().to_owned();
    let starts = mock.calls("POST", "/process.Process/Start");
    let swept =
        |start: &serde_json::Value| start["process"]["args"][3] == format!("SANDCRATE_COMMAND={mark}");
    assert!(starts.iter().any(swept), "nobody looked for what the program started");
    backend.shutdown().await;
}

pub(crate) async fn what_does_not_start_is_told_in_our_words() {
    let state = tempfile::tempdir().unwrap();
    let mock = Mock::start().await;
    mock.play(|start| {
        Some(match start.process.cmd.as_str() {
            "none" => Play::Fails(
                Code::InvalidArgument,
                "error starting process: fork/exec none: no such file or directory",
            ),
            "closed" => Play::Fails(
                Code::InvalidArgument,
                "error starting process: fork/exec closed: permission denied",
            ),
            _ => Play::Fails(Code::ResourceExhausted, "too many processes"),
        })
    });
    let backend = open(&mock, state.path()).await;
    let id = backend.start(spec("words")).await.unwrap().id;
    for (program, kind) in [
        ("none", ErrorKind::CommandNotFound),
        ("closed", ErrorKind::CommandNotExecutable),
        ("many", ErrorKind::LimitExceeded),
    ] {
        let error = backend.exec(&id, ExecRequest::argv([program])).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{program}: {error}");
    }
    let bounded = backend.exec(&id, ExecRequest::shell("true").memory(1 << 20)).await.unwrap_err();
    assert_eq!(bounded.kind(), ErrorKind::Unenforceable);
    backend.shutdown().await;
}

pub(crate) async fn a_sandbox_that_dies_ends_its_session() {
    let state = tempfile::tempdir().unwrap();
    let mock = Mock::start().await;
    mock.play(|_| Some(Play::Hangs));
    let backend = open(&mock, state.path()).await;
    let id = backend.start(spec("dying")).await.unwrap().id;
    assert!(backend.is_alive(&id).await);
    let mut running = backend.exec(&id, ExecRequest::shell("sleep 60")).await.unwrap();
    mock.die();
    assert!(!backend.is_alive(&id).await);
    let last =
        tokio::time::timeout(Duration::from_secs(20), running.next()).await.expect("the command hears of it");
    assert!(
        matches!(&last, Some(ExecEvent::Failed(error)) if error.kind() == ErrorKind::SessionNotFound),
        "{last:?}"
    );
    backend.shutdown().await;
}

pub(crate) async fn what_cannot_be_held_is_in_the_record_and_refused_where_it_is_required() {
    let state = tempfile::tempdir().unwrap();
    let mock = Mock::start().await;
    let backend = open(&mock, state.path()).await;
    let info = backend.start(spec("record")).await.unwrap();
    let memory = info.enforcement.get(Control::Memory).unwrap();
    assert_eq!(memory.state, State::Degraded);
    assert!(memory.by.contains("by the template") && memory.by.contains("512 MiB"), "{}", memory.by);
    assert!(info.enforcement.holds(Control::Network), "the endpoint says that there is none");
    let strict = SessionSpec { strictness: Strictness::Require(vec![Control::Memory]), ..spec("strict") };
    assert_eq!(backend.start(strict).await.unwrap_err().kind(), ErrorKind::Unenforceable);
    assert_eq!(mock.calls("DELETE", "/sandboxes/sbx-1").len(), 1, "the sandbox of a refused start is left");
    backend.shutdown().await;
}

pub(crate) async fn a_sweep_ends_sandboxes_of_dead_servers_of_this_state_and_no_others() {
    let state = tempfile::tempdir().unwrap();
    let mock = Mock::start().await;
    let backend = open(&mock, state.path()).await;
    let id = backend.start(spec("mine")).await.unwrap().id;
    let metadata = mock.calls("POST", "/v2/sandboxes").pop().unwrap()["metadata"].clone();
    let listed = |id: &str, metadata: &serde_json::Value| {
        json!({
            "templateID": "t", "sandboxID": id, "clientID": "mock", "startedAt": "2026-01-01T00:00:00Z",
            "endAt": "2026-01-01T00:05:00Z", "cpuCount": 1, "memoryMB": 1, "diskSizeMB": 1, "state": "running",
            "envdVersion": "0.6.6", "metadata": metadata,
        })
    };
    let mut dead = metadata.clone();
    dead["sandcrate.owner"] = json!("0000000000000000");
    let mut other = dead.clone();
    other["sandcrate.instance"] = json!("somebody-elses");
    // The one at the start has had its list, and would end the same sandbox.
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while mock.calls("GET", "/v2/sandboxes").is_empty() {
        assert!(tokio::time::Instant::now() < deadline, "nothing is swept at the start");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    *mock.endpoint.listed.lock().unwrap() = vec![
        listed("sbx-1", &metadata),
        listed("dead", &dead),
        listed("others", &other),
        listed("unmarked", &json!({})),
    ];
    assert_eq!(backend.sweep().await.unwrap().cgroups, 1);
    assert_eq!(mock.calls("DELETE", "/sandboxes/dead").len(), 1);
    for spared in ["sbx-1", "others", "unmarked"] {
        assert!(mock.calls("DELETE", &format!("/sandboxes/{spared}")).is_empty(), "{spared} was ended");
    }
    assert!(backend.is_alive(&id).await);
    backend.shutdown().await;
}

/// Also where nobody brings a key: then it has left no sandboxes that could be asked for.
pub(crate) async fn what_a_dead_server_left_goes_without_a_key() {
    let state = tempfile::tempdir().unwrap();
    let part = state.path().join("e2b");
    std::fs::create_dir_all(part.join("0000000000000000")).unwrap();
    std::fs::write(part.join("0000000000000000.lock"), "").unwrap();
    std::fs::write(part.join("kept.json"), "{}").unwrap();
    let config = E2bConfig { environment: E2bSettings::default(), ..E2bConfig::new(state.path()) };
    let backend = E2bBackend::open(config).await.unwrap();
    // The one at the start may have been first.
    backend.sweep().await.unwrap();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while part.join("0000000000000000").exists() || part.join("0000000000000000.lock").exists() {
        assert!(tokio::time::Instant::now() < deadline, "what a dead server left is there");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(part.join("kept.json").exists(), "what is somebody else's");
    backend.shutdown().await;
}
