//! `sandcrate skill rm`.

use std::process::ExitCode;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use serde_json::{Value, json};

use crate::args::OutputFormat;
use crate::client::address::Target;
use crate::client::http::Client;
use crate::client::{answer, table, text};
use crate::failure::OUR_EXIT_CODE;
use crate::output;

/// Remove skills
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sandcrate skill rm pdf docx

A skill's own directory goes, and no other skill beside it.")]
pub(crate) struct RemoveArgs {
    /// Names of skills
    #[arg(value_name = "NAME", required = true, value_parser = NonEmptyStringValueParser::new())]
    names: Vec<String>,

    /// Names as they go, or one document
    #[arg(short, long, value_name = "FORMAT", default_value = "raw")]
    pub(super) output: OutputFormat,

    #[command(flatten)]
    target: Target,
}

pub(super) async fn run(args: RemoveArgs) -> anyhow::Result<ExitCode> {
    let client = Client::new(&args.target)?;
    let mut deleted = Vec::new();
    let mut failed = Vec::new();
    for name in args.names {
        match client.delete::<Value>(&text::path(&["v1", "skills", &name])).await {
            Ok(_) => deleted.push(name),
            Err(error) if error.is_connection() => return Err(error.into()),
            Err(error) => failed.push((name, error.to_string())),
        }
    }
    let errors: Vec<_> = failed.iter().map(|(name, why)| json!({"name": name, "message": why})).collect();
    let document = json!({"ok": failed.is_empty(), "deleted": deleted, "failed": errors});
    let text: String = deleted.iter().map(|name| format!("{}\n", table::clean(name))).collect();
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
