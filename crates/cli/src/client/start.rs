//! `sandcrate start`: a managed process.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use serde_json::{Map, Value, json};

use super::address::Target;
use super::http::Client;
use super::{answer, text};
use crate::args::OutputFormat;
use crate::run::environment;

/// Start a process that runs beside commands
#[derive(Debug, Args)]
#[command(
    override_usage = "sandcrate start [OPTIONS] SESSION -- COMMAND [ARG]...",
    after_help = "\
Examples:
  sandcrate start demo -- python3 server.py
  sandcrate start demo --id web -w /workspace/site -- python3 -m http.server
  sandcrate attach demo web

Prints the id. A running process of the same id is replaced. A session with a running process does
not expire."
)]
pub(crate) struct StartArgs {
    /// Name of the process in its session
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = NonEmptyStringValueParser::new())]
    id: String,

    /// Set a variable; a bare KEY passes the caller's value on
    #[arg(short, long, value_name = "KEY[=VALUE]", value_parser = clap::value_parser!(OsString))]
    env: Vec<OsString>,

    /// Directory of the box to start in
    #[arg(short, long, value_name = "DIR")]
    workdir: Option<String>,

    /// The id alone, or the process
    #[arg(short, long, value_name = "FORMAT", default_value = "raw")]
    pub(super) output: OutputFormat,

    #[command(flatten)]
    target: Target,

    /// Id of the session
    #[arg(value_name = "SESSION", value_parser = NonEmptyStringValueParser::new())]
    session: String,

    /// The program and its arguments
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    command: Vec<String>,
}

pub(super) async fn run(args: StartArgs) -> anyhow::Result<ExitCode> {
    let env = environment::variables(&args.env, &[], |key| std::env::var_os(key))?;
    let env: Map<_, _> = env.into_iter().map(|(key, value)| (key, Value::String(value))).collect();
    let client = Client::new(&args.target)?;
    let (program, rest) = args.command.split_first().unwrap_or((&args.id, &[]));
    let mut body = json!({"process_id": args.id, "command": program, "args": rest, "env": env});
    if let Some(dir) = &args.workdir {
        body["cwd"] = json!(dir);
    }
    let process: Value =
        client.post(&text::path(&["v1", "sessions", &args.session, "processes"]), &body).await?;
    Ok(answer(args.output, &process, &format!("{}\n", args.id)))
}
