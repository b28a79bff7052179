//! `sandcrate top`: what sessions use, again and again on a terminal.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use sandcrate_protocol::network::Counters;
use serde::Deserialize;
use serde_json::Value;

use super::address::Target;
use super::http::Client;
use super::{answer, table};
use crate::args::OutputFormat;
use crate::output;
use crate::units::{parse_duration, show_size};

/// Home, and clear what is below.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Show what sessions use: processes, traffic, connections
#[derive(Debug, Args)]
#[command(
    visible_alias = "stats",
    after_help = "\
Examples:
  sandcrate top                         every two seconds, until Ctrl-C
  sandcrate top --once
  sandcrate top -o json | jq '.sessions[] | {session_id, network}'

Traffic is payload, seen from the box, since it was made; `-` where a session has no isolated network."
)]
pub(crate) struct TopArgs {
    /// Show it once, also on a terminal
    #[arg(long)]
    once: bool,

    /// Time between two looks
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_duration)]
    interval: Duration,

    /// A table, or the server's document, once
    #[arg(short, long, value_name = "FORMAT", default_value = "raw")]
    pub(super) output: OutputFormat,

    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Deserialize)]
struct Figures {
    session_id: String,
    state: String,
    processes: u64,
    memory_mb: u64,
    cpus: f64,
    network_policy: String,
    network: Option<Counters>,
}

pub(super) async fn run(args: TopArgs) -> anyhow::Result<ExitCode> {
    let client = Client::new(&args.target)?;
    let once = args.once || args.output == OutputFormat::Json || !std::io::stdout().is_terminal();
    loop {
        let document: Value = client.get("/v1/usage").await?;
        let sessions: Vec<Figures> = Deserialize::deserialize(&document["sessions"])
            .map_err(|error| client.garbled(error.to_string()))?;
        let text = render(&sessions);
        if once {
            return Ok(answer(args.output, &document, &text));
        }
        if output::print_bytes(format!("{CLEAR}{text}").as_bytes()).is_err() {
            return Ok(ExitCode::from(output::BROKEN_PIPE_EXIT_CODE));
        }
        tokio::time::sleep(args.interval.max(Duration::from_millis(100))).await;
    }
}

fn render(sessions: &[Figures]) -> String {
    let row = |figures: &Figures| {
        let counter =
            |read: fn(&Counters) -> String| figures.network.as_ref().map_or_else(|| "-".to_owned(), read);
        [
            figures.session_id.clone(),
            figures.state.clone(),
            figures.processes.to_string(),
            format!("{}M", figures.memory_mb),
            figures.cpus.to_string(),
            counter(|network| network.connections_now.to_string()),
            counter(|network| show_size(network.bytes_sent)),
            counter(|network| show_size(network.bytes_received)),
            counter(|network| network.denied.to_string()),
            figures.network_policy.clone(),
        ]
    };
    let head =
        ["SESSION", "STATE", "PROCS", "MEM LIMIT", "CPUS", "CONNS", "SENT", "RECEIVED", "DENIED", "NETWORK"];
    table::render(head, &sessions.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_session_without_a_network_has_no_figures() {
        let document = json!([
            {"session_id": "a", "state": "idle", "processes": 1, "memory_mb": 512, "cpus": 0.5, "network_policy": "public",
             "network": Counters { bytes_sent: 2048, bytes_received: 3072, connections_now: 3, denied: 4, ..Counters::default() }},
            {"session_id": "b", "state": "idle", "processes": 0, "memory_mb": 64, "cpus": 1.0, "network_policy": "off",
             "network": null},
        ]);
        let text = render(&Vec::deserialize(document).unwrap());
        let rows: Vec<Vec<_>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["a", "idle", "1", "512M", "0.5", "3", "2k", "3k", "4", "public"]);
        assert_eq!(rows[2], ["b", "idle", "0", "64M", "1", "-", "-", "-", "-", "off"]);
    }
}
