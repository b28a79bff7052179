//! `/mcp/box`: boxes for MCP clients over Streamable HTTP, admitted as the rest of the API is.
//!
//! A client has a box of its own, for as long as its MCP session lasts; `?session=NAME`, or the header
//! `Sandcrate-Session`, names one instead. What may be called and what a box is follows `[tools]`.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use sandcrate_backend::SessionId;
use sandcrate_host::HostError;
use sandcrate_host::policy::Policy;
use sandcrate_mcp::box_server::{Blueprint, HttpFace, HttpLimits, LocalBoxes};
use sandcrate_protocol::BoxSpec;
use sandcrate_runtime::{Runtime, SessionOptions};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::auth::check_origin;
use crate::{App, Refusal, ServerConfig};

const SESSION_HEADER: &str = "sandcrate-session";
/// Of one message: the longest content that `write` is of use for, escaped, and a good deal more.
const BODY_BYTES: usize = 8 << 20;

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/mcp/box", any(answer))
}

/// # Errors
/// When the configuration of the tools names what does not exist.
pub(crate) fn face(
    runtime: &Runtime,
    config: &ServerConfig,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) -> Result<HttpFace, HostError> {
    let (tools, limits) = (&config.tools, &config.limits);
    let profile = tools.chosen()?;
    let spec = BoxSpec {
        image: profile.image.into_owned(),
        network: profile.network,
        timeout_sec: profile.timeout_sec,
        host_path_mode: profile.host_path_mode,
        cpus: profile.cpus,
        memory_mb: profile.memory_mb,
        pids_limit: profile.pids_limit,
        read_only_rootfs: profile.read_only_rootfs,
        workspace_quota_mb: profile.workspace_quota_mb,
        ..BoxSpec::new("")
    };
    let blueprint = Blueprint {
        spec,
        options: SessionOptions { ttl: Some(limits.mcp_idle), ..SessionOptions::default() },
        max_timeout_sec: profile.max_timeout_sec,
        output_limit_chars: tools.output_limit_chars,
        policy: Policy { allow: tools.allow.clone(), deny: tools.deny.clone(), ..Policy::default() },
    };
    let boxes = Arc::new(LocalBoxes::new(runtime.clone(), blueprint));
    let limits = HttpLimits { sessions: limits.mcp_sessions, idle: limits.mcp_idle, body_bytes: BODY_BYTES };
    Ok(HttpFace::new(boxes, limits, tasks.clone(), stop.clone()))
}

async fn answer(State(app): State<App>, request: Request) -> Result<Response, Refusal> {
    // A stream that is only read is a client's too.
    check_origin(request.headers())?;
    let face = app.boxes.as_ref().as_ref().map_err(|error| {
        let status = StatusCode::from_u16(error.kind.appearance().http_status);
        Refusal::new(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), "no_tools", error.message.clone())
    })?;
    let named = named(request.uri(), request.headers())?;
    match face.answer(request, named).await {
        Ok(response) => Ok(response.map(Body::new).into_response()),
        Err(full) => Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "limit_exceeded", full.to_string())),
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    session: Option<String>,
}

/// The session that a client names.
fn named(uri: &Uri, headers: &HeaderMap) -> Result<Option<String>, Refusal> {
    let invalid = |message: String| Refusal::new(StatusCode::BAD_REQUEST, "validation_error", message);
    let Query(options) = Query::<Options>::try_from_uri(uri)
        .map_err(|rejection| invalid(format!("query is not acceptable: {}", rejection.body_text())))?;
    let mut name = options.session;
    for value in headers.get_all(SESSION_HEADER) {
        let text =
            value.to_str().map_err(|_| invalid(format!("{SESSION_HEADER} must be printable ASCII")))?;
        if name.as_ref().is_some_and(|name| name != text) {
            return Err(invalid("session is named twice, and not the same".to_owned()));
        }
        name = Some(text.to_owned());
    }
    let Some(name) = name else { return Ok(None) };
    if name.trim().is_empty() {
        return Err(invalid("session must not be empty".to_owned()));
    }
    match SessionId::new(name.trim()) {
        Ok(id) => Ok(Some(id.to_string())),
        Err(error) => Err(invalid(format!("session: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(query: &str, headers: &[&str]) -> Result<Option<String>, String> {
        let uri = format!("/mcp/box{query}").parse().unwrap();
        let mut sent = HeaderMap::new();
        for value in headers {
            sent.append(SESSION_HEADER, value.parse().unwrap());
        }
        named(&uri, &sent).map_err(|refusal| refusal.message)
    }

    #[test]
    fn a_session_is_named_once_and_well() {
        assert_eq!(name("", &[]), Ok(None));
        assert_eq!(name("?session=a%20b", &[]), Ok(Some("a b".to_owned())));
        assert_eq!(name("", &["demo"]), Ok(Some("demo".to_owned())));
        assert_eq!(name("?session=demo", &["demo"]), Ok(Some("demo".to_owned())));
        for (query, headers, word) in [
            ("?session=", &[][..], "must not be empty"),
            ("?session=%0a%01x", &[], "control characters"),
            ("?session=a&session=b", &[], "query"),
            ("?sesion=a", &[], "sesion"),
            ("?session=a", &["b"], "named twice"),
            ("", &["a", "b"], "named twice"),
        ] {
            let refused = name(query, headers).unwrap_err();
            assert!(refused.contains(word), "{query} {headers:?}: {refused}");
        }
    }
}
