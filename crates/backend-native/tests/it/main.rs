//! The native backend against the conformance suite, and what is its own.
//!
//! A main of its own, because the test program is also the launcher: the role is dispatched before any thread
//! exists. Run it as root and as an ordinary user; what a case needs and this user lacks is said aloud. Attacks
//! from inside a box are in `attacks`, what must not be left behind in `leaks`.

#![expect(clippy::expect_used, reason = "without its harness the test program has nothing to run")]

mod attacks;
mod host_state;
mod images;
mod leaks;
mod restarts;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};
use sandcrate_backend::conformance::{self, Harness};
use sandcrate_backend::{Backend, Capabilities};
use sandcrate_backend_native::{NativeBackend, NativeConfig};
use sandcrate_protocol::{Control, Enforcement};

struct NativeHarness {
    backend: Arc<NativeBackend>,
    enforcement: Enforcement,
    scratch: tempfile::TempDir,
}

impl NativeHarness {
    async fn new() -> Self {
        let scratch = tempfile::Builder::new()
            .prefix("sandcrate-it-")
            .tempdir_in("/var/tmp")
            .expect("a scratch directory");
        let config = NativeConfig {
            state_dir: scratch.path().join("state"),
            pool: 2,
            ..NativeConfig::for_this_user()
        };
        let backend = Arc::new(NativeBackend::open(config).await.expect("the backend opens"));
        let enforcement = backend.common_enforcement().await.expect("a launcher that can make boxes");
        Self { backend, enforcement, scratch }
    }
}

impl Harness for NativeHarness {
    fn backend(&self) -> Arc<dyn Backend> {
        Arc::clone(&self.backend) as Arc<dyn Backend>
    }

    fn capabilities(&self) -> Capabilities {
        self.backend.capabilities()
    }

    fn enforces(&self, control: Control) -> bool {
        self.enforcement.get(control).is_none() || self.enforcement.holds(control)
    }

    fn host_dir(&self) -> Result<PathBuf, String> {
        let made = tempfile::Builder::new().prefix("host-").tempdir_in(self.scratch.path());
        made.map(tempfile::TempDir::keep).map_err(|error| error.to_string())
    }
}

fn main() -> ExitCode {
    if let Some(code) = sandcrate_backend_native::dispatch_role() {
        return code;
    }
    if let Some(outcome) = leaks::run_alone() {
        return outcome;
    }
    let arguments = Arguments::from_args();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let harness: Arc<NativeHarness> = Arc::new(runtime.block_on(NativeHarness::new()));
    let shared: Arc<dyn Harness> = Arc::clone(&harness) as Arc<dyn Harness>;
    let trials = conformance::cases().into_iter().map(|case| {
        let (harness, handle) = (Arc::clone(&shared), runtime.handle().clone());
        let missing = case.missing(&*harness);
        if let Some(why) = &missing {
            eprintln!("SKIP: {}: {why}", case.name);
        }
        Trial::test(case.name, move || handle.block_on((case.run)(harness)).map_err(Failed::from))
            .with_ignored_flag(missing.is_some())
    });
    let mut trials: Vec<Trial> = trials.collect();
    let attacks =
        attacks::trials(&harness.backend, &harness.enforcement, harness.scratch.path(), runtime.handle());
    trials.extend(attacks.expect("a host to attack"));
    trials.extend(images::trials(&harness.backend, harness.scratch.path(), runtime.handle()));
    trials.extend(restarts::trials(&harness.backend, runtime.handle()));
    trials.extend(leaks::trials(harness.capabilities().writable_root));
    let conclusion = libtest_mimic::run(&arguments, trials);
    runtime.block_on(harness.backend.shutdown());
    conclusion.exit_code()
}
