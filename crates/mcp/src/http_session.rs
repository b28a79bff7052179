//! How the end of an MCP session is answered over HTTP.
//!
//! The SDK says 202 to every DELETE, whether there was such a session or not. Clients take 200 and 204 for an end, and
//! warn of anything else.

use http::{HeaderMap, Method, Response, StatusCode};
use rmcp::transport::streamable_http_server::session::SessionManager as _;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;

pub(crate) const SESSION_HEADER: &str = "mcp-session-id";

/// What a DELETE is to be answered with; nothing for other requests. To be asked before the session is gone.
pub(crate) async fn status_of_end(
    method: &Method,
    headers: &HeaderMap,
    sessions: &LocalSessionManager,
) -> Option<StatusCode> {
    if method != Method::DELETE {
        return None;
    }
    let id = headers.get(SESSION_HEADER)?.to_str().ok()?;
    let known = sessions.has_session(&id.to_owned().into()).await.unwrap_or(false);
    Some(if known { StatusCode::NO_CONTENT } else { StatusCode::NOT_FOUND })
}

/// The SDK's answer with that status. What it refused for another reason stays as it is.
pub(crate) fn with_end<B>(mut response: Response<B>, status: Option<StatusCode>) -> Response<B> {
    if let Some(status) = status
        && response.status() == StatusCode::ACCEPTED
    {
        *response.status_mut() = status;
    }
    response
}
