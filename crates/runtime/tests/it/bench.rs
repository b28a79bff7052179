//! A runtime on a fake backend, and what tests say to it.

use std::sync::Arc;
use std::time::Duration;

use sandcrate_backend::fake::{FakeBackend, FakeScript};
use sandcrate_backend::{Backend, Command, ExecRequest, SessionId};
use sandcrate_protocol::BoxSpec;
use sandcrate_runtime::{Runtime, RuntimeConfig};

pub(crate) struct Bench {
    pub(crate) runtime: Runtime,
    pub(crate) backend: Arc<FakeBackend>,
    pub(crate) state: Arc<tempfile::TempDir>,
}

/// Commands say what they do: `echo TEXT`, `sleep SECONDS`, `hang`, `exit N`, `cat`, `stubborn`.
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
        "complain" => FakeScript::new().stderr(format!("{rest}\n")).hang(),
        "sleep" => FakeScript::new().wait(Duration::from_secs(rest.parse().unwrap())),
        "hang" => FakeScript::new().hang(),
        "stubborn" => FakeScript::new().hang().ignoring_signals(),
        "exit" => FakeScript::new().exit(rest.parse().unwrap()),
        "cat" => FakeScript::new().echo_stdin(),
        "flood" => (0..40).fold(FakeScript::new(), |script, _| script.stdout(vec![b'x'; 64 << 10])),
        other => panic!("the fake has no command {other}"),
    }
}

impl Bench {
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut RuntimeConfig)) -> Self {
        Self::on(FakeBackend::new(play), Arc::new(tempfile::tempdir().unwrap()), change).await
    }

    /// Boxes can have an isolated network.
    pub(crate) async fn networked(change: impl FnOnce(&mut RuntimeConfig)) -> Self {
        Self::networked_again(Arc::new(tempfile::tempdir().unwrap()), change).await
    }

    pub(crate) async fn networked_again(
        state: Arc<tempfile::TempDir>,
        change: impl FnOnce(&mut RuntimeConfig),
    ) -> Self {
        Self::on(FakeBackend::new(play).with_network(), state, change).await
    }

    pub(crate) async fn slow_start(delay: Duration) -> Self {
        let backend = FakeBackend::new(play).with_start_delay(delay);
        Self::on(backend, Arc::new(tempfile::tempdir().unwrap()), |_| {}).await
    }

    pub(crate) async fn again(state: Arc<tempfile::TempDir>) -> Self {
        Self::on(FakeBackend::new(play), state, |_| {}).await
    }

    async fn on(
        backend: FakeBackend,
        state: Arc<tempfile::TempDir>,
        change: impl FnOnce(&mut RuntimeConfig),
    ) -> Self {
        let mut config = RuntimeConfig::new(state.path());
        change(&mut config);
        let backend = Arc::new(backend);
        let shared: Arc<dyn Backend> = Arc::clone(&backend) as _;
        let runtime = Runtime::open(config, vec![shared]).await.unwrap();
        Self { runtime, backend, state }
    }

    pub(crate) fn spec(id: &str, cmd: &str) -> BoxSpec {
        let mut spec = BoxSpec::new(id);
        spec.cmd = cmd.to_owned();
        spec
    }
}
