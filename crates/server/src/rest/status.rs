//! The server at a glance.

use axum::Json;
use axum::extract::State;
use sandcrate_protocol::{BackendStatus, RuntimeStatus};
use sandcrate_runtime::BackendView;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::schema::{HealthFacts, StatusFacts};
use crate::App;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(status)).routes(routes!(health)).routes(routes!(version))
}

#[derive(Debug, Serialize, ToSchema)]
struct Version {
    #[schema(value_type = String, example = "sandcrate")]
    name: &'static str,
    #[schema(value_type = String, example = "0.1.0")]
    version: &'static str,
    /// The version in the paths.
    #[schema(value_type = String, example = "v1")]
    api: &'static str,
}

/// More than LangBot's wire can say.
#[derive(Debug, Serialize)]
struct Status {
    #[serde(flatten)]
    status: RuntimeStatus,
    backends: Vec<BackendView>,
}

/// What the runtime holds
#[utoipa::path(get, path = "/v1/status", tag = "server", operation_id = "status",
    responses((status = 200, description = "At a glance", body = StatusFacts)))]
async fn status(State(app): State<App>) -> Json<Status> {
    let backends = app.runtime.backends().await;
    Json(Status { status: app.runtime.status().await, backends })
}

/// Which backend serves
///
/// 200 whether or not one does; `/readyz` says it by its status.
#[utoipa::path(get, path = "/v1/health", tag = "server", operation_id = "health",
    responses((status = 200, description = "The backend", body = HealthFacts)))]
async fn health(State(app): State<App>) -> Json<BackendStatus> {
    Json(app.runtime.backend_status().await)
}

/// Which program this is
#[utoipa::path(get, path = "/v1/version", tag = "server", operation_id = "version",
    responses((status = 200, description = "The program", body = Version)))]
async fn version() -> Json<Version> {
    Json(Version { name: "sandcrate", version: env!("CARGO_PKG_VERSION"), api: "v1" })
}
