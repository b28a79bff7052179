//! `sandcrate ps`: processes and followed commands.

use std::process::ExitCode;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use jiff::Timestamp;
use sandcrate_protocol::shell_word;
use serde_json::{Value, json};

use super::address::Target;
use super::http::Client;
use super::session::{ids, is_missing};
use super::{answer, table, text};
use crate::args::OutputFormat;

/// List the processes and commands of sessions
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sandcrate ps                        what runs, in every session
  sandcrate ps --all demo             also what ended lately
  sandcrate ps -o json | jq '.processes[].process_id'")]
pub(crate) struct PsArgs {
    /// Only this session
    #[arg(value_name = "SESSION", value_parser = NonEmptyStringValueParser::new())]
    session: Option<String>,

    /// Also those that ended lately
    #[arg(short, long)]
    all: bool,

    /// A table, or one document
    #[arg(short, long, value_name = "FORMAT", default_value = "raw")]
    pub(super) output: OutputFormat,

    #[command(flatten)]
    target: Target,
}

pub(super) async fn run(args: PsArgs) -> anyhow::Result<ExitCode> {
    let client = Client::new(&args.target)?;
    let sessions = match &args.session {
        Some(session) => vec![session.clone()],
        None => ids(&client).await?,
    };
    let (mut processes, mut commands) = (Vec::new(), Vec::new());
    for session in &sessions {
        for (kind, found) in [("processes", &mut processes), ("commands", &mut commands)] {
            let listed: Value = match client.get(&text::path(&["v1", "sessions", session, kind])).await {
                // It ended in the meantime.
                Err(error) if args.session.is_none() && is_missing(&error) => continue,
                listed => listed?,
            };
            for entry in listed[kind].as_array().into_iter().flatten() {
                let running = entry["status"] == "running" || entry["running"] == true;
                if running || args.all {
                    let mut entry = entry.clone();
                    entry["session_id"] = json!(session);
                    found.push(entry);
                }
            }
        }
    }
    let now = Timestamp::now();
    let rows: Vec<_> = processes
        .iter()
        .map(|entry| process(entry, now))
        .chain(commands.iter().map(|entry| command(entry, now)))
        .collect();
    let text = table::render(["SESSION", "ID", "KIND", "STATE", "AGE", "COMMAND"], &rows);
    Ok(answer(args.output, &json!({"processes": processes, "commands": commands}), &text))
}

fn text_of(entry: &Value, key: &str) -> String {
    entry[key].as_str().unwrap_or("-").to_owned()
}

fn process(entry: &Value, now: Timestamp) -> [String; 6] {
    let words = entry["args"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let words: Vec<_> = entry["command"].as_str().into_iter().chain(words).map(shell_word).collect();
    let state = match (entry["status"].as_str(), entry["exit_code"].as_i64()) {
        (Some("running"), _) if entry["attached"] == true => "attached".to_owned(),
        (Some("exited"), Some(code)) => format!("exited {code}"),
        (state, _) => state.unwrap_or("-").to_owned(),
    };
    let age = table::age(entry["started_at"].as_str().unwrap_or_default(), now);
    let (session, id) = (text_of(entry, "session_id"), text_of(entry, "process_id"));
    [session, id, "process".to_owned(), state, age, table::shortened(&words.join(" "))]
}

fn command(entry: &Value, now: Timestamp) -> [String; 6] {
    let exit = &entry["exit"];
    let state = match (entry["running"].as_bool(), exit["exit_code"].as_i64()) {
        (Some(true), _) => "running".to_owned(),
        (_, Some(code)) => format!("exited {code}"),
        (_, None) if exit["timed_out"] == true => "timed out".to_owned(),
        (_, None) => "ended".to_owned(),
    };
    let kind = if entry["pty"] == true { "terminal" } else { "command" };
    let (session, id) = (text_of(entry, "session_id"), text_of(entry, "command_id"));
    let age = table::age(entry["started_at"].as_str().unwrap_or_default(), now);
    [session, id, kind.to_owned(), state, age, table::shortened(&text_of(entry, "command"))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_say_what_is_known() {
        let now: Timestamp = "2026-01-31T12:00:00Z".parse().unwrap();
        let entry = json!({"session_id": "s", "process_id": "web", "status": "exited", "exit_code": 3, "command": "sh",
            "args": ["-c", "exit 3"], "started_at": "2026-01-31T11:59:00Z"});
        assert_eq!(process(&entry, now), ["s", "web", "process", "exited 3", "60s", "sh -c 'exit 3'"]);
        let entry = json!({"session_id": "s", "command_id": "c1", "running": false, "pty": true,
            "exit": {"exit_code": null, "timed_out": true}, "command": "make all",
            "started_at": "2026-01-31T11:50:00Z"});
        assert_eq!(command(&entry, now), ["s", "c1", "terminal", "timed out", "10m", "make all"]);
        // A server that is older than its client.
        let entry = json!({"session_id": "s", "command_id": "c1", "running": true, "pty": false});
        assert_eq!(command(&entry, now), ["s", "c1", "command", "running", "-", "-"]);
    }
}
