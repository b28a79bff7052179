//! Attacks from inside a box, one trial each: `attack::fs_01_dotdot_never_reaches_the_host`.
//!
//! Most are lines of [`table::ATTACKS`], run by the probe in a box of their own with the suite's limits; files and
//! processes again with a writable root. What needs the host's hand or eye has a function in a module below. What
//! cannot hold for an ordinary user stands in [`exceptions::EXCEPTIONS`] and nowhere else.
//!
//! TM-07 (the host's clock set while a command runs) has no trial: setting the clock would harm everything else on
//! the machine, and a search of the sources proves nothing. Deadlines are `tokio::time`, which rests on
//! `std::time::Instant`, which is `CLOCK_MONOTONIC` on Linux and not changed by clock_settime(2).

mod api;
mod exceptions;
mod host;
mod limits;
mod sharing;
pub(crate) mod stage;
mod table;
mod time;

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use libtest_mimic::{Failed, Trial};
use sandcrate_backend::conformance::Check;
use sandcrate_backend::{Backend, ExitStatus, RootAccess};
use sandcrate_backend_native::NativeBackend;
use sandcrate_protocol::Enforcement;
use tokio::runtime::Handle;

use host::Host;
use stage::{Stage, ensure};
use table::{ATTACKS, Attack, ELSEWHERE, Expect, READ_ONLY_ROOT, says_oom};

pub(crate) type CheckFuture = Pin<Box<dyn Future<Output = Check> + Send>>;

/// A trial that is more than a line of the table.
pub(crate) struct Special {
    /// Of the table of cases, or of the family it belongs to.
    pub(crate) name: &'static str,
    pub(crate) run: fn(Arc<Stage>) -> CheckFuture,
}

/// The functions as [`Special`]s, named as they are.
macro_rules! specials {
    ($($function:ident),+ $(,)?) => {
        vec![$($crate::attacks::Special {
            name: stringify!($function),
            run: |stage| Box::pin(async move { $function(&stage).await }),
        }),+]
    };
}
pub(crate) use specials;

/// Every trial of this module.
pub(crate) fn trials(
    backend: &Arc<NativeBackend>,
    enforcement: &Enforcement,
    scratch: &Path,
    handle: &Handle,
) -> Result<Vec<Trial>, String> {
    let host = Host::new(scratch).map_err(|error| format!("setting up the host: {error}"))?;
    let stage = Arc::new(Stage::new(Arc::clone(backend), host));
    let mut trials = Vec::new();
    let mut skipped = exceptions::Skipped::default();
    let mut push = |name: String, run: Box<dyn FnOnce(Arc<Stage>) -> CheckFuture + Send>| {
        let missing = exceptions::missing(&name, enforcement, backend.capabilities().writable_root);
        if let Some(why) = &missing {
            skipped.add(&name, why);
        }
        let (stage, handle) = (Arc::clone(&stage), handle.clone());
        let run = move || handle.block_on(run(stage)).map_err(Failed::from);
        trials.push(Trial::test(format!("attack::{name}"), run).with_ignored_flag(missing.is_some()));
    };
    for attack in ATTACKS.iter().chain([&READ_ONLY_ROOT]) {
        push(
            attack.name(),
            Box::new(move |stage| Box::pin(async move { hold(&stage, attack, RootAccess::ReadOnly).await })),
        );
    }
    for attack in ATTACKS.iter().filter(|attack| attack.concerns_the_root()) {
        let name = format!("writable_root_{}", attack.name());
        push(
            name,
            Box::new(move |stage| Box::pin(async move { hold(&stage, attack, RootAccess::Writable).await })),
        );
    }
    let specials = [
        specials![every_attack_of_the_probe_has_a_trial],
        sharing::all(),
        api::all(),
        limits::all(),
        time::all(),
    ];
    for special in specials.into_iter().flatten() {
        push(special.name.to_owned(), Box::new(special.run));
    }
    skipped.tell();
    Ok(trials)
}

/// One line of the table: the verdict, the further look, an untouched host and a box that goes on.
async fn hold(stage: &Stage, attack: &Attack, root: RootAccess) -> Check {
    let _quiet = stage.quiet.read().await;
    let session = stage.open(root).await?;
    let arguments: Result<Vec<String>, _> =
        attack.arguments.iter().map(|argument| stage.host.fill(argument)).collect();
    let seen = match session.attack(attack.probe, &arguments.map_err(|error| error.to_string())?).await {
        // Memory that no process owns may cost a box its init, which an ordinary user cannot protect: the limit
        // held, and the caller is told.
        Err(error)
            if attack.id.starts_with("RS")
                && is_rootless()
                && error.contains("the box ran out of memory") =>
        {
            stage.host.is_untouched()?;
            return session.stop().await;
        }
        seen => seen?,
    };
    let verdict = seen.verdict();
    let told = attack.expect == Expect::Told && verdict.starts_with("INFO:");
    // Memory that no process owns may cost the attack's own supervisor its life, and with it the last line.
    let killed = attack.id.starts_with("RS")
        && seen.result.exit.status == ExitStatus::Signal(9)
        && says_oom(&seen).is_ok();
    ensure!(verdict.starts_with("SAFE:") || told || killed, "{}", seen.told());
    (attack.also)(&seen)?;
    session.is_usable().await?;
    stage.host.is_untouched()?;
    session.stop().await
}

fn is_rootless() -> bool {
    !rustix::process::geteuid().is_root()
}

/// A new attack in the probe is of no use until it is run.
async fn every_attack_of_the_probe_has_a_trial(stage: &Stage) -> Check {
    let program = stage.probe().await?.join("probe");
    let listed = tokio::process::Command::new(program)
        .arg("list")
        .output()
        .await
        .map_err(|error| error.to_string())?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let names: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    ensure!(names.len() > 90, "the probe lists only {names:?}");
    let known = |name: &str| ELSEWHERE.contains(&name) || ATTACKS.iter().any(|attack| attack.probe == name);
    let forgotten: Vec<_> = names.iter().filter(|name| !known(name)).collect();
    ensure!(forgotten.is_empty(), "no trial runs {forgotten:?}");
    Ok(())
}
