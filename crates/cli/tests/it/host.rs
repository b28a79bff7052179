//! An application with the Box service, the binary as its child, and real boxes below.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use sandcrate_host::{BoxConfig, ChildCommand, Client, Connector, Deployment, FileKind, Query, Service};
use sandcrate_protocol::{BoxSpec, ErrorKind, ExecStatus};
use serde_json::{Value, json};

use crate::driver::StateDir;
use crate::skip::{Feature, skip_without};

struct Application {
    service: Service,
    workspace: PathBuf,
    _place: tempfile::TempDir,
    _state: StateDir,
}

impl Application {
    async fn start() -> Self {
        let state = StateDir::new();
        let place = tempfile::tempdir().unwrap();
        let root = place.path().canonicalize().unwrap();
        let built = || env!("CARGO_BIN_EXE_sandcrate").into();
        let binary: OsString = std::env::var_os("SANDCRATE_BIN").unwrap_or_else(built);
        let mut state_dir = OsString::from("SANDCRATE_STATE_DIR=");
        state_dir.push(state.path());
        let mut args = vec![state_dir, binary];
        args.extend(["box", "-s", "--ws-control-port", "0"].map(OsString::from));
        let child = ChildCommand { program: "env".into(), args };
        let config = json!({"box": {"local": {"host_root": root, "workspace_quota_mb": 64}}});
        let section = BoxConfig::from_section(&config["box"]).unwrap();
        let connector = Connector::new(&section, Deployment { child, ..Deployment::default() }).unwrap();
        let service = Service::builder().config(&config).connection(Arc::new(connector)).build().unwrap();
        service.initialize().await;
        assert!(service.is_available(), "{:?}", service.availability().borrow());
        Self { service, workspace: root.join("default"), _place: place, _state: state }
    }

    async fn run(&self, command: &str) -> Value {
        let query = Query { query_id: Some(42.into()), ..Query::default() };
        self.service.execute_tool(&json!({"command": command, "timeout_sec": 20}), &query).await.unwrap()
    }

    fn client(&self) -> &dyn Client {
        &**self.service.client()
    }
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
