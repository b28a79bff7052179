//! The process relay: a managed process's standard streams over a WebSocket, one text message per line.
//!
//! Everything that can be refused is refused before the upgrade. A process has one attachment at a time.

mod pump;

use axum::Router;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{Extension, Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::get;
use sandcrate_protocol::{DEFAULT_PROCESS_ID, ErrorKind, with_causes};
use sandcrate_runtime::{RuntimeError, owner};
use serde::Deserialize;

use crate::rpc::no_upgrade;
use crate::tenancy::unauthorized;
use crate::{App, Identity, Refusal, websocket};

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/v1/sessions/{id}/managed-process/{process_id}/ws", get(attach))
        .route("/v1/sessions/{id}/managed-process/ws", get(attach_default))
}

#[derive(Debug, Default, Deserialize)]
struct Options {
    /// `1` or `true`: wait until the one attached now leaves.
    #[serde(default)]
    wait: String,
}

type Upgrade = Result<WebSocketUpgrade, WebSocketUpgradeRejection>;

async fn attach_default(
    state: State<App>,
    identity: Extension<Identity>,
    Path(session): Path<String>,
    options: Query<Options>,
    headers: HeaderMap,
    upgrade: Upgrade,
) -> Result<Response, Refusal> {
    attach(state, identity, Path((session, DEFAULT_PROCESS_ID.to_owned())), options, headers, upgrade).await
}

async fn attach(
    State(app): State<App>,
    Extension(identity): Extension<Identity>,
    Path((session, process)): Path<(String, String)>,
    Query(options): Query<Options>,
    headers: HeaderMap,
    upgrade: Upgrade,
) -> Result<Response, Refusal> {
    let session = session.trim().to_owned();
    // Whoever names no workspace has none of its sessions, unless it is one of us.
    if app.tenancy.relayed(&headers, &session)?.is_none() && owner(&session).is_some() && !identity.known {
        return Err(unauthorized("the session belongs to a workspace: send its X-LangBot headers"));
    }
    // Before the question whether this is an upgrade at all, as the reference has it.
    app.runtime.check_attachable(&session, &process).map_err(|error| refusal(&error))?;
    let upgrade = upgrade.map_err(|rejection| no_upgrade(&rejection))?;
    let wait = matches!(options.wait.as_str(), "1" | "true");
    let attachment = tokio::select! {
        attachment = app.runtime.attach_process(&session, &process, wait) => attachment.map_err(|error| refusal(&error))?,
        () = app.shutdown.cancelled() => return Err(refusal(&RuntimeError::ShuttingDown)),
    };
    // Counted from here on: an upgrade under way is waited for too.
    let owned = app.tasks.token();
    Ok(websocket::bounded(upgrade).protocols(["mcp"]).on_upgrade(async move |socket| {
        tokio::select! {
            () = pump::run(socket, attachment, &app, &session) => {}
            () = app.abort.cancelled() => {}
        }
        drop(owned);
    }))
}

/// The reference answers 400 to all it checks before the upgrade; only what it never refused has a status of
/// its own.
fn refusal(error: &RuntimeError) -> Refusal {
    let shown = error.kind().appearance();
    let status = match (error, error.kind()) {
        (RuntimeError::ProcessAttached { .. }, _) => StatusCode::CONFLICT,
        (_, ErrorKind::SessionNotFound | ErrorKind::ProcessNotFound | ErrorKind::ProcessConflict) => {
            StatusCode::BAD_REQUEST
        }
        _ => StatusCode::from_u16(shown.http_status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
    };
    Refusal::new(status, shown.wire_class, with_causes(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_have_the_reference_s_status_class_and_words() {
        let (session, process) = (|| "s".to_owned(), || "p".to_owned());
        for (error, status, code, message) in [
            (
                RuntimeError::SessionNotFound { session: session() },
                400,
                "BoxSessionNotFoundError",
                "session s not found",
            ),
            (
                RuntimeError::ProcessNotFound { session: session(), process: process() },
                400,
                "BoxManagedProcessNotFoundError",
                "session s has no managed process with process_id=p",
            ),
            (
                RuntimeError::ProcessNotRunning { session: session(), process: process() },
                400,
                "BoxManagedProcessConflictError",
                "managed process p in session s is not running",
            ),
            (
                RuntimeError::ProcessAttached { session: session(), process: process() },
                409,
                "BoxManagedProcessConflictError",
                "managed process p in session s is attached elsewhere",
            ),
            (RuntimeError::ShuttingDown, 503, "BoxRuntimeUnavailableError", "the runtime is shutting down"),
        ] {
            let shown = refusal(&error);
            assert_eq!((shown.status.as_u16(), &*shown.code, &*shown.message), (status, code, message));
        }
    }
}
