//! The engine backend on real daemons: the conformance suite on each, and what is its own.
//!
//! A main of its own, because the test program is also the guest in the containers: the role is dispatched before
//! any thread exists. The daemons are private to this run. They need root and Debian's `docker.io` and `podman`;
//! what is missing is said aloud, and a daemon that is installed but does not start is a failure.

//!
//! Everything runs in a network namespace that plays a host, beside one that plays the Internet (the stage of the
//! native backend's network tests): no packet of any box can leave the machine.

#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test program with a main of its own: the lints do not see that all of it is test"
)]

mod daemon;
mod defects;
mod image;
#[path = "../../../net/tests/it/internet.rs"]
#[allow(dead_code, reason = "shared with the tests of `net` and of the native backend")]
mod internet;
mod own;
mod reviewed;
mod table;
#[path = "../../../backend-native/tests/network/world.rs"]
#[allow(dead_code, reason = "shared with the tests of the native backend")]
mod world;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};
use sandcrate_backend::conformance::{self, Harness, Internet};
use sandcrate_backend::{Backend, SessionId, SessionSpec};
use sandcrate_backend_engine::{EngineBackend, EngineConfig, EngineKind, examine};
use sandcrate_protocol::network::Grants;
use sandcrate_protocol::{Control, Enforcement};

use crate::daemon::Daemon;

/// Fully qualified, as Podman wants it.
pub(crate) const IMAGE: &str = "localhost/sandcrate-test:latest";

/// Set in the program that runs in the world.
const INSIDE: &str = "SANDCRATE_ENGINE_WORLD";

struct EngineHarness {
    backend: Arc<EngineBackend>,
    enforcement: Enforcement,
    scratch: PathBuf,
    socket: PathBuf,
}

pub(crate) fn config(daemon: &Daemon, state: &Path) -> EngineConfig {
    EngineConfig { socket: Some(daemon.address()), image: IMAGE.to_owned(), ..EngineConfig::new(state) }
}

impl EngineHarness {
    async fn new(daemon: &Daemon, scratch: &Path) -> Self {
        let state = scratch.join(format!("state-{}", daemon.kind));
        let backend = EngineBackend::connect(daemon.kind, config(daemon, &state)).await.expect("an engine");
        let first = SessionSpec::new(SessionId::new("first").expect("an id"));
        let enforcement = backend.start(first.clone()).await.expect("a first box").enforcement;
        backend.stop(&first.id).await.expect("the end of the first box");
        Self { backend: Arc::new(backend), enforcement, scratch: scratch.to_owned(), socket: daemon.socket() }
    }
}

impl Harness for EngineHarness {
    fn backend(&self) -> Arc<dyn Backend> {
        Arc::clone(&self.backend) as Arc<dyn Backend>
    }

    fn enforces(&self, control: Control) -> bool {
        // Counted on all engines, and reported as degraded: what the case needs is that the count ends the command.
        control == Control::Disk || self.enforcement.holds(control)
    }

    fn keeps_root(&self) -> bool {
        false
    }

    fn hides_host_paths(&self) -> bool {
        false
    }

    fn host_dir(&self) -> Result<PathBuf, String> {
        let made = tempfile::Builder::new().prefix("host-").tempdir_in(&self.scratch);
        made.map(tempfile::TempDir::keep).map_err(|error| error.to_string())
    }

    fn internet(&self) -> Option<Internet> {
        let granted = ["203.0.113.0/24", "2001:db8:f::/48"];
        let allow = granted.iter().map(|rule| rule.parse().expect("a rule")).collect();
        Some(Internet {
            grants: Grants { allow, deny: Vec::new() },
            name: "web.example".to_owned(),
            v4: internet::WEB.parse().expect("an address"),
            v6: internet::WEB6.parse().expect("an address"),
            echo: internet::ECHO,
            closed: internet::CLOSED,
            forbidden: internet::FORBIDDEN[0].parse().expect("an address"),
        })
    }

    /// Containers that the engine still has for the session, whatever their state.
    fn host_processes_of(&self, session: &SessionId) -> Option<usize> {
        own::containers_with(&self.socket, &format!("langbot.session_id={session}")).ok()
    }
}

fn main() -> ExitCode {
    if let Some(code) = sandcrate_driver::dispatch_role() {
        return code;
    }
    let words: Vec<String> = std::env::args().collect();
    if words.get(1).map(String::as_str) == Some(world::INTERNET_ROLE) {
        return internet::role();
    }
    if let Some(outcome) = own::run_alone() {
        return outcome;
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIP: the engines' daemons need root; nothing was tested");
        return ExitCode::SUCCESS;
    }
    if std::env::var_os(INSIDE).is_none() {
        if let Some(why) = world::missing() {
            panic!("the engines' tests need network namespaces and a tun device: {why}");
        }
        let program = std::env::current_exe().expect("our own program");
        let status = world::apart().arg(program).args(&words[1..]).env(INSIDE, "1").status();
        return match status.expect("a namespace").success() {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        };
    }
    let arguments = Arguments::from_args();
    let _world = world::World::start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let scratch = tempfile::Builder::new()
        .prefix("sandcrate-engine-")
        .tempdir_in("/var/tmp")
        .expect("a scratch directory");
    let cgroups = daemon::container_cgroups();
    let only = std::env::var("SANDCRATE_TEST_ENGINE").ok();
    let mut trials = Vec::new();
    let mut running = Vec::new();
    let tar = image::build(scratch.path()).expect("an image");
    let mut columns = vec![runtime.block_on(table::native(scratch.path()))];
    for kind in [EngineKind::Docker, EngineKind::Podman] {
        if only.as_deref().is_some_and(|only| only != kind.name()) {
            continue;
        }
        if !daemon::installed(kind) {
            let required = std::env::var("SANDCRATE_TEST_REQUIRE").unwrap_or_default();
            assert!(
                !required.split(',').any(|name| name == kind.name()),
                "{kind} is required here but not installed"
            );
            eprintln!("SKIP: {kind} is not installed");
            continue;
        }
        let daemon =
            runtime.block_on(Daemon::start(kind, scratch.path())).expect("an installed daemon starts");
        runtime.block_on(daemon.import(IMAGE, tar.clone())).expect("an image that can be imported");
        let harness = Arc::new(runtime.block_on(EngineHarness::new(&daemon, scratch.path())));
        let own = config(&daemon, &scratch.path().join("examined"));
        let facts = runtime.block_on(examine(kind, &own)).expect("an engine that tells of itself");
        columns.push(table::of_engine(kind.name(), &facts, &harness.enforcement));
        let shared: Arc<dyn Harness> = Arc::clone(&harness) as Arc<dyn Harness>;
        for case in conformance::cases() {
            let (harness, handle) = (Arc::clone(&shared), runtime.handle().clone());
            let missing = case.missing(&*harness);
            if let Some(why) = &missing {
                eprintln!("SKIP: {kind}::{}: {why}", case.name);
            }
            let name = format!("{kind}::{}", case.name);
            trials.push(
                Trial::test(name, move || handle.block_on((case.run)(harness)).map_err(Failed::from))
                    .with_ignored_flag(missing.is_some()),
            );
        }
        trials.extend(own::trials(&daemon, scratch.path(), runtime.handle()));
        running.push((daemon, harness));
    }
    columns.extend(runtime.block_on(table::nsjail(scratch.path())));
    trials.push(table::trial(&columns));
    let conclusion = libtest_mimic::run(&arguments, trials);
    for (daemon, harness) in running {
        runtime.block_on(harness.backend.shutdown());
        drop((harness, daemon));
    }
    let left = daemon::left_below(scratch.path());
    assert!(left.is_empty(), "the engines left these on the host: {left:?}");
    daemon::clear_cgroups(&cgroups);
    conclusion.exit_code()
}
