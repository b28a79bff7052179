//! The agent's tools: `/v1/tools/{tool}`, their schemas, the profiles of their sessions, and what failed lately.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use sandcrate_host::tools::ToolFormat;
use sandcrate_host::{HostError, Query, RecordedError};
use sandcrate_protocol::BoxProfile;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::{ApiError, ErrorBody};
use super::extract::{JsonBody, Params, Segments, cut};
use super::schema::{ErrorFacts, ProfileFacts};
use crate::App;
use crate::tools::{Scope, Tools};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default()
        .routes(routes!(list_tools))
        .routes(routes!(call_tool))
        .routes(routes!(list_errors))
        .routes(routes!(list_profiles))
        .routes(routes!(get_profile))
}

/// Whose call it is; the server's template makes a session's id of it.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
struct Caller {
    /// What kind of conversation it is, such as `person` or `group`.
    #[schema(example = "group")]
    launcher_type: Option<String>,
    #[schema(example = "room-1")]
    launcher_id: Option<String>,
    #[schema(example = "alice")]
    sender_id: Option<String>,
    conversation_id: Option<String>,
    query_id: Option<String>,
}

/// One call of a tool.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
struct ToolCall {
    /// As the tool's schema says.
    #[schema(value_type = Object)]
    arguments: Map<String, Value>,
    /// Who calls. Instead of `session_id`.
    caller: Option<Caller>,
    /// The session to work in; made when it is not there. Instead of `caller`.
    #[schema(example = "demo")]
    session_id: Option<String>,
}

#[derive(Debug, Default, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Format {
    /// `name`, `description`, `parameters`.
    #[default]
    Plain,
    /// As OpenAI's `tools` have it.
    Openai,
    /// As Anthropic's `tools` have it.
    Anthropic,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
#[derive(Default)]
struct ListOptions {
    /// The shape: `plain`, `openai` or `anthropic`.
    #[param(inline)]
    format: Format,
}

#[derive(Debug, Serialize, ToSchema)]
struct ToolList {
    #[schema(value_type = Vec<Object>)]
    tools: Vec<Value>,
}

#[derive(Debug, Serialize, ToSchema)]
struct ErrorList {
    /// Oldest first, at most 50.
    #[schema(value_type = Vec<ErrorFacts>)]
    errors: Vec<RecordedError>,
}

#[derive(Debug, Serialize, ToSchema)]
struct ProfileList {
    #[schema(value_type = Vec<ProfileFacts>)]
    profiles: Vec<BoxProfile>,
    /// The one that sessions of tools have.
    #[schema(example = "default")]
    tools: String,
}

impl From<HostError> for ApiError {
    fn from(error: HostError) -> Self {
        Self::of_kind(error.kind, error.message)
    }
}

fn tools(app: &App) -> Result<&Tools, ApiError> {
    app.tools.as_ref().as_ref().map_err(|error| error.clone().into())
}

/// The tools' schemas
///
/// Ready for the list of tools that a model's interface takes.
#[utoipa::path(get, path = "/v1/tools", tag = "tools", operation_id = "list_tools", params(ListOptions),
    responses((status = 200, description = "The tools that may be called", body = ToolList)))]
async fn list_tools(
    State(app): State<App>,
    Params(options): Params<ListOptions>,
) -> Result<Json<ToolList>, ApiError> {
    let format = match options.format {
        Format::Plain => ToolFormat::Plain,
        Format::Openai => ToolFormat::OpenAi,
        Format::Anthropic => ToolFormat::Anthropic,
    };
    Ok(Json(ToolList { tools: tools(&app)?.list(format) }))
}

/// Call a tool
///
/// What a model can act upon comes with 200 and `ok: false`: a command that failed, a file that is not there.
#[utoipa::path(post, path = "/v1/tools/{tool}", tag = "tools", operation_id = "call_tool",
    params(("tool" = String, Path, description = "`exec`, `read`, `write`, `edit`, `glob` or `grep`")),
    request_body(content = ToolCall,
        example = json!({"session_id": "demo", "arguments": {"path": "/workspace/a.py", "content": "print(1)"}})),
    responses((status = 200, description = "The tool's result", body = Object),
        (status = 400, description = "An argument is not acceptable", body = ErrorBody),
        (status = 404, description = "There is no such tool", body = ErrorBody)))]
async fn call_tool(
    State(app): State<App>,
    Segments(tool): Segments<String>,
    JsonBody(call): JsonBody<ToolCall>,
) -> Result<Json<Value>, ApiError> {
    let tools = tools(&app)?;
    let known = tools.list(ToolFormat::Plain);
    if !known.iter().any(|known| known["name"] == tool.as_str()) {
        let names: Vec<_> = known.iter().filter_map(|known| known["name"].as_str()).collect();
        let message = format!("there is no tool `{}` here; there are {}", cut(&tool), names.join(", "));
        return Err(ApiError::new(StatusCode::NOT_FOUND, "tool_not_found", message));
    }
    let scope = match (call.session_id, call.caller) {
        (Some(session), None) if !session.trim().is_empty() => Scope::Session(session.trim().to_owned()),
        (Some(_), None) => return Err(ApiError::invalid("session_id", "must not be empty")),
        (None, Some(caller)) => Scope::Caller(caller.into()),
        (Some(_), Some(_)) => return Err(ApiError::invalid("caller", "and session_id exclude each other")),
        (None, None) => {
            return Err(ApiError::invalid(
                "caller",
                "is missing: say who calls, or name a session by session_id",
            ));
        }
    };
    Ok(Json(tools.call(&tool, &Value::Object(call.arguments), scope).await?))
}

impl From<Caller> for Query {
    fn from(caller: Caller) -> Self {
        let conversation = caller.conversation_id.map(|id| ("conversation_id".to_owned(), Value::String(id)));
        Self {
            query_id: caller.query_id.map(Value::String),
            launcher_type: caller.launcher_type,
            launcher_id: caller.launcher_id.map(Value::String),
            sender_id: caller.sender_id.map(Value::String),
            variables: conversation.into_iter().collect(),
            ..Self::default()
        }
    }
}

/// What failed lately
#[utoipa::path(get, path = "/v1/errors", tag = "tools", operation_id = "list_errors",
    responses((status = 200, description = "The last failures of tools", body = ErrorList)))]
async fn list_errors(State(app): State<App>) -> Result<Json<ErrorList>, ApiError> {
    Ok(Json(ErrorList { errors: tools(&app)?.errors() }))
}

/// The profiles
#[utoipa::path(get, path = "/v1/profiles", tag = "tools", operation_id = "list_profiles",
    responses((status = 200, description = "Built in and the operator's", body = ProfileList)))]
async fn list_profiles(State(app): State<App>) -> Result<Json<ProfileList>, ApiError> {
    let tools = tools(&app)?;
    Ok(Json(ProfileList { profiles: tools.profiles(), tools: tools.profile().to_owned() }))
}

/// One profile
#[utoipa::path(get, path = "/v1/profiles/{name}", tag = "tools", operation_id = "get_profile",
    params(("name" = String, Path, description = "Its name")),
    responses((status = 200, description = "The profile", body = ProfileFacts),
        (status = 404, description = "There is none of that name", body = ErrorBody)))]
async fn get_profile(
    State(app): State<App>,
    Segments(name): Segments<String>,
) -> Result<Json<BoxProfile>, ApiError> {
    let profiles = tools(&app)?.profiles();
    let names = profiles.iter().map(|profile| &*profile.name).collect::<Vec<_>>().join(", ");
    let found = profiles.iter().find(|profile| profile.name == name.as_str()).cloned();
    found.map(Json).ok_or_else(|| {
        let message = format!("there is no profile `{}`; there are {names}", cut(&name));
        ApiError::new(StatusCode::NOT_FOUND, "profile_not_found", message)
    })
}
