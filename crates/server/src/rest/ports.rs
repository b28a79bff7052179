//! Published ports of a session.

use std::net::IpAddr;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use sandcrate_protocol::network::PortRequest;
use sandcrate_runtime::PortView;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::ApiError;
use super::extract::{JsonBody, Params, Segments};
use super::schema::{PortFacts, PortWish};
use crate::App;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(list_ports, publish_port, close_ports))
}

#[derive(Debug, Serialize, ToSchema)]
struct PortList {
    #[schema(value_type = Vec<PortFacts>)]
    ports: Vec<PortView>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct PublishBody {
    #[schema(value_type = PortWish)]
    port: PortRequest,
}

#[derive(Debug, Serialize, ToSchema)]
struct Closed {
    /// How many.
    #[schema(example = 1)]
    closed: usize,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct CloseParams {
    host_port: Option<u16>,
    address: Option<IpAddr>,
}

/// List the published ports of a session
#[utoipa::path(get, path = "/v1/sessions/{id}/ports", tag = "network", operation_id = "list_ports",
    params(("id" = String, Path, description = "Name of the session", example = "demo")),
    responses((status = 200, description = "The ports", body = PortList)))]
async fn list_ports(
    State(app): State<App>,
    Segments(id): Segments<String>,
) -> Result<Json<PortList>, ApiError> {
    Ok(Json(PortList { ports: app.runtime.ports(&id)? }))
}

/// Publish a port of a session
///
/// The server's host listens for it until it is closed or the session ends. On 127.0.0.1, unless the server
/// allows other addresses; host port 0 is any that is free, and the answer tells which. The box needs an
/// isolated network: `on`, a policy, or made with `ports`.
#[utoipa::path(post, path = "/v1/sessions/{id}/ports", tag = "network", operation_id = "publish_port",
    params(("id" = String, Path, description = "Name of the session", example = "demo")),
    request_body(content = PublishBody, example = json!({"port": "0:80"})),
    responses((status = 201, description = "Where it is reached", body = PortFacts)))]
async fn publish_port(
    State(app): State<App>,
    Segments(id): Segments<String>,
    JsonBody(wanted): JsonBody<PublishBody>,
) -> Result<(StatusCode, Json<PortView>), ApiError> {
    Ok((StatusCode::CREATED, Json(app.runtime.publish_port(&id, wanted.port).await?)))
}

/// Close published ports of a session
///
/// All of them, unless the query says which. What is connected stays so.
#[utoipa::path(delete, path = "/v1/sessions/{id}/ports", tag = "network", operation_id = "close_ports",
    params(("id" = String, Path, description = "Name of the session", example = "demo"),
        ("host_port" = Option<u16>, Query, description = "Only those of this port of the host"),
        ("address" = Option<String>, Query, description = "Only those of this address of the host")),
    responses((status = 200, description = "They are closed", body = Closed)))]
async fn close_ports(
    State(app): State<App>,
    Segments(id): Segments<String>,
    Params(which): Params<CloseParams>,
) -> Result<Json<Closed>, ApiError> {
    Ok(Json(Closed { closed: app.runtime.close_ports(&id, which.host_port, which.address)? }))
}
