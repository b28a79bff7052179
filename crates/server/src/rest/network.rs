//! The network of a session: its policy, live; what it was refused; and what all sessions use.

use axum::Json;
use axum::extract::State;
use sandcrate_protocol::network::{Counters, Denial, NetworkRequest};
use sandcrate_runtime::{SessionState, SessionUsage};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::ApiError;
use super::extract::{JsonBody, Segments};
use super::schema::{CounterFacts, DenialFacts, NetworkWish};
use crate::App;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default()
        .routes(routes!(get_network, set_network))
        .routes(routes!(list_denials))
        .routes(routes!(get_usage))
}

/// The network of a session.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NetworkBody {
    /// As it was asked for.
    #[schema(value_type = String, example = "on")]
    network: NetworkRequest,
    /// What that means here: `off`, `host`, or a policy.
    #[schema(example = "public")]
    policy: String,
    /// What the box's network carried so far; absent while it has no isolated one.
    #[schema(value_type = Option<CounterFacts>)]
    usage: Option<Counters>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NetworkChange {
    #[schema(value_type = NetworkWish)]
    network: NetworkRequest,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DenialList {
    /// Oldest first.
    #[schema(value_type = Vec<DenialFacts>)]
    denials: Vec<Denial>,
    /// Older ones that are no longer kept.
    lost: u64,
}

/// What a session uses.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SessionFigures {
    #[schema(example = "demo")]
    session_id: String,
    #[schema(value_type = String, example = "idle")]
    state: SessionState,
    /// Processes that run.
    processes: usize,
    #[schema(example = 512)]
    memory_mb: u64,
    #[schema(example = 1.0)]
    cpus: f64,
    #[schema(example = "public")]
    network_policy: String,
    #[schema(value_type = Option<CounterFacts>)]
    network: Option<Counters>,
}

#[derive(Debug, Serialize, ToSchema)]
struct UsageList {
    sessions: Vec<SessionFigures>,
}

async fn body(app: &App, id: &str, network: NetworkRequest) -> Result<NetworkBody, ApiError> {
    let report = app.runtime.network_report(id).await?;
    let policy = app.runtime.meaning(&network);
    Ok(NetworkBody { network, policy, usage: report.map(|report| report.counters) })
}

/// Look at the network of a session
#[utoipa::path(get, path = "/v1/sessions/{id}/network", tag = "network", operation_id = "get_network",
    params(("id" = String, Path, description = "Name of the session", example = "demo")),
    responses((status = 200, description = "What it is held to", body = NetworkBody)))]
async fn get_network(
    State(app): State<App>,
    Segments(id): Segments<String>,
) -> Result<Json<NetworkBody>, ApiError> {
    let view = app.runtime.session(&id)?;
    Ok(Json(body(&app, &id, view.network).await?))
}

/// Change the network of a session
///
/// In force when the answer comes: connections that no longer pass are reset. Between `off`, an isolated
/// network and `host` the box has to be made anew, which is a `session_conflict` while something runs in it; an
/// isolated one is switched `off` without that.
#[utoipa::path(put, path = "/v1/sessions/{id}/network", tag = "network", operation_id = "set_network",
    params(("id" = String, Path, description = "Name of the session", example = "demo")),
    request_body(content = NetworkChange, example = json!({"network": "allow *.example.com:443"})),
    responses((status = 200, description = "What it is held to now", body = NetworkBody)))]
async fn set_network(
    State(app): State<App>,
    Segments(id): Segments<String>,
    JsonBody(change): JsonBody<NetworkChange>,
) -> Result<Json<NetworkBody>, ApiError> {
    let view = app.runtime.set_network(&id, change.network).await?;
    Ok(Json(body(&app, &id, view.network).await?))
}

/// List what a session was refused
///
/// By its network, since its box was made.
#[utoipa::path(get, path = "/v1/sessions/{id}/denials", tag = "network", operation_id = "list_denials",
    params(("id" = String, Path, description = "Name of the session", example = "demo")),
    responses((status = 200, description = "The denials", body = DenialList)))]
async fn list_denials(
    State(app): State<App>,
    Segments(id): Segments<String>,
) -> Result<Json<DenialList>, ApiError> {
    let report = app.runtime.network_report(&id).await?.unwrap_or_default();
    Ok(Json(DenialList { denials: report.denials, lost: report.lost }))
}

/// List what sessions use
#[utoipa::path(get, path = "/v1/usage", tag = "network", operation_id = "get_usage",
    responses((status = 200, description = "The sessions with their figures", body = UsageList)))]
async fn get_usage(State(app): State<App>) -> Json<UsageList> {
    let figures = |SessionUsage { session, network }| SessionFigures {
        processes: session.processes.iter().filter(|process| process.exited_at.is_none()).count(),
        session_id: session.info.session_id,
        state: session.state,
        memory_mb: session.info.memory_mb,
        cpus: session.info.cpus,
        network_policy: app.runtime.meaning(&session.network),
        network,
    };
    Json(UsageList { sessions: app.runtime.usage().await.into_iter().map(figures).collect() })
}
