//! What E2B's SDKs are told when something does not happen: `{"code": 404, "message": "…"}` where they speak REST,
//! Connect's codes where they call a service of `envd`.

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use sandcrate_e2b_wire::connect::{self, CallError, Code};
use sandcrate_e2b_wire::control;
use sandcrate_protocol::{ErrorKind, with_causes};
use sandcrate_runtime::RuntimeError;

use crate::Refusal;
use crate::rest::error::ApiError;

/// The words by which SDKs know that a sandbox is gone, and does not merely not answer.
pub(crate) const NOT_FOUND: &str = "was not found";

/// A request of the control plane, or a plain one of `envd`, that was not served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused(control::ApiError);

impl Refused {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self(control::ApiError { code: status.as_u16(), message: message.into() })
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(crate) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, message)
    }

    /// Says more where this machine lacks something.
    pub(crate) fn with_hint(mut self, hint: &str) -> Self {
        if self.0.code == StatusCode::NOT_IMPLEMENTED.as_u16() {
            self.0.message.push_str(hint);
        }
        self
    }

    /// To the control plane.
    pub(crate) fn no_sandbox(id: &str) -> Self {
        let shown: String = id.chars().take(64).collect();
        Self::new(StatusCode::NOT_FOUND, format!("sandbox {shown} {NOT_FOUND}"))
    }

    /// To the data plane: SDKs take a 502 with these words for "it is not running".
    pub(crate) fn not_running(id: &str) -> Self {
        Self::new(
            StatusCode::BAD_GATEWAY,
            format!("the sandbox {id} {NOT_FOUND}: it has ended, or is paused"),
        )
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if status.is_server_error() {
            tracing::debug!(code = self.0.code, error = self.0.message, "E2B request failed");
        }
        (status, Json(self.0)).into_response()
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self::new(refusal.status, refusal.message)
    }
}

impl From<RuntimeError> for Refused {
    fn from(error: RuntimeError) -> Self {
        Self::new(status_of(error.kind()), with_causes(&error))
    }
}

impl From<ApiError> for Refused {
    fn from(error: ApiError) -> Self {
        Self::new(error.kind().map_or(error.status(), status_of), error.message())
    }
}

/// SDKs know fewer statuses than we do; the others are of the family that fits.
fn status_of(kind: ErrorKind) -> StatusCode {
    match kind {
        ErrorKind::LimitExceeded | ErrorKind::CapacityExceeded => StatusCode::TOO_MANY_REQUESTS,
        ErrorKind::FileFailed => StatusCode::BAD_REQUEST,
        ErrorKind::FileNotFound => StatusCode::NOT_FOUND,
        ErrorKind::Unsupported | ErrorKind::Unenforceable => StatusCode::NOT_IMPLEMENTED,
        // A box that ended under the request: what its data plane's proxy would say.
        ErrorKind::SessionNotFound => StatusCode::BAD_GATEWAY,
        other => {
            StatusCode::from_u16(other.appearance().http_status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
        }
    }
}

/// A call of a service of `envd` that failed before its answer began, or was its whole answer.
#[derive(Debug, Clone)]
pub(crate) struct Failed(pub(crate) CallError);

impl Failed {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self(CallError::new(code, message))
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    /// As the answer of a call that streams: a success whose only message is its end.
    pub(crate) fn into_stream(self) -> Response {
        ([(header::CONTENT_TYPE, connect::STREAM)], connect::end(Some(self.0))).into_response()
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let status =
            StatusCode::from_u16(self.0.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, Json(self.0)).into_response()
    }
}

impl From<RuntimeError> for Failed {
    fn from(error: RuntimeError) -> Self {
        let message = with_causes(&error);
        match error.kind() {
            ErrorKind::SessionNotFound => {
                Self::new(Code::Unavailable, format!("the sandbox {NOT_FOUND}: {message}"))
            }
            kind => Self::new(code_of(kind), message),
        }
    }
}

impl From<ApiError> for Failed {
    fn from(error: ApiError) -> Self {
        Self::new(error.kind().map_or(Code::Unknown, code_of), error.message())
    }
}

fn code_of(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::Validation | ErrorKind::FileFailed | ErrorKind::CommandNotExecutable => {
            Code::InvalidArgument
        }
        ErrorKind::FileNotFound | ErrorKind::ProcessNotFound | ErrorKind::CommandNotFound => Code::NotFound,
        ErrorKind::ProcessConflict | ErrorKind::SessionConflict => Code::FailedPrecondition,
        ErrorKind::Denied | ErrorKind::Admission => Code::PermissionDenied,
        ErrorKind::LimitExceeded | ErrorKind::CapacityExceeded => Code::ResourceExhausted,
        ErrorKind::Timeout => Code::DeadlineExceeded,
        ErrorKind::Unsupported | ErrorKind::Unenforceable => Code::Unimplemented,
        ErrorKind::SessionNotFound
        | ErrorKind::Readiness
        | ErrorKind::BackendUnavailable
        | ErrorKind::ImageUnavailable
        | ErrorKind::RuntimeUnavailable => Code::Unavailable,
        _ => Code::Internal,
    }
}
