//! `sandcrate session ls`.

use std::process::ExitCode;

use clap::Args;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use crate::args::OutputFormat;
use crate::client::address::Target;
use crate::client::http::Client;
use crate::client::problem::{ClientError, ServerError};
use crate::client::{answer, table, text};

/// List sessions
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sandcrate session ls
  sandcrate session ls --label user=42 -q | xargs -r sandcrate session rm
  sandcrate session ls -o json | jq '.sessions[].state'")]
pub(crate) struct ListArgs {
    /// Print ids only
    #[arg(short, long)]
    quiet: bool,

    /// Only sessions with this label; several must all be there
    #[arg(long, value_name = "KEY=VALUE")]
    label: Vec<String>,

    /// A table, or the server's document
    #[arg(short, long, value_name = "FORMAT", default_value = "raw")]
    pub(super) output: OutputFormat,

    #[command(flatten)]
    target: Target,
}

/// What the table shows.
#[derive(Debug, Deserialize)]
struct Summary {
    session_id: String,
    state: String,
    backend_name: String,
    created_at: String,
    last_used_at: String,
}

pub(super) async fn run(args: ListArgs) -> anyhow::Result<ExitCode> {
    let client = Client::new(&args.target)?;
    let labels: Vec<_> = args.label.iter().map(|label| ("label", label.as_str())).collect();
    let document: Value = client.get(&format!("/v1/sessions{}", text::query(&labels))).await?;
    if args.output == OutputFormat::Json {
        return Ok(answer(args.output, &document, ""));
    }
    let sessions = summaries(&client, &document)?;
    if args.quiet {
        let ids: String = sessions.iter().map(|session| format!("{}\n", session.session_id)).collect();
        return Ok(answer(args.output, &document, &ids));
    }
    let now = Timestamp::now();
    let mut rows = Vec::new();
    for session in sessions {
        let processes = match running_processes(&client, &session.session_id).await {
            Ok(number) => number.to_string(),
            // It ended in the meantime.
            Err(ClientError::Server(_)) => "-".to_owned(),
            Err(error) => return Err(error.into()),
        };
        let age = table::age(&session.created_at, now);
        let idle = match session.state.as_str() {
            "running" | "creating" => "-".to_owned(),
            _ => table::age(&session.last_used_at, now),
        };
        rows.push([session.session_id, session.state, session.backend_name, age, idle, processes]);
    }
    let text = table::render(["ID", "STATE", "BACKEND", "AGE", "IDLE", "PROCESSES"], &rows);
    Ok(answer(args.output, &document, &text))
}

fn summaries(client: &Client, document: &Value) -> Result<Vec<Summary>, ClientError> {
    Vec::deserialize(&document["sessions"]).map_err(|error| client.garbled(error.to_string()))
}

/// The ids of all sessions.
pub(in crate::client) async fn ids(client: &Client) -> Result<Vec<String>, ClientError> {
    let document: Value = client.get("/v1/sessions").await?;
    Ok(summaries(client, &document)?.into_iter().map(|session| session.session_id).collect())
}

async fn running_processes(client: &Client, session: &str) -> Result<usize, ClientError> {
    let document: Value = client.get(&text::path(&["v1", "sessions", session, "processes"])).await?;
    let processes = document["processes"].as_array();
    Ok(processes.map_or(0, |all| all.iter().filter(|process| process["status"] == "running").count()))
}

/// Whether the server says that there is no such session.
pub(in crate::client) fn is_missing(error: &ClientError) -> bool {
    matches!(error, ClientError::Server(ServerError { code, .. }) if code == "session_not_found")
}
