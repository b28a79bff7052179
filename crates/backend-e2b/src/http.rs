//! Requests with a bound on their time and on their answer.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use reqwest::header::HeaderMap;
use reqwest::{RequestBuilder, Response};
use sandcrate_backend::BackendError;
use sandcrate_e2b_wire::connect::{CallError, Code};
use serde::Deserialize;

use crate::NAME;

/// To reach the endpoint at all.
pub(crate) const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// For a request that is answered at once.
pub(crate) const REQUEST_LIMIT: Duration = Duration::from_secs(30);
/// Of an answer that is no file: a listing of a large directory is the longest.
pub(crate) const ANSWER_BYTES: usize = 64 << 20;
/// Of an error's text.
const ERROR_BYTES: usize = 64 << 10;
const SHOWN_CHARS: usize = 500;

/// A request that came to nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EndpointError {
    #[error("{what}: the endpoint answered {status}: {message}")]
    Refused { what: &'static str, status: u16, code: Code, message: String },
    #[error("{what}: the endpoint cannot be reached: {why}")]
    Unreachable { what: &'static str, why: String },
    #[error("{what}: no answer within {} s", limit.as_secs())]
    TimedOut { what: &'static str, limit: Duration },
    #[error("{what}: the answer cannot be read: {problem}")]
    Malformed { what: &'static str, problem: String },
}

impl EndpointError {
    /// Of an error that travels inside a stream.
    pub(crate) fn called(what: &'static str, error: CallError) -> Self {
        Self::Refused { what, status: error.code.http_status(), code: error.code, message: error.message }
    }

    pub(crate) fn transport(what: &'static str, limit: Duration, error: reqwest::Error) -> Self {
        if error.is_timeout() {
            return Self::TimedOut { what, limit };
        }
        // The address may name a sandbox; the chain says what went wrong.
        let error = error.without_url();
        let causes = std::iter::successors(std::error::Error::source(&error), |cause| cause.source());
        let why = causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"));
        Self::Unreachable { what, why }
    }

    pub(crate) fn code(&self) -> Option<Code> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }

    pub(crate) fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// For whoever wanted something else than a file or a command.
    pub(crate) fn unavailable(self) -> BackendError {
        let why = match &self {
            Self::Refused { status: 401 | 403, message, .. } => {
                format!(
                    "the endpoint does not take the API key ({message}); check E2B_API_KEY and E2B_API_URL"
                )
            }
            _ => self.to_string(),
        };
        BackendError::Unavailable { backend: NAME, why }
    }
}

/// An answer, whole.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json<'a, T: Deserialize<'a>>(&'a self, what: &'static str) -> Result<T, EndpointError> {
        // An empty message may come as nothing at all.
        let body = if self.body.is_empty() { &b"{}"[..] } else { &self.body[..] };
        serde_json::from_slice(body)
            .map_err(|error| EndpointError::Malformed { what, problem: error.to_string() })
    }
}

/// Sends a request and takes its whole answer, which has at most `most` bytes.
pub(crate) async fn ask(
    what: &'static str,
    request: RequestBuilder,
    limit: Duration,
    most: usize,
) -> Result<Answer, EndpointError> {
    let response = request.timeout(limit).send().await;
    let response = response.map_err(|error| EndpointError::transport(what, limit, error))?;
    let mut response = accepted(what, limit, response).await?;
    let headers = std::mem::take(response.headers_mut());
    let body = take(what, limit, &mut response, most).await?;
    Ok(Answer { headers, body })
}

/// The answer, unless it is an error.
pub(crate) async fn accepted(
    what: &'static str,
    limit: Duration,
    mut response: Response,
) -> Result<Response, EndpointError> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let text = take(what, limit, &mut response, ERROR_BYTES).await.unwrap_or_default();
    let (code, message) = read_error(status.as_u16(), &text);
    Err(EndpointError::Refused { what, status: status.as_u16(), code, message })
}

async fn take(
    what: &'static str,
    limit: Duration,
    response: &mut Response,
    most: usize,
) -> Result<Bytes, EndpointError> {
    let mut body = BytesMut::new();
    loop {
        match response.chunk().await {
            Ok(Some(piece)) if body.len() + piece.len() > most => {
                let problem = format!("it has more than {most} bytes");
                return Err(EndpointError::Malformed { what, problem });
            }
            Ok(Some(piece)) => body.extend_from_slice(&piece),
            Ok(None) => return Ok(body.freeze()),
            Err(error) => return Err(EndpointError::transport(what, limit, error)),
        }
    }
}

/// An error is Connect's, with a word for its code; or the control plane's, with a number; or a proxy's page.
fn read_error(status: u16, text: &[u8]) -> (Code, String) {
    #[derive(Deserialize)]
    struct Plain {
        message: String,
    }
    if let Ok(error) = serde_json::from_slice::<CallError>(text) {
        return (error.code, shown(&error.message));
    }
    let message = match serde_json::from_slice::<Plain>(text) {
        Ok(plain) => plain.message,
        Err(_) => String::from_utf8_lossy(text).into_owned(),
    };
    (code_of(status), shown(&message))
}

/// What a plain status means, where the service behind it uses them by their names.
fn code_of(status: u16) -> Code {
    match status {
        400 => Code::InvalidArgument,
        404 => Code::NotFound,
        409 => Code::AlreadyExists,
        413 | 429 | 507 => Code::ResourceExhausted,
        501 | 505 => Code::Unimplemented,
        other => Code::from_http_status(other),
    }
}

/// A peer's text as it may stand in a message.
fn shown(text: &str) -> String {
    let short: String = text.trim().chars().take(SHOWN_CHARS).collect();
    short.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_every_kind_are_read() {
        let connect = br#"{"code":"not_found","message":"no such process"}"#;
        assert_eq!(read_error(404, connect), (Code::NotFound, "no such process".to_owned()));
        let plain = br#"{"code":404,"message":"gone"}"#;
        assert_eq!(read_error(404, plain), (Code::NotFound, "gone".to_owned()));
        let page = b"<html>\nbad gateway</html>";
        assert_eq!(read_error(502, page), (Code::Unavailable, "<html> bad gateway</html>".to_owned()));
        assert_eq!(read_error(500, b"").0, Code::Unknown);
        assert!(read_error(500, &[b'x'; 5000]).1.len() <= SHOWN_CHARS);
    }

    #[test]
    fn a_refused_key_is_said_to_be_one() {
        let error = EndpointError::Refused {
            what: "listing",
            status: 401,
            code: Code::Unauthenticated,
            message: "no".to_owned(),
        };
        assert!(error.unavailable().to_string().contains("E2B_API_KEY"));
    }
}
