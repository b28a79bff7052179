//! `POST …/exec`: one command, in a session that is made when it is not there; collected, or as events.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::command::{self, COMMAND_FIELDS, CommandBody, Start};
use super::error::ApiError;
use super::events::{self, Encoder};
use super::extract::{JsonBody, Segments};
use super::outcome::ExecBody;
use super::schema::ExecRequestBody;
use super::spec::{self, BOX_FIELDS, OPTION_FIELDS};
use crate::App;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(exec))
}

/// Run a command
///
/// In the session of that name, which is made when there is none. Fields of the box may be left out when it is
/// there; those given must fit it. Without `timeout_sec` the command has 30 s; a timeout ends the command and
/// not the session. Collected commands of one session run one after the other.
///
/// With `Accept: text/event-stream` the answer is a stream of events `start`, `stdout`, `stderr`, `denial`,
/// `gap`, and `exit` or `error`; the command goes on when the connection does not, and is resumed at
/// `GET …/commands/{cid}/events`.
#[utoipa::path(post, path = "/v1/sessions/{id}/exec", tag = "commands", operation_id = "exec",
    params(("id" = String, Path, description = "Name of the session", example = "demo")),
    request_body(content = ExecRequestBody, example = json!({"cmd": "echo hello", "timeout_sec": 10})),
    responses((status = 200, description = "How it ended", content(
        (ExecBody = "application/json"),
        (String = "text/event-stream", example = "event: start\nid: 0\ndata: {\"command_id\":\"1\"}\n\nevent: stdout\nid: 6\ndata: {\"data\":\"hello\\n\"}\n\n"),
    ))))]
async fn exec(
    State(app): State<App>,
    Segments(id): Segments<String>,
    headers: HeaderMap,
    JsonBody(mut body): JsonBody<Map<String, Value>>,
) -> Result<Response, ApiError> {
    spec::check_named(&id, &mut body)?;
    spec::check_fields(&body, &[&["cmd"], &BOX_FIELDS, &COMMAND_FIELDS, &OPTION_FIELDS])?;
    let streamed = wants_events(&headers);
    let (session, start) = prepare(&app, &id, body, streamed).await?;
    if streamed {
        let command = command::start(&app, &session, start).await?;
        let log = app.runtime.follow_command(&session, &command, Some(0))?;
        let encoder = Encoder::default();
        let first = encoder.record("start", json!({"command_id": command, "session_id": session}));
        return Ok(events::answer(Some(first), log, encoder, app.abort.clone()));
    }
    let input = start.input.unwrap_or_default();
    let result = ExecBody::from(app.runtime.exec_in(&session, start.request, input).await?);
    Ok(Json(result).into_response())
}

pub(crate) fn wants_events(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted.flat_map(|value| value.split(',')).any(|kind| {
        kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("text/event-stream"))
    })
}

/// Reads the whole request before it makes a session for it.
async fn prepare(
    app: &App,
    id: &str,
    mut body: Map<String, Value>,
    streamed: bool,
) -> Result<(String, Start), ApiError> {
    let mut options = spec::options(&mut body)?;
    let mut command = CommandBody::take_from(&mut body)?;
    // The box's rules trim a command; a shell script is not ours to change.
    let script = body.get("cmd").and_then(Value::as_str).map(str::to_owned);
    let present = app.runtime.session(id).ok();
    let workdir_given = body.contains_key("workdir");
    let mounts_given = body.contains_key("extra_mounts");
    if let Some(present) = &present {
        spec::fill_from(&present.info, &mut body);
        options.network.get_or_insert_with(|| present.network.clone());
    }
    let mut spec = spec::box_spec(id, body)?;
    if let Some(script) = script.filter(|script| !script.is_empty() || !command.has_argv()) {
        command = command.with_shell(script);
    }
    // These are the command's: a session made for it does not inherit them.
    let env = std::mem::take(&mut spec.env);
    let workdir = std::mem::replace(&mut spec.workdir, spec.mount_path.clone());
    let workdir = workdir_given.then_some(workdir);
    let start = command.with(env, workdir, spec.timeout_sec).check()?;
    start.request.validate()?;
    if start.open && !streamed {
        let problem = "and pty need `Accept: text/event-stream`, or `POST …/commands`";
        return Err(ApiError::invalid("keep_stdin_open", problem));
    }
    let fits = present.is_some_and(|present| !mounts_given && spec::fits(&present, &spec, &options));
    if !fits {
        app.runtime.create_session(&spec, options).await?;
    }
    Ok((spec.session_id, start))
}
