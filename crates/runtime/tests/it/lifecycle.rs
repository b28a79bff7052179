//! Sessions: compatibility, mounts, limits, expiry, backends, the end.

use std::time::Duration;

use sandcrate_backend::{DiskLimit, SessionId};
use sandcrate_protocol::{ErrorKind, MountMode, MountSpec, NetworkMode, ProcessSpec};
use sandcrate_runtime::{BackendChoice, InitSource, OnTimeout, SessionOptions, SessionState};
use serde_json::json;

use crate::bench::Bench;

#[tokio::test(start_paused = true)]
async fn a_request_that_means_another_box_conflicts_by_the_first_differing_field() {
    let bench = Bench::new().await;
    let runtime = &bench.runtime;
    runtime.create_session(&Bench::spec("s", ""), SessionOptions::default()).await.unwrap();
    let mut other = Bench::spec("s", "echo hi");
    other.network = NetworkMode::On;
    other.cpus = 2.0;
    let error = runtime.exec(&other, OnTimeout::EndSession).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SessionConflict);
    assert_eq!(error.to_string(), "Box session s already exists with network=off");
}

#[tokio::test(start_paused = true)]
async fn the_specification_reaches_the_backend_whole() {
    let bench = Bench::new().await;
    let mut spec = Bench::spec("s", "");
    spec.memory_mb = 64;
    spec.cpus = 0.5;
    spec.pids_limit = 7;
    spec.workspace_quota_mb = 5;
    spec.mount_path = "/project".to_owned();
    spec.workdir = "/project/src".to_owned();
    bench.runtime.create_session(&spec, SessionOptions::default()).await.unwrap();
    let asked = bench.backend.spec(&SessionId::new("s").unwrap()).unwrap();
    assert_eq!((asked.limits.memory_bytes, asked.limits.cpu_millis, asked.limits.pids), (64 << 20, 500, 7));
    // The fake has no hard quota, so what is asked for is counted.
    assert_eq!(asked.limits.disk, DiskLimit::Accounted(5 << 20));
    assert_eq!((asked.workspace.as_str(), asked.workdir.as_str()), ("/project", "/project/src"));
}

#[tokio::test(start_paused = true)]
async fn l4_an_idle_session_is_ended_by_the_clock_alone() {
    let bench = Bench::new().await;
    bench.runtime.exec(&Bench::spec("s", "echo hi"), OnTimeout::EndSession).await.unwrap();
    tokio::time::sleep(Duration::from_secs(290)).await;
    assert_eq!(bench.runtime.sessions().len(), 1);
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(bench.runtime.sessions().is_empty() && bench.backend.sessions().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_session_that_works_or_holds_a_process_does_not_expire() {
    let bench = Bench::new().await;
    let runtime = bench.runtime.clone();
    let mut long = Bench::spec("busy", "sleep 1000");
    long.timeout_sec = 2000;
    let call = tokio::spawn(async move { runtime.exec(&long, OnTimeout::EndSession).await });
    bench.runtime.create_session(&Bench::spec("served", ""), SessionOptions::default()).await.unwrap();
    let mut spec = ProcessSpec::new("hang");
    spec.process_id = "p".to_owned();
    bench.runtime.start_process("served", &spec).await.unwrap();
    let options = SessionOptions { ttl: Some(Duration::from_secs(10)), ..SessionOptions::default() };
    bench.runtime.create_session(&Bench::spec("short", ""), options).await.unwrap();
    tokio::time::sleep(Duration::from_secs(900)).await;
    let mut left: Vec<_> = bench.runtime.sessions().into_iter().map(|view| view.info.session_id).collect();
    left.sort();
    assert_eq!(left, ["busy", "served"]);
    assert!(!call.await.unwrap().unwrap().collected.exit.timed_out);
    bench.runtime.stop_process("served", "p").await.unwrap();
    tokio::time::sleep(Duration::from_secs(400)).await;
    assert!(bench.runtime.sessions().is_empty());
}

#[tokio::test(start_paused = true)]
async fn s15_sessions_have_a_bound_that_says_its_name() {
    let bench = Bench::with(|config| config.limits.sessions = 2).await;
    for id in ["a", "b"] {
        bench.runtime.create_session(&Bench::spec(id, ""), SessionOptions::default()).await.unwrap();
    }
    let error =
        bench.runtime.create_session(&Bench::spec("c", ""), SessionOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert!(error.to_string().contains("limits.sessions"), "{error}");
    bench.runtime.delete_session("a").await.unwrap();
    bench.runtime.create_session(&Bench::spec("c", ""), SessionOptions::default()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn l14_other_mounts_remake_an_idle_box_and_conflict_with_a_busy_one() {
    let root = tempfile::tempdir().unwrap();
    let bench = Bench::with(|config| config.mount_roots = Some(vec![root.path().to_owned()])).await;
    let mount = |name: &str| {
        let host_path = root.path().join(name).to_str().unwrap().to_owned();
        MountSpec::new(host_path, format!("/mnt/{name}"), MountMode::Rw)
    };
    let mut spec = Bench::spec("s", "echo hi");
    bench.runtime.exec(&spec, OnTimeout::EndSession).await.unwrap();
    spec.extra_mounts = vec![mount("a")];
    bench.runtime.exec(&spec, OnTimeout::EndSession).await.unwrap();
    let asked = bench.backend.spec(&SessionId::new("s").unwrap()).unwrap();
    assert_eq!(asked.mounts.len(), 1, "the box has the mount");
    let started = bench.backend.calls().start;
    bench.runtime.exec(&spec, OnTimeout::EndSession).await.unwrap();
    assert_eq!(bench.backend.calls().start, started, "the same mounts change nothing");
    bench.runtime.start_process("s", &ProcessSpec::new("hang")).await.unwrap();
    spec.extra_mounts.push(mount("b"));
    let error = bench.runtime.exec(&spec, OnTimeout::EndSession).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SessionConflict);
    assert!(error.to_string().contains("extra_mounts"), "{error}");
}

/// What the application keeps in its own directory is for the sessions it makes with it, as it made them.
#[tokio::test(start_paused = true)]
async fn a_directory_of_the_applications_own_is_not_for_later_requests() {
    let place = tempfile::tempdir().unwrap();
    let own = place.path().join("own");
    for name in ["envs/a", "envs/b"] {
        std::fs::create_dir_all(own.join(name)).unwrap();
    }
    let bench = Bench::new().await;
    let mount = |name: &str| {
        let host_path = own.join(name).to_str().unwrap().to_owned();
        MountSpec::new(host_path, "/mnt/it", MountMode::Ro)
    };
    let options = SessionOptions { own_root: Some(own.clone()), ..SessionOptions::default() };
    let mut spec = Bench::spec("mcp-a", "echo hi");
    spec.extra_mounts = vec![mount("envs/a")];
    let refused = bench.runtime.create_session(&spec, SessionOptions::default()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied, "its name gives nobody anything");
    bench.runtime.create_session(&spec, options.clone()).await.unwrap();
    bench.runtime.exec(&spec, OnTimeout::EndCommand).await.unwrap();
    spec.extra_mounts = vec![mount("envs/b")];
    let refused = bench.runtime.exec(&spec, OnTimeout::EndCommand).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
    let mut whole = Bench::spec("mcp-b", "");
    whole.extra_mounts = vec![mount("envs")];
    let refused = bench.runtime.create_session(&whole, options).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied, "not all of it: {refused}");
}

#[tokio::test(start_paused = true)]
async fn mount_roots_come_from_a_known_langbot_where_the_operator_is_silent() {
    let root = tempfile::tempdir().unwrap();
    let bench = Bench::new().await;
    let mut spec = Bench::spec("s", "");
    spec.host_path = Some(root.path().join("ws").to_str().unwrap().to_owned());
    let refused = bench.runtime.create_session(&spec, SessionOptions::default()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied);
    let config = json!({"local": {"host_root": root.path()}});
    let stranger = InitSource { known: false, base_dir: "/".into() };
    bench.runtime.init(&config, &stranger).unwrap();
    assert!(bench.runtime.create_session(&spec, SessionOptions::default()).await.is_err());
    bench.runtime.init(&config, &InitSource { known: true, ..stranger }).unwrap();
    bench.runtime.create_session(&spec, SessionOptions::default()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_is_not_there_is_named_and_found_when_it_comes() {
    let bench = Bench::new().await;
    bench.backend.set_unavailable(Some("no daemon"));
    let status = bench.runtime.backend_status().await;
    assert_eq!((status.name, status.available), (None, false));
    let spec = Bench::spec("s", "echo hi");
    let error = bench.runtime.exec(&spec, OnTimeout::EndSession).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BackendUnavailable);
    assert!(error.to_string().starts_with("LangBot Box backend unavailable. "), "{error}");
    bench.backend.set_unavailable(None);
    bench.runtime.exec(&spec, OnTimeout::EndSession).await.unwrap();
    let status = bench.runtime.status().await;
    assert_eq!((status.backend.name.as_deref(), status.active_sessions), (Some("fake"), 1));
    let source = InitSource { known: true, base_dir: "/".into() };
    bench.runtime.init(&json!({"backend": "docker"}), &source).unwrap();
    let error = bench.runtime.exec(&Bench::spec("t", "echo hi"), OnTimeout::EndSession).await.unwrap_err();
    assert!(error.to_string().contains("`docker` is not a backend of this runtime"), "{error}");
    bench.runtime.exec(&spec, OnTimeout::EndSession).await.expect("a session keeps its backend");
}

#[tokio::test(start_paused = true)]
async fn l12_a_session_is_stopped_on_its_own_backend_whatever_is_chosen_by_then() {
    let bench = Bench::new().await;
    bench.runtime.exec(&Bench::spec("s", "echo hi"), OnTimeout::EndSession).await.unwrap();
    let source = InitSource { known: true, base_dir: "/".into() };
    bench.runtime.init(&json!({"backend": "nowhere"}), &source).unwrap();
    assert_eq!(bench.runtime.backend_status().await.name, None);
    bench.runtime.delete_session("s").await.unwrap();
    assert!(bench.backend.sessions().is_empty(), "the box is still there");
}

#[tokio::test(start_paused = true)]
async fn the_operators_backend_is_not_changed_by_langbot() {
    let bench = Bench::with(|config| config.backend = Some(BackendChoice::Named("fake".to_owned()))).await;
    let source = InitSource { known: true, base_dir: "/".into() };
    bench.runtime.init(&json!({"backend": "docker"}), &source).unwrap();
    bench.runtime.exec(&Bench::spec("s", "echo hi"), OnTimeout::EndSession).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_given_backend_is_not_looked_at_first_and_its_failure_is_told() {
    let bench = Bench::with(|config| config.backend = Some(BackendChoice::Given)).await;
    // The runtime looks out by itself, now and then.
    while bench.backend.calls().probe == 0 {
        tokio::task::yield_now().await;
    }
    let looks = bench.backend.calls().probe;
    bench.runtime.exec(&Bench::spec("s", "echo hi"), OnTimeout::EndSession).await.unwrap();
    assert_eq!(bench.backend.calls().probe, looks);
    bench.backend.set_unavailable(Some("it is gone"));
    let error = bench.runtime.exec(&Bench::spec("t", "echo hi"), OnTimeout::EndSession).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BackendUnavailable);
    assert!(error.to_string().contains("it is gone"), "{error}");
    assert!(!bench.runtime.backend_status().await.available);
}

#[tokio::test(start_paused = true)]
async fn end_sessions_spares_persistent_ones_and_the_runtime_goes_on() {
    let bench = Bench::new().await;
    let mut kept = Bench::spec("kept", "");
    kept.persistent = true;
    bench.runtime.create_session(&kept, SessionOptions::default()).await.unwrap();
    bench.runtime.create_session(&Bench::spec("gone", ""), SessionOptions::default()).await.unwrap();
    bench.runtime.end_sessions().await;
    let left: Vec<_> = bench.runtime.sessions().iter().map(|view| view.info.session_id.clone()).collect();
    assert_eq!(left, ["kept"]);
    bench.runtime.create_session(&Bench::spec("new", ""), SessionOptions::default()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_lets_commands_end_in_their_grace_and_refuses_new_ones() {
    let bench = Bench::new().await;
    let run = |id: &'static str, cmd: &'static str| {
        let runtime = bench.runtime.clone();
        tokio::spawn(async move {
            let mut spec = Bench::spec(id, cmd);
            spec.timeout_sec = 1000;
            runtime.exec(&spec, OnTimeout::EndSession).await
        })
    };
    let (short, long) = (run("short", "sleep 2"), run("long", "sleep 100"));
    while bench.backend.calls().exec < 2 {
        tokio::task::yield_now().await;
    }
    let runtime = bench.runtime.clone();
    let end = tokio::spawn(async move { runtime.shutdown(Duration::from_secs(5)).await });
    tokio::task::yield_now().await;
    let refused =
        bench.runtime.exec(&Bench::spec("new", "echo hi"), OnTimeout::EndSession).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::RuntimeUnavailable);
    assert!(short.await.unwrap().is_ok());
    assert_eq!(long.await.unwrap().unwrap_err().kind(), ErrorKind::SessionNotFound);
    end.await.unwrap();
    assert!(bench.backend.sessions().is_empty());
    assert_eq!(bench.backend.calls().shutdown, 1);
}

#[tokio::test(start_paused = true)]
async fn a_view_tells_the_state_and_the_labels() {
    let bench = Bench::new().await;
    let labels = [("team".to_owned(), "red".to_owned())].into();
    let options = SessionOptions { labels, ..SessionOptions::default() };
    let view = bench.runtime.create_session(&Bench::spec("s", ""), options).await.unwrap();
    assert_eq!((view.state, view.labels["team"].as_str()), (SessionState::Idle, "red"));
    assert!(view.enforcement.is_some());
    bench.runtime.start_process("s", &ProcessSpec::new("hang")).await.unwrap();
    let view = bench.runtime.session("s").unwrap();
    assert_eq!((view.state, view.processes.len()), (SessionState::Running, 1));
}

#[tokio::test(start_paused = true)]
async fn the_metrics_name_what_happened() {
    let bench = Bench::new().await;
    bench.runtime.exec(&Bench::spec("s", "echo hi"), OnTimeout::EndSession).await.unwrap();
    bench.runtime.status().await;
    let text = bench.runtime.metrics().render();
    for line in [
        "sandcrate_execs_total{outcome=\"completed\"} 1",
        "sandcrate_sessions 1",
        "sandcrate_output_bytes_total 3",
        "sandcrate_backend_up{backend=\"fake\"} 1",
        "sandcrate_session_start_duration_seconds_count 1",
    ] {
        assert!(text.contains(line), "{line} is missing in\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_backend_is_seen_by_itself_told_and_healed() {
    let bench = Bench::new().await;
    let spec = Bench::spec("s", "echo hi");
    bench.runtime.exec(&spec, OnTimeout::EndSession).await.unwrap();
    let up = |value: u8| format!("sandcrate_backend_up{{backend=\"fake\"}} {value}");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(bench.runtime.metrics().render().contains(&up(1)));
    bench.backend.set_unavailable(Some("the daemon was stopped"));
    bench.backend.kill_box(&SessionId::new("s").unwrap(), "with its daemon");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(bench.runtime.metrics().render().contains(&up(0)));
    let views = bench.runtime.backends().await;
    assert!(!views[0].available);
    assert!(views[0].why.as_ref().unwrap().contains("the daemon was stopped"), "{views:?}");
    let error = bench.runtime.exec(&spec, OnTimeout::EndSession).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BackendUnavailable, "a session of the lost backend: {error}");
    bench.backend.set_unavailable(None);
    bench.runtime.exec(&spec, OnTimeout::EndSession).await.expect("the session works again");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(bench.runtime.metrics().render().contains(&up(1)));
    assert!(bench.runtime.backend_status().await.available);
}

#[tokio::test(start_paused = true)]
async fn a_request_chooses_its_backend_where_the_operator_lets_it() {
    let chosen = |name: &str| SessionOptions { backend: Some(name.to_owned()), ..Default::default() };
    let closed = Bench::new().await;
    let error = closed.runtime.create_session(&Bench::spec("s", ""), chosen("fake")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().contains("runtime.request_backends"), "{error}");
    assert!(closed.runtime.sessions().is_empty());

    let names = || vec!["fake".to_owned(), "docker".to_owned()];
    let bench = Bench::with(|config| config.request_backends = names()).await;
    bench.runtime.create_session(&Bench::spec("s", ""), chosen("fake")).await.unwrap();
    bench.runtime.create_session(&Bench::spec("s", ""), SessionOptions::default()).await.unwrap();
    let error = bench.runtime.create_session(&Bench::spec("s", ""), chosen("docker")).await.unwrap_err();
    assert_eq!(error.to_string(), "Box session s already exists with backend=fake");
    let error = bench.runtime.create_session(&Bench::spec("t", ""), chosen("docker")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BackendUnavailable, "listed, and not there: {error}");
    let error = bench.runtime.create_session(&Bench::spec("t", ""), chosen("other")).await.unwrap_err();
    assert!(error.to_string().contains("fake, docker"), "{error}");
}
