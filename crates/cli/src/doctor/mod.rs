//! `sandcrate doctor`: what this machine can enforce, and how to fix what it cannot.
//!
//! Files say what should be, a real box says what is. The checks are data; nothing here changes the machine.

pub(crate) mod attack;
mod check;
mod control_checks;
mod engine_checks;
mod kernel_checks;
mod machine;
mod resource_checks;
mod text;
mod trial;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use crate::args::OutputFormat;
use crate::failure::{self, Shown};
use crate::native::NativeConfig;
use crate::output::{self, Paint};
use attack::{Tried, Verdict};
use check::{Check, CheckState};
use machine::Machine;
use resource_checks::Cgroups;
use trial::Trial;

const AFTER_HELP: &str = "\
Examples:
  sandcrate doctor                a report to read, or to paste into a ticket
  sandcrate doctor --attack       also try to break out of a box here
  sandcrate doctor -o json | jq '.checks[] | select(.state != \"ok\")'

Exit code: 0 when boxes run here and no attempt broke out, 1 when not.";

/// Say what this machine can enforce, and how to fix what it cannot
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct DoctorArgs {
    /// Run the built-in attempts to break out of a box, and print the verdicts
    #[arg(long)]
    attack: bool,

    /// How the report is written
    #[arg(short, long, value_name = "FORMAT", default_value = "raw")]
    output: OutputFormat,
}

#[derive(Debug, Serialize)]
struct Report {
    ok: bool,
    verdict: String,
    version: &'static str,
    machine: Machine,
    cgroups: String,
    state_dir: PathBuf,
    checks: Vec<Check>,
    /// A real box, where one could be made.
    #[serde(rename = "box")]
    trial: Option<Trial>,
    /// Why none could.
    error: Option<Shown>,
    attacks: Option<Vec<Tried>>,
}

pub(crate) fn main(args: &DoctorArgs) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            return failure::report(&anyhow::Error::new(error).context("starting the runtime"), args.output);
        }
    };
    let report = runtime.block_on(examine(args.attack));
    runtime.shutdown_background();
    let code = u8::from(!report.ok);
    match args.output {
        OutputFormat::Raw => {
            let text = text::render(&report, Paint::for_stdout());
            output::exit_code_after(output::print_bytes(text.as_bytes()), code)
        }
        OutputFormat::Json => match serde_json::to_vec_pretty(&report) {
            Ok(mut json) => {
                json.push(b'\n');
                output::exit_code_after(output::print_bytes(&json), code)
            }
            Err(error) => {
                failure::report(&anyhow::Error::new(error).context("writing the report"), args.output)
            }
        },
    }
}

async fn examine(attack: bool) -> Report {
    let uname = rustix::system::uname();
    let machine = Machine::read(
        Path::new("/"),
        rustix::process::geteuid().as_raw(),
        &uname.release().to_string_lossy(),
        &uname.machine().to_string_lossy(),
    );
    let config = without_pool();
    let state_dir = config.state_dir.clone();
    let programs: Vec<PathBuf> = std::env::var_os("PATH")
        .map(|path| std::env::split_paths(&path).collect::<Vec<_>>())
        .unwrap_or_default()
        .into_iter()
        // Administrators' programs are not on the PATH of everybody.
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .collect();
    let mut checks = kernel_checks::all(&machine);
    checks.extend(resource_checks::all(&machine, &state_dir, &programs));
    checks.extend(engine_checks::all(&state_dir).await);
    let (trial, error) = match trial::run(config).await {
        Ok(trial) => (Some(trial), None),
        Err(error) => (None, Some(error)),
    };
    if let Some(trial) = &trial {
        checks.push(kernel_checks::network_helper(&trial.isolated_network));
        checks.extend(control_checks::all(&machine, &trial.enforcement));
    }
    let attacks = if attack && trial.is_some() { Some(attack::run(without_pool()).await) } else { None };
    let (ok, verdict) = verdict(trial.is_some(), &checks, attacks.as_deref());
    let cgroups = Cgroups::of(&machine).mode();
    let version = env!("CARGO_PKG_VERSION");
    Report { ok, verdict, version, machine, cgroups, state_dir, checks, trial, error, attacks }
}

/// Nothing is kept ready for a few boxes.
fn without_pool() -> NativeConfig {
    let mut config = NativeConfig::for_this_user();
    config.pool = 0;
    config
}

fn verdict(runs: bool, checks: &[Check], attacks: Option<&[Tried]>) -> (bool, String) {
    let named = |state| {
        let names: Vec<_> =
            checks.iter().filter(|check| check.state == state).map(|check| check.name.as_str()).collect();
        names.join(", ")
    };
    if !runs {
        let missing = named(CheckState::Missing);
        let why = if missing.is_empty() { String::new() } else { format!("; missing: {missing}") };
        return (false, format!("no box can run here{why}"));
    }
    let broken: Vec<_> = attacks
        .unwrap_or_default()
        .iter()
        .filter(|tried| tried.verdict == Verdict::Broken)
        .map(|tried| tried.id.as_str())
        .collect();
    if !broken.is_empty() {
        return (false, format!("boxes run here and DO NOT HOLD: {}", broken.join(", ")));
    }
    let held = if attacks.is_some() { ", and every attempt to break out was held" } else { "" };
    let (missing, weak) = (named(CheckState::Missing), named(CheckState::Weak));
    let text = match (missing.is_empty(), weak.is_empty()) {
        (true, true) => format!("boxes run here with every control in force{held}"),
        (true, false) => format!("boxes run here{held}; weaker than they could be: {weak}"),
        (false, true) => format!("boxes run here{held}; missing: {missing}"),
        (false, false) => {
            format!("boxes run here{held}; missing: {missing}; weaker than they could be: {weak}")
        }
    };
    (true, text)
}

#[cfg(test)]
#[path = "doctor_tests.rs"]
mod tests;
