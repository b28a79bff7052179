//! What a REST caller is told when something does not happen: `{"error": {"code", "message", …}}`.
//!
//! The status comes from the one table in `protocol`; the codes are stable words, the first of them older than
//! this server. Nothing here looks at an error's text.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use sandcrate_backend::BackendError;
use sandcrate_protocol::{ErrorKind, InvalidSpec, with_causes};
use sandcrate_runtime::RuntimeError;
use sandcrate_skills::SkillError;
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

/// The code of a kind.
pub(crate) const fn code(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Validation => "validation_error",
        ErrorKind::Denied => "denied",
        ErrorKind::Unenforceable => "unenforceable",
        ErrorKind::Unsupported => "unsupported",
        ErrorKind::SessionNotFound => "session_not_found",
        ErrorKind::SessionConflict => "session_conflict",
        ErrorKind::ProcessNotFound => "managed_process_not_found",
        ErrorKind::ProcessConflict => "managed_process_conflict",
        ErrorKind::FileNotFound => "file_not_found",
        ErrorKind::FileFailed => "file_failed",
        ErrorKind::SkillNotFound => "skill_not_found",
        ErrorKind::SkillConflict => "skill_conflict",
        ErrorKind::CommandNotFound => "command_not_found",
        ErrorKind::CommandNotExecutable => "command_not_executable",
        ErrorKind::LimitExceeded => "limit_exceeded",
        ErrorKind::CapacityExceeded => "capacity_exceeded",
        ErrorKind::Admission => "admission_denied",
        ErrorKind::Readiness => "not_ready",
        ErrorKind::Timeout => "timeout",
        ErrorKind::BackendUnavailable => "backend_unavailable",
        ErrorKind::ImageUnavailable => "image_unavailable",
        ErrorKind::RuntimeUnavailable => "runtime_unavailable",
        _ => "internal_error",
    }
}

/// Why the request was not served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct ApiError {
    #[serde(skip)]
    status: StatusCode,
    /// For programs: a stable word.
    #[schema(value_type = String, example = "validation_error")]
    code: &'static str,
    /// For people: names what to change.
    #[schema(example = "memory_mb must be at least 32")]
    message: String,
    /// The field of the request that is not acceptable.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "memory_mb")]
    field: Option<String>,
    /// For a conflict: what the field is already.
    #[serde(skip_serializing_if = "Option::is_none")]
    existing: Option<String>,
}

/// The body of every answer that is not a success.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "the shape alone is wanted, for the API document")]
pub(crate) struct ErrorBody {
    error: ApiError,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), field: None, existing: None }
    }

    pub(crate) fn of_kind(kind: ErrorKind, message: impl Into<String>) -> Self {
        let status = StatusCode::from_u16(kind.appearance().http_status);
        Self::new(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), code(kind), message)
    }

    /// A field of the request that cannot be accepted; the message names it.
    pub(crate) fn invalid(field: impl Into<String>, problem: impl std::fmt::Display) -> Self {
        let field = field.into();
        let message = format!("{field} {problem}");
        Self { field: Some(field), ..Self::of_kind(ErrorKind::Validation, message) }
    }

    pub(crate) fn of_field(self, field: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..self }
    }

    /// The value that events and terminal frames carry.
    pub(crate) fn to_value(&self) -> serde_json::Value {
        json!({ "error": self })
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// `None` for what has a code of its own.
    pub(crate) fn kind(&self) -> Option<ErrorKind> {
        ErrorKind::ALL.into_iter().find(|kind| self.is(*kind))
    }

    pub(crate) fn is(&self, kind: ErrorKind) -> bool {
        self.code == code(kind)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        if self.status.is_server_error() {
            tracing::debug!(code = self.code, error = self.message, "request failed");
        }
        (self.status, Json(self.to_value())).into_response()
    }
}

impl From<RuntimeError> for ApiError {
    fn from(error: RuntimeError) -> Self {
        let plain = Self::of_kind(error.kind(), with_causes(&error));
        match error {
            RuntimeError::Invalid { field, .. } => Self { field: Some(field), ..plain },
            RuntimeError::SessionConflict { field, existing, .. } => {
                Self { field: Some(field.to_owned()), existing: Some(existing), ..plain }
            }
            RuntimeError::BackendDenied { .. } => Self { field: Some("backend".to_owned()), ..plain },
            RuntimeError::NetworkDenied { .. } | RuntimeError::Policy(_) => {
                Self { field: Some("network".to_owned()), ..plain }
            }
            RuntimeError::Backend(inner) => match inner.as_ref() {
                BackendError::Invalid { field, problem } => match wire_field(field) {
                    Some(field) => Self::invalid(field, problem),
                    None => Self { field: Some(field.clone()), ..plain },
                },
                _ => plain,
            },
            _ => plain,
        }
    }
}

/// How a request spells a field of the backend's own, where that has another name or unit.
fn wire_field(field: &str) -> Option<&'static str> {
    match field {
        "pids" => Some("pids_limit"),
        "memory_bytes" => Some("memory_mb"),
        "cpu_millis" => Some("cpus"),
        _ => None,
    }
}

impl From<BackendError> for ApiError {
    fn from(error: BackendError) -> Self {
        RuntimeError::from(error).into()
    }
}

impl From<SkillError> for ApiError {
    fn from(error: SkillError) -> Self {
        let field = error.field().map(str::to_owned);
        Self { field, ..Self::of_kind(error.kind(), with_causes(&error)) }
    }
}

impl From<InvalidSpec> for ApiError {
    fn from(error: InvalidSpec) -> Self {
        // The reference's layout spans lines and shows its own type names; here one sentence per field does.
        let said: Vec<_> = error
            .issues()
            .iter()
            .map(|issue| {
                let message = issue.message.strip_prefix("Value error, ").unwrap_or(&issue.message);
                match issue.location.as_str() {
                    "" => message.to_owned(),
                    field if message.starts_with(field) => message.to_owned(),
                    field => format!("{field}: {message}"),
                }
            })
            .collect();
        let field = error.issues().first().map(|issue| issue.location.clone());
        let field = field.filter(|field| !field.is_empty());
        Self { field, ..Self::of_kind(error.kind(), said.join("; ")) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_kind_has_a_code_of_its_own() {
        let codes: BTreeSet<_> = ErrorKind::ALL.into_iter().map(code).collect();
        assert_eq!(codes.len(), ErrorKind::ALL.len());
    }

    #[test]
    fn a_conflict_names_the_field_and_what_it_is() {
        let error =
            RuntimeError::SessionConflict { session: "s".into(), field: "cpus", existing: "2.0".into() };
        let error = ApiError::from(error);
        assert_eq!(error.status, StatusCode::CONFLICT);
        let expected = json!({"error": {
            "code": "session_conflict",
            "message": "Box session s already exists with cpus=2.0",
            "field": "cpus",
            "existing": "2.0",
        }});
        assert_eq!(error.to_value(), expected);
    }

    #[test]
    fn a_refusal_of_the_backend_names_the_field_of_the_request() {
        let error = ApiError::from(BackendError::invalid("pids", "must be at least 2"));
        let expected = json!({"error": {
            "code": "validation_error",
            "message": "pids_limit must be at least 2",
            "field": "pids_limit",
        }});
        assert_eq!(error.to_value(), expected);
        let other = ApiError::from(BackendError::invalid("workdir", "must be absolute"));
        assert_eq!(other.field.as_deref(), Some("workdir"));
    }

    #[test]
    fn a_cause_is_told_once() {
        let io = std::io::Error::other("disk on fire");
        let error = BackendError::failed("writing the record", io);
        assert_eq!(with_causes(&error), "writing the record failed: disk on fire");
        assert_eq!(with_causes(&RuntimeError::from(error)), "writing the record failed: disk on fire");
    }
}
