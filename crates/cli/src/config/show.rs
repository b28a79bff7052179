//! `sandcrate config show`: every setting in force, and where it comes from.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::{Value, json};

use super::layers::leaves;
use super::{Config, Outside, load};
use crate::args::OutputFormat;
use crate::failure;
use crate::output;
use crate::serve::ServeArgs;

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigVerb {
    /// Print every setting that `sandcrate serve` would use, and where it comes from
    #[command(after_help = "\
Examples:
  sandcrate config show                          key = value, with its origin
  sandcrate config show --config ./new.toml      check a file before it is used; 125 when it is not valid
  sandcrate config show -o json | jq '.settings[\"server.listen\"]'")]
    Show(ShowArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    serve: ServeArgs,

    /// How it is written
    #[arg(short, long, value_name = "FORMAT", default_value = "raw")]
    output: OutputFormat,
}

#[derive(Debug, Serialize)]
struct Shown {
    value: Value,
    #[serde(flatten)]
    origin: super::Origin,
}

pub(crate) fn main(verb: ConfigVerb) -> ExitCode {
    let ConfigVerb::Show(args) = verb;
    let outside = Outside::of_this_process();
    let config = match load(args.serve.asked(&outside), &outside) {
        Ok(config) => config,
        Err(error) => return failure::report(&error, args.output),
    };
    for warning in &config.warnings {
        output::notice(&format!("warning: {warning}"));
    }
    output::print(&match args.output {
        OutputFormat::Raw => text(&config),
        OutputFormat::Json => format!("{:#}\n", document(&config)),
    })
}

fn settings(config: &Config) -> Vec<(String, Shown)> {
    let mut tree = serde_json::to_value(&config.settings).unwrap_or_default();
    hide_variables(&mut tree["mcp"]["servers"]);
    let shown = leaves(&tree).into_iter().map(|(key, value)| {
        let origin = config.origin(&key);
        (key, Shown { value, origin })
    });
    shown.collect()
}

/// Variables of servers may be secrets: their names are shown, their values are not.
fn hide_variables(servers: &mut Value) {
    for server in servers.as_object_mut().into_iter().flat_map(|servers| servers.values_mut()) {
        for place in ["/env", "/box/env"] {
            let variables = server.pointer_mut(place).and_then(Value::as_object_mut);
            for value in variables.into_iter().flat_map(|variables| variables.values_mut()) {
                *value = "…".into();
            }
        }
    }
}

fn document(config: &Config) -> Value {
    let settings: serde_json::Map<_, _> =
        settings(config).into_iter().map(|(key, shown)| (key, json!(shown))).collect();
    let mut token = json!(config.token_origin);
    token["set"] = config.token.is_some().into();
    json!({"file": config.file, "token": token, "settings": settings})
}

/// Lines that can be pasted into a file.
fn text(config: &Config) -> String {
    let file = config.file.as_ref().map_or_else(|| "none".to_owned(), |file| file.display().to_string());
    let mut lines = vec![format!("# file: {file}")];
    lines.push(match &config.token {
        Some(_) => format!("# token: set ({})", config.token_origin),
        None => "# token: unset".to_owned(),
    });
    let settings: Vec<_> = settings(config)
        .into_iter()
        .map(|(key, Shown { value, origin })| {
            // JSON's strings, numbers and lists of them are TOML's as well.
            let line = match &value {
                Value::Null => format!("# {key} is unset"),
                Value::Object(table) => format!("{key} = {}", inline_table(table)),
                value => format!("{key} = {value}"),
            };
            (line, origin)
        })
        .collect();
    let width = settings.iter().map(|(line, _)| line.chars().count()).filter(|width| *width <= 60).max();
    for (line, origin) in settings {
        lines.push(format!("{line:width$}  # {origin}", width = width.unwrap_or(0)));
    }
    lines.push(String::new());
    lines.join("\n")
}

fn inline_table(table: &serde_json::Map<String, Value>) -> String {
    let pairs: Vec<_> = table.iter().map(|(key, value)| format!("{} = {value}", json!(key))).collect();
    format!("{{{}}}", pairs.join(", "))
}
