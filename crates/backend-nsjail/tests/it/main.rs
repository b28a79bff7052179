//! The nsjail backend against the conformance suite, and what is its own: once with the real nsjail, where there is
//! one, and once with a stand-in that applies the same configuration.
//!
//! A main of its own, because the test program also takes the roles around nsjail, and is the stand-in: they are
//! dispatched before any thread exists. Boxes of nsjail's need root.

#![expect(clippy::expect_used, reason = "without its harness the test program has nothing to run")]

mod harness;
mod own;
mod stand_in;
mod sudden_death;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};
use sandcrate_backend::conformance::{self, Harness};
use sandcrate_backend_nsjail::NsjailConfig;
use tokio::runtime::Handle;

use harness::NsjailHarness;

fn main() -> ExitCode {
    stand_in::dispatch();
    sandcrate_jail::dispatch_role();
    sudden_death::dispatch();
    let arguments = Arguments::from_args();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut trials = Vec::new();
    let mut harnesses = Vec::new();
    for (name, nsjail) in programs(&mut trials) {
        let harness = Arc::new(runtime.block_on(NsjailHarness::new(&nsjail)));
        trials.extend(suite(name, &harness, runtime.handle()));
        trials.extend(own::trials(name, &nsjail, &harness, runtime.handle()));
        harnesses.push(harness);
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    let mut code = conclusion.exit_code();
    for harness in harnesses {
        if let Err(why) = runtime.block_on(harness.close()) {
            eprintln!("FAILED: {why}");
            code = ExitCode::FAILURE;
        }
    }
    code
}

/// What can be tested here; what cannot is said, and fails where `SANDCRATE_TEST_REQUIRE` forbids it.
fn programs(trials: &mut Vec<Trial>) -> Vec<(&'static str, PathBuf)> {
    let required = std::env::var("SANDCRATE_TEST_REQUIRE").unwrap_or_default();
    let mut lacking = |feature: &str, why: &str| {
        eprintln!("SKIP: needs {feature}: {why}");
        if required.split(',').any(|name| name.trim() == feature) {
            let why = format!("`{feature}` is required here but missing: {why}");
            trials.push(Trial::test(format!("{feature}_is_here"), move || Err(Failed::from(why))));
        }
    };
    if !rustix::process::geteuid().is_root() {
        lacking("root", "boxes of nsjail's are made by root");
        return Vec::new();
    }
    let mut found = vec![("stand-in", std::env::current_exe().expect("this program"))];
    match NsjailConfig::new("").find() {
        Some(nsjail) => found.push(("nsjail", nsjail)),
        None => lacking("nsjail", "it is not on PATH"),
    }
    found
}

fn suite(name: &'static str, harness: &Arc<NsjailHarness>, handle: &Handle) -> Vec<Trial> {
    let shared: Arc<dyn Harness> = Arc::clone(harness) as Arc<dyn Harness>;
    let trials = conformance::cases().into_iter().map(|case| {
        let (harness, handle) = (Arc::clone(&shared), handle.clone());
        let missing = case.missing(&*harness);
        if let Some(why) = &missing {
            eprintln!("SKIP: {name}::{}: {why}", case.name);
        }
        let run = move || handle.block_on((case.run)(harness)).map_err(Failed::from);
        Trial::test(format!("{name}::{}", case.name), run).with_ignored_flag(missing.is_some())
    });
    trials.collect()
}
