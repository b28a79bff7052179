//! The binary `sandcrate`: arguments, wiring, exit codes.
//!
//! The order in `main` is fixed: a launcher is started, or a hidden role is taken, before any thread, log or argument
//! parser exists.

mod args;
mod backends;
mod client;
mod config;
mod doctor;
mod e2b;
mod failure;
mod image;
mod manual;
mod mcp;
mod native;
mod network;
mod nsjail;
mod output;
mod run;
mod serve;
mod settings;
mod tls;
mod toolchain;
mod units;

use std::process::ExitCode;

fn main() -> ExitCode {
    let launcher = native::launcher_ahead();
    if let Some(code) = native::dispatch_role() {
        return code;
    }
    if let Some(code) = doctor::attack::dispatch_role() {
        return code;
    }
    let cli = match args::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    // A server's log is part of its configuration.
    if !matches!(cli.command, args::Verb::Serve(_) | args::Verb::Box(_)) {
        settings::start_logging();
    }
    match cli.command {
        args::Verb::Run(run) => run::main(*run, launcher),
        args::Verb::Doctor(doctor) => doctor::main(&doctor),
        args::Verb::Serve(args) => serve::serve(args),
        args::Verb::Box(args) => serve::boxed(&args),
        args::Verb::Config(verb) => config::main(verb),
        args::Verb::Image(verb) => image::main(verb),
        args::Verb::Mcp(verb) => mcp::main(verb, launcher),
        args::Verb::Tls(verb) => tls::main(verb),
        args::Verb::Client(verb) => client::main(verb),
        args::Verb::Completions { shell } => manual::completions(shell),
        args::Verb::Man => manual::man(),
    }
}
