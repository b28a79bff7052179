//! Starts over a runtime with a scripted backend.

use std::path::Path;
use std::sync::{Arc, Mutex};

use sandcrate_backend::fake::{FakeBackend, FakeScript};
use sandcrate_backend::{Backend, Capabilities, Command, ExecRequest, MountAccess, Network, SessionId};
use sandcrate_host::EmbeddedClient;
use sandcrate_runtime::{HostNetwork, OnNetwork, Runtime, RuntimeConfig};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use super::*;
use crate::BoxSettings;

#[derive(Debug, Default)]
struct Said(Mutex<Vec<String>>);

impl Progress for Said {
    fn say(&self, line: &str) {
        self.0.lock().unwrap().push(line.to_owned());
    }
}

/// Session, arguments and variables of a command.
type Asked = (String, Vec<String>, Vec<(String, String)>);

struct Bench {
    place: tempfile::TempDir,
    backend: Arc<FakeBackend>,
    launcher: Launcher,
    said: Said,
    asked: Arc<Mutex<Vec<Asked>>>,
}

/// `install`: how the install ends; servers echo what they are sent, unless their program is `dies`.
async fn bench(install: fn() -> FakeScript) -> Bench {
    let place = tempfile::tempdir().unwrap();
    let asked: Arc<Mutex<Vec<_>>> = Arc::default();
    let noted = Arc::clone(&asked);
    let choose = move |session: &SessionId, request: &ExecRequest| {
        let Command::Argv(argv) = &request.command else { panic!("no shell text is expected") };
        let argv: Vec<String> = argv.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        noted.lock().unwrap().push((session.to_string(), argv.clone(), request.env.clone()));
        match argv[0].as_str() {
            "sh" => install(),
            "/bin/false" => FakeScript::new().stderr("no such luck\n").exit(3),
            _ => FakeScript::new().echo_stdin(),
        }
    };
    let able =
        Capabilities { host_network: true, ..FakeBackend::new(|_, _| FakeScript::new()).capabilities() };
    let backend = Arc::new(FakeBackend::new(choose).with_capabilities(able));
    let mut config = RuntimeConfig::new(place.path().join("state"));
    config.mount_roots = Some(vec!["/".into()]);
    config.network.host = HostNetwork::Allow;
    config.network.policy = OnNetwork::Host;
    let runtime = Runtime::open(config, vec![Arc::clone(&backend) as Arc<dyn Backend>]).await.unwrap();
    let mut config = LaunchConfig::new(place.path().join("cache"));
    config.cwd = place.path().canonicalize().unwrap();
    config.install_env.insert("PIP_INDEX_URL".to_owned(), "x".to_owned());
    let launcher = Launcher::new(Arc::new(EmbeddedClient::new(runtime)), config);
    Bench { place, backend, launcher, said: Said::default(), asked }
}

impl Bench {
    fn project(&self, files: &[(&str, &str)]) -> String {
        let root = self.place.path().canonicalize().unwrap().join("project");
        std::fs::create_dir_all(&root).unwrap();
        for (name, content) in files {
            std::fs::write(root.join(name), content).unwrap();
        }
        root.to_str().unwrap().to_owned()
    }

    async fn start(&self, server: &ServerConfig) -> Result<Started, PhaseError> {
        self.launcher.start(server, &identity(), &self.said).await
    }

    fn cached(&self, what: &str) -> usize {
        std::fs::read_dir(self.place.path().join("cache").join(what)).map_or(0, Iterator::count)
    }
}

fn identity() -> Identity {
    Identity { session_id: "mcp-one".to_owned(), process_id: "one".to_owned(), transient: false }
}

fn server(command: &str, args: &[&str]) -> ServerConfig {
    ServerConfig {
        name: "one".to_owned(),
        command: command.to_owned(),
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        env: BTreeMap::from([("API_TOKEN".to_owned(), "secret".to_owned())]),
        enabled: true,
        settings: BoxSettings::default(),
    }
}

async fn echoes(started: &mut Started) -> bool {
    started.writer.write_all(b"{}\n").await.unwrap();
    let mut line = String::new();
    BufReader::new(&mut started.reader).read_line(&mut line).await.unwrap();
    line == "{}\n"
}

#[tokio::test]
async fn a_project_is_mounted_read_only_and_its_paths_are_rewritten() {
    let bench = bench(FakeScript::new).await;
    let project = bench.project(&[("main.py", "")]);
    let script = format!("{project}/main.py");
    let mut started = bench.start(&server("python3", &[&script, "--flag"])).await.unwrap();
    assert!(echoes(&mut started).await);
    let (_, argv, env) = bench.asked.lock().unwrap()[0].clone();
    assert_eq!(argv, ["python3", "/workspace/.mcp/one/workspace/main.py", "--flag"]);
    assert!(env.iter().any(|(name, value)| name == "API_TOKEN" && value == "secret"));
    let spec = bench.backend.spec(&SessionId::new("mcp-one").unwrap()).unwrap();
    assert_eq!(spec.network, Network::Off);
    let mount = spec.mounts.iter().find(|mount| mount.target == "/workspace/.mcp/one/workspace").unwrap();
    assert_eq!((mount.source.as_path(), mount.access), (Path::new(&project), MountAccess::ReadOnly));
    assert_eq!(bench.launcher.look(&identity()).await.unwrap(), Life::Running);
    for _ in 0..2 {
        bench.launcher.clean_up(&identity()).await.unwrap();
        assert!(bench.backend.sessions().is_empty(), "the box goes with its only server");
    }
}

#[tokio::test]
async fn what_a_project_needs_is_installed_once_and_without_the_clients_secrets() {
    let bench = bench(|| FakeScript::new().stdout("Collecting a\n")).await;
    let project = bench.project(&[("main.py", ""), ("requirements.txt", "a==1\n")]);
    let server = server("python3", &[&format!("{project}/main.py")]);
    for start in 0..2 {
        let mut started = bench.start(&server).await.unwrap();
        assert!(echoes(&mut started).await);
        bench.launcher.clean_up(&identity()).await.unwrap();
        let asked = bench.asked.lock().unwrap();
        let installs: Vec<_> =
            asked.iter().filter(|(session, ..)| session.starts_with("mcp-install-")).collect();
        assert_eq!(installs.len(), 1, "start {start}");
        let (_, argv, env) = installs[0];
        assert!(argv[2].contains("requirements.txt"), "{argv:?}");
        assert!(env.iter().any(|(name, _)| name == "PIP_INDEX_URL"));
        assert!(!env.iter().any(|(name, _)| name == "API_TOKEN"), "{env:?}");
        let (_, argv, _) = asked.last().unwrap();
        assert!(
            argv[0].starts_with("/opt/sandcrate/env/") && argv[0].ends_with("/venv/bin/python"),
            "{argv:?}"
        );
    }
    assert_eq!((bench.cached("environments"), bench.cached("building")), (1, 0));
    let said = bench.said.0.lock().unwrap().join("\n");
    assert!(said.contains("installing") && said.contains("Collecting a"), "{said}");
    // Another content is another environment.
    bench.project(&[("requirements.txt", "a==2\n")]);
    bench.start(&server).await.unwrap();
    assert_eq!(bench.cached("environments"), 2);
    assert!(bench.backend.sessions().len() == 1, "install boxes are gone");
}

#[tokio::test]
async fn a_failed_install_has_its_phase_and_leaves_nothing() {
    let bench = bench(|| FakeScript::new().stdout("no matching distribution\n").exit(1)).await;
    let project = bench.project(&[("main.py", ""), ("requirements.txt", "a\n")]);
    let error = bench.start(&server("python3", &[&format!("{project}/main.py")])).await.unwrap_err();
    assert_eq!(error.phase, Phase::DepInstall);
    assert_eq!(error.message, "Dependency install failed (exit code 1): no matching distribution");
    assert_eq!((bench.cached("environments"), bench.cached("building")), (0, 0));
    assert!(bench.backend.sessions().is_empty());
    bench.launcher.clean_up(&identity()).await.unwrap();
}

#[tokio::test]
async fn an_install_that_is_given_up_leaves_no_box() {
    let bench = bench(|| FakeScript::new().hang()).await;
    let project = bench.project(&[("main.py", ""), ("requirements.txt", "a\n")]);
    let server = server("python3", &[&format!("{project}/main.py")]);
    {
        let mut start = Box::pin(bench.start(&server));
        loop {
            let waited = tokio::time::timeout(Duration::from_millis(10), &mut start).await;
            assert!(waited.is_err(), "it hangs");
            if !bench.asked.lock().unwrap().is_empty() {
                break;
            }
        }
    }
    bench.launcher.close().await;
    assert!(bench.backend.sessions().is_empty());
    assert_eq!(bench.cached("building"), 0);
}

#[tokio::test]
async fn every_failure_has_its_phase() {
    let bench = bench(FakeScript::new).await;
    let phase = async |server: ServerConfig| bench.start(&server).await.unwrap_err();
    let mut bad = server("cat", &[]);
    bad.settings.network = Some("sometimes".to_owned());
    let error = phase(bad).await;
    assert!(
        error.phase == Phase::SessionCreate && error.message.starts_with("box.network `sometimes`"),
        "{error}"
    );
    let mut bad = server("cat", &[]);
    bad.settings.host_path = Some("/no/such/place".to_owned());
    let error = phase(bad).await;
    assert_eq!(error.phase, Phase::Staging);
    assert_eq!(error.message, "MCP host_path does not exist or is not a directory: /no/such/place");
    let mut bad = server("cat", &[]);
    bad.settings.host_path = Some(bench.project(&[]));
    bad.settings.host_path_mode = "sometimes".to_owned();
    assert_eq!(phase(bad).await.phase, Phase::Staging);
    assert_eq!(phase(server("npx", &["--what"])).await.phase, Phase::Staging);
    bench.backend.fail_next_start(sandcrate_backend::BackendError::invalid("x", "refused"));
    assert_eq!(phase(server("cat", &[])).await.phase, Phase::SessionCreate);
    bench.backend.set_unavailable(Some("gone"));
    assert_eq!(bench.launcher.availability().await.unwrap_err().phase, Phase::BoxUnavailable);
    bench.backend.set_unavailable(None);
    let mut started = match bench.start(&server("/bin/false", &[])).await {
        Ok(started) => started,
        Err(error) => {
            assert!(error.phase == Phase::ProcessStart && error.message.contains("no such luck"), "{error}");
            return;
        }
    };
    // It was attached before it ended: then its output ends, and its code is there.
    let mut rest = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut started.reader, &mut rest).await.unwrap();
    assert_eq!(bench.launcher.look(&identity()).await.unwrap(), Life::Exited { code: Some(3) });
    assert_eq!(bench.launcher.log(&identity()).await.unwrap(), "no such luck");
}

#[tokio::test]
async fn a_copy_of_a_project_goes_with_its_server() {
    let bench = bench(FakeScript::new).await;
    let mut server = server("python3", &["main.py"]);
    server.settings.host_path = Some(bench.project(&[("main.py", "")]));
    server.settings.host_path_mode = "copy".to_owned();
    bench.start(&server).await.unwrap();
    assert_eq!(bench.cached("staging"), 2, "the copy and its lock");
    bench.launcher.clean_up(&identity()).await.unwrap();
    assert_eq!(bench.cached("staging"), 0);
}

#[tokio::test]
async fn a_path_that_the_box_does_not_have_is_noted() {
    let bench = bench(FakeScript::new).await;
    let data = bench.project(&[]);
    let mut server = server("cat", &[&data, "/usr"]);
    server.settings.host_path_mode = "none".to_owned();
    bench.start(&server).await.unwrap();
    let note = format!("note: {data} is not in the box; -v {data}:{data}:ro shows it there");
    assert_eq!(*bench.said.0.lock().unwrap(), [note]);
    bench.launcher.clean_up(&identity()).await.unwrap();
    server.settings.mounts.push(MountSpec::new(data.clone(), data, sandcrate_protocol::MountMode::Ro));
    bench.start(&server).await.unwrap();
    assert_eq!(bench.said.0.lock().unwrap().len(), 1, "what is mounted is there");
}
