//! Isolated networks of native boxes, with real programs, in a world of namespaces.
//!
//! The program starts itself again in a network namespace that plays the host, whose only neighbour is a namespace
//! that plays the Internet (`internet`, shared with the tests of `net`). Daemon, launcher, helper and boxes all live
//! there: no packet of any test can leave the machine. The one exception, `package_index`, stays outside and tries
//! nothing but the index that the machine itself is configured for.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test program with a main of its own: the lints do not see that all of it is test"
)]

mod confinement;
mod denials;
mod forbidden;
#[path = "../../../net/tests/it/internet.rs"]
mod internet;
mod many;
mod outage;
mod package_index;
mod programs;
mod stage;
mod world;

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};
use sandcrate_backend::conformance;

use stage::Stage;

const INSIDE: &str = "SANDCRATE_NATIVE_WORLD";

fn main() -> ExitCode {
    if let Some(code) = sandcrate_backend_native::dispatch_role() {
        return code;
    }
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.get(1).map(String::as_str) == Some(world::INTERNET_ROLE) {
        return internet::role();
    }
    if std::env::var_os(INSIDE).is_some() || arguments.iter().any(|argument| argument == "--list") {
        return inside();
    }
    let outside = package_index::run(&arguments);
    if let Some(why) = world::missing() {
        assert!(!internet::required("isolated-network"), "`isolated-network` is required here: {why}");
        eprintln!("SKIP: needs network namespaces and a tun device: {why}");
        return outside;
    }
    let program = std::env::current_exe().unwrap();
    let status = world::apart().arg(program).args(&arguments[1..]).env(INSIDE, "1").status().unwrap();
    if status.success() { outside } else { ExitCode::FAILURE }
}

fn inside() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // The suites share two cores with others; times are part of what is tested.
    arguments.test_threads = Some(1);
    let world = (!arguments.list).then(world::World::start);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let stage = world.is_some().then(|| Arc::new(runtime.block_on(Stage::open())));
    let mut trials: Vec<Trial> = Vec::new();
    for case in conformance::cases().into_iter().filter(|case| case.name.starts_with("network::")) {
        let (stage, handle) = (stage.clone(), runtime.handle().clone());
        if let Some(why) = stage.as_ref().and_then(|stage| case.missing(&**stage)) {
            panic!("{}: {why}", case.name);
        }
        trials.push(Trial::test(case.name, move || {
            handle.block_on((case.run)(stage.expect("a stage"))).map_err(Failed::from)
        }));
    }
    let own = [
        programs::tests(),
        forbidden::tests(),
        denials::tests(),
        confinement::tests(),
        outage::tests(),
        many::tests(),
    ];
    for (name, test) in own.into_iter().flatten() {
        let (stage, handle) = (stage.clone(), runtime.handle().clone());
        trials.push(Trial::test(name, move || {
            handle.block_on(test(stage.expect("a stage")));
            Ok(())
        }));
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    if let Some(stage) = stage {
        runtime.block_on(stage.close());
    }
    drop(world);
    conclusion.exit_code()
}
