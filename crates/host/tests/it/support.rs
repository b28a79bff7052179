//! Services over a runtime with a scripted backend, in this process and behind a server.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandcrate_backend::fake::{FakeBackend, FakeScript};
use sandcrate_backend::{Backend, Command, ExecRequest, SessionId};
use sandcrate_host::{
    BoxConfig, Client, Connection, Connector, Deployment, EmbeddedClient, Query, Service, Timing,
};
use sandcrate_runtime::{Runtime, RuntimeConfig};
use sandcrate_server::{App, Listener, ServeError, ServerConfig, serve_app};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Nothing here takes so long, however busy the machine is.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Commands say what they do.
fn play(_: &SessionId, request: &ExecRequest) -> FakeScript {
    let text = match &request.command {
        Command::Shell(text) => text.clone(),
        Command::Argv(argv) => {
            argv.iter().map(|part| part.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
        }
    };
    let (verb, rest) = text.split_once(' ').unwrap_or((&text, ""));
    match verb {
        "echo" => FakeScript::new().stdout(format!("{rest}\n")),
        "complain" => FakeScript::new().stderr(format!("{rest}\n")),
        "fill" => FakeScript::new().stdout("x".repeat(rest.parse().unwrap())),
        "hang" | "sleep" => FakeScript::new().hang(),
        "exit" => FakeScript::new().exit(rest.parse().unwrap()),
        "cat" => FakeScript::new().echo_stdin(),
        "rm" => FakeScript::new(),
        // Stands for a program that writes to a mounted workspace.
        "grow" => {
            let (path, bytes) = rest.split_once(' ').unwrap();
            std::fs::write(path, vec![0; bytes.parse().unwrap()]).unwrap();
            FakeScript::new().stdout("grown\n")
        }
        "sh" => FakeScript::new().stdout("ready\n").echo_stdin(),
        other => panic!("the fake has no command {other}"),
    }
}

pub(crate) struct Bench {
    pub(crate) runtime: Runtime,
    pub(crate) backend: Arc<FakeBackend>,
    pub(crate) place: tempfile::TempDir,
}

impl Bench {
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    /// Everything below its place may be mounted.
    pub(crate) async fn with(change: impl FnOnce(&mut RuntimeConfig)) -> Self {
        let place = tempfile::tempdir().unwrap();
        let mut config = RuntimeConfig::new(place.path().join("state"));
        config.mount_roots = Some(vec![place.path().canonicalize().unwrap()]);
        change(&mut config);
        let backend = Arc::new(FakeBackend::new(play));
        let shared: Arc<dyn Backend> = Arc::clone(&backend) as _;
        let runtime = Runtime::open(config, vec![shared]).await.unwrap();
        Self { runtime, backend, place }
    }

    pub(crate) fn client(&self) -> Arc<dyn Client> {
        Arc::new(EmbeddedClient::new(self.runtime.clone()))
    }

    /// A directory that is there.
    pub(crate) fn directory(&self, name: &str) -> std::path::PathBuf {
        let path = self.place.path().canonicalize().unwrap().join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    /// An initialised service with this `box.local` section.
    pub(crate) async fn service(&self, local: Value) -> Service {
        service(self.client(), &json!({"box": {"local": local}})).await
    }
}

pub(crate) async fn service(client: Arc<dyn Client>, config: &Value) -> Service {
    let service = Service::builder().config(config).client(client).build().unwrap();
    service.initialize().await;
    service
}

pub(crate) fn query(id: u64) -> Query {
    Query { query_id: Some(id.into()), ..Query::default() }
}

pub(crate) fn path(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// A server over loopback, on a bench.
pub(crate) struct Server {
    pub(crate) bench: Bench,
    pub(crate) address: SocketAddr,
    shutdown: CancellationToken,
    serving: JoinHandle<Result<(), ServeError>>,
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::listening("127.0.0.1:0".parse().unwrap()).await
    }

    pub(crate) async fn listening(address: SocketAddr) -> Self {
        let bench = Bench::new().await;
        let tcp = TcpListener::bind(address).await.unwrap();
        let address = tcp.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let config = ServerConfig { shutdown_grace: Duration::from_millis(100), ..ServerConfig::default() };
        let app = App::new(bench.runtime.clone(), config, shutdown.clone());
        let serving = tokio::spawn(serve_app(vec![Listener::Tcp(tcp)], app));
        Self { bench, address, shutdown, serving }
    }

    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        tokio::time::timeout(PATIENCE, self.serving).await.unwrap().unwrap().unwrap();
    }

    pub(crate) fn config(&self) -> Value {
        json!({"box": {"runtime": {"endpoint": format!("ws://{}", self.address)}}})
    }

    pub(crate) async fn connect(&self) -> Connected {
        let connector = connector(&self.config(), quick());
        connector.connect().await.unwrap();
        Connected { client: connector.client(), _connector: connector }
    }
}

/// A client, and what keeps its line.
pub(crate) struct Connected {
    pub(crate) client: Arc<dyn Client>,
    _connector: Connector,
}

impl std::ops::Deref for Connected {
    type Target = dyn Client;

    fn deref(&self) -> &Self::Target {
        &*self.client
    }
}

pub(crate) fn connector(config: &Value, timing: Timing) -> Connector {
    let config = BoxConfig::from_section(&config["box"]).unwrap();
    Connector::new(&config, Deployment::default()).unwrap().with_timing(timing)
}

/// For tests that wait for another attempt.
pub(crate) fn quick() -> Timing {
    Timing {
        heartbeat: Duration::from_millis(50),
        // A busy machine must not look like a dead runtime.
        ping: PATIENCE,
        first_delay: Duration::from_millis(20),
        longest_delay: Duration::from_millis(100),
        ..Timing::default()
    }
}

/// Waits until `done` holds.
pub(crate) async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !done() {
        assert!(tokio::time::Instant::now() < deadline, "{what}: waited in vain");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// What is logged while `work` runs.
pub(crate) fn logged(work: impl FnOnce()) -> String {
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);
    impl std::io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).finish();
    tracing::subscriber::with_default(subscriber, work);
    let bytes = log.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}
