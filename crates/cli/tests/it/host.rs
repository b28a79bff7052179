//! An application with the Box service, the binary as its child, and real boxes below.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandcrate_backend_native::{NativeBackend, NativeConfig};
use sandcrate_host::policy::Policy;
use sandcrate_host::skills::{Filesystem, SkillsView};
use sandcrate_host::tools::Toolbox;
use sandcrate_host::{
    BoxConfig, ChildCommand, Client, Connector, Deployment, EmbeddedClient, FileKind, Query, Service,
};
use sandcrate_protocol::{BoxSpec, ErrorKind, ExecStatus, ProcessStatus};
use sandcrate_runtime::{Runtime, RuntimeConfig};
use serde_json::{Value, json};

use crate::driver::StateDir;
use crate::golden::peer;
use crate::skip::{Feature, skip_without};

struct Application {
    service: Service,
    workspace: PathBuf,
    _place: tempfile::TempDir,
    _server: Option<peer::Server>,
    _state: StateDir,
}

/// How the application reaches a runtime.
enum Way {
    /// The binary as its child.
    Child,
    /// A server of ours.
    WebSocket,
    /// A server of somebody else, by its address.
    Endpoint(String),
    /// In its own process.
    Embedded,
}

impl Application {
    async fn start() -> Self {
        Self::by(Way::Child).await
    }

    async fn by(way: Way) -> Self {
        let state = StateDir::new();
        let place = tempfile::tempdir().unwrap();
        let root = place.path().canonicalize().unwrap();
        let built = || env!("CARGO_BIN_EXE_sandcrate").into();
        let binary: OsString = std::env::var_os("SANDCRATE_BIN").unwrap_or_else(built);
        let mut state_dir = OsString::from("SANDCRATE_STATE_DIR=");
        state_dir.push(state.path());
        let mut args = vec![state_dir, binary.clone()];
        args.extend(["box", "-s", "--ws-control-port", "0"].map(OsString::from));
        let child = ChildCommand { program: "env".into(), args };
        let embedded = matches!(way, Way::Embedded);
        let (server, endpoint) = match way {
            Way::Child | Way::Embedded => (None, String::new()),
            Way::WebSocket => {
                let server = peer::Server::start(&[]);
                let endpoint = format!("ws://127.0.0.1:{}", server.port);
                (Some(server), endpoint)
            }
            Way::Endpoint(endpoint) => (None, endpoint),
        };
        let config = json!({"box": {"local": {"host_root": root, "workspace_quota_mb": 64},
            "runtime": {"endpoint": endpoint}}});
        let section = BoxConfig::from_section(&config["box"]).unwrap();
        let builder = Service::builder().config(&config);
        let builder = if embedded {
            builder.client(Arc::new(EmbeddedClient::new(runtime(&state, &root, binary.into()).await)))
        } else {
            let connector = Connector::new(&section, Deployment { child, ..Deployment::default() }).unwrap();
            builder.connection(Arc::new(connector))
        };
        let service = builder.build().unwrap();
        service.initialize().await;
        assert!(service.is_available(), "{:?}", service.availability().borrow());
        Self { service, workspace: root.join("default"), _place: place, _server: server, _state: state }
    }

    async fn run(&self, command: &str) -> Value {
        let query = Query { query_id: Some(42.into()), ..Query::default() };
        self.service.execute_tool(&json!({"command": command, "timeout_sec": 20}), &query).await.unwrap()
    }

    fn client(&self) -> &dyn Client {
        &**self.service.client()
    }
}

/// A runtime of ours with native boxes; our program is their launcher.
async fn runtime(state: &StateDir, root: &Path, launcher: PathBuf) -> Runtime {
    let native =
        NativeConfig { state_dir: state.path().to_owned(), launcher, ..NativeConfig::for_this_user() };
    let mut config = RuntimeConfig::new(state.path().join("runtime"));
    config.mount_roots = Some(vec![root.to_owned()]);
    let backend = NativeBackend::open(native).await.unwrap();
    Runtime::open(config, vec![Arc::new(backend)]).await.unwrap()
}

/// What an agent does in an hour, whichever way its application reaches a runtime.
async fn an_agents_day(application: Application) {
    let service = &application.service;
    let mut query = Query { query_id: Some(42.into()), ..Query::default() };
    let first = application.run("echo kept > /tmp/a; echo hello; echo aside >&2; exit 3").await;
    let shown = ["session_id", "status", "ok", "exit_code", "stdout", "stderr"].map(|key| first[key].clone());
    assert_eq!(
        shown,
        [json!("query_42"), json!("completed"), json!(false), json!(3), json!("hello"), json!("aside")]
    );
    assert_eq!(application.run("cat /tmp/a").await["stdout"], "kept", "one session");
    let long = application.run("seq 1 5000").await;
    assert_eq!((long["stdout"].as_str().unwrap().len(), &long["stdout_truncated"]), (4000, &json!(true)));

    let skills = Arc::new(SkillsView::new(Filesystem::Separate));
    let toolbox = Toolbox::new(Arc::new(service.clone()), skills, Policy::default());
    let path = "/workspace/src/a.txt";
    let calls = [
        (
            "write",
            json!({"path": path, "content": "one\r\ntwo \u{1f600}\n"}),
            json!({"ok": true, "path": path}),
        ),
        (
            "edit",
            json!({"path": path, "old_string": "one", "new_string": "1"}),
            json!({"ok": true, "path": path}),
        ),
        ("read", json!({"path": path}), json!({"ok": true, "content": "1\r\ntwo \u{1f600}\n"})),
        (
            "glob",
            json!({"pattern": "**/*.txt"}),
            json!({"ok": true, "matches": [path], "total": 1, "truncated": false}),
        ),
        (
            "grep",
            json!({"pattern": "^two"}),
            json!({"ok": true, "matches": [{"file": path, "line": 2, "content": "two \u{1f600}"}], "total": 1,
                "truncated": false}),
        ),
        (
            "read",
            json!({"path": "/workspace/none"}),
            json!({"ok": false, "error": "File not found: /workspace/none"}),
        ),
    ];
    for (tool, arguments, expected) in calls {
        assert_eq!(toolbox.call(tool, &arguments, &mut query).await.unwrap(), expected, "{tool}");
    }
    let bytes = std::fs::read(application.workspace.join("src/a.txt")).unwrap();
    assert_eq!(bytes, "1\r\ntwo \u{1f600}\n".as_bytes(), "the files are the workspace's");

    let process = json!({"process_id": "p", "command": "cat"});
    let started = service.start_managed_process("query_42", &process).await.unwrap();
    assert_eq!((started.process_id.as_str(), started.status), ("p", ProcessStatus::Running));
    assert_eq!(service.managed_process("query_42", Some("p")).await.unwrap().command, "cat");
    service.stop_managed_process("query_42", Some("p")).await.unwrap();
    let gone = service.managed_process("query_42", Some("p")).await.unwrap_err();
    assert_eq!(gone.kind, ErrorKind::ProcessNotFound, "{gone}");
    assert_eq!(service.sessions().await.len(), 1);
    let status = service.status().await;
    assert_eq!((&status["available"], &status["active_sessions"]), (&json!(true), &json!(1)), "{status}");
    let missing = application.client().delete_session("nobody").await.unwrap_err();
    assert_eq!(missing.kind, ErrorKind::SessionNotFound, "{missing}");
    let late = service.execute_tool(&json!({"command": "sleep 60", "timeout_sec": 1}), &query).await.unwrap();
    assert_eq!((&late["status"], &late["exit_code"]), (&json!("timed_out"), &Value::Null));
    service.dispose().await;
}

#[tokio::test]
async fn the_service_works_over_stdio() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    an_agents_day(Application::start().await).await;
}

#[tokio::test]
async fn the_service_works_over_a_websocket() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    an_agents_day(Application::by(Way::WebSocket).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_service_works_in_process() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    an_agents_day(Application::by(Way::Embedded).await).await;
}

/// `tests/langbot/run.sh` starts LangBot's own runtime with containers and runs this against it.
#[tokio::test]
async fn the_service_works_with_langbots_own_runtime() {
    let Ok(endpoint) = std::env::var("SANDCRATE_REFERENCE_ENDPOINT") else {
        eprintln!("SKIP: SANDCRATE_REFERENCE_ENDPOINT names no runtime of LangBot's");
        return;
    };
    an_agents_day(Application::by(Way::Endpoint(endpoint)).await).await;
}

#[tokio::test]
async fn an_agents_commands_share_a_box_and_its_files() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let application = Application::start().await;
    let first = application.run("echo kept > /tmp/a; echo shown > /workspace/b; echo hello").await;
    assert_eq!((&first["stdout"], &first["ok"]), (&json!("hello"), &json!(true)), "{first}");
    assert_eq!(first["session_id"], "query_42");
    assert_eq!(application.run("cat /tmp/a").await["stdout"], "kept");
    assert_eq!(std::fs::read_to_string(application.workspace.join("b")).unwrap(), "shown\n");
    let status = application.service.status().await;
    assert_eq!((&status["available"], &status["active_sessions"]), (&json!(true), &json!(1)), "{status}");
    application.service.dispose().await;
}

#[tokio::test]
async fn a_box_without_a_network_reaches_nothing() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let application = Application::start().await;
    let devices = application.run("cat /proc/net/dev").await;
    let devices: Vec<&str> = devices["stdout"].as_str().unwrap().lines().skip(2).collect();
    assert!(matches!(devices[..], [device] if device.trim_start().starts_with("lo:")), "{devices:?}");
    let routes = application.run("cat /proc/net/route").await;
    assert_eq!(routes["stdout"].as_str().unwrap().lines().count(), 1, "a head and nothing below: {routes}");
    application.service.dispose().await;
}

#[tokio::test]
async fn a_command_that_takes_too_long_ends_with_its_session() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let application = Application::start().await;
    let spec = BoxSpec {
        cmd: "sleep 600".to_owned(),
        workdir: "/tmp".to_owned(),
        timeout_sec: 1,
        ..BoxSpec::new("t")
    };
    let result = application.client().execute(&spec).await.unwrap();
    assert_eq!((result.status, result.exit_code), (ExecStatus::TimedOut, None));
    assert_eq!(application.client().session("t").await.unwrap_err().kind, ErrorKind::SessionNotFound);
    application.service.dispose().await;
}

#[tokio::test]
async fn files_of_a_real_box_are_reached_without_following_links_out() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let application = Application::start().await;
    let client = application.client();
    let spec = BoxSpec { workdir: "/tmp".to_owned(), ..BoxSpec::new("f") };
    client.write(&spec, "/tmp/a/b", "text".into()).await.unwrap();
    let listed = client.list(&spec, "/tmp/a").await.unwrap();
    assert_eq!((listed.len(), listed[0].name.as_str(), listed[0].size), (1, "b", 4));
    let linked = BoxSpec { cmd: "ln -s b /tmp/a/link; cat /tmp/a/b".to_owned(), ..spec.clone() };
    assert_eq!(client.execute(&linked).await.unwrap().stdout, "text");
    let meta = client.stat(&spec, "/tmp/a/link").await.unwrap().unwrap();
    assert_eq!(meta.kind, FileKind::Symlink);
    assert_eq!(client.stat(&spec, "/tmp/none").await.unwrap(), None);
    assert_eq!(client.read(&spec, "/tmp/none", 1).await.unwrap_err().kind, ErrorKind::FileNotFound);
    application.service.dispose().await;
}

/// The example of `sandcrate-host`, with the binary as its runtime.
#[test]
fn the_example_works_in_real_boxes() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let example = std::env::current_exe().unwrap().with_file_name("../examples/agent");
    if !example.exists() {
        eprintln!("SKIP: the example is not built beside these tests");
        return;
    }
    let state = StateDir::new();
    let built = || env!("CARGO_BIN_EXE_sandcrate").into();
    let binary: OsString = std::env::var_os("SANDCRATE_BIN").unwrap_or_else(built);
    let mut command = std::process::Command::new(example);
    let output =
        command.env("SANDCRATE_BIN", binary).env("SANDCRATE_STATE_DIR", state.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    for words in [
        r#""total":150,"truncated":true"#,
        r#""content":"rent,7""#,
        "err: Path escapes the workspace boundary.",
        r#""matches":[],"ok":true,"total":0"#,
        "err: Skill \"report\" must be activated",
        "report of /workspace/.skills/report",
        r#""stdout_truncated":true"#,
        "err: tool `register_skill` is denied by policy",
    ] {
        assert!(said.contains(words), "`{words}` is not in {said}");
    }
}
