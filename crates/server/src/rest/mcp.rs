//! MCP servers that run in boxes: list, add, look at, test, restart, remove.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use sandcrate_mcp::config::Registration;
use sandcrate_mcp::manager::{ManagerError, ServerView, TestReport};
use sandcrate_protocol::with_causes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::ApiError;
use super::extract::{JsonBody, Params, Segments, switch};
use crate::App;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default()
        .routes(routes!(list_mcp_servers, add_mcp_server))
        .routes(routes!(get_mcp_server, delete_mcp_server))
        .routes(routes!(restart_mcp_server))
        .routes(routes!(test_mcp_server))
        .routes(routes!(mcp_server_logs))
        .routes(routes!(test_mcp_configuration))
}

/// How it stands with a server.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "the shape alone is wanted, for the API document")]
struct McpRuntimeInfo {
    /// `connecting`, `connected`, `error`, `stopped` or `disabled`.
    #[schema(example = "connected")]
    status: String,
    #[schema(example = "Failed after 4 attempts: mcp_init: connection closed")]
    error_message: Option<String>,
    /// `session_create`, `staging`, `dep_install`, `process_start`, `relay_connect`, `mcp_init`, `runtime`,
    /// `tool_call` or `box_unavailable`.
    #[schema(example = "mcp_init")]
    error_phase: Option<String>,
    /// Failed attempts of this start.
    retry_count: u32,
    tool_count: usize,
    tools: Vec<McpTool>,
    /// The session of its box.
    #[schema(example = "mcp-time")]
    box_session_id: Option<String>,
    box_enabled: Option<bool>,
}

#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "the shape alone is wanted, for the API document")]
struct McpTool {
    #[schema(example = "get_current_time")]
    name: String,
    description: String,
    /// The JSON schema of its arguments.
    #[schema(value_type = Object)]
    parameters: Map<String, Value>,
}

/// A server, as it is configured and as it runs.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "the shape alone is wanted, for the API document")]
struct McpServer {
    #[schema(example = "time")]
    name: String,
    /// `file`: the operator's own, which clients cannot change; `stored`: added by a client.
    #[schema(example = "stored")]
    origin: String,
    enabled: bool,
    #[schema(example = "uvx")]
    command: String,
    #[schema(example = json!(["mcp-server-time"]))]
    args: Vec<String>,
    /// The names of its variables; their values are not told.
    env: Vec<String>,
    #[schema(rename = "box", value_type = Object)]
    settings: Map<String, Value>,
    /// Its tools that may be used; empty: all.
    allow: Vec<String>,
    /// Those that may not.
    deny: Vec<String>,
    call_timeout_sec: u64,
    /// What is being done for its start, while that takes long.
    doing: Option<String>,
    /// What a person should know of its start, such as paths that its box does not have.
    #[schema(example = json!([]))]
    notes: Vec<String>,
    runtime_info: McpRuntimeInfo,
}

#[derive(Debug, Serialize, ToSchema)]
struct McpServerList {
    #[schema(value_type = Vec<McpServer>)]
    servers: Vec<ServerView>,
}

/// How a test went.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "the shape alone is wanted, for the API document")]
struct McpTest {
    ok: bool,
    runtime_info: McpRuntimeInfo,
    /// The server's last words, when it failed.
    log: String,
}

/// What to start, and in which box.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "the shape alone is wanted, for the API document")]
struct McpRegistration {
    /// Letters, digits, `-` and `_`; tools of the gateway are called `NAME__TOOL`. Not for `/v1/mcp/test`.
    #[schema(example = "time")]
    name: Option<String>,
    #[schema(example = "uvx")]
    command: String,
    #[schema(example = json!(["mcp-server-time"]))]
    args: Option<Vec<String>>,
    #[schema(value_type = Option<Object>)]
    env: Option<Map<String, Value>>,
    /// `true` when absent.
    enabled: Option<bool>,
    /// `image`, `network`, `install_network`, `host_path`, `host_path_mode`, `mounts`, `startup_timeout_sec`, `cpus`,
    /// `memory_mb`, `pids_limit`, `read_only_rootfs`, `env`.
    #[schema(rename = "box", value_type = Option<Object>)]
    settings: Option<Map<String, Value>>,
    allow: Option<Vec<String>>,
    deny: Option<Vec<String>>,
    call_timeout_sec: Option<u64>,
}

#[derive(Debug, Serialize, ToSchema)]
struct Removed {
    #[schema(example = "time")]
    removed: String,
}

#[derive(Debug, Serialize, ToSchema)]
struct McpLog {
    #[schema(example = "time")]
    name: String,
    /// The notes about its start, and the last lines of its stderr; of an earlier attempt while it does not run.
    #[schema(example = "Starting server…\n")]
    log: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct AddParams {
    #[serde(deserialize_with = "switch")]
    replace: bool,
}

impl From<ManagerError> for ApiError {
    fn from(error: ManagerError) -> Self {
        let (kind, message) = (error.kind(), with_causes(&error));
        match &error {
            ManagerError::NotFound { .. } => {
                Self::new(StatusCode::NOT_FOUND, "mcp_server_not_found", message)
            }
            ManagerError::Exists { .. } => {
                Self::new(StatusCode::CONFLICT, "mcp_server_conflict", message).of_field("name")
            }
            other => match other.field() {
                Some(field) => Self::of_kind(kind, message).of_field(field),
                None => Self::of_kind(kind, message),
            },
        }
    }
}

/// The fields without the name, which is not part of what is registered.
fn registration(fields: Map<String, Value>) -> Result<Registration, ApiError> {
    serde_path_to_error::deserialize(Value::Object(fields)).map_err(|error| {
        let field = error.path().to_string();
        let field = if field == "." { "body".to_owned() } else { field };
        ApiError::invalid(field, format!("is not acceptable: {}", error.inner()))
    })
}

/// List MCP servers
#[utoipa::path(get, path = "/v1/mcp/servers", tag = "mcp", operation_id = "list_mcp_servers",
    responses((status = 200, description = "The servers, by name", body = McpServerList)))]
async fn list_mcp_servers(State(app): State<App>) -> Json<McpServerList> {
    Json(McpServerList { servers: app.mcp.manager.list() })
}

/// Add an MCP server
///
/// It is kept across restarts and started at once; its `runtime_info` says how that goes.
#[utoipa::path(post, path = "/v1/mcp/servers", tag = "mcp", operation_id = "add_mcp_server",
    params(("replace" = Option<bool>, Query, description = "`1`: also one of that name that clients added")),
    request_body(content = McpRegistration,
        example = json!({"name": "time", "command": "uvx", "args": ["mcp-server-time"]})),
    responses((status = 201, description = "It is being started", body = McpServer)))]
async fn add_mcp_server(
    State(app): State<App>,
    Params(params): Params<AddParams>,
    JsonBody(mut body): JsonBody<Map<String, Value>>,
) -> Result<(StatusCode, Json<ServerView>), ApiError> {
    let name = match body.remove("name") {
        Some(Value::String(name)) => name,
        Some(_) => return Err(ApiError::invalid("name", "must be text")),
        None => return Err(ApiError::invalid("name", "is missing")),
    };
    let registration = registration(body)?;
    let view = app.mcp.manager.add(&name, registration, params.replace).await?;
    Ok((StatusCode::CREATED, Json(view)))
}

/// Look at an MCP server
#[utoipa::path(get, path = "/v1/mcp/servers/{name}", tag = "mcp", operation_id = "get_mcp_server",
    params(("name" = String, Path, description = "Its name", example = "time")),
    responses((status = 200, description = "The server", body = McpServer)))]
async fn get_mcp_server(
    State(app): State<App>,
    Segments(name): Segments<String>,
) -> Result<Json<ServerView>, ApiError> {
    Ok(Json(app.mcp.manager.show(&name)?))
}

/// Remove an MCP server
///
/// It is ended first. One of the operator's file is refused.
#[utoipa::path(delete, path = "/v1/mcp/servers/{name}", tag = "mcp", operation_id = "delete_mcp_server",
    params(("name" = String, Path, description = "Its name", example = "time")),
    responses((status = 200, description = "It is gone", body = Removed)))]
async fn delete_mcp_server(
    State(app): State<App>,
    Segments(name): Segments<String>,
) -> Result<Json<Removed>, ApiError> {
    app.mcp.manager.remove(&name).await?;
    Ok(Json(Removed { removed: name }))
}

/// Restart an MCP server
///
/// With everything fresh: attempts, environment, box. Answers when the start has begun.
#[utoipa::path(post, path = "/v1/mcp/servers/{name}/restart", tag = "mcp", operation_id = "restart_mcp_server",
    params(("name" = String, Path, description = "Its name", example = "time")),
    responses((status = 200, description = "It is being started", body = McpServer)))]
async fn restart_mcp_server(
    State(app): State<App>,
    Segments(name): Segments<String>,
) -> Result<Json<ServerView>, ApiError> {
    Ok(Json(app.mcp.manager.restart(&name).await?))
}

/// Test an MCP server
///
/// One that is connected lists its tools again; any other is started afresh. Answers when that has an outcome.
#[utoipa::path(post, path = "/v1/mcp/servers/{name}/test", tag = "mcp", operation_id = "test_mcp_server",
    params(("name" = String, Path, description = "Its name", example = "time")),
    responses((status = 200, description = "How it went", body = McpTest)))]
async fn test_mcp_server(
    State(app): State<App>,
    Segments(name): Segments<String>,
) -> Result<Json<TestReport>, ApiError> {
    Ok(Json(app.mcp.manager.test(&name).await?))
}

/// Read an MCP server's stderr
#[utoipa::path(get, path = "/v1/mcp/servers/{name}/logs", tag = "mcp", operation_id = "mcp_server_logs",
    params(("name" = String, Path, description = "Its name", example = "time")),
    responses((status = 200, description = "The last lines", body = McpLog)))]
async fn mcp_server_logs(
    State(app): State<App>,
    Segments(name): Segments<String>,
) -> Result<Json<McpLog>, ApiError> {
    let log = app.mcp.manager.log(&name).await?;
    Ok(Json(McpLog { name, log }))
}

/// Test a configuration
///
/// In a box of its own that is gone afterwards; no server that runs is touched.
#[utoipa::path(post, path = "/v1/mcp/test", tag = "mcp", operation_id = "test_mcp_configuration",
    request_body(content = McpRegistration, example = json!({"command": "uvx", "args": ["mcp-server-time"]})),
    responses((status = 200, description = "How it went", body = McpTest)))]
async fn test_mcp_configuration(
    State(app): State<App>,
    JsonBody(mut body): JsonBody<Map<String, Value>>,
) -> Result<Json<TestReport>, ApiError> {
    // What is going to be added may be tested as it is.
    body.remove("name");
    Ok(Json(app.mcp.manager.test_transient(registration(body)?).await?))
}
