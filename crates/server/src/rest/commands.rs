//! Commands that are followed: start, list, follow, feed, signal, end.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use sandcrate_backend::ExecControl;
use sandcrate_runtime::CommandId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::command::{self, CommandBody as CommandFields};
use super::error::ApiError;
use super::events::{self, Cursor, Encoder};
use super::extract::{JsonBody, Params, Segments, switch};
use super::outcome::CommandBody;
use super::schema::{CommandRequest, SignalRequest};
use super::signal::Signal;
use crate::App;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default()
        .routes(routes!(list_commands, start_command))
        .routes(routes!(get_command, delete_command))
        .routes(routes!(follow_command))
        .routes(routes!(write_command))
        .routes(routes!(signal_command))
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CommandList {
    commands: Vec<CommandBody>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SignalBody {
    pub(crate) signal: Signal,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Signalled {
    /// The number that was sent.
    #[schema(example = 15)]
    pub(crate) signal: i32,
}

#[derive(Debug, Serialize, ToSchema)]
struct Killed {
    #[schema(example = "1")]
    killed: String,
}

#[derive(Debug, Serialize, ToSchema)]
struct Written {
    #[schema(example = 6)]
    written_bytes: u64,
    /// Whether standard input is closed now.
    eof: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct FollowParams {
    after: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct WriteParams {
    #[serde(deserialize_with = "switch")]
    eof: bool,
}

/// List followed commands
#[utoipa::path(get, path = "/v1/sessions/{id}/commands", tag = "commands", operation_id = "list_commands",
    params(("id" = String, Path, description = "Name of the session", example = "demo")),
    responses((status = 200, description = "Running ones, and those that ended lately", body = CommandList)))]
async fn list_commands(
    State(app): State<App>,
    Segments(id): Segments<String>,
) -> Result<Json<CommandList>, ApiError> {
    let commands = app.runtime.commands(&id)?.into_iter().map(CommandBody::from).collect();
    Ok(Json(CommandList { commands }))
}

/// Start a command
///
/// In a session that is there. It goes on whether or not somebody follows, and has no time limit unless
/// `timeout_sec` sets one.
#[utoipa::path(post, path = "/v1/sessions/{id}/commands", tag = "commands", operation_id = "start_command",
    params(("id" = String, Path, description = "Name of the session", example = "demo")),
    request_body(content = CommandRequest, example = json!({"argv": ["cat"], "keep_stdin_open": true})),
    responses((status = 201, description = "It runs", body = CommandBody)))]
async fn start_command(
    State(app): State<App>,
    Segments(id): Segments<String>,
    JsonBody(body): JsonBody<CommandFields>,
) -> Result<(StatusCode, Json<CommandBody>), ApiError> {
    let start = body.check()?;
    let command = command::start(&app, &id, start).await?;
    let view = app.runtime.command(&id, &command)?;
    Ok((StatusCode::CREATED, Json(view.into())))
}

/// Look at a command
#[utoipa::path(get, path = "/v1/sessions/{id}/commands/{cid}", tag = "commands", operation_id = "get_command",
    params(("id" = String, Path, description = "Name of the session", example = "demo"),
        ("cid" = String, Path, description = "Id of the command", example = "1")),
    responses((status = 200, description = "The command", body = CommandBody)))]
async fn get_command(
    State(app): State<App>,
    Segments((id, command)): Segments<(String, String)>,
) -> Result<Json<CommandBody>, ApiError> {
    Ok(Json(app.runtime.command(&id, &CommandId(command))?.into()))
}

/// Kill a command
///
/// SIGKILL to its whole tree. It stays listed, with how it ended.
#[utoipa::path(delete, path = "/v1/sessions/{id}/commands/{cid}", tag = "commands",
    operation_id = "delete_command",
    params(("id" = String, Path, description = "Name of the session", example = "demo"),
        ("cid" = String, Path, description = "Id of the command", example = "1")),
    responses((status = 200, description = "It was told to end", body = Killed)))]
async fn delete_command(
    State(app): State<App>,
    Segments((id, command)): Segments<(String, String)>,
) -> Result<Json<Killed>, ApiError> {
    let command = CommandId(command);
    if app.runtime.command(&id, &command)?.running {
        app.runtime.control_command(&id, &command, ExecControl::Kill).await?;
    }
    Ok(Json(Killed { killed: command.0 }))
}

/// Follow a command
///
/// From its beginning, or after the event that `Last-Event-ID` names. Output that is no longer kept is told as
/// an event `gap`, and an id that is ahead of a running command is refused. 204 when there is nothing after that
/// event, so that a browser stops asking.
#[utoipa::path(get, path = "/v1/sessions/{id}/commands/{cid}/events", tag = "commands",
    operation_id = "follow_command",
    params(("id" = String, Path, description = "Name of the session", example = "demo"),
        ("cid" = String, Path, description = "Id of the command", example = "1"),
        ("after" = Option<String>, Query, description = "Instead of `Last-Event-ID`, for clients that cannot set it"),
        ("Last-Event-ID" = Option<String>, Header, description = "Id of the last event seen")),
    responses((status = 200, description = "Events", content_type = "text/event-stream", body = String,
        example = "event: stdout\nid: 6\ndata: {\"data\":\"hello\\n\"}\n\nevent: exit\nid: 7\ndata: {\"exit_code\":0}\n\n"),
        (status = 204, description = "It ended, and its end was seen")))]
async fn follow_command(
    State(app): State<App>,
    Segments((id, command)): Segments<(String, String)>,
    Params(params): Params<FollowParams>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let cursor = Cursor::of_request(&headers, params.after.as_deref())?;
    let command = CommandId(command);
    let view = app.runtime.command(&id, &command)?;
    if view.running {
        cursor.check(view.newest_event, params.after.as_deref())?;
    } else {
        let mut look = app.runtime.follow_command(&id, &command, Some(cursor.after()))?;
        if look.next().await.is_none() {
            return Ok(StatusCode::NO_CONTENT.into_response());
        }
    }
    let log = app.runtime.follow_command(&id, &command, Some(cursor.after()))?;
    Ok(events::answer(None, log, Encoder::new(cursor), app.abort.clone()))
}

/// Write to a command's standard input
///
/// The body's bytes, as they arrive. Ends when the program has taken them. A body without bytes and `?eof=1`
/// just closes it.
#[utoipa::path(post, path = "/v1/sessions/{id}/commands/{cid}/stdin", tag = "commands",
    operation_id = "write_command",
    params(("id" = String, Path, description = "Name of the session", example = "demo"),
        ("cid" = String, Path, description = "Id of the command", example = "1"),
        ("eof" = Option<bool>, Query, description = "`1` closes standard input after the body")),
    request_body(content = String, content_type = "application/octet-stream", example = "hello\n"),
    responses((status = 200, description = "Written", body = Written)))]
async fn write_command(
    State(app): State<App>,
    Segments((id, command)): Segments<(String, String)>,
    Params(params): Params<WriteParams>,
    body: Body,
) -> Result<Json<Written>, ApiError> {
    let command = CommandId(command);
    app.runtime.command(&id, &command)?;
    let mut pieces = body.into_data_stream();
    let mut written_bytes = 0;
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|_| ApiError::invalid("body", "did not arrive whole"))?;
        written_bytes += piece.len() as u64;
        app.runtime.write_command(&id, &command, piece).await?;
    }
    if params.eof {
        app.runtime.close_command_stdin(&id, &command)?;
    }
    Ok(Json(Written { written_bytes, eof: params.eof }))
}

/// Signal a command
///
/// To its program, or the process group of its terminal.
#[utoipa::path(post, path = "/v1/sessions/{id}/commands/{cid}/signal", tag = "commands",
    operation_id = "signal_command",
    params(("id" = String, Path, description = "Name of the session", example = "demo"),
        ("cid" = String, Path, description = "Id of the command", example = "1")),
    request_body(content = SignalRequest, example = json!({"signal": "INT"})),
    responses((status = 200, description = "Sent", body = Signalled)))]
async fn signal_command(
    State(app): State<App>,
    Segments((id, command)): Segments<(String, String)>,
    JsonBody(SignalBody { signal }): JsonBody<SignalBody>,
) -> Result<Json<Signalled>, ApiError> {
    app.runtime.control_command(&id, &CommandId(command), ExecControl::Signal(signal.0)).await?;
    Ok(Json(Signalled { signal: signal.0 }))
}
