use std::time::Duration;

use rmcp::model::CallToolRequestParams;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::fake::{Fake, Script};
use super::*;
use crate::{Life, Phase, PhaseError};

const SERVE: Script = Script::Serve(&["echo", "fail", "slow", "steps", "picture"]);

fn entry() -> Registration {
    Registration::new("server", ["--flag"])
}

fn manager(fake: &Arc<Fake>, servers: &[(&str, Registration)]) -> Manager {
    let servers = servers.iter().map(|(name, entry)| ((*name).to_owned(), entry.clone())).collect();
    let manager =
        Manager::new(fake.clone(), McpConfig { servers, ..McpConfig::default() }, None, BTreeMap::new());
    manager.begin();
    manager
}

/// Waits, in the clock of the test, until it holds.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(3600);
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn info(manager: &Manager) -> RuntimeInfo {
    manager.show("a").unwrap().runtime_info
}

async fn status(manager: &Manager, wanted: Status) -> RuntimeInfo {
    until(wanted.as_str(), || info(manager).status == wanted).await;
    info(manager)
}

#[tokio::test(start_paused = true)]
async fn a_server_is_connected_with_all_its_pages_of_tools() {
    let fake = Fake::new([SERVE]);
    let manager = manager(&fake, &[("a", entry())]);
    let info = status(&manager, Status::Connected).await;
    let tool = |name: &str| json!({"name": name, "description": "", "parameters": {"type": "object", "required": ["x"]}});
    let tools = ["echo", "fail", "slow", "steps", "picture"].map(tool);
    let expected = json!({
        "status": "connected", "error_message": null, "error_phase": null, "retry_count": 0, "tool_count": 5,
        "tools": tools,
        "box_session_id": "mcp-a", "box_enabled": true,
    });
    assert_eq!(serde_json::to_value(&info).unwrap(), expected);
    assert_eq!(manager.show("a").unwrap().doing, None);
    manager.shutdown().await;
    assert_eq!(info_after_shutdown(&manager), (Status::Stopped, 0));
    assert_eq!(fake.count("clean_up mcp-a"), 1);
}

fn info_after_shutdown(manager: &Manager) -> (Status, usize) {
    let info = info(manager);
    (info.status, info.tool_count)
}

#[tokio::test(start_paused = true)]
async fn each_failed_attempt_is_cleaned_up_once_and_four_are_the_end() {
    let fake = Fake::new([Script::Fail(Phase::DepInstall, "no pip")]);
    let began = Instant::now();
    let manager = manager(&fake, &[("a", entry())]);
    let info = status(&manager, Status::Error).await;
    assert_eq!(began.elapsed().as_secs(), 14, "2 + 4 + 8 seconds");
    assert_eq!(info.error_message.as_deref(), Some("Failed after 4 attempts: dep_install: no pip"));
    assert_eq!((info.error_phase, info.retry_count), (Some(Phase::DepInstall), 4));
    assert_eq!((fake.count("start"), fake.count("clean_up")), (4, 4));
    assert_eq!(manager.log("a").await.unwrap(), "last words of a\n");
    manager.shutdown().await;
    assert_eq!(fake.count("clean_up"), 4, "nothing is left to clean");
}

#[tokio::test(start_paused = true)]
async fn a_test_of_a_failed_server_starts_it_afresh() {
    let fail = Script::Fail(Phase::ProcessStart, "x");
    let fake = Fake::new([fail.clone(), fail.clone(), fail.clone(), fail, SERVE]);
    let manager = manager(&fake, &[("a", entry())]);
    status(&manager, Status::Error).await;
    let report = manager.test("a").await.unwrap();
    assert!(report.ok, "{report:?}");
    assert_eq!((report.runtime_info.status, report.runtime_info.retry_count), (Status::Connected, 0));
    assert_eq!(report.runtime_info.error_message, None);
    let again = manager.test("a").await.unwrap();
    assert!(again.ok && fake.count("start") == 5, "a connected one lists its tools again");
    manager.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_mute_or_silent_fails_in_its_handshake() {
    let fake = Fake::new([Script::Mute]);
    let one = manager(&fake, &[("a", entry())]);
    let info = status(&one, Status::Error).await;
    assert_eq!(info.error_phase, Some(Phase::McpInit));
    one.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_start_that_takes_too_long_is_said_and_goes_on() {
    let fake = Fake::new([Script::Hang]);
    let manager = manager(&fake, &[("a", entry())]);
    let report = manager.test("a").await.unwrap();
    assert!(!report.ok);
    assert_eq!(report.runtime_info.error_message.as_deref(), Some("Connection timeout after 150 seconds"));
    assert_eq!(report.runtime_info.status, Status::Error);
    let began = Instant::now();
    manager.shutdown().await;
    assert!(began.elapsed() < Duration::from_secs(5), "a hanging start is cancelled, not waited for");
    assert_eq!(fake.count("clean_up"), 2, "one for each of the two starts");
}

#[tokio::test(start_paused = true)]
async fn an_exited_process_is_seen_and_the_server_comes_back() {
    let fake = Fake::new([SERVE]);
    let manager = manager(&fake, &[("a", entry())]);
    status(&manager, Status::Connected).await;
    *fake.life.lock().unwrap() = Ok(Life::Exited { code: Some(1) });
    until("it is restarted", || fake.count("start") == 2).await;
    *fake.life.lock().unwrap() = Ok(Life::Running);
    assert_eq!(status(&manager, Status::Connected).await.retry_count, 0);
    manager.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn exits_without_a_healthy_period_between_spend_the_budget() {
    let fake = Fake::new([SERVE]);
    *fake.life.lock().unwrap() = Ok(Life::Exited { code: None });
    let manager = manager(&fake, &[("a", entry())]);
    let info = status(&manager, Status::Error).await;
    let expected = "Failed after 4 attempts: runtime: Box managed process exited unexpectedly";
    assert_eq!((info.error_message.as_deref(), info.error_phase), (Some(expected), Some(Phase::Runtime)));
    assert_eq!((info.tool_count, fake.count("clean_up")), (0, 4));
    manager.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn exits_after_healthy_periods_never_do() {
    let fake = Fake::new([SERVE]);
    let manager = manager(&fake, &[("a", entry())]);
    for death in 1..=8 {
        status(&manager, Status::Connected).await;
        tokio::time::sleep(Duration::from_secs(61)).await;
        fake.hang_ups.send_modify(|count| *count += 1);
        until("it is restarted", || fake.count("start") == death + 1).await;
    }
    status(&manager, Status::Connected).await;
    manager.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn three_blind_looks_in_a_row_end_it_and_two_do_not() {
    let fake = Fake::new([SERVE]);
    let manager = manager(&fake, &[("a", entry())]);
    status(&manager, Status::Connected).await;
    let blind = || Err(PhaseError::new(Phase::Runtime, "no answer"));
    let seen = fake.count("look");
    *fake.life.lock().unwrap() = blind();
    until("two looks", || fake.count("look") == seen + 2).await;
    *fake.life.lock().unwrap() = Ok(Life::Running);
    until("a third", || fake.count("look") == seen + 3).await;
    *fake.life.lock().unwrap() = blind();
    until("two more", || fake.count("look") == seen + 5).await;
    assert_eq!((info(&manager).status, fake.count("start")), (Status::Connected, 1));
    until("the third in a row", || fake.count("start") == 2).await;
    manager.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn boxes_that_are_switched_off_refuse_at_once() {
    let fake = Fake::new([SERVE]);
    *fake.available.lock().unwrap() = Err(PhaseError::new(Phase::BoxUnavailable, "box_disabled_in_config"));
    let began = Instant::now();
    let manager = manager(&fake, &[("a", entry())]);
    let info = status(&manager, Status::Error).await;
    assert!(began.elapsed() < Duration::from_secs(1));
    assert_eq!(info.error_message.as_deref(), Some("box_disabled_in_config"));
    assert_eq!((info.error_phase, info.retry_count), (Some(Phase::BoxUnavailable), 0));
    assert_eq!((info.box_session_id, info.box_enabled), (None, None));
    assert_eq!(fake.count("start"), 0, "and never on the host");
    manager.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn boxes_that_are_away_are_waited_for_and_a_refused_server_starts_when_they_are_back() {
    let fake = Fake::new([SERVE]);
    *fake.available.lock().unwrap() = Err(PhaseError::new(Phase::BoxUnavailable, "reconnecting"));
    let began = Instant::now();
    let manager = manager(&fake, &[("a", entry())]);
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(info(&manager).status, Status::Connecting);
    let info = status(&manager, Status::Error).await;
    assert_eq!(began.elapsed().as_secs(), 120);
    let expected = "Box runtime is not available after 120 seconds";
    assert_eq!(
        (info.error_message.as_deref(), info.error_phase),
        (Some(expected), Some(Phase::BoxUnavailable))
    );
    assert_eq!(fake.count("start"), 0);
    *fake.available.lock().unwrap() = Ok(());
    assert_eq!(status(&manager, Status::Connected).await.error_message, None);
    manager.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn clean_up_is_deferred_while_boxes_are_down() {
    let fake = Fake::new([SERVE]);
    let manager = manager(&fake, &[("a", entry())]);
    status(&manager, Status::Connected).await;
    *fake.available.lock().unwrap() = Err(PhaseError::new(Phase::BoxUnavailable, "gone"));
    fake.hang_ups.send_modify(|count| *count += 1);
    until("it is owed", || manager.inner.cleaner.owes() == 1).await;
    assert_eq!(fake.count("clean_up"), 0);
    *fake.available.lock().unwrap() = Ok(());
    until("it is done", || manager.inner.cleaner.owes() == 0).await;
    assert_eq!(fake.count("clean_up mcp-a"), 1);
    *fake.clean_up.lock().unwrap() = Err(PhaseError::new(Phase::Runtime, "busy"));
    status(&manager, Status::Connected).await;
    manager.shutdown().await;
    assert_eq!(manager.inner.cleaner.owes(), 1, "what cannot be done is still known");
}

#[tokio::test(start_paused = true)]
async fn a_disabled_server_says_so_and_is_not_started() {
    let fake = Fake::new([SERVE]);
    let manager = manager(&fake, &[("a", Registration { enabled: false, ..entry() })]);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((info(&manager).status, fake.count("start")), (Status::Disabled, 0));
    assert!(matches!(manager.test("a").await, Err(ManagerError::Invalid { .. })));
    manager.shutdown().await;
    assert_eq!(info(&manager).status, Status::Disabled);
}

#[tokio::test(start_paused = true)]
async fn a_transient_test_touches_no_live_server_and_leaves_nothing() {
    let fake = Fake::new([SERVE, SERVE, Script::Fail(Phase::Staging, "no such directory")]);
    let manager = manager(&fake, &[("a", entry())]);
    status(&manager, Status::Connected).await;
    let report = manager.test_transient(entry()).await.unwrap();
    assert!(report.ok && report.runtime_info.tool_count == 5);
    let session = report.runtime_info.box_session_id.unwrap();
    assert!(session.starts_with("mcp-test-"), "{session}");
    assert_eq!(fake.count(&format!("clean_up {session}")), 1);
    let report = manager.test_transient(entry()).await.unwrap();
    assert!(!report.ok);
    assert_eq!(report.runtime_info.error_phase, Some(Phase::Staging));
    assert!(report.log.starts_with("last words"), "{}", report.log);
    assert_eq!(info(&manager).status, Status::Connected);
    assert_eq!((fake.count("clean_up mcp-a"), manager.list().len()), (0, 1));
    manager.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn changed_tools_are_listed_again() {
    let fake = Fake::new([SERVE]);
    let manager = manager(&fake, &[("a", entry())]);
    status(&manager, Status::Connected).await;
    let mut changes = manager.changes();
    changes.mark_unchanged();
    let word = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
    fake.words.send_replace(vec![word.to_string()]);
    tokio::time::timeout(Duration::from_secs(10), changes.changed()).await.unwrap().unwrap();
    manager.shutdown().await;
}

fn options(limit: u64) -> CallOptions {
    CallOptions { limit: Duration::from_secs(limit), cancel: CancellationToken::new(), progress: None }
}

#[tokio::test(start_paused = true)]
async fn calls_have_limits_progress_and_results() {
    let fake = Fake::new([SERVE]);
    let manager = manager(&fake, &[("a", Registration { deny: vec!["fail".to_owned()], ..entry() })]);
    status(&manager, Status::Connected).await;
    let route = manager.route("a", "echo").unwrap();
    let params = |name: &'static str| CallToolRequestParams::new(name);
    let result = route.live.call(params("picture"), options(5)).await.unwrap();
    let image = Part::Image { data: "aGk=".to_owned(), mime_type: "image/png".to_owned() };
    assert_eq!(parts(&result).unwrap(), [image]);
    let (progress, mut heard) = tokio::sync::mpsc::channel(4);
    let with_progress = CallOptions { progress: Some(progress), ..options(5) };
    route.live.call(params("steps"), with_progress).await.unwrap();
    assert_eq!(heard.recv().await.unwrap().message.as_deref(), Some("half"));
    let late = route.live.call(params("slow"), options(5)).await.unwrap_err();
    assert_eq!(late.to_string(), "the call took longer than 5 seconds and was cancelled");
    let cancelled = options(60);
    cancelled.cancel.cancel();
    assert_eq!(route.live.call(params("slow"), cancelled).await.unwrap_err(), CallError::Cancelled);

    let error = |name: &str, tool: &str| manager.route(name, tool).unwrap_err();
    assert!(matches!(error("a", "fail"), CallError::Denied(_)));
    assert_eq!(error("a", "nope").to_string(), "Tool not found: nope");
    assert_eq!(error("b", "echo").to_string(), "Server not found: b");
    manager.shutdown().await;
    assert_eq!(error("a", "echo").to_string(), "MCP session is not connected");
    assert_eq!(error("a", "echo").phase(), Phase::ToolCall);
}

#[tokio::test(start_paused = true)]
async fn servers_are_added_replaced_kept_and_removed_but_not_the_operator_s() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::of_state_dir(dir.path());
    let fake = Fake::new([SERVE]);
    let servers = BTreeMap::from([("a".to_owned(), entry())]);
    let config = McpConfig { servers, ..McpConfig::default() };
    let one = Manager::new(fake.clone(), config, Some(store.clone()), BTreeMap::new());
    one.begin();
    for bad in ["", "box", "a b"] {
        let error = one.add(bad, entry(), false).await.unwrap_err();
        assert_eq!(error.field(), Some("name"), "{error}");
    }
    one.add("b", entry(), false).await.unwrap();
    assert!(matches!(one.add("b", entry(), false).await, Err(ManagerError::Exists { .. })));
    let other = Registration { args: vec!["--other".to_owned()], ..entry() };
    one.add("b", other.clone(), true).await.unwrap();
    for refused in [one.add("a", entry(), true).await.map(drop), one.remove("a").await] {
        assert!(matches!(refused, Err(ManagerError::OperatorOwned { .. })), "{refused:?}");
    }
    until("it runs", || one.show("b").unwrap().runtime_info.status == Status::Connected).await;
    one.shutdown().await;
    assert!(matches!(one.add("c", entry(), false).await, Err(ManagerError::Ending)));

    let stored = store.load().unwrap();
    assert_eq!(stored, BTreeMap::from([("b".to_owned(), other)]));
    let two = Manager::new(fake.clone(), McpConfig::default(), Some(store.clone()), stored);
    two.begin();
    until("it runs again", || two.show("b").unwrap().runtime_info.status == Status::Connected).await;
    two.remove("b").await.unwrap();
    assert!(two.list().is_empty() && store.load().unwrap().is_empty());
    assert!(matches!(two.show("b"), Err(ManagerError::NotFound { .. })));
    two.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_test_whose_asker_left_is_cleaned_up() {
    let fake = Fake::new([Script::Hang]);
    let manager = manager(&fake, &[]);
    let testing = manager.test_transient(entry());
    assert!(tokio::time::timeout(Duration::from_secs(1), testing).await.is_err());
    until("it is cleaned up", || fake.count("clean_up mcp-test-") == 1).await;
    manager.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_note_about_the_start_stays_and_stands_in_the_log() {
    let fake = Fake::new([SERVE]);
    let entry = Registration::new("noted", [""; 0]);
    let manager = manager(&fake, &[("a", entry)]);
    status(&manager, Status::Connected).await;
    assert_eq!(manager.show("a").unwrap().notes, ["/data is not in the box"]);
    let log = manager.log("a").await.unwrap();
    assert!(log.starts_with("sandcrate: note: /data is not in the box\nlast words of "), "{log}");
    manager.restart("a").await.unwrap();
    status(&manager, Status::Connected).await;
    assert_eq!(manager.show("a").unwrap().notes.len(), 1, "those of the last start");
    manager.shutdown().await;
}
