//! The server on a pair of pipes: a JSON-RPC message a line.

use rmcp::ServiceExt;
use rmcp::service::ServerInitializeError;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use super::BoxServer;

/// Why a client on pipes is not served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinesError {
    #[error("the client did not open the conversation as MCP does")]
    Opening(#[source] Box<ServerInitializeError>),
    #[error("the conversation ended by a fault of ours")]
    Broken(#[source] tokio::task::JoinError),
}

/// Serves until the client closes its end, or `stop`. What it runs is ended then.
///
/// # Errors
/// When the client never spoke MCP. One that says nothing and goes is none.
pub async fn serve_lines<R, W>(
    server: BoxServer,
    reader: R,
    writer: W,
    stop: CancellationToken,
) -> Result<(), LinesError>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let opened = tokio::select! {
        opened = server.serve_with_ct((reader, writer), stop.clone()) => opened,
        () = stop.cancelled() => return Ok(()),
    };
    let running = match opened {
        Ok(running) => running,
        Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => return Ok(()),
        Err(error) => return Err(LinesError::Opening(Box::new(error))),
    };
    running.waiting().await.map(drop).map_err(LinesError::Broken)
}
