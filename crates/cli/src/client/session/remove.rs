//! `sandcrate session rm`.

use std::process::ExitCode;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use serde_json::{Value, json};

use super::list;
use crate::args::OutputFormat;
use crate::client::address::Target;
use crate::client::http::Client;
use crate::client::{answer, text};
use crate::failure::OUR_EXIT_CODE;
use crate::output;

/// Remove sessions, with everything in them
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sandcrate session rm demo build
  sandcrate session rm --all

What runs in a session is killed and its private files are removed, those of a persistent session
too.")]
pub(crate) struct RemoveArgs {
    /// Ids of sessions
    #[arg(value_name = "SESSION", value_parser = NonEmptyStringValueParser::new())]
    #[arg(required_unless_present = "all")]
    sessions: Vec<String>,

    /// Every session of the server
    #[arg(short, long, conflicts_with = "sessions")]
    all: bool,

    /// Ids as they go, or one document
    #[arg(short, long, value_name = "FORMAT", default_value = "raw")]
    pub(super) output: OutputFormat,

    #[command(flatten)]
    target: Target,
}

pub(super) async fn run(args: RemoveArgs) -> anyhow::Result<ExitCode> {
    let client = Client::new(&args.target)?;
    let sessions = if args.all { list::ids(&client).await? } else { args.sessions };
    let mut deleted = Vec::new();
    let mut failed = Vec::new();
    for session in sessions {
        match client.delete::<Value>(&text::path(&["v1", "sessions", &session])).await {
            Ok(_) => deleted.push(session),
            // Another remover was faster.
            Err(error) if args.all && list::is_missing(&error) => {}
            Err(error) if error.is_connection() => return Err(error.into()),
            Err(error) => failed.push((session, error.to_string())),
        }
    }
    let errors: Vec<_> = failed.iter().map(|(id, why)| json!({"session_id": id, "message": why})).collect();
    let document = json!({"ok": failed.is_empty(), "deleted": deleted, "failed": errors});
    let text: String = deleted.iter().map(|id| format!("{id}\n")).collect();
    let written = answer(args.output, &document, &text);
    if failed.is_empty() {
        return Ok(written);
    }
    if args.output == OutputFormat::Raw {
        for (_, why) in &failed {
            output::notice(&format!("error: {why}"));
        }
    }
    Ok(ExitCode::from(OUR_EXIT_CODE))
}
