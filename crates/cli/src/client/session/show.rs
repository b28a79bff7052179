//! `sandcrate session show`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::ExitCode;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use jiff::Timestamp;
use sandcrate_protocol::{Enforcement, ProcessInfo, ProcessStatus, SessionInfo, State};
use serde::Deserialize;
use serde_json::Value;

use crate::args::OutputFormat;
use crate::client::address::Target;
use crate::client::http::Client;
use crate::client::{answer, table, text};
use crate::output::Paint;
use crate::units::show_duration;

/// Show what a session is and what holds it
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sandcrate session show demo
  sandcrate session show demo -o json | jq '.enforcement[] | select(.state != \"enforced\")'")]
pub(crate) struct ShowArgs {
    /// Id of the session
    #[arg(value_name = "SESSION", value_parser = NonEmptyStringValueParser::new())]
    session: String,

    /// For people, or the server's document
    #[arg(short, long, value_name = "FORMAT", default_value = "raw")]
    pub(super) output: OutputFormat,

    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Deserialize)]
struct Session {
    #[serde(flatten)]
    info: SessionInfo,
    state: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    ttl_sec: u64,
    #[serde(default)]
    managed_processes: BTreeMap<String, ProcessInfo>,
    #[serde(default)]
    enforcement: Option<Enforcement>,
}

pub(super) async fn run(args: ShowArgs) -> anyhow::Result<ExitCode> {
    let client = Client::new(&args.target)?;
    let document: Value = client.get(&text::path(&["v1", "sessions", &args.session])).await?;
    if args.output == OutputFormat::Json {
        return Ok(answer(args.output, &document, ""));
    }
    let session = Session::deserialize(&document).map_err(|error| client.garbled(error.to_string()))?;
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = render(&mut text, &session, &document, Paint::for_stdout());
    Ok(answer(args.output, &document, &text))
}

fn render(text: &mut String, session: &Session, document: &Value, paint: Paint) -> std::fmt::Result {
    let info = &session.info;
    let now = Timestamp::now();
    let time = |key: &str| {
        let time = document[key].as_str().unwrap_or_default();
        format!("{time} ({} ago)", table::age(time, now))
    };
    let word = |value: bool| if value { "yes" } else { "no" };
    let quota = match info.workspace_quota_mb {
        0 => "the server's default bound".to_owned(),
        megabytes => format!("{megabytes}M"),
    };
    let host = match &info.host_path {
        Some(path) => format!("{path} at {} ({})", info.mount_path, plain(&document["host_path_mode"])),
        None => "private storage".to_owned(),
    };
    let labels: Vec<_> = session.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let facts = [
        ("id", info.session_id.clone()),
        ("state", session.state.clone()),
        ("backend", info.backend_name.clone()),
        ("image", info.image.clone()),
        ("network", plain(document.get("network_policy").unwrap_or(&document["network"]))),
        ("ports", ports(document)),
        ("memory", format!("{}M", info.memory_mb)),
        ("cpus", info.cpus.to_string()),
        ("processes", format!("at most {}", info.pids_limit)),
        ("quota", quota),
        ("root", if info.read_only_rootfs { "read-only" } else { "writable" }.to_owned()),
        ("workspace", host),
        ("persistent", word(info.persistent).to_owned()),
        ("labels", if labels.is_empty() { "-".to_owned() } else { labels.join(", ") }),
        ("created", time("created_at")),
        ("last used", time("last_used_at")),
        ("ttl", show_duration(std::time::Duration::from_secs(session.ttl_sec))),
    ];
    for (name, value) in facts {
        writeln!(text, "{name:<11} {}", table::clean(&value))?;
    }
    if !session.managed_processes.is_empty() {
        writeln!(text, "\n{}", paint.paint("1", "processes"))?;
        for process in session.managed_processes.values() {
            let state = match (process.status, process.exit_code) {
                (ProcessStatus::Running, _) => "running".to_owned(),
                (ProcessStatus::Exited, Some(code)) => format!("exited with code {code}"),
                (ProcessStatus::Exited, None) => "exited".to_owned(),
            };
            writeln!(
                text,
                "{:<11} {state}: {}",
                table::clean(&process.process_id),
                table::clean(&process.command)
            )?;
        }
    }
    writeln!(text, "\n{}", paint.paint("1", "enforcement"))?;
    let Some(enforcement) = &session.enforcement else {
        return writeln!(text, "the session has no box at the moment; its next use makes one");
    };
    for finding in enforcement.iter() {
        let (colour, label) = match finding.state {
            State::Enforced => ("32", "enforced"),
            State::Degraded => ("33", "degraded"),
            State::Absent => ("31;1", "absent"),
        };
        // Padded before it is painted: escape codes have no width.
        let label = paint.paint(colour, &format!("{label:<8}"));
        writeln!(text, "{label}  {:<12}  {}", finding.control.name(), table::clean(&finding.by))?;
    }
    Ok(())
}

fn ports(document: &Value) -> String {
    let ports = document["ports"].as_array().into_iter().flatten();
    let shown: Vec<_> = ports
        .map(|port| format!("{}:{} to {}", plain(&port["address"]), port["host_port"], port["box_port"]))
        .collect();
    if shown.is_empty() { "-".to_owned() } else { shown.join(", ") }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
