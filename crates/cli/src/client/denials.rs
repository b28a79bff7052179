//! `sandcrate denials`: what a session was refused.

use std::process::ExitCode;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use sandcrate_protocol::network::Denial;
use serde::Deserialize;
use serde_json::Value;

use super::address::Target;
use super::http::Client;
use super::{answer, table, text};
use crate::args::OutputFormat;

/// List what a session was refused, and what could be done about it
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sandcrate denials demo
  sandcrate denials demo -o json | jq -r '.denials[].hint'

Since the session's box was made, oldest first; equal ones in a row are counted.")]
pub(crate) struct DenialsArgs {
    /// Id of the session
    #[arg(value_name = "SESSION", value_parser = NonEmptyStringValueParser::new())]
    session: String,

    /// A table, or the server's document
    #[arg(short, long, value_name = "FORMAT", default_value = "raw")]
    pub(super) output: OutputFormat,

    #[command(flatten)]
    target: Target,
}

pub(super) async fn run(args: DenialsArgs) -> anyhow::Result<ExitCode> {
    let client = Client::new(&args.target)?;
    let document: Value = client.get(&text::path(&["v1", "sessions", &args.session, "denials"])).await?;
    let denials: Vec<Denial> =
        Deserialize::deserialize(&document["denials"]).map_err(|error| client.garbled(error.to_string()))?;
    Ok(answer(args.output, &document, &render(&denials, document["lost"].as_u64().unwrap_or(0))))
}

fn render(denials: &[Denial], lost: u64) -> String {
    let rows: Vec<_> = denials
        .iter()
        .map(|denial| {
            let Denial { kind, target, rule, hint, count } = denial.clone();
            [kind.name().to_owned(), target, count.to_string(), rule, hint]
        })
        .collect();
    let mut text = table::render(["KIND", "TARGET", "COUNT", "RULE", "HINT"], &rows);
    if lost > 0 {
        text.push_str(&format!("{lost} older ones are no longer kept\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use sandcrate_protocol::network::DenialKind;

    use super::*;

    #[test]
    fn a_denial_is_a_row() {
        let denial =
            Denial::new(DenialKind::Connect, "tcp 10.0.0.1:80", "never: private", "ask the operator");
        let text = render(&[denial], 2);
        assert!(
            text.contains("connect  tcp 10.0.0.1:80  1      never: private  ask the operator\n"),
            "{text}"
        );
        assert!(text.ends_with("2 older ones are no longer kept\n"));
    }
}
