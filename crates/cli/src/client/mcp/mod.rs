//! `sandcrate mcp import|ls|show|test|logs|restart|rm`: the MCP servers of a running server.

mod import;
mod show;

use std::process::ExitCode;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::address::Target;
use super::http::Client;
use super::problem::ClientError;
use super::{answer, text};
use crate::args::OutputFormat;
use crate::output;

#[derive(Debug, Subcommand)]
pub(crate) enum McpClientVerb {
    /// Add the MCP servers of another program's file to a server, or prefix them in the file
    Import(import::ImportArgs),
    /// List the MCP servers of a server, and how they stand
    #[command(
        visible_alias = "list",
        after_help = "\
Examples:
  sandcrate mcp ls
  sandcrate mcp ls -o json | jq '.servers[] | {name, status: .runtime_info.status}'

Their tools are at /mcp of the server, as NAME__TOOL, and at /mcp/NAME."
    )]
    Ls(ListArgs),
    /// Show an MCP server, its tools, and why it does not run
    #[command(visible_alias = "inspect")]
    Show(NameArgs),
    /// Test an MCP server; one that failed is started afresh
    #[command(after_help = "\
Examples:
  sandcrate mcp test time
  sandcrate mcp test time -o json | jq .runtime_info.error_phase

Exit codes: 0 when it works, else 125.")]
    Test(NameArgs),
    /// Print the last lines of an MCP server's stderr
    Logs(NameArgs),
    /// End an MCP server and start it with everything fresh
    Restart(NameArgs),
    /// Remove MCP servers that clients added
    #[command(after_help = "\
Examples:
  sandcrate mcp rm time notes

All of them are tried: those that went are printed, what failed is told on stderr.")]
    Rm(RemoveArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// A table, or the server's document
    #[arg(short, long, value_name = "FORMAT", default_value = "raw")]
    output: OutputFormat,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Args)]
pub(crate) struct NameArgs {
    /// Its name, as `sandcrate mcp ls` shows it
    #[arg(value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    name: String,
    /// For people, or the server's document
    #[arg(short, long, value_name = "FORMAT", default_value = "raw")]
    output: OutputFormat,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Args)]
pub(crate) struct RemoveArgs {
    /// Names, as `sandcrate mcp ls` shows them
    #[arg(value_name = "NAME", required = true, value_parser = NonEmptyStringValueParser::new())]
    names: Vec<String>,
    /// Names, or one document
    #[arg(short, long, value_name = "FORMAT", default_value = "raw")]
    output: OutputFormat,
    #[command(flatten)]
    target: Target,
}

impl McpClientVerb {
    fn output(&self) -> OutputFormat {
        match self {
            Self::Import(args) => args.output,
            Self::Ls(args) => args.output,
            Self::Show(args) | Self::Test(args) | Self::Logs(args) | Self::Restart(args) => args.output,
            Self::Rm(args) => args.output,
        }
    }
}

pub(crate) fn main(verb: McpClientVerb) -> ExitCode {
    let format = verb.output();
    super::block_on(run(verb), format)
}

async fn run(verb: McpClientVerb) -> anyhow::Result<ExitCode> {
    match verb {
        McpClientVerb::Import(args) => import::run(args).await,
        McpClientVerb::Ls(args) => {
            let document: Value = Client::new(&args.target)?.get("/v1/mcp/servers").await?;
            Ok(answer(args.output, &document, &show::rows(&document)))
        }
        McpClientVerb::Show(args) => {
            let document: Value = Client::new(&args.target)?.get(&path(&args.name, None)).await?;
            Ok(answer(args.output, &document, &show::lines(&document)))
        }
        McpClientVerb::Test(args) => test(&args).await,
        McpClientVerb::Logs(args) => {
            let document: Value = Client::new(&args.target)?.get(&path(&args.name, Some("logs"))).await?;
            let log = document["log"].as_str().unwrap_or_default();
            let end = if log.is_empty() || log.ends_with('\n') { "" } else { "\n" };
            Ok(answer(args.output, &document, &format!("{log}{end}")))
        }
        McpClientVerb::Restart(args) => {
            let client = Client::new(&args.target)?;
            let document: Value = client.post(&path(&args.name, Some("restart")), &json!({})).await?;
            Ok(answer(args.output, &document, &format!("{}\n", args.name)))
        }
        McpClientVerb::Rm(args) => {
            let client = Client::new(&args.target)?;
            let (mut removed, mut failed) = (Vec::new(), Vec::new());
            for name in &args.names {
                match client.delete::<Value>(&path(name, None)).await {
                    Ok(_) => removed.push(name),
                    Err(error) => failed.push((name, error)),
                }
                if failed.last().is_some_and(|(_, error)| error.is_connection()) {
                    break;
                }
            }
            if removed.is_empty()
                && failed.len() == 1
                && let Some((_, error)) = failed.pop()
            {
                return Err(error.into());
            }
            Ok(report_removed(args.output, &removed, &failed))
        }
    }
}

fn report_removed(format: OutputFormat, removed: &[&String], failed: &[(&String, ClientError)]) -> ExitCode {
    let errors: Vec<_> =
        failed.iter().map(|(name, error)| json!({"name": name, "message": error.to_string()})).collect();
    let text: String = removed.iter().map(|name| format!("{name}\n")).collect();
    let written = answer(format, &json!({"removed": removed, "failed": errors}), &text);
    for (_, error) in failed.iter().filter(|_| format == OutputFormat::Raw) {
        output::notice(&format!("error: {error}"));
    }
    failed.first().map_or(written, |(_, error)| ExitCode::from(error.exit_code()))
}

fn path(name: &str, below: Option<&str>) -> String {
    let mut segments = vec!["v1", "mcp", "servers", name];
    segments.extend(below);
    text::path(&segments)
}

async fn test(args: &NameArgs) -> anyhow::Result<ExitCode> {
    let client = Client::new(&args.target)?;
    let document: Value = client.post(&path(&args.name, Some("test")), &json!({})).await?;
    let works = document["ok"] == Value::Bool(true);
    let written = answer(args.output, &document, &show::tested(&args.name, &document));
    if !works && args.output == OutputFormat::Raw {
        let log = document["log"].as_str().unwrap_or_default();
        for line in log.lines().rev().take(20).collect::<Vec<_>>().into_iter().rev() {
            output::notice(&format!("stderr: {line}"));
        }
    }
    Ok(if works { written } else { ExitCode::from(crate::failure::OUR_EXIT_CODE) })
}
