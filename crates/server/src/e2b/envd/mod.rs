//! `envd` as the SDKs know it, answered here and not in the box: health, files, and the services for processes and
//! files. Everything in it is done with the identity of the box's commands.

mod call;
mod entry;
mod files;
mod filesystem;
mod gzip;
mod input;
mod multipart;
mod paths;
mod process;
mod processes;
mod stream;
mod watch;
mod watchers;

use std::sync::{Arc, LazyLock};

use axum::extract::{DefaultBodyLimit, Extension, Request};
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::from_fn;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use jiff::Timestamp;
use sandcrate_e2b_wire::signature::Operation;
use sandcrate_e2b_wire::{filesystem as fs_wire, header as names, process as process_wire};
use serde_json::{Value, json};
use tower::ServiceExt;

use super::data::check;
use super::error::Refused;
use super::sandbox::Sandbox;
use super::usage;
use crate::{App, uploads};

pub(crate) use processes::Processes;
pub(crate) use watchers::Watchers;

/// A message of a call is held in memory whole. The largest thing in one is standard input; files have a route of
/// their own, which streams.
pub(super) const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// Made once: the state comes with each request.
static ROUTES: LazyLock<Router> = LazyLock::new(|| {
    let process = |method: &str| format!("{}{method}", process_wire::SERVICE);
    let filesystem = |method: &str| format!("{}{method}", fs_wire::SERVICE);
    Router::new()
        .route("/health", get(health))
        .route("/envs", get(envs))
        .route("/metrics", get(metrics))
        .route("/files", get(files::download).post(files::upload).layer(from_fn(uploads::hear_out)))
        .route(&process("Start"), post(process::start))
        .route(&process("Connect"), post(process::connect))
        .route(&process("List"), post(process::list))
        .route(&process("Update"), post(process::update))
        .route(&process("SendSignal"), post(process::send_signal))
        .route(&process("SendInput"), post(input::send_input))
        .route(&process("StreamInput"), post(input::stream_input))
        .route(&process("CloseStdin"), post(input::close_stdin))
        .route(&filesystem("Stat"), post(filesystem::stat))
        .route(&filesystem("ListDir"), post(filesystem::list_dir))
        .route(&filesystem("MakeDir"), post(filesystem::make_dir))
        .route(&filesystem("Move"), post(filesystem::rename))
        .route(&filesystem("Remove"), post(filesystem::remove))
        .route(&filesystem("WatchDir"), post(watch::watch_dir))
        .route(&filesystem("CreateWatcher"), post(watch::create_watcher))
        .route(&filesystem("GetWatcherEvents"), post(watch::get_watcher_events))
        .route(&filesystem("RemoveWatcher"), post(watch::remove_watcher))
        .fallback(nothing)
        .method_not_allowed_fallback(nothing)
        .layer(DefaultBodyLimit::max(MAX_MESSAGE_BYTES))
});

/// What handlers get of the sandbox they work on.
#[derive(Debug, Clone)]
pub(super) struct Here {
    pub(super) app: App,
    pub(super) sandbox: Arc<Sandbox>,
}

impl Here {
    pub(super) fn id(&self) -> &str {
        self.sandbox.id()
    }
}

/// The sandbox that a signed address is of. Such an address names none: where all sandboxes share one, whose secret
/// signed it tells. Whether it still holds is looked at when it is used.
pub(super) fn signer(app: &App, request: &Request) -> Option<Arc<Sandbox>> {
    let uri = request.uri();
    if uri.path() != "/files" || !uri.query().is_some_and(is_signed) {
        return None;
    }
    let operation = match *request.method() {
        Method::GET | Method::HEAD => Operation::Read,
        Method::POST => Operation::Write,
        _ => return None,
    };
    let params = files::signed_params(uri)?;
    app.e2b.running().into_iter().find(|sandbox| params.is_signed_by(sandbox, operation))
}

pub(super) async fn answer(app: &App, sandbox: Arc<Sandbox>, mut request: Request) -> Response {
    if let Some(secret) = &sandbox.facts.access {
        let path = request.uri().path();
        // Health is anybody's to ask, and files have signed addresses, which their handlers look at.
        let open = path == "/health" || (path == "/files" && request.uri().query().is_some_and(is_signed));
        if !open && check(secret, &request, names::ACCESS_TOKEN).is_err() {
            let message = "this sandbox is secured: send its envdAccessToken as X-Access-Token";
            return Refused::new(StatusCode::UNAUTHORIZED, message).into_response();
        }
    }
    request.extensions_mut().insert(Here { app: app.clone(), sandbox });
    ROUTES.clone().oneshot(request).await.unwrap_or_else(|never| match never {})
}

fn is_signed(query: &str) -> bool {
    query.split('&').any(|pair| pair.split_once('=').is_some_and(|(name, _)| name == "signature"))
}

async fn health() -> StatusCode {
    StatusCode::NO_CONTENT
}

async fn envs(Extension(here): Extension<Here>) -> impl IntoResponse {
    Json(here.sandbox.facts.envs.clone())
}

/// As `envd` tells it, which is not as the control plane does.
async fn metrics(Extension(here): Extension<Here>) -> Result<Json<Value>, Refused> {
    let session = here.app.runtime.session(here.id())?.info;
    let used = usage::measure(&here.app.runtime, &here.sandbox).await?;
    let total = session.memory_mb << 20;
    Ok(Json(json!({
        "ts": Timestamp::now().as_second(),
        "cpu_count": session.cpus.ceil(),
        "cpu_used_pct": used.cpu_percent,
        "mem_total": total,
        "mem_used": used.memory_bytes,
        "mem_total_mib": total >> 20,
        "mem_used_mib": used.memory_bytes >> 20,
        "disk_used": used.disk_bytes,
        "disk_total": session.workspace_quota_mb << 20,
    })))
}

async fn nothing(method: Method, uri: Uri) -> Refused {
    let path: String = uri.path().chars().take(200).collect();
    Refused::new(StatusCode::NOT_FOUND, format!("envd has nothing at {method} {path}"))
}
