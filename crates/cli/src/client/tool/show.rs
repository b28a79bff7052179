//! The list of tools, as a model's interface takes it.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::client::address::Target;
use crate::client::http::Client;
use crate::output;

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    /// name, description, parameters
    Plain,
    /// as OpenAI's `tools` have it
    Openai,
    /// as Anthropic's `tools` have it
    Anthropic,
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// The shape of the schemas
    #[arg(long, value_name = "SHAPE", default_value = "plain")]
    format: Format,

    #[command(flatten)]
    target: Target,
}

pub(super) async fn list(args: ListArgs) -> anyhow::Result<ExitCode> {
    let shape = args.format.to_possible_value();
    let shape = shape.as_ref().map_or("plain", |value| value.get_name());
    let client = Client::new(&args.target)?;
    let document: Value = client.get(&format!("/v1/tools?format={shape}")).await?;
    Ok(output::print(&format!("{:#}\n", document["tools"])))
}
