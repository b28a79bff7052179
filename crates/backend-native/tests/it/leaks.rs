//! Nothing is left: thousands of boxes, and what the host has afterwards.
//!
//! Every case runs in a process of its own, started from this same program, so that descriptors, memory and
//! children are those of one backend and nothing else. The trial is the parent: it waits, and looks once more at
//! the host when the child is gone.

mod cases;
mod census;
mod ground;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Mutex;

use libtest_mimic::{Failed, Trial};

/// Names the case that this process is to run.
const CASE_VARIABLE: &str = "SANDCRATE_IT_LEAK_CASE";
const SCRATCH_VARIABLE: &str = "SANDCRATE_IT_LEAK_SCRATCH";

/// One at a time: each keeps both processors of a small machine busy and compares counts.
static TURN: Mutex<()> = Mutex::new(());

/// Runs the case that this process was started for; `None` in every other process.
pub(crate) fn run_alone() -> Option<ExitCode> {
    let name = std::env::var(CASE_VARIABLE).ok()?;
    let scratch = std::env::var(SCRATCH_VARIABLE).ok()?;
    let outcome = match cases::ALL.iter().find(|case| case.name == name) {
        Some(case) => cases::run(case, Path::new(&scratch)),
        None => Err(format!("no case is named {name}")),
    };
    Some(match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    })
}

pub(crate) fn trials(writable_root: bool) -> Vec<Trial> {
    let trial = |case: &'static cases::Case| {
        let missing = case.needs_writable_root && !writable_root && !rustix::process::geteuid().is_root();
        if missing {
            eprintln!("SKIP: leaks::{}: an ordinary user has no writable root", case.name);
        }
        Trial::test(format!("leaks::{}", case.name), || in_own_process(case)).with_ignored_flag(missing)
    };
    cases::ALL.iter().map(trial).collect()
}

fn in_own_process(case: &cases::Case) -> Result<(), Failed> {
    let _turn = TURN.lock();
    let scratch = tempfile::Builder::new().prefix("sandcrate-leaks-").tempdir_in("/var/tmp")?;
    let mut child = Command::new("/proc/self/exe");
    let child = child.env(CASE_VARIABLE, case.name).env(SCRATCH_VARIABLE, scratch.path()).output()?;
    if !child.status.success() {
        return Err(format!("{}: {}", child.status, String::from_utf8_lossy(&child.stderr).trim()).into());
    }
    census::nothing_left(scratch.path()).map_err(Failed::from)
}
