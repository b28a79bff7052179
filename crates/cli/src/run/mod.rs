//! `sandcrate run`: one command in a new box.
//!
//! Three steps: `plan` checks the flags, `session` has the box and its streams, `report` and `notices` say how
//! it went. One thread runs all of it, plus one that reads our stdin and one that writes our stdout.

mod args;
pub(crate) mod environment;
mod network;
pub(crate) mod notices;
mod plan;
pub(crate) mod report;
mod session;
pub(crate) mod signals;
pub(crate) mod streams;
mod strictness;
pub(crate) mod terminal;
pub(crate) mod volume;

use std::process::ExitCode;

use sandcrate_backend::Network;

pub(crate) use args::RunArgs;
use plan::Plan;
use report::RunReport;
use session::{Broken, Ended, Ending};

use crate::args::OutputFormat;
use crate::failure::{self, Shown};
use crate::native::{NativeConfig, NewLauncher};
use crate::output;
use crate::toolchain::Surroundings;

pub(crate) fn main(args: RunArgs, launcher: Option<NewLauncher>) -> ExitCode {
    let format = args.output;
    let mut config = NativeConfig::for_this_user();
    // Nothing to keep ready.
    config.one_box = true;
    // Whoever names an image wants that one.
    config.require_image = true;
    let own_state = [config.state_dir.canonicalize().unwrap_or_else(|_| config.state_dir.clone())];
    let plan = match plan::plan(args, &Surroundings::of_this_process(), &own_state) {
        Ok(plan) => plan,
        Err(error) => return failure::report(&error, format),
    };
    if plan.spec.network == Network::Host && !plan.quiet {
        output::notice("warning: --network host: the command reaches everything that this host reaches");
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            return failure::report(&anyhow::Error::new(error).context("starting the runtime"), format);
        }
    };
    let result = runtime.block_on(session::execute(&plan, config, launcher));
    // A thread may hang in a write to a reader that stopped reading; it ends with the process.
    runtime.shutdown_background();
    finish(&plan, result)
}

fn finish(plan: &Plan, result: Result<Ended, Broken>) -> ExitCode {
    match (result, plan.format) {
        (Ok(ended), OutputFormat::Raw) => {
            if let Ending::Exit(exit) = &ended.ending
                && !plan.quiet
            {
                for line in notices::after(exit, plan.request.timeout) {
                    output::notice(&line);
                }
            }
            ExitCode::from(report::exit_code(&ended.ending))
        }
        (Ok(ended), OutputFormat::Json) => {
            let json = RunReport::ended(plan, &ended).to_json();
            output::exit_code_after(output::print_bytes(&json), report::exit_code(&ended.ending))
        }
        (Err(broken), OutputFormat::Raw) => failure::report(&broken.error, OutputFormat::Raw),
        (Err(broken), OutputFormat::Json) => {
            let shown = Shown::of(&broken.error);
            let code = shown.exit_code();
            let json = RunReport::broken(shown, plan, &broken).to_json();
            output::exit_code_after(output::print_bytes(&json), code)
        }
    }
}
