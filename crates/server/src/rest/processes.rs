//! Managed processes: servers that run beside commands, under an id of their own.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sandcrate_backend::Stream;
use sandcrate_protocol::{DEFAULT_PROCESS_ID, ProcessInfo, ProcessSpec, ProcessStatus};
use sandcrate_runtime::{LogEvent, Subscription};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::commands::{SignalBody, Signalled};
use super::error::ApiError;
use super::events::{self, Cursor, Encoder};
use super::exec::wants_events;
use super::extract::{JsonBody, Params, Segments, switch};
use super::outcome::{ExitBody, text};
use super::schema::{ProcessFacts, ProcessRequest, SignalRequest};
use super::spec;
use crate::App;

const FIELDS: [&str; 6] = ["process_id", "command", "args", "env", "cwd", "memory_mb"];

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default()
        .routes(routes!(get_managed_process, start_managed_process))
        .routes(routes!(list_processes, start_process))
        .routes(routes!(get_process, stop_process))
        .routes(routes!(signal_process))
        .routes(routes!(process_logs))
}

#[derive(Debug, Serialize, ToSchema)]
struct ProcessList {
    #[schema(value_type = Vec<ProcessFacts>)]
    processes: Vec<ProcessInfo>,
}

#[derive(Debug, Serialize, ToSchema)]
struct Stopped {
    #[schema(example = "default")]
    stopped: String,
}

/// What is kept of a process's output.
#[derive(Debug, Serialize, ToSchema)]
struct LogsBody {
    #[schema(example = "default")]
    process_id: String,
    #[schema(example = "listening\n")]
    stdout: String,
    stderr: String,
    /// The bytes, when the text is not exact.
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr_base64: Option<String>,
    /// How it ended, if it did.
    exit: Option<ExitBody>,
    /// For `?follow=1&after=`, to go on from here.
    #[schema(example = "10")]
    cursor: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LogParams {
    #[serde(deserialize_with = "switch")]
    follow: bool,
    tail: Option<usize>,
    after: Option<String>,
}

async fn start(app: &App, id: &str, body: Map<String, Value>) -> Result<Started, ApiError> {
    spec::check_fields(&body, &[&FIELDS])?;
    let spec = ProcessSpec::from_json(&Value::Object(body))?;
    // LangBot's wire allows it; here it could never be named in a path.
    if spec.process_id.is_empty() {
        return Err(ApiError::invalid("process_id", "must not be empty"));
    }
    let process = app.runtime.start_process(id, &spec).await?;
    Ok((StatusCode::CREATED, Json(process)))
}

type Started = (StatusCode, Json<ProcessInfo>);

/// Start the managed process
///
/// As `POST …/processes`; without `process_id` it is `default`.
#[utoipa::path(post, path = "/v1/sessions/{id}/managed-process", tag = "processes",
    operation_id = "start_managed_process",
    params(("id" = String, Path, description = "Name of the session", example = "demo")),
    request_body(content = ProcessRequest, example = json!({"command": "python3", "args": ["server.py"]})),
    responses((status = 201, description = "It runs", body = ProcessFacts)))]
async fn start_managed_process(
    State(app): State<App>,
    Segments(id): Segments<String>,
    JsonBody(body): JsonBody<Map<String, Value>>,
) -> Result<Started, ApiError> {
    start(&app, &id, body).await
}

/// Look at the managed process
///
/// The one called `default`.
#[utoipa::path(get, path = "/v1/sessions/{id}/managed-process", tag = "processes",
    operation_id = "get_managed_process",
    params(("id" = String, Path, description = "Name of the session", example = "demo")),
    responses((status = 200, description = "The process", body = ProcessFacts)))]
async fn get_managed_process(
    State(app): State<App>,
    Segments(id): Segments<String>,
) -> Result<Json<ProcessInfo>, ApiError> {
    Ok(Json(app.runtime.process(&id, DEFAULT_PROCESS_ID)?))
}

/// List processes
#[utoipa::path(get, path = "/v1/sessions/{id}/processes", tag = "processes", operation_id = "list_processes",
    params(("id" = String, Path, description = "Name of the session", example = "demo")),
    responses((status = 200, description = "Running ones, and those that ended lately", body = ProcessList)))]
async fn list_processes(
    State(app): State<App>,
    Segments(id): Segments<String>,
) -> Result<Json<ProcessList>, ApiError> {
    Ok(Json(ProcessList { processes: app.runtime.processes(&id)? }))
}

/// Start a process
///
/// A running one of the same id is replaced. A session with a running process does not expire.
#[utoipa::path(post, path = "/v1/sessions/{id}/processes", tag = "processes", operation_id = "start_process",
    params(("id" = String, Path, description = "Name of the session", example = "demo")),
    request_body(content = ProcessRequest,
        example = json!({"process_id": "web", "command": "python3", "args": ["-m", "http.server"]})),
    responses((status = 201, description = "It runs", body = ProcessFacts)))]
async fn start_process(
    State(app): State<App>,
    Segments(id): Segments<String>,
    JsonBody(body): JsonBody<Map<String, Value>>,
) -> Result<Started, ApiError> {
    start(&app, &id, body).await
}

/// Look at a process
#[utoipa::path(get, path = "/v1/sessions/{id}/processes/{pid}", tag = "processes", operation_id = "get_process",
    params(("id" = String, Path, description = "Name of the session", example = "demo"),
        ("pid" = String, Path, description = "Id of the process", example = "default")),
    responses((status = 200, description = "The process", body = ProcessFacts)))]
async fn get_process(
    State(app): State<App>,
    Segments((id, process)): Segments<(String, String)>,
) -> Result<Json<ProcessInfo>, ApiError> {
    Ok(Json(app.runtime.process(&id, &process)?))
}

/// Stop a process
///
/// And forget it.
#[utoipa::path(delete, path = "/v1/sessions/{id}/processes/{pid}", tag = "processes",
    operation_id = "stop_process",
    params(("id" = String, Path, description = "Name of the session", example = "demo"),
        ("pid" = String, Path, description = "Id of the process", example = "default")),
    responses((status = 200, description = "It is gone", body = Stopped)))]
async fn stop_process(
    State(app): State<App>,
    Segments((id, process)): Segments<(String, String)>,
) -> Result<Json<Stopped>, ApiError> {
    app.runtime.stop_process(&id, &process).await?;
    Ok(Json(Stopped { stopped: process }))
}

/// Signal a process
#[utoipa::path(post, path = "/v1/sessions/{id}/processes/{pid}/signal", tag = "processes",
    operation_id = "signal_process",
    params(("id" = String, Path, description = "Name of the session", example = "demo"),
        ("pid" = String, Path, description = "Id of the process", example = "default")),
    request_body(content = SignalRequest, example = json!({"signal": "HUP"})),
    responses((status = 200, description = "Sent", body = Signalled)))]
async fn signal_process(
    State(app): State<App>,
    Segments((id, process)): Segments<(String, String)>,
    JsonBody(SignalBody { signal }): JsonBody<SignalBody>,
) -> Result<Json<Signalled>, ApiError> {
    app.runtime.signal_process(&id, &process, signal.0).await?;
    Ok(Json(Signalled { signal: signal.0 }))
}

/// Read a process's output
///
/// What is kept of it: as JSON, as text with `Accept: text/plain` (both streams in the order of their arrival),
/// or with `?follow=1` (or `Accept: text/event-stream`) as events, like a command's.
#[utoipa::path(get, path = "/v1/sessions/{id}/processes/{pid}/logs", tag = "processes",
    operation_id = "process_logs",
    params(("id" = String, Path, description = "Name of the session", example = "demo"),
        ("pid" = String, Path, description = "Id of the process", example = "default"),
        ("follow" = Option<bool>, Query, description = "`1`: go on with what follows, as events"),
        ("tail" = Option<usize>, Query, description = "Only the last lines (of each stream, in JSON); not with `follow`"),
        ("after" = Option<String>, Query, description = "With `follow`: instead of `Last-Event-ID`"),
        ("Last-Event-ID" = Option<String>, Header, description = "With `follow`: id of the last event seen")),
    responses((status = 200, description = "The output", content(
        (LogsBody = "application/json"),
        (String = "text/plain", example = "listening\n"),
        (String = "text/event-stream", example = "event: stdout\nid: 10\ndata: {\"data\":\"listening\\n\"}\n\n"),
    )), (status = 204, description = "Followed: it ended, and its end was seen")))]
async fn process_logs(
    State(app): State<App>,
    Segments((id, process)): Segments<(String, String)>,
    Params(params): Params<LogParams>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let follow = params.follow || wants_events(&headers);
    if follow && params.tail.is_some() {
        return Err(ApiError::invalid("tail", "and follow exclude each other"));
    }
    let cursor = Cursor::of_request(&headers, params.after.as_deref())?;
    let mut log = app.runtime.process_log(&id, &process)?;
    if follow {
        let ended = app.runtime.process(&id, &process)?.status == ProcessStatus::Exited;
        let newest = Kept::read(&mut app.runtime.process_log(&id, &process)?).position;
        if ended && newest <= cursor.after() {
            return Ok(StatusCode::NO_CONTENT.into_response());
        }
        if !ended {
            cursor.check(newest, params.after.as_deref())?;
        }
        return Ok(events::answer(None, log, Encoder::new(cursor), app.abort.clone()));
    }
    let kept = Kept::read(&mut log);
    let lines = params.tail.unwrap_or(usize::MAX);
    let plain = headers.get(header::ACCEPT).is_some_and(|kind| kind.as_bytes().starts_with(b"text/plain"));
    if plain {
        let bytes = last_lines(&kept.both, lines).to_vec();
        return Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], bytes).into_response());
    }
    let (stdout, stdout_base64) = text(last_lines(&kept.stdout, lines));
    let (stderr, stderr_base64) = text(last_lines(&kept.stderr, lines));
    let cursor = kept.position.to_string();
    let exit = kept.exit;
    let body = LogsBody { process_id: process, stdout, stderr, stdout_base64, stderr_base64, exit, cursor };
    Ok(Json(body).into_response())
}

/// What is there now; bounded by the log's own bound (`RuntimeLimits::log_bytes`).
#[derive(Default)]
struct Kept {
    both: Vec<u8>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    exit: Option<ExitBody>,
    position: u64,
}

impl Kept {
    fn read(log: &mut Subscription) -> Self {
        let mut kept = Self::default();
        // Everything that is ready without waiting: the rest has not been written yet.
        while let Some(event) = log.try_next() {
            match event {
                LogEvent::Output { id, stream, data } => {
                    kept.both.extend_from_slice(&data);
                    match stream {
                        Stream::Stdout => kept.stdout.extend_from_slice(&data),
                        Stream::Stderr => kept.stderr.extend_from_slice(&data),
                    }
                    kept.position = id;
                }
                LogEvent::Gap { .. } | LogEvent::Denied { .. } => {}
                LogEvent::Exit { id, exit } => (kept.exit, kept.position) = (Some((&exit).into()), id),
                LogEvent::Failed { id, .. } => kept.position = id,
            }
        }
        kept
    }
}

/// The last lines, the newline of the very last one not counted.
fn last_lines(bytes: &[u8], lines: usize) -> &[u8] {
    if lines == 0 {
        return &[];
    }
    let body = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let mut ends = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    match ends.nth(lines - 1) {
        Some((at, _)) => &bytes[at + 1..],
        None => bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_whole() {
        for (lines, expected) in [(0, ""), (1, "c\n"), (2, "b\nc\n"), (3, "a\nb\nc\n"), (9, "a\nb\nc\n")] {
            assert_eq!(last_lines(b"a\nb\nc\n", lines), expected.as_bytes());
        }
        assert_eq!(last_lines(b"a\nb", 1), b"b");
        assert_eq!(last_lines(b"", 3), b"");
    }
}
