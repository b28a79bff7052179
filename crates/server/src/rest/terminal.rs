//! A terminal over a WebSocket: binary frames are bytes both ways, text frames are JSON.
//!
//! The command belongs to the connection: when the client goes away it gets SIGHUP, and SIGKILL when that does
//! not help. From us come `exit`, `error` and `gap`; from the client `resize` and `signal`.

use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::extract::{FromRequestParts, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use sandcrate_backend::{Command, ExecControl, ExecRequest};
use sandcrate_protocol::ErrorKind;
use sandcrate_runtime::{CommandId, LogEvent, RuntimeError, Subscription};
use serde::Deserialize;
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::command::{EndOnDrop, Pty};
use super::error::ApiError;
use super::extract::{Params, Segments};
use super::outcome::ExitBody;
use super::signal::Signal;
use crate::App;

/// More than a paste; a frame is held in memory whole.
const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// Between SIGHUP and SIGKILL: an editor writes its swap file in that time.
const HANGUP_GRACE: Duration = Duration::from_secs(2);

/// A program that does not exist fails at once; one that is silent for so long exists.
const FIRST_SIGN: Duration = Duration::from_secs(1);

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(terminal))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct TerminalParams {
    command: Option<String>,
    cmd: Option<String>,
    workdir: Option<String>,
    rows: Option<u16>,
    cols: Option<u16>,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
enum FromClient {
    Resize { rows: u16, cols: u16 },
    Signal { signal: Signal },
}

/// The upgrade, refused with our error body.
struct Upgrade(WebSocketUpgrade);

impl<S: Send + Sync> FromRequestParts<S> for Upgrade {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let upgrade = WebSocketUpgrade::from_request_parts(parts, state).await;
        upgrade.map(Self).map_err(|_| {
            let message = "this is a WebSocket; send the headers of an upgrade";
            ApiError::new(StatusCode::UPGRADE_REQUIRED, "upgrade_required", message)
        })
    }
}

/// Open a terminal
///
/// A WebSocket. Binary frames carry bytes both ways. The client may send the text frames
/// `{"type":"resize","rows":40,"cols":120}` and `{"type":"signal","signal":"INT"}`. The server ends with
/// `{"type":"exit","exit_code":0,…}` or `{"type":"error","error":{…}}` and close code 1000; `{"type":"gap",
/// "bytes":n}` says what a slow client missed. Without `cmd`, a login `bash` where there is one, else `sh`.
/// With `command`, the terminal of one that was started by `POST …/commands` with `pty`: what it is to be told stays
/// out of the address. When the connection goes, the command ends.
#[utoipa::path(get, path = "/v1/sessions/{id}/terminal", tag = "commands", operation_id = "terminal",
    params(("id" = String, Path, description = "Name of the session", example = "demo"),
        ("command" = Option<String>, Query, description = "Id of a command that has a terminal; excludes the others"),
        ("cmd" = Option<String>, Query, description = "Text for the box's shell", example = "htop"),
        ("workdir" = Option<String>, Query, description = "Instead of the session's"),
        ("rows" = Option<u16>, Query, description = "Default 24", example = 40),
        ("cols" = Option<u16>, Query, description = "Default 80", example = 120)),
    responses((status = 101, description = "A WebSocket"), (status = 426, description = "Not an upgrade",
        body = super::error::ErrorBody)))]
async fn terminal(
    State(app): State<App>,
    Segments(session): Segments<String>,
    Params(params): Params<TerminalParams>,
    upgrade: Result<Upgrade, ApiError>,
) -> Result<Response, ApiError> {
    app.runtime.session(&session)?;
    if let Some(command) = &params.command {
        let command = started(&app, &session, command, &params)?;
        let Upgrade(upgrade) = upgrade?;
        return Ok(show(app, session, command, None, upgrade));
    }
    let pty = Pty { rows: params.rows.unwrap_or(24), cols: params.cols.unwrap_or(80) }.size()?;
    let Upgrade(upgrade) = upgrade?;
    let (first, second) = match params.cmd {
        Some(cmd) if cmd.trim().is_empty() => return Err(ApiError::invalid("cmd", "must not be empty")),
        Some(cmd) => (Command::Shell(cmd), None),
        None => (argv(&["/bin/bash", "-l"]), Some(argv(&["sh"]))),
    };
    let request = |command| ExecRequest { cwd: params.workdir.clone(), ..ExecRequest::new(command).pty(pty) };
    let mut spare = second.map(request);
    let command = match app.runtime.start_command(&session, request(first)).await {
        Err(error) if error.kind() == ErrorKind::CommandNotFound && spare.is_some() => {
            let spare = spare.take().unwrap_or_else(|| request(argv(&["sh"])));
            app.runtime.start_command(&session, spare).await?
        }
        started => started?,
    };
    Ok(show(app, session, command, spare, upgrade))
}

/// A command that is there and has a terminal.
fn started(app: &App, session: &str, id: &str, params: &TerminalParams) -> Result<CommandId, ApiError> {
    let TerminalParams { command: _, cmd, workdir, rows, cols } = params;
    if cmd.is_some() || workdir.is_some() || rows.is_some() || cols.is_some() {
        return Err(ApiError::invalid(
            "command",
            "is there already: say cmd, workdir and size when it is started",
        ));
    }
    let command = CommandId(id.to_owned());
    if !app.runtime.command(session, &command)?.pty {
        return Err(ApiError::invalid("command", "has no terminal: start it with `pty`"));
    }
    Ok(command)
}

fn show(
    app: App,
    session: String,
    command: CommandId,
    spare: Option<ExecRequest>,
    upgrade: WebSocketUpgrade,
) -> Response {
    let guard = EndOnDrop { app: app.clone(), session: session.clone(), command, ended: false };
    let tasks = app.tasks.clone();
    let upgrade = upgrade.max_message_size(MAX_MESSAGE_BYTES).max_frame_size(MAX_MESSAGE_BYTES);
    // A failed upgrade drops the future, and the guard in it ends the command.
    upgrade.on_upgrade(move |socket| tasks.track_future(Terminal { app, session, guard, spare }.run(socket)))
}

fn argv(argv: &[&str]) -> Command {
    Command::Argv(argv.iter().map(Into::into).collect())
}

struct Terminal {
    app: App,
    session: String,
    guard: EndOnDrop,
    /// To be tried when the first program does not exist.
    spare: Option<ExecRequest>,
}

/// How the talking ended.
enum End {
    /// The last event of the command was sent.
    Told,
    ClientLeft,
}

type Outgoing = SplitSink<WebSocket, Message>;

impl Terminal {
    async fn run(mut self, socket: WebSocket) {
        let (mut outgoing, mut incoming) = socket.split();
        let log = match self.settle().await {
            Ok(log) => log,
            Err(error) => {
                self.guard.ended = true;
                return self.close(&mut outgoing, &error).await;
            }
        };
        let command = self.guard.command.clone();
        let limits = &self.app.config.limits;
        let ended = tokio::select! {
            end = send(log, &mut outgoing, limits.ping_interval, limits.write_timeout) => end,
            () = self.receive(&command, &mut incoming, limits.ping_interval * 3) => End::ClientLeft,
            () = self.app.abort.cancelled() => End::ClientLeft,
        };
        match ended {
            End::Told => self.guard.ended = true,
            End::ClientLeft => self.hang_up().await,
        }
    }

    /// The log of the command that runs; the spare one when the first turns out not to exist.
    async fn settle(&mut self) -> Result<Subscription, ApiError> {
        let log = self.app.runtime.follow_command(&self.session, &self.guard.command, Some(0))?;
        let Some(spare) = self.spare.take() else { return Ok(log) };
        let mut look = log;
        let first = timeout(FIRST_SIGN, look.next()).await;
        if let Ok(Some(LogEvent::Failed { error, .. })) = &first
            && error.kind() == ErrorKind::CommandNotFound
        {
            self.guard.ended = true;
            self.guard.command = self.app.runtime.start_command(&self.session, spare).await?;
            self.guard.ended = false;
        }
        Ok(self.app.runtime.follow_command(&self.session, &self.guard.command, Some(0))?)
    }

    /// Takes what the client sends, until it leaves or is silent for too long.
    async fn receive(&self, command: &CommandId, incoming: &mut SplitStream<WebSocket>, patience: Duration) {
        while let Ok(Some(Ok(message))) = timeout(patience, incoming.next()).await {
            let done = match message {
                Message::Binary(data) => self.write(command, data).await,
                Message::Text(text) => self.control(command, &text).await,
                Message::Close(_) => return,
                Message::Ping(_) | Message::Pong(_) => Ok(()),
            };
            if let Err(error) = done {
                // The command may have ended under it; the other direction tells.
                tracing::debug!(session.id = self.session, error = %error, "terminal input not taken");
            }
        }
    }

    async fn write(&self, command: &CommandId, data: Bytes) -> Result<(), RuntimeError> {
        self.app.runtime.write_command(&self.session, command, data).await
    }

    async fn control(&self, command: &CommandId, text: &str) -> Result<(), RuntimeError> {
        let problem = |error: serde_json::Error| RuntimeError::invalid("frame", error.to_string());
        let control = match serde_json::from_str(text).map_err(problem)? {
            FromClient::Signal { signal } => ExecControl::Signal(signal.0),
            FromClient::Resize { rows, cols } => match (Pty { rows, cols }).size() {
                Ok(size) => ExecControl::Resize(size),
                Err(_) => return Err(RuntimeError::invalid("rows and cols", "must be at least 1")),
            },
        };
        self.app.runtime.control_command(&self.session, command, control).await
    }

    /// What a terminal that is closed does to its programs; the guard kills what does not heed it.
    async fn hang_up(&mut self) {
        let (runtime, session, command) = (&self.app.runtime, &self.session, &self.guard.command);
        let hangup = ExecControl::Signal(Signal::HUP.0);
        if runtime.control_command(session, command, hangup).await.is_err() {
            return;
        }
        let Ok(mut log) = runtime.follow_command(session, command, None) else { return };
        let ended = async {
            while let Some(event) = log.next().await {
                if matches!(event, LogEvent::Exit { .. } | LogEvent::Failed { .. }) {
                    return true;
                }
            }
            false
        };
        self.guard.ended = tokio::select! {
            ended = timeout(HANGUP_GRACE, ended) => ended.unwrap_or(false),
            () = self.app.abort.cancelled() => false,
        };
    }

    async fn close(&self, outgoing: &mut Outgoing, error: &ApiError) {
        let mut frame = error.to_value();
        frame["type"] = json!("error");
        let told = finish(outgoing, frame.to_string());
        let _ = timeout(self.app.config.limits.write_timeout, told).await;
    }
}

/// Sends output, and pings so that a client that is gone is noticed.
async fn send(
    mut log: Subscription,
    outgoing: &mut Outgoing,
    ping_every: Duration,
    patience: Duration,
) -> End {
    let mut pings = interval(ping_every);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    pings.reset_at(Instant::now() + ping_every);
    loop {
        let event = tokio::select! {
            // Loses nothing when a ping comes first.
            event = log.next() => event,
            _ = pings.tick() => {
                match timeout(patience, outgoing.send(Message::Ping(Bytes::new()))).await {
                    Ok(Ok(())) => continue,
                    _ => return End::ClientLeft,
                }
            }
        };
        let (message, last) = match event {
            Some(LogEvent::Output { data, .. }) => (Message::Binary(data), false),
            Some(LogEvent::Gap { bytes }) => (text(&json!({"type": "gap", "bytes": bytes})), false),
            Some(LogEvent::Denied { denial }) => {
                let mut frame = serde_json::to_value(denial).unwrap_or_default();
                frame["type"] = json!("denial");
                (text(&frame), false)
            }
            Some(LogEvent::Exit { exit, .. }) => {
                let mut frame = serde_json::to_value(ExitBody::from(&exit)).unwrap_or_default();
                frame["type"] = json!("exit");
                (text(&frame), true)
            }
            Some(LogEvent::Failed { error, .. }) => {
                let mut frame = ApiError::from(error).to_value();
                frame["type"] = json!("error");
                (text(&frame), true)
            }
            None => return End::Told,
        };
        let sent = async {
            if let (Message::Text(frame), true) = (&message, last) {
                return finish(outgoing, frame.to_string()).await;
            }
            outgoing.send(message).await
        };
        match (timeout(patience, sent).await, last) {
            (_, true) => return End::Told,
            (Ok(Ok(())), false) => {}
            _ => return End::ClientLeft,
        }
    }
}

fn text(frame: &serde_json::Value) -> Message {
    Message::Text(frame.to_string().into())
}

/// The last frame, and the end of the connection.
async fn finish(outgoing: &mut Outgoing, frame: String) -> Result<(), axum::Error> {
    outgoing.send(Message::Text(frame.into())).await?;
    let reason = CloseFrame { code: close_code::NORMAL, reason: "".into() };
    outgoing.send(Message::Close(Some(reason))).await
}
