//! One request to a server, a call of a tool above all: its limit, its cancellation, its progress; and what of a result an agent is given.

use std::time::Duration;

use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResult, ClientRequest, ContentBlock,
    ProgressNotificationParam, ServerResult,
};
use rmcp::service::{PeerRequestOptions, ServiceError};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::connection::Live;
use super::error::CallError;
use crate::{Phase, PhaseError};

/// What goes with a call.
#[derive(Debug)]
pub struct CallOptions {
    pub limit: Duration,
    /// Cancels the call at the server too.
    pub cancel: CancellationToken,
    /// Hears of its progress; dropped when it does not keep up.
    pub progress: Option<mpsc::Sender<ProgressNotificationParam>>,
}

impl Live {
    /// Calls a tool and gives its result as the server made it, an error result included.
    ///
    /// # Errors
    /// When there is no result.
    pub async fn call(
        &self,
        params: CallToolRequestParams,
        options: CallOptions,
    ) -> Result<CallToolResult, CallError> {
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
        match self.request(request, options).await? {
            ServerResult::CallToolResult(result) => Ok(result),
            _ => Err(unusable()),
        }
    }

    /// Asks, within the limit and until it is cancelled.
    pub(super) async fn request(
        &self,
        request: ClientRequest,
        options: CallOptions,
    ) -> Result<ServerResult, CallError> {
        let sent = self.peer.send_cancellable_request(request, PeerRequestOptions::no_options());
        let mut handle = sent.await.map_err(failed)?;
        let (_route, mut progress) = self.progress.route(handle.progress_token.clone());
        let deadline = tokio::time::sleep(options.limit);
        tokio::pin!(deadline);
        let (error, reason) = loop {
            tokio::select! {
                biased;
                answer = &mut handle.rx => {
                    // Progress takes a turn of its own to get here, and may have come with the answer.
                    tokio::task::yield_now().await;
                    while let (Ok(params), Some(listener)) = (progress.try_recv(), &options.progress) {
                        let _ = listener.try_send(params);
                    }
                    return match answer {
                        Ok(Ok(result)) => Ok(result),
                        Ok(Err(error)) => Err(failed(error)),
                        Err(_) => Err(CallError::NotConnected { error: None }),
                    };
                }
                Some(params) = progress.recv() => {
                    if let Some(listener) = &options.progress {
                        let _ = listener.try_send(params);
                    }
                }
                () = options.cancel.cancelled() => break (CallError::Cancelled, "cancelled by the client"),
                () = &mut deadline => {
                    break (CallError::Timeout { limit: options.limit }, "it took too long");
                }
            }
        };
        // The server may not read any more; then nobody waits for its answer either.
        let _ = tokio::time::timeout(Duration::from_secs(1), handle.cancel(Some(reason.to_owned()))).await;
        Err(error)
    }
}

/// An answer of another kind: the server wants something of its client first.
pub(super) fn unusable() -> CallError {
    let message = "the server asks for more than this gateway can give it".to_owned();
    CallError::Failed { code: None, message }
}

fn failed(error: ServiceError) -> CallError {
    match error {
        ServiceError::TransportClosed | ServiceError::TransportSend(_) => {
            CallError::NotConnected { error: None }
        }
        ServiceError::McpError(error) => {
            CallError::Failed { code: Some(error.code.0), message: error.message.to_string() }
        }
        other => CallError::Failed { code: None, message: other.to_string() },
    }
}

/// A part of a result that an agent can use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Part {
    Text {
        text: String,
    },
    /// In base64, as it came.
    Image {
        data: String,
        mime_type: String,
    },
}

/// Text and images of a result; other parts are left out.
///
/// # Errors
/// When the result says that the tool failed.
pub fn parts(result: &CallToolResult) -> Result<Vec<Part>, PhaseError> {
    let parts: Vec<_> = result.content.iter().filter_map(part).collect();
    if result.is_error != Some(true) {
        return Ok(parts);
    }
    let texts: Vec<_> = parts
        .iter()
        .filter_map(|part| match part {
            Part::Text { text } => Some(text.as_str()),
            Part::Image { .. } => None,
        })
        .collect();
    let message = if texts.is_empty() { "Unknown error from MCP tool".to_owned() } else { texts.join("\n") };
    Err(PhaseError::new(Phase::ToolCall, message))
}

fn part(block: &ContentBlock) -> Option<Part> {
    match block {
        ContentBlock::Text(text) => Some(Part::Text { text: text.text.clone() }),
        ContentBlock::Image(image) => {
            Some(Part::Image { data: image.data.clone(), mime_type: image.mime_type.clone() })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn result(value: serde_json::Value) -> CallToolResult {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn text_and_images_are_given_and_the_rest_is_left_out() {
        let mixed = result(json!({"content": [
            {"type": "text", "text": "a"},
            {"type": "image", "data": "aGk=", "mimeType": "image/png"},
            {"type": "resource", "resource": {"uri": "x:y", "text": "z"}},
        ]}));
        let expected = [
            Part::Text { text: "a".to_owned() },
            Part::Image { data: "aGk=".to_owned(), mime_type: "image/png".to_owned() },
        ];
        assert_eq!(parts(&mixed).unwrap(), expected);
    }

    #[test]
    fn an_error_result_is_an_error_of_the_call() {
        let texts = result(json!({"isError": true, "content": [
            {"type": "text", "text": "no"}, {"type": "text", "text": "really"}]}));
        let error = parts(&texts).unwrap_err();
        assert_eq!((error.phase, error.message.as_str()), (Phase::ToolCall, "no\nreally"));
        let empty = result(json!({"isError": true, "content": []}));
        assert_eq!(parts(&empty).unwrap_err().message, "Unknown error from MCP tool");
    }
}
