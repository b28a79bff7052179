//! Sessions: create, list, look at, delete.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use sandcrate_protocol::network::Counters;
use sandcrate_protocol::{DEFAULT_PROCESS_ID, Enforcement, ProcessInfo, SessionInfo};
use sandcrate_runtime::{PortView, SessionState, SessionView};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::ApiError;
use super::exec::wants_events;
use super::extract::{JsonBody, Params, Segments};
use super::schema::{CounterFacts, Finding, PortFacts, ProcessFacts, SessionFacts, SessionRequest};
use super::spec::{self, BOX_FIELDS, OPTION_FIELDS};
use super::start_events;
use crate::App;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(list_sessions, create_session)).routes(routes!(
        get_session,
        create_named_session,
        delete_session
    ))
}

/// A session in a list.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SessionSummary {
    #[serde(flatten)]
    #[schema(value_type = SessionFacts)]
    info: SessionInfo,
    /// `idle`, `running`, or `dormant`: a persistent session without a box at the moment.
    #[schema(value_type = String, example = "idle")]
    state: SessionState,
    labels: BTreeMap<String, String>,
    /// So long without use, and the session ends; a persistent one becomes dormant.
    #[schema(example = 300)]
    ttl_sec: u64,
    /// What the network is held to now: `off`, `host`, or a policy.
    #[schema(example = "public")]
    network_policy: String,
}

/// A session and what is in it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SessionBody {
    #[serde(flatten)]
    summary: SessionSummary,
    /// The process `default`.
    #[schema(value_type = Option<ProcessFacts>)]
    managed_process: Option<ProcessInfo>,
    /// All of them, by their ids.
    #[schema(value_type = BTreeMap<String, ProcessFacts>)]
    managed_processes: BTreeMap<String, ProcessInfo>,
    /// What holds the box, control by control; absent while it has none.
    #[schema(value_type = Option<Vec<Finding>>)]
    enforcement: Option<Enforcement>,
    /// Where its ports are reached.
    #[schema(value_type = Vec<PortFacts>)]
    ports: Vec<PortView>,
    /// What the box's network carried so far; absent while it has no isolated one.
    #[schema(value_type = Option<CounterFacts>)]
    network_usage: Option<Counters>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SessionList {
    sessions: Vec<SessionSummary>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Deleted {
    #[schema(example = "demo")]
    deleted: String,
}

impl SessionSummary {
    fn new(app: &App, view: SessionView) -> Self {
        Self {
            network_policy: app.runtime.meaning(&view.network),
            info: view.info,
            state: view.state,
            labels: view.labels,
            ttl_sec: view.ttl.as_secs(),
        }
    }
}

impl SessionBody {
    pub(crate) async fn new(app: &App, mut view: SessionView) -> Self {
        // A session that ends while it is looked at has carried nothing.
        let report = app.runtime.network_report(&view.info.session_id).await.ok().flatten();
        let processes: BTreeMap<_, _> = std::mem::take(&mut view.processes)
            .into_iter()
            .map(|process| (process.process_id.clone(), process))
            .collect();
        Self {
            managed_process: processes.get(DEFAULT_PROCESS_ID).cloned(),
            managed_processes: processes,
            enforcement: view.enforcement.take(),
            ports: std::mem::take(&mut view.ports),
            network_usage: report.map(|report| report.counters),
            summary: SessionSummary::new(app, view),
        }
    }
}

/// List sessions
///
/// In order of creation.
#[utoipa::path(get, path = "/v1/sessions", tag = "sessions", operation_id = "list_sessions",
    params(("label" = Option<Vec<String>>, Query, description = "`key=value`; only sessions with all of them")),
    responses((status = 200, description = "The sessions", body = SessionList)))]
async fn list_sessions(
    State(app): State<App>,
    Params(params): Params<Vec<(String, String)>>,
) -> Result<Json<SessionList>, ApiError> {
    let mut wanted = Vec::new();
    for (key, value) in &params {
        match (key.as_str(), value.split_once('=')) {
            ("label", Some(pair)) => wanted.push(pair),
            ("label", None) => return Err(ApiError::invalid("label", "must be `key=value`")),
            (other, _) => return Err(spec::unknown_field(other, &["label"])),
        }
    }
    let views = app.runtime.sessions().into_iter();
    let views = views.filter(|view| {
        wanted.iter().all(|(key, value)| view.labels.get(*key).is_some_and(|label| label == value))
    });
    let sessions = views.map(|view| SessionSummary::new(&app, view)).collect();
    Ok(Json(SessionList { sessions }))
}

/// Create a session
///
/// `session_id` names it; without one a new name is made up. A session of that name that fits the request is
/// given back; one that does not is a `session_conflict`.
///
/// With `Accept: text/event-stream` the answer is a stream of events: `progress` while an image is pulled, then
/// `session` or `error`.
#[utoipa::path(post, path = "/v1/sessions", tag = "sessions", operation_id = "create_session",
    request_body(content = SessionRequest, example = json!({"memory_mb": 256, "labels": {"user": "42"}})),
    responses((status = 201, description = "The session", body = SessionBody)))]
async fn create_session(
    State(app): State<App>,
    headers: HeaderMap,
    JsonBody(mut body): JsonBody<Map<String, Value>>,
) -> Result<Response, ApiError> {
    let id = match body.remove("session_id") {
        None | Some(Value::Null) => format!("s-{}", uuid::Uuid::now_v7().simple()),
        Some(Value::String(id)) => id,
        Some(_) => return Err(ApiError::invalid("session_id", "must be a string")),
    };
    create(&app, &id, body, &headers).await
}

/// Create a session with a name
///
/// As `POST /v1/sessions`, with the name in the path.
#[utoipa::path(post, path = "/v1/sessions/{id}", tag = "sessions", operation_id = "create_named_session",
    params(("id" = String, Path, description = "Name of the session, percent-encoded", example = "demo")),
    request_body(content = SessionRequest, example = json!({"network": "off", "cpus": 0.5, "ttl_sec": 600})),
    responses((status = 201, description = "The session", body = SessionBody)))]
async fn create_named_session(
    State(app): State<App>,
    Segments(id): Segments<String>,
    headers: HeaderMap,
    JsonBody(mut body): JsonBody<Map<String, Value>>,
) -> Result<Response, ApiError> {
    spec::check_named(&id, &mut body)?;
    create(&app, &id, body, &headers).await
}

async fn create(
    app: &App,
    id: &str,
    mut body: Map<String, Value>,
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    // Clients that send a whole specification have none to run yet.
    if body.get("cmd").and_then(Value::as_str) == Some("") {
        body.remove("cmd");
    }
    spec::check_fields(&body, &[&BOX_FIELDS, &OPTION_FIELDS])?;
    let mut options = spec::options(&mut body)?;
    let mut spec = spec::box_spec(id, body)?;
    options.env = std::mem::take(&mut spec.env);
    if wants_events(headers) {
        return Ok(start_events::answer(app, spec, options));
    }
    let view = app.runtime.create_session(&spec, options).await?;
    Ok((StatusCode::CREATED, Json(SessionBody::new(app, view).await)).into_response())
}

/// Look at a session
#[utoipa::path(get, path = "/v1/sessions/{id}", tag = "sessions", operation_id = "get_session",
    params(("id" = String, Path, description = "Name of the session", example = "demo")),
    responses((status = 200, description = "The session", body = SessionBody)))]
async fn get_session(
    State(app): State<App>,
    Segments(id): Segments<String>,
) -> Result<Json<SessionBody>, ApiError> {
    Ok(Json(SessionBody::new(&app, app.runtime.session(&id)?).await))
}

/// Delete a session
///
/// Everything in it ends, and its private files are removed, those of a persistent session too.
#[utoipa::path(delete, path = "/v1/sessions/{id}", tag = "sessions", operation_id = "delete_session",
    params(("id" = String, Path, description = "Name of the session", example = "demo")),
    responses((status = 200, description = "It is gone", body = Deleted)))]
async fn delete_session(
    State(app): State<App>,
    Segments(id): Segments<String>,
) -> Result<Json<Deleted>, ApiError> {
    app.runtime.delete_session(&id).await?;
    Ok(Json(Deleted { deleted: id }))
}
