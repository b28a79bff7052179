//! What a sandbox used, and what happened in it.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, State};
use futures_util::{StreamExt, stream};
use jiff::Timestamp;
use sandcrate_e2b_wire::control::{LogEntry, LogLevel, LogLine, Logs, LogsV2, Metric, SandboxesWithMetrics};
use serde::Deserialize;

use super::super::error::Refused;
use super::super::usage;
use super::Params;
use super::show::{cpu_count, disk_mb};
use crate::App;

const DEFAULT_LOGS: usize = 1000;
/// Boxes that are asked at a time, and how many one request may ask about.
const ASKED_AT_ONCE: usize = 8;
const MAX_ASKED: usize = 100;
/// A client's `now` is a little before or after ours.
const SLACK_SEC: i64 = 10;

/// One figure, of now: none are kept.
async fn figure(app: &App, id: &str) -> Result<Option<Metric>, Refused> {
    let sandbox = app.e2b.expect(&app.runtime, id)?;
    let session = app.runtime.session(id).map_err(|_| Refused::no_sandbox(id))?;
    if !sandbox.is_running() {
        return Ok(None);
    }
    let used = usage::measure(&app.runtime, &sandbox).await?;
    let now = Timestamp::now();
    Ok(Some(Metric {
        timestamp: now,
        timestamp_unix: now.as_second(),
        cpu_count: cpu_count(&session),
        cpu_used_pct: used.cpu_percent,
        mem_used: used.memory_bytes,
        mem_total: session.info.memory_mb << 20,
        mem_cache: 0,
        disk_used: used.disk_bytes,
        disk_total: disk_mb(&session) << 20,
    }))
}

/// Seconds since 1970. They bound a history elsewhere; here there is the moment, if they hold it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Window {
    start: Option<i64>,
    end: Option<i64>,
}

impl Window {
    fn holds(&self, moment: i64) -> bool {
        self.start.is_none_or(|start| moment >= start.saturating_sub(SLACK_SEC))
            && self.end.is_none_or(|end| moment <= end.saturating_add(SLACK_SEC))
    }
}

pub(super) async fn metrics(
    State(app): State<App>,
    Path(id): Path<String>,
    Params(window): Params<Window>,
) -> Result<Json<Vec<Metric>>, Refused> {
    let figure = figure(&app, &id).await?.filter(|figure| window.holds(figure.timestamp_unix));
    Ok(Json(figure.into_iter().collect()))
}

#[derive(Debug, Deserialize)]
pub(super) struct MetricsParams {
    sandbox_ids: String,
}

pub(super) async fn metrics_of_all(
    State(app): State<App>,
    Params(params): Params<MetricsParams>,
) -> Result<Json<SandboxesWithMetrics>, Refused> {
    let ids: Vec<_> = params.sandbox_ids.split(',').filter(|id| !id.is_empty()).map(str::to_owned).collect();
    if ids.len() > MAX_ASKED {
        return Err(Refused::invalid(format!("sandbox_ids names at most {MAX_ASKED}")));
    }
    let asked = stream::iter(ids).map(|id| async {
        // One that ended meanwhile has no figures.
        let figure = figure(&app, &id).await.ok().flatten();
        figure.map(|figure| (id, figure))
    });
    let sandboxes: BTreeMap<_, _> =
        asked.buffer_unordered(ASKED_AT_ONCE).filter_map(std::future::ready).collect().await;
    Ok(Json(SandboxesWithMetrics { sandboxes }))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LogParams {
    /// Milliseconds since 1970: from here on.
    start: Option<i64>,
    limit: Option<usize>,
}

pub(super) async fn logs(
    State(app): State<App>,
    Path(id): Path<String>,
    Params(params): Params<LogParams>,
) -> Result<Json<Logs>, Refused> {
    let since = params.start.map(millis);
    let mut entries = app.e2b.expect(&app.runtime, &id)?.journal.entries();
    entries.retain(|entry| since.is_none_or(|since| entry.timestamp >= since));
    entries.truncate(params.limit.unwrap_or(DEFAULT_LOGS));
    let line = |entry: &LogEntry| LogLine { timestamp: entry.timestamp, line: entry.message.clone() };
    Ok(Json(Logs { logs: entries.iter().map(line).collect(), log_entries: entries }))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LogV2Params {
    /// Milliseconds since 1970: where to begin, in the direction.
    cursor: Option<i64>,
    limit: Option<usize>,
    direction: Option<String>,
    level: Option<LogLevel>,
    search: Option<String>,
}

pub(super) async fn logs_v2(
    State(app): State<App>,
    Path(id): Path<String>,
    Params(params): Params<LogV2Params>,
) -> Result<Json<LogsV2>, Refused> {
    let backward = match params.direction.as_deref() {
        None | Some("forward") => false,
        Some("backward") => true,
        Some(_) => return Err(Refused::invalid("direction must be forward or backward")),
    };
    let cursor = params.cursor.map(millis);
    let mut logs = app.e2b.expect(&app.runtime, &id)?.journal.entries();
    if backward {
        logs.reverse();
    }
    logs.retain(|entry| {
        cursor
            .is_none_or(|cursor| if backward { entry.timestamp <= cursor } else { entry.timestamp >= cursor })
            && params.level.is_none_or(|least| entry.level >= least)
            && params.search.as_ref().is_none_or(|text| entry.message.contains(text.as_str()))
    });
    logs.truncate(params.limit.unwrap_or(DEFAULT_LOGS));
    Ok(Json(LogsV2 { logs }))
}

fn millis(number: i64) -> Timestamp {
    Timestamp::from_millisecond(number).unwrap_or(Timestamp::UNIX_EPOCH)
}
