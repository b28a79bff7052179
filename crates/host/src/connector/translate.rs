//! What a failure on the wire means.

use sandcrate_protocol::ErrorKind;
use serde::Deserialize as _;
use serde_json::Value;

use crate::HostError;

/// The classes that tell something, in the order in which the reference looks for them.
const CLASSES: [(&str, ErrorKind); 10] = [
    ("BoxValidationError:", ErrorKind::Validation),
    ("BoxSessionNotFoundError:", ErrorKind::SessionNotFound),
    ("BoxSessionConflictError:", ErrorKind::SessionConflict),
    ("BoxManagedProcessNotFoundError:", ErrorKind::ProcessNotFound),
    ("BoxManagedProcessConflictError:", ErrorKind::ProcessConflict),
    ("BoxBackendUnavailableError:", ErrorKind::BackendUnavailable),
    ("BoxRuntimeUnavailableError:", ErrorKind::RuntimeUnavailable),
    ("BoxAdmissionError:", ErrorKind::Admission),
    ("BoxReadinessError:", ErrorKind::Readiness),
    ("BoxCapacityExceededError:", ErrorKind::CapacityExceeded),
];

/// A runtime of ours says the kind beside the message. Elsewhere a message starts with its class. Only where it starts with none that we know is one looked for inside, for
/// peers that wrap theirs: text that a box wrote into a message must not choose the class.
pub(super) fn failure(message: String, data: &Value) -> HostError {
    if let Some(kind) = data.get("kind").and_then(|kind| ErrorKind::deserialize(kind).ok()) {
        return HostError::new(kind, message);
    }
    let kind = match CLASSES.iter().find(|(class, _)| message.starts_with(class)) {
        Some((_, kind)) => *kind,
        None if message.starts_with("BoxError:") => ErrorKind::Internal,
        None => {
            let inside = CLASSES.iter().find(|(class, _)| message.contains(class));
            inside.map_or(ErrorKind::Internal, |(_, kind)| *kind)
        }
    };
    HostError::new(kind, message)
}

/// How every runtime says that it has no such action.
pub(super) fn is_unknown_action(message: &str, action: &str) -> bool {
    message.ends_with(&format!("Action {action} not found"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn b12_the_class_is_where_it_belongs() {
        for (message, class) in [
            ("BoxSessionConflictError: Box session rc already exists", "BoxSessionConflictError"),
            ("BoxError: the command said BoxValidationError: x", "BoxError"),
            ("BoxSessionNotFoundError: session BoxValidationError: not found", "BoxSessionNotFoundError"),
            ("ActionCallError: BoxValidationError: x", "BoxValidationError"),
            ("KeyError: 'spec'", "BoxError"),
        ] {
            let error = failure(message.to_owned(), &json!({}));
            assert_eq!((error.class(), error.message.as_str()), (class, message));
        }
        let error = failure("BoxError: no space left".to_owned(), &json!({"kind": "file_failed"}));
        assert_eq!(error.kind, ErrorKind::FileFailed, "what is said wins over what the words look like");
        let error = failure("BoxError: x".to_owned(), &json!({"kind": "of a later version"}));
        assert_eq!(error.kind, ErrorKind::Internal);
    }
}
