//! `sandcrate profile`: the presets of sessions that a server has.

use std::process::ExitCode;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use serde_json::Value;

use super::address::Target;
use super::http::Client;
use super::{answer, table, text};
use crate::args::OutputFormat;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sandcrate profile ls
  sandcrate profile show offline_readonly

Four are built in; others are tables of sandcrate.toml:

  [profiles.big]
  memory_mb = 4096
  max_timeout_sec = 600
  locked = [\"network\"]")]
pub(crate) struct ProfileArgs {
    #[command(subcommand)]
    verb: ProfileVerb,
}

#[derive(Debug, Subcommand)]
enum ProfileVerb {
    /// List profiles
    #[command(visible_alias = "list")]
    Ls(ListArgs),
    /// Show what a profile sets, and what it locks
    #[command(visible_alias = "inspect")]
    Show(ShowArgs),
}

#[derive(Debug, Args)]
struct ListArgs {
    /// A table, or the server's document
    #[arg(short, long, value_name = "FORMAT", default_value = "raw")]
    output: OutputFormat,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Args)]
struct ShowArgs {
    /// Its name
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    name: String,
    /// Lines for people, or the server's document
    #[arg(short, long, value_name = "FORMAT", default_value = "raw")]
    output: OutputFormat,
    #[command(flatten)]
    target: Target,
}

impl ProfileArgs {
    pub(super) fn output(&self) -> OutputFormat {
        match &self.verb {
            ProfileVerb::Ls(args) => args.output,
            ProfileVerb::Show(args) => args.output,
        }
    }
}

pub(super) async fn run(args: ProfileArgs) -> anyhow::Result<ExitCode> {
    match args.verb {
        ProfileVerb::Ls(args) => {
            let document: Value = Client::new(&args.target)?.get("/v1/profiles").await?;
            Ok(answer(args.output, &document, &rows(&document)))
        }
        ProfileVerb::Show(args) => {
            let client = Client::new(&args.target)?;
            let document: Value = client.get(&text::path(&["v1", "profiles", &args.name])).await?;
            Ok(answer(args.output, &document, &lines(&document)))
        }
    }
}

fn said(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) if items.is_empty() => "-".to_owned(),
        Value::Array(items) => items.iter().map(said).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

fn rows(document: &Value) -> String {
    let profiles = document["profiles"].as_array();
    let rows: Vec<_> = profiles
        .into_iter()
        .flatten()
        .map(|profile| {
            let mut name = said(&profile["name"]);
            if profile["name"] == document["tools"] {
                name.push_str(" *");
            }
            let field = |key: &str| said(&profile[key]);
            let timeout = format!("{} to {} s", field("timeout_sec"), field("max_timeout_sec"));
            [
                name,
                field("network"),
                field("memory_mb"),
                field("cpus"),
                field("pids_limit"),
                timeout,
                field("locked"),
            ]
        })
        .collect();
    let table = table::render(["NAME", "NETWORK", "MEMORY MB", "CPUS", "PIDS", "TIMEOUT", "LOCKED"], &rows);
    format!("{table}* of the sessions that tools make\n")
}

fn lines(profile: &Value) -> String {
    let fields = profile.as_object();
    let width = fields.into_iter().flatten().map(|(key, _)| key.len()).max().unwrap_or(0);
    let line = |(key, value): (&String, &Value)| format!("{key:width$}  {}\n", said(value));
    profile.as_object().into_iter().flatten().map(line).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_profile_of_tools_is_marked_and_locks_are_named() {
        let profile = |name: &str, locked: &[&str]| {
            json!({"name": name, "network": "off", "memory_mb": 512, "cpus": 1.0, "pids_limit": 128,
                "timeout_sec": 30, "max_timeout_sec": 120, "locked": locked})
        };
        let document = json!({"tools": "default",
            "profiles": [profile("default", &[]), profile("quiet", &["network", "cpus"])]});
        let text = rows(&document);
        assert!(text.contains("default *  off      512        1.0   128   30 to 120 s  -\n"), "{text}");
        assert!(text.contains("network, cpus\n"), "{text}");
        let text = lines(&document["profiles"][1]);
        assert!(text.contains("locked           network, cpus\n"), "{text}");
    }
}
