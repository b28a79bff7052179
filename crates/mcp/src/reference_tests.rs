//! The reference's cases of MCP servers in boxes, by their names. Where the reference is at fault, or another rule
//! holds here, the case says so.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandcrate_backend::fake::{FakeBackend, FakeScript};
use sandcrate_backend::{Backend, Command, ExecRequest, SessionId};
use sandcrate_host::EmbeddedClient;
use sandcrate_host::workspace::{Workspace, infer_host_path, rewrite_mounted_path};
use sandcrate_protocol::MountMode;
use sandcrate_runtime::{Runtime, RuntimeConfig};
use serde_json::{Value, json};

use crate::config::{McpConfig, Registration, Values, import};
use crate::manager::fake::{Fake, Script};
use crate::manager::{Manager, RuntimeInfo, SHARED_SESSION, Status};
use crate::{
    BoxSettings, Identity, LaunchConfig, Launcher, Phase, PhaseError, Progress, ServerConfig, Start as _,
};

fn settings(value: Value) -> BoxSettings {
    serde_json::from_value(value).unwrap()
}

#[test]
fn test_default_values() {
    let settings = settings(json!({}));
    assert_eq!((settings.image, settings.host_path), (None, None));
    // The reference's default network is `on`; here a server has none unless it is asked for.
    assert_eq!(settings.network, None);
    assert_eq!((settings.host_path_mode.as_str(), settings.startup_timeout_sec), ("ro", 120));
    assert_eq!((settings.cpus, settings.memory_mb, settings.pids_limit), (None, None, None));
    assert_eq!((settings.read_only_rootfs, settings.env), (None, BTreeMap::new()));
}

#[test]
fn test_custom_values() {
    let settings = settings(json!({"image": "node:20", "network": "on", "host_path": "/home/user/mcp",
        "host_path_mode": "rw", "env": {"FOO": "bar"}, "startup_timeout_sec": 60, "cpus": 2.0, "memory_mb": 1024,
        "pids_limit": 256, "read_only_rootfs": false}));
    assert_eq!((settings.image.as_deref(), settings.network.as_deref()), (Some("node:20"), Some("on")));
    assert_eq!(
        (settings.host_path.as_deref(), settings.host_path_mode.as_str()),
        (Some("/home/user/mcp"), "rw")
    );
    assert_eq!((settings.cpus, settings.memory_mb, settings.pids_limit), (Some(2.0), Some(1024), Some(256)));
    assert_eq!((settings.startup_timeout_sec, settings.read_only_rootfs), (60, Some(false)));
    assert_eq!(settings.env["FOO"], "bar");
}

#[test]
fn test_extra_fields_ignored() {
    let settings = settings(json!({"image": "node:20", "unknown_field": "whatever"}));
    assert_eq!(settings.image.as_deref(), Some("node:20"));
    assert_eq!(serde_json::to_value(&settings).unwrap().get("unknown_field"), None);
}

fn rewrite(path: &str, host: &str) -> String {
    rewrite_mounted_path(path, host, "/workspace")
}

#[test]
fn test_no_host_path_returns_unchanged() {
    assert_eq!(rewrite("/some/path", ""), "/some/path");
}

#[test]
fn test_empty_path_returns_empty() {
    assert_eq!(rewrite("", "/home/user/mcp"), "");
}

#[test]
fn test_prefix_match_rewrites() {
    assert_eq!(rewrite("/home/user/mcp/server.py", "/home/user/mcp"), "/workspace/server.py");
}

#[test]
fn test_exact_match_rewrites_to_workspace() {
    assert_eq!(rewrite("/home/user/mcp", "/home/user/mcp"), "/workspace");
}

#[test]
fn test_non_matching_path_unchanged() {
    assert_eq!(rewrite("/opt/other/server.py", "/home/user/mcp"), "/opt/other/server.py");
}

#[test]
fn test_similar_prefix_not_rewritten() {
    assert_eq!(rewrite("/home/user/mcp-other/file.py", "/home/user/mcp"), "/home/user/mcp-other/file.py");
}

#[test]
fn test_nested_subpath_rewrites() {
    assert_eq!(rewrite("/home/user/mcp/src/lib/main.py", "/home/user/mcp"), "/workspace/src/lib/main.py");
}

fn inferred(command: &str, args: &[&str]) -> Option<String> {
    let args: Vec<_> = args.iter().map(|arg| (*arg).to_owned()).collect();
    infer_host_path(command, &args, &[])
}

#[test]
fn test_no_absolute_paths_returns_none() {
    assert_eq!(inferred("python", &["server.py"]), None);
}

#[test]
fn test_nonexistent_path_returns_none() {
    assert_eq!(inferred("/nonexistent/path/to/python", &[]), None);
}

#[test]
fn test_existing_absolute_path_infers_directory() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("server.py");
    std::fs::write(&script, "").unwrap();
    let expected = dir.path().canonicalize().unwrap().display().to_string();
    assert_eq!(inferred("python", &[script.to_str().unwrap()]), Some(expected));
}

#[test]
fn test_minimal_config() {
    let payload = Workspace::new("session-123").session_payload();
    assert_eq!((&payload["session_id"], &payload["workdir"]), (&json!("session-123"), &json!("/workspace")));
    assert_eq!((&payload["env"], payload.get("host_path")), (&json!({}), None));
}

#[test]
fn test_with_host_path() {
    let workspace = Workspace {
        host_path: Some("/home/user/mcp".to_owned()),
        host_path_mode: MountMode::Ro,
        ..Workspace::new("session-123")
    };
    let payload = workspace.session_payload();
    assert_eq!((&payload["host_path"], &payload["host_path_mode"]), (&json!("/home/user/mcp"), &json!("ro")));
}

#[test]
fn test_optional_fields_included_when_set() {
    let workspace = Workspace {
        image: Some("node:20".to_owned()),
        cpus: Some(2.0),
        memory_mb: Some(1024),
        pids_limit: Some(256),
        ..Workspace::new("session-123")
    };
    let payload = workspace.session_payload();
    let found = ["image", "cpus", "memory_mb", "pids_limit"].map(|key| payload[key].clone());
    assert_eq!(found, [json!("node:20"), json!(2.0), json!(1024), json!(256)]);
}

#[test]
fn test_none_fields_excluded() {
    let payload = Workspace::new("session-123").session_payload();
    assert_eq!((payload.get("image"), payload.get("cpus")), (None, None));
}

fn process(host: Option<&str>, command: &str, args: &[&str], env: &[(&str, &str)]) -> Value {
    let workspace = Workspace { host_path: host.map(str::to_owned), ..Workspace::new("s") };
    let args: Vec<_> = args.iter().map(|arg| (*arg).to_owned()).collect();
    let env = env.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    workspace.process_payload(command, &args, &env, "/workspace")
}

#[test]
fn test_basic_payload() {
    let payload = process(None, "python", &["server.py"], &[("KEY", "val")]);
    let expected =
        json!({"command": "python", "args": ["server.py"], "env": {"KEY": "val"}, "cwd": "/workspace"});
    assert_eq!(payload, expected);
}

#[test]
fn test_path_rewriting_applied() {
    let args = ["/home/user/mcp/server.py", "--config", "/home/user/mcp/config.json"];
    let payload = process(Some("/home/user/mcp"), "/home/user/mcp/venv/bin/python", &args, &[]);
    assert_eq!(payload["command"], "python");
    assert_eq!(payload["args"], json!(["/workspace/server.py", "--config", "/workspace/config.json"]));
}

#[test]
fn test_non_matching_args_not_rewritten() {
    let payload = process(Some("/home/user/mcp"), "python", &["/opt/other/server.py", "--flag"], &[]);
    assert_eq!(
        (&payload["command"], &payload["args"]),
        (&json!("python"), &json!(["/opt/other/server.py", "--flag"]))
    );
}

/// A manager of one server `test`, when its start has an outcome or is under way for good.
async fn managed(fake: &Arc<Fake>, shared_session: bool, settled: Status) -> (Manager, RuntimeInfo) {
    let servers = BTreeMap::from([("test".to_owned(), Registration::new("python", [""; 0]))]);
    let config = McpConfig { servers, shared_session, ..McpConfig::default() };
    let manager = Manager::new(fake.clone(), config, None, BTreeMap::new());
    manager.begin();
    for _ in 0..100_000 {
        let info = manager.show("test").unwrap().runtime_info;
        if info.status == settled {
            return (manager, info);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it never is {settled:?}");
}

const SERVE: Script = Script::Serve(&["create-service"]);

struct Nothing;

impl Values for Nothing {
    fn variable(&self, _: &str) -> Option<String> {
        None
    }

    fn input(&self, _: &str) -> Option<String> {
        None
    }
}

/// Servers on the network are not run here at all, so none of them says anything of a box.
#[test]
fn test_non_stdio_session() {
    let text = json!({"mcpServers": {"test": {"type": "sse", "url": "https://example.com/sse"}}}).to_string();
    let import = import(&text, &Nothing).unwrap();
    assert!(import.servers.is_empty() && import.remote[0].reason.contains("(sse)"), "{import:?}");
}

#[tokio::test(start_paused = true)]
async fn test_runtime_tools_include_parameters() {
    let (manager, info) = managed(&Fake::new([SERVE]), false, Status::Connected).await;
    let info = serde_json::to_value(&info).unwrap();
    assert_eq!(info["tools"][0]["name"], "create-service");
    assert_eq!(info["tools"][0]["parameters"]["required"], json!(["x"]));
    manager.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn test_stdio_session_includes_box_info() {
    // The reference's session is that of all servers; here that is a choice.
    for (shared, session) in [(true, SHARED_SESSION), (false, "mcp-test")] {
        let (manager, info) = managed(&Fake::new([SERVE]), shared, Status::Connected).await;
        assert_eq!((info.box_session_id.as_deref(), info.box_enabled), (Some(session), Some(true)));
        manager.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn test_transient_test_session_is_isolated_from_shared() {
    let (manager, live) = managed(&Fake::new([SERVE]), true, Status::Connected).await;
    let tested = manager.test_transient(Registration::new("uvx", ["mcp-server-time"])).await.unwrap();
    let session = tested.runtime_info.box_session_id.unwrap();
    assert!(session.starts_with("mcp-test-"), "{session}");
    assert_eq!(live.box_session_id.as_deref(), Some(SHARED_SESSION));
    manager.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn test_stdio_session_refuses_when_box_unavailable() {
    let fake = Fake::new([SERVE]);
    *fake.available.lock().unwrap() = Err(PhaseError::new(Phase::BoxUnavailable, "box_disabled_in_config"));
    let (manager, info) = managed(&fake, false, Status::Error).await;
    assert_eq!((info.box_session_id, info.box_enabled), (None, None));
    assert_eq!(info.error_phase, Some(Phase::BoxUnavailable));
    manager.shutdown().await;
}

/// The reference runs on the host when it was never given a Box service. There is no such way here: without boxes
/// nothing is started.
#[tokio::test(start_paused = true)]
async fn test_stdio_session_without_box_service_uses_local_stdio() {
    let fake = Fake::new([SERVE]);
    *fake.available.lock().unwrap() = Err(PhaseError::new(Phase::BoxUnavailable, "no box service"));
    let (manager, info) = managed(&fake, false, Status::Error).await;
    assert_eq!((info.box_session_id, fake.count("start")), (None, 0));
    manager.shutdown().await;
}

#[test]
fn test_box_config_parsed_from_server_config() {
    let config: ServerConfig =
        serde_json::from_value(json!({"name": "test", "command": "python", "args": [],
        "box": {"image": "node:20", "host_path": "/home/user/mcp"}}))
        .unwrap();
    assert_eq!(config.settings.image.as_deref(), Some("node:20"));
    assert_eq!(config.settings.host_path.as_deref(), Some("/home/user/mcp"));
}

#[test]
fn test_missing_box_key_uses_defaults() {
    let config: ServerConfig = serde_json::from_value(json!({"name": "test", "command": "python"})).unwrap();
    assert_eq!((config.settings.image.as_deref(), config.settings.host_path_mode.as_str()), (None, "ro"));
}

/// The reference copies a project into the workspace that all servers share. Here its box alone sees it, mounted where
/// the copy would be; the session has no directory of the host, and the command is rewritten all the same.
#[tokio::test]
async fn test_init_box_stdio_server_stages_host_path_in_shared_workspace() {
    let place = tempfile::tempdir().unwrap();
    let project = place.path().canonicalize().unwrap().join("mcp-source");
    std::fs::create_dir_all(project.join(".venv/bin")).unwrap();
    std::os::unix::fs::symlink("/usr/bin/python3", project.join(".venv/bin/python")).unwrap();
    std::fs::write(project.join("server.py"), "print('hello')\n").unwrap();
    let argv = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&argv);
    let backend = Arc::new(FakeBackend::new(move |_, request: &ExecRequest| {
        if let Command::Argv(words) = &request.command {
            noted
                .lock()
                .unwrap()
                .push(words.iter().map(|word| word.to_string_lossy().into_owned()).collect());
        }
        FakeScript::new().echo_stdin()
    }));
    let mut config = RuntimeConfig::new(place.path().join("state"));
    config.mount_roots = Some(vec![project.clone()]);
    let runtime = Runtime::open(config, vec![backend.clone() as Arc<dyn Backend>]).await.unwrap();
    let client = Arc::new(EmbeddedClient::new(runtime.clone()));
    let launcher = Launcher::new(client, LaunchConfig::new(place.path().join("cache")));
    let mut registration = Registration::new(
        project.join(".venv/bin/python").to_str().unwrap(),
        [project.join("server.py").to_str().unwrap()],
    );
    registration.settings.host_path = Some(project.to_str().unwrap().to_owned());
    let identity =
        Identity { session_id: SHARED_SESSION.to_owned(), process_id: "u1".to_owned(), transient: false };
    let started = launcher.start(&registration.server("u1"), &identity, &Silent).await.unwrap();
    let staged = "/workspace/.mcp/u1/workspace";
    let argv: Vec<Vec<String>> = argv.lock().unwrap().clone();
    assert_eq!(argv.len(), 1, "one process: {argv:?}");
    assert!(argv[0][0].rsplit('/').next().unwrap().starts_with("python"), "{argv:?}");
    assert_eq!(argv[0][1], format!("{staged}/server.py"));
    let sessions = runtime.sessions();
    assert_eq!((sessions.len(), sessions[0].info.session_id.as_str()), (1, SHARED_SESSION));
    assert_eq!(sessions[0].info.host_path, None);
    let spec = backend.spec(&SessionId::new(SHARED_SESSION).unwrap()).unwrap();
    let mount = spec.mounts.iter().find(|mount| mount.target == staged).unwrap();
    assert_eq!(mount.source, project);
    drop(started);
    launcher.clean_up(&identity).await.unwrap();
}

struct Silent;

impl Progress for Silent {
    fn say(&self, _: &str) {}
}

/// In the order of the reference's suite.
const NAMES: [&str; 29] = [
    "test_default_values",
    "test_custom_values",
    "test_extra_fields_ignored",
    "test_no_host_path_returns_unchanged",
    "test_empty_path_returns_empty",
    "test_prefix_match_rewrites",
    "test_exact_match_rewrites_to_workspace",
    "test_non_matching_path_unchanged",
    "test_similar_prefix_not_rewritten",
    "test_nested_subpath_rewrites",
    "test_no_absolute_paths_returns_none",
    "test_nonexistent_path_returns_none",
    "test_existing_absolute_path_infers_directory",
    "test_minimal_config",
    "test_with_host_path",
    "test_optional_fields_included_when_set",
    "test_none_fields_excluded",
    "test_basic_payload",
    "test_path_rewriting_applied",
    "test_non_matching_args_not_rewritten",
    "test_non_stdio_session",
    "test_runtime_tools_include_parameters",
    "test_stdio_session_includes_box_info",
    "test_transient_test_session_is_isolated_from_shared",
    "test_stdio_session_refuses_when_box_unavailable",
    "test_stdio_session_without_box_service_uses_local_stdio",
    "test_box_config_parsed_from_server_config",
    "test_missing_box_key_uses_defaults",
    "test_init_box_stdio_server_stages_host_path_in_shared_workspace",
];

#[test]
fn every_case_of_the_reference_is_here_once() {
    let text = include_str!("reference_tests.rs");
    let lines: Vec<&str> = text.lines().collect();
    let mut found = BTreeMap::<&str, usize>::new();
    for pair in lines.windows(2) {
        let is_test = pair[0] == "#[test]" || pair[0].starts_with("#[tokio::test");
        let name = pair[1].trim_start_matches("async ").strip_prefix("fn ");
        if let (true, Some((name, _))) = (is_test, name.and_then(|rest| rest.split_once('('))) {
            *found.entry(name).or_default() += 1;
        }
    }
    let missing: Vec<_> = NAMES.iter().filter(|name| found.get(**name) != Some(&1)).collect();
    assert!(missing.is_empty(), "missing or twice: {missing:#?}");
    assert_eq!(found.len(), NAMES.len() + 1, "not of the reference: {:?}", found.keys());
}
