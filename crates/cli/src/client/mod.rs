//! The commands that talk to a running server: sessions, commands and processes in them, files.
//!
//! One file per verb. `address` finds the server, `http` talks to it, `events` follows a stream across dropped
//! connections. Everything runs on one thread, plus those that read our stdin and write our stdout.

pub(crate) mod address;
mod attach;
mod copy;
mod denials;
mod events;
mod exec;
mod http;
mod logs;
pub(crate) mod mcp;
pub(crate) mod mcp_bridge;
mod problem;
mod profile;
mod ps;
mod session;
mod skill;
mod start;
mod stop;
pub(crate) mod table;
mod text;
mod tool;
mod top;

use std::process::ExitCode;

use anyhow::Context;
use clap::Subcommand;
use serde_json::Value;

use crate::args::OutputFormat;
use crate::failure::Failure;
use crate::output;

#[derive(Debug, Subcommand)]
pub(crate) enum ClientVerb {
    /// Create, list, look at and remove sessions of a server
    Session(session::SessionArgs),
    /// Run a command in a session of a server, and exit with its code
    Exec(Box<exec::ExecArgs>),
    /// List the processes and commands of sessions
    Ps(ps::PsArgs),
    /// Show what sessions use: processes, traffic, connections
    Top(top::TopArgs),
    /// List what a session was refused, and what could be done about it
    Denials(denials::DenialsArgs),
    /// Print what a process or command wrote
    Logs(logs::LogsArgs),
    /// Talk to a process: lines of ours to it, its lines to us
    Attach(attach::AttachArgs),
    /// Start a process that runs beside commands
    Start(start::StartArgs),
    /// Stop processes or commands
    Stop(stop::StopArgs),
    /// Copy files into a session or out of it
    Cp(copy::CopyArgs),
    /// List, add, edit, export and remove skills of a server
    Skill(skill::SkillArgs),
    /// Call the tools of an agent: exec, read, write, edit, glob, grep
    Tool(tool::ToolArgs),
    /// List the presets of sessions that a server has
    Profile(profile::ProfileArgs),
}

/// Whether these words, without flags, are for a client, whose failures have a document of their own.
pub(crate) fn is_client(words: &[&str]) -> bool {
    match words {
        ["mcp", verb, ..] => mcp::McpClientVerb::has_subcommand(verb),
        [verb, ..] => ClientVerb::has_subcommand(verb),
        [] => false,
    }
}

/// Tells a program that its arguments are not acceptable.
pub(crate) fn refuse(failure: Failure) -> ExitCode {
    problem::report(&failure.into(), OutputFormat::Json)
}

pub(crate) fn main(verb: ClientVerb) -> ExitCode {
    let format = format_of(&verb);
    block_on(run(verb), format)
}

fn block_on(work: impl Future<Output = anyhow::Result<ExitCode>>, format: OutputFormat) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime.context("starting the runtime") {
        Ok(runtime) => runtime,
        Err(error) => return problem::report(&error, format),
    };
    let done = runtime.block_on(work);
    // A thread may hang in a write to a reader that stopped reading; it ends with the process.
    runtime.shutdown_background();
    match done {
        Ok(code) => code,
        Err(error) => problem::report(&error, format),
    }
}

async fn run(verb: ClientVerb) -> anyhow::Result<ExitCode> {
    match verb {
        ClientVerb::Session(args) => session::run(args).await,
        ClientVerb::Exec(args) => exec::run(*args).await,
        ClientVerb::Ps(args) => ps::run(args).await,
        ClientVerb::Top(args) => top::run(args).await,
        ClientVerb::Denials(args) => denials::run(args).await,
        ClientVerb::Logs(args) => logs::run(args).await,
        ClientVerb::Attach(args) => attach::run(args).await,
        ClientVerb::Start(args) => start::run(args).await,
        ClientVerb::Stop(args) => stop::run(args).await,
        ClientVerb::Cp(args) => copy::run(args).await,
        ClientVerb::Skill(args) => skill::run(args).await,
        ClientVerb::Tool(args) => tool::run(args).await,
        ClientVerb::Profile(args) => profile::run(args).await,
    }
}

fn format_of(verb: &ClientVerb) -> OutputFormat {
    match verb {
        ClientVerb::Session(args) => args.output(),
        ClientVerb::Exec(args) => args.output,
        ClientVerb::Ps(args) => args.output,
        ClientVerb::Top(args) => args.output,
        ClientVerb::Denials(args) => args.output,
        ClientVerb::Logs(args) => args.output,
        ClientVerb::Attach(_) => OutputFormat::Raw,
        ClientVerb::Start(args) => args.output,
        ClientVerb::Stop(args) => args.output,
        ClientVerb::Cp(args) => args.output,
        ClientVerb::Skill(args) => args.output(),
        ClientVerb::Tool(args) => args.output(),
        ClientVerb::Profile(args) => args.output(),
    }
}

/// Writes a result: the text, or the document when programs are to read it.
fn answer(format: OutputFormat, document: &Value, text: &str) -> ExitCode {
    match format {
        OutputFormat::Raw => output::print(text),
        OutputFormat::Json => output::print(&format!("{document:#}\n")),
    }
}
