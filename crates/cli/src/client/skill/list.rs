//! `sandcrate skill ls` and `sandcrate skill show`.

use std::fmt::Write;
use std::process::ExitCode;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Shown;
use crate::args::OutputFormat;
use crate::client::address::Target;
use crate::client::http::Client;
use crate::client::problem::ClientError;
use crate::client::{answer, table, text};

/// List skills
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sandcrate skill ls
  sandcrate skill ls -o json | jq -r '.skills[].package_root'")]
pub(crate) struct ListArgs {
    /// Print names only
    #[arg(short, long)]
    quiet: bool,

    /// A table, or the server's document
    #[arg(short, long, value_name = "FORMAT", default_value = "raw")]
    pub(super) output: OutputFormat,

    #[command(flatten)]
    target: Target,
}

/// Show what a skill says, and its files
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sandcrate skill show pdf
  sandcrate skill show pdf -o json | jq -r .instructions")]
pub(crate) struct ShowArgs {
    /// Name of the skill
    #[arg(value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    name: String,

    /// For people, or the server's documents
    #[arg(short, long, value_name = "FORMAT", default_value = "raw")]
    pub(super) output: OutputFormat,

    #[command(flatten)]
    target: Target,
}

pub(super) async fn run(args: ListArgs) -> anyhow::Result<ExitCode> {
    let client = Client::new(&args.target)?;
    let document: Value = client.get("/v1/skills").await?;
    let skills = all(&client, &document)?;
    let text = match args.quiet {
        true => skills.iter().map(|skill| format!("{}\n", table::clean(&skill.name))).collect(),
        false => summary(&skills),
    };
    Ok(answer(args.output, &document, &text))
}

/// The skills of a document.
pub(super) fn all(client: &Client, document: &Value) -> Result<Vec<Shown>, ClientError> {
    Vec::deserialize(&document["skills"]).map_err(|error| client.garbled(error.to_string()))
}

pub(super) fn summary(skills: &[Shown]) -> String {
    let now = Timestamp::now();
    let rows: Vec<_> = skills
        .iter()
        .map(|skill| {
            let description: String = skill.description.lines().next().unwrap_or_default().to_owned();
            [skill.name.clone(), table::age(&skill.updated_at, now), description]
        })
        .collect();
    table::render(["NAME", "CHANGED", "DESCRIPTION"], &rows)
}

pub(super) async fn show(args: ShowArgs) -> anyhow::Result<ExitCode> {
    let client = Client::new(&args.target)?;
    let mut document: Value = client.get(&text::path(&["v1", "skills", &args.name])).await?;
    let files = format!("{}?include_hidden=1", text::path(&["v1", "skills", &args.name, "files"]));
    let files: Value = client.get(&files).await?;
    let skill = Shown::deserialize(&document).map_err(|error| client.garbled(error.to_string()))?;
    let text = render(&skill, &files);
    if let Value::Object(fields) = &mut document {
        fields.insert("files".to_owned(), json!(files["entries"]));
    }
    Ok(answer(args.output, &document, &text))
}

fn render(skill: &Shown, files: &Value) -> String {
    let mut text = String::new();
    for (name, value) in [
        ("name", skill.name.as_str()),
        ("title", &skill.display_name),
        ("description", &skill.description),
        ("changed", &skill.updated_at),
        ("directory", &skill.package_root),
        ("entry file", &skill.entry_file),
    ] {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name:<11} {}", table::clean(value));
    }
    text.push_str("\nfiles\n");
    for entry in files["entries"].as_array().into_iter().flatten() {
        let name = table::clean(entry["path"].as_str().unwrap_or_default());
        let _ = match (entry["is_dir"].as_bool(), entry["size"].as_u64()) {
            (Some(true), _) => writeln!(text, "{name}/"),
            (_, Some(size)) => writeln!(text, "{name} ({size} bytes)"),
            _ => writeln!(text, "{name}"),
        };
    }
    if files["truncated"] == true {
        text.push_str("and more\n");
    }
    // The one text with lines of its own; what could move a cursor is taken out of each.
    text.push_str("\ninstructions\n");
    for line in skill.instructions.lines() {
        let _ = writeln!(text, "{}", table::clean(line));
    }
    text
}
