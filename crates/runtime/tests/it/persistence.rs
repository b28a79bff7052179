//! Sessions that outlive their boxes and their runtime.

use std::sync::Arc;

use sandcrate_backend::SessionId;
use sandcrate_protocol::BoxSpec;
use sandcrate_runtime::{OnTimeout, Runtime, RuntimeConfig, SessionOptions, SessionState};

use crate::bench::Bench;

fn persistent(cmd: &str) -> BoxSpec {
    let mut spec = Bench::spec("p", cmd);
    spec.persistent = true;
    spec.env.insert("SECRET".to_owned(), "hunter2".to_owned());
    spec
}

#[tokio::test]
async fn l7_a_persistent_session_comes_back_with_its_files_after_a_restart() {
    let bench = Bench::new().await;
    bench.runtime.exec(&persistent("echo hi"), OnTimeout::EndSession).await.unwrap();
    bench.runtime.exec(&Bench::spec("other", "echo hi"), OnTimeout::EndSession).await.unwrap();
    let storage = bench.backend.spec(&SessionId::new("p").unwrap()).unwrap().storage.unwrap();
    let before = bench.runtime.session("p").unwrap().info;
    let state = Arc::clone(&bench.state);
    // As by kill -9: nothing is put away.
    drop(bench);
    let again = Bench::again(state).await;
    let views = again.runtime.sessions();
    assert_eq!(views.len(), 1, "others are gone");
    assert_eq!((views[0].state, views[0].info.created_at), (SessionState::Dormant, before.created_at));
    again.runtime.exec(&persistent("echo hi"), OnTimeout::EndSession).await.unwrap();
    let asked = again.backend.spec(&SessionId::new("p").unwrap()).unwrap();
    assert_eq!(asked.storage.unwrap(), storage, "the same files");
}

#[tokio::test]
async fn deleting_a_persistent_session_forgets_it_on_disk_too() {
    let bench = Bench::new().await;
    bench.runtime.exec(&persistent("echo hi"), OnTimeout::EndSession).await.unwrap();
    bench.runtime.delete_session("p").await.unwrap();
    let left = std::fs::read_dir(bench.state.path().join("sessions")).unwrap().count();
    assert_eq!(left, 0);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_ends_the_box_of_a_persistent_session_and_keeps_the_session() {
    let bench = Bench::new().await;
    let mut stuck = persistent("hang");
    stuck.timeout_sec = 1;
    bench.runtime.exec(&stuck, OnTimeout::EndSession).await.unwrap();
    assert_eq!(bench.runtime.session("p").unwrap().state, SessionState::Dormant);
    assert!(bench.backend.sessions().is_empty());
    bench.runtime.exec(&persistent("echo hi"), OnTimeout::EndSession).await.unwrap();
    assert_eq!(bench.runtime.session("p").unwrap().state, SessionState::Idle);
}

#[tokio::test]
async fn a_persistent_session_is_put_to_sleep_and_woken() {
    let bench = Bench::new().await;
    let id = SessionId::new("p").unwrap();
    bench.runtime.exec(&persistent("echo hi"), OnTimeout::EndSession).await.unwrap();
    let storage = bench.backend.spec(&id).unwrap().storage;
    bench.runtime.sleep_session("p").await.unwrap();
    assert_eq!(bench.runtime.session("p").unwrap().state, SessionState::Dormant);
    assert!(bench.backend.sessions().is_empty(), "its box is gone");
    bench.runtime.wake_session("p").await.unwrap();
    assert_eq!(bench.runtime.session("p").unwrap().state, SessionState::Idle);
    assert_eq!(bench.backend.spec(&id).unwrap().storage, storage, "the same files");
    bench.runtime.exec(&Bench::spec("other", "echo hi"), OnTimeout::EndSession).await.unwrap();
    let refused = bench.runtime.sleep_session("other").await.unwrap_err();
    assert!(refused.to_string().contains("not persistent"), "{refused}");
    assert_eq!(bench.runtime.session("other").unwrap().state, SessionState::Idle, "and goes on");
    assert!(bench.runtime.wake_session("nobody").await.is_err());
}

#[tokio::test]
async fn a_record_holds_no_environment() {
    let bench = Bench::new().await;
    bench.runtime.exec(&persistent("echo hi"), OnTimeout::EndSession).await.unwrap();
    let sessions = bench.state.path().join("sessions");
    let place = std::fs::read_dir(sessions).unwrap().next().unwrap().unwrap().path();
    let record = std::fs::read_to_string(place.join("record.json")).unwrap();
    assert!(record.contains("\"p\"") && !record.contains("hunter2"), "{record}");
}

#[tokio::test]
async fn a_second_runtime_on_the_same_state_is_refused() {
    let bench = Bench::new().await;
    let error = Runtime::open(RuntimeConfig::new(bench.state.path()), Vec::new()).await.unwrap_err();
    assert!(error.to_string().contains("in use by another runtime"), "{error}");
}

#[tokio::test]
async fn a_persistent_session_can_be_made_anew_with_another_specification_after_its_deletion() {
    let bench = Bench::new().await;
    bench.runtime.create_session(&persistent(""), SessionOptions::default()).await.unwrap();
    bench.runtime.delete_session("p").await.unwrap();
    bench.runtime.create_session(&Bench::spec("p", ""), SessionOptions::default()).await.unwrap();
    assert!(!bench.runtime.session("p").unwrap().info.persistent);
}
