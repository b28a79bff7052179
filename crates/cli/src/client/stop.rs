//! `sandcrate stop`: ends processes and commands.

use std::process::ExitCode;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use serde_json::{Value, json};

use super::address::Target;
use super::http::Client;
use super::problem::ClientError;
use super::{answer, text};
use crate::args::OutputFormat;

/// Stop processes or commands
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sandcrate stop demo web
  sandcrate stop demo 7               a command that `exec -d` started

A process is forgotten with that; a command stays listed, with how it ended.")]
pub(crate) struct StopArgs {
    /// Id of the session
    #[arg(value_name = "SESSION", value_parser = NonEmptyStringValueParser::new())]
    session: String,

    /// Ids of processes or commands, as `sandcrate ps` shows them
    #[arg(value_name = "PROCESS", required = true, value_parser = NonEmptyStringValueParser::new())]
    processes: Vec<String>,

    /// Ids, or one document
    #[arg(short, long, value_name = "FORMAT", default_value = "raw")]
    pub(super) output: OutputFormat,

    #[command(flatten)]
    target: Target,
}

pub(super) async fn run(args: StopArgs) -> anyhow::Result<ExitCode> {
    let client = Client::new(&args.target)?;
    for id in &args.processes {
        stop(&client, &args.session, id).await?;
    }
    let text: String = args.processes.iter().map(|id| format!("{id}\n")).collect();
    Ok(answer(args.output, &json!({"stopped": args.processes}), &text))
}

/// The process of that id, or else the command.
async fn stop(client: &Client, session: &str, id: &str) -> Result<(), ClientError> {
    let path = |kind: &str| text::path(&["v1", "sessions", session, kind, id]);
    match client.delete::<Value>(&path("processes")).await {
        Err(error) if is_no_process(&error) => match client.delete::<Value>(&path("commands")).await {
            Err(ClientError::Server(_)) => Err(error),
            stopped => stopped.map(drop),
        },
        stopped => stopped.map(drop),
    }
}

/// Whether the server knows no process of that id.
pub(super) fn is_no_process(error: &ClientError) -> bool {
    matches!(error, ClientError::Server(error) if error.code == "managed_process_not_found")
}
