//! The binary `sandcrate`: arguments, wiring, exit codes.
//!
//! The order in `main` is fixed: hidden roles are taken before any thread, log or argument parser exists.

mod args;
mod doctor;
mod failure;
mod manual;
mod native;
mod output;
mod run;
mod settings;
mod toolchain;
mod units;

use std::process::ExitCode;

fn main() -> ExitCode {
    native::dispatch_role();
    if let Some(code) = doctor::attack::dispatch_role() {
        return code;
    }
    settings::start_logging();
    let cli = match args::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    match cli.command {
        args::Verb::Run(run) => run::main(*run),
        args::Verb::Doctor(doctor) => doctor::main(&doctor),
        args::Verb::Completions { shell } => manual::completions(shell),
        args::Verb::Man => manual::man(),
    }
}
