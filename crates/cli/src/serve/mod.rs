//! `sandcrate serve` and `sandcrate box`: the daemon.
//!
//! The configuration is read and checked as a whole first; then the log starts, then threads, and `daemon`
//! takes addresses and state in an order in which each failure leaves nothing behind.

mod args;
mod bind;
mod daemon;
mod greeting;
mod langbot;
mod log;
mod signals;

use std::process::ExitCode;
use std::time::Duration;

pub(crate) use args::{BoxArgs, ServeArgs};

use crate::args::OutputFormat;
use crate::config::{self, Asked, Outside};
use crate::failure;

/// For tasks that still hold something; a read of stdin that never returns is not waited for longer.
const LAST_TASKS: Duration = Duration::from_millis(200);

pub(crate) fn serve(args: ServeArgs) -> ExitCode {
    let outside = Outside::of_this_process();
    run(args.asked(&outside), &outside)
}

pub(crate) fn boxed(args: &BoxArgs) -> ExitCode {
    run(args.asked(), &Outside::of_this_process())
}

fn run(asked: Asked, outside: &Outside) -> ExitCode {
    let fail = |error: &anyhow::Error| failure::report(error, OutputFormat::Raw);
    let config = match config::load(asked, outside) {
        Ok(config) => config,
        Err(error) => return fail(&error),
    };
    let voice = log::start(config.settings.log.format, &config.settings.log.filter);
    for warning in &config.warnings {
        voice.warn(warning);
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&anyhow::Error::new(error).context("starting the runtime")),
    };
    let ended = runtime.block_on(daemon::run(&config, outside, voice));
    runtime.shutdown_timeout(LAST_TASKS);
    match ended {
        Ok(code) => ExitCode::from(code),
        Err(error) => fail(&error),
    }
}
