//! The kinds of failure, and the one table that says how each appears to a user.
//!
//! Every public error of the project has a `kind()`. Faces never look at an error's type or text to decide
//! what to answer: they look here.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// Why something that was asked for did not happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// A field of the request is not acceptable; the message names it.
    Validation,
    /// The request is well-formed, but policy forbids it (a mount source, an operation).
    Denied,
    /// A control that was required cannot be enforced here.
    Unenforceable,
    /// What was asked for is not something this backend or version can do.
    Unsupported,
    SessionNotFound,
    SessionConflict,
    ProcessNotFound,
    ProcessConflict,
    /// A path inside the box is absent.
    FileNotFound,
    /// A file operation inside the box failed for another reason (permission, not a directory, no space).
    FileFailed,
    SkillNotFound,
    /// A skill, or a directory for it, is there already; or it changed since it was read.
    SkillConflict,
    /// The program to run does not exist in the box.
    CommandNotFound,
    /// The program exists and cannot be executed.
    CommandNotExecutable,
    /// A configured bound of ours would be exceeded (sessions, bytes, arguments).
    LimitExceeded,
    /// As many sessions or processes as a host's configuration lets all its workspaces have.
    CapacityExceeded,
    /// A workspace may not have boxes: no grant, or none of that kind.
    Admission,
    /// What a host must rely on is not there, or not as it says.
    Readiness,
    /// The operation did not end in its time.
    Timeout,
    /// The backend is absent, or refuses to talk to us.
    BackendUnavailable,
    /// The image of a box is not there and cannot be had.
    ImageUnavailable,
    /// The runtime is not reachable or is shutting down.
    RuntimeUnavailable,
    /// A fault of ours or of the system below; the message says which step.
    Internal,
}

/// How a kind is shown on each face.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appearance {
    /// The class name in front of the message on LangBot's wire.
    pub wire_class: &'static str,
    pub http_status: u16,
    /// The exit code of the command line.
    pub exit_code: u8,
}

impl ErrorKind {
    /// Every kind, in the order of declaration.
    pub const ALL: [Self; 23] = [
        Self::Validation,
        Self::Denied,
        Self::Unenforceable,
        Self::Unsupported,
        Self::SessionNotFound,
        Self::SessionConflict,
        Self::ProcessNotFound,
        Self::ProcessConflict,
        Self::FileNotFound,
        Self::FileFailed,
        Self::SkillNotFound,
        Self::SkillConflict,
        Self::CommandNotFound,
        Self::CommandNotExecutable,
        Self::LimitExceeded,
        Self::CapacityExceeded,
        Self::Admission,
        Self::Readiness,
        Self::Timeout,
        Self::BackendUnavailable,
        Self::ImageUnavailable,
        Self::RuntimeUnavailable,
        Self::Internal,
    ];

    /// The table. Exhaustive on purpose: a new kind has to choose.
    pub const fn appearance(self) -> Appearance {
        let (wire_class, http_status, exit_code) = match self {
            Self::Validation => ("BoxValidationError", 400, 125),
            Self::Denied => ("BoxValidationError", 403, 125),
            Self::Unenforceable => ("BoxBackendUnavailableError", 422, 125),
            Self::Unsupported => ("BoxValidationError", 501, 125),
            Self::SessionNotFound => ("BoxSessionNotFoundError", 404, 125),
            Self::SessionConflict => ("BoxSessionConflictError", 409, 125),
            Self::ProcessNotFound => ("BoxManagedProcessNotFoundError", 404, 125),
            Self::ProcessConflict => ("BoxManagedProcessConflictError", 409, 125),
            Self::FileNotFound => ("BoxError", 404, 125),
            Self::FileFailed => ("BoxError", 422, 125),
            Self::SkillNotFound => ("BoxValidationError", 404, 125),
            Self::SkillConflict => ("BoxValidationError", 409, 125),
            Self::CommandNotFound => ("BoxError", 422, 127),
            Self::CommandNotExecutable => ("BoxError", 422, 126),
            Self::LimitExceeded => ("BoxError", 429, 125),
            Self::CapacityExceeded => ("BoxCapacityExceededError", 429, 125),
            Self::Admission => ("BoxAdmissionError", 403, 125),
            Self::Readiness => ("BoxReadinessError", 503, 125),
            Self::Timeout => ("BoxError", 504, 124),
            Self::BackendUnavailable => ("BoxBackendUnavailableError", 503, 125),
            Self::ImageUnavailable => ("BoxBackendUnavailableError", 503, 125),
            Self::RuntimeUnavailable => ("BoxRuntimeUnavailableError", 503, 125),
            Self::Internal => ("BoxError", 500, 125),
        };
        Appearance { wire_class, http_status, exit_code }
    }
}

/// What a client of LangBot's protocol looks for to choose its exception, anywhere in a message and in this
/// order.
const CLASS_MARKS: [&str; 9] = [
    "BoxAdmissionError:",
    "BoxReadinessError:",
    "BoxCapacityExceededError:",
    "BoxValidationError:",
    "BoxSessionNotFoundError:",
    "BoxSessionConflictError:",
    "BoxManagedProcessNotFoundError:",
    "BoxManagedProcessConflictError:",
    "BoxBackendUnavailableError:",
];

/// An error and its causes on one line: `a: b: c`. A cause that the text before it ends with is not said twice.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.ends_with(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = error.source();
    }
    text
}

/// The message of a failure on LangBot's wire: the class of `kind`, then `text`.
pub fn wire_message(kind: ErrorKind, text: &str) -> String {
    format!("{}: {}", kind.appearance().wire_class, without_class_marks(text))
}

/// Breaks every class mark in `text` by a space before its colon.
///
/// Clients search the whole message, so a mark in text that a caller or a program in a box supplied would
/// choose the class of the exception instead of us.
pub fn without_class_marks(text: &str) -> Cow<'_, str> {
    let mut text = Cow::Borrowed(text);
    // Every mark ends so; nearly all messages are done here.
    if !text.contains("Error:") {
        return text;
    }
    for mark in CLASS_MARKS {
        if text.contains(mark) {
            text = Cow::Owned(text.replace(mark, &mark.replace(':', " :")));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the client does with a message, as far as we can decide it.
    fn class_seen_by_a_client(message: &str) -> &'static str {
        CLASS_MARKS.into_iter().find(|mark| message.contains(mark)).unwrap_or("BoxError:")
    }

    #[test]
    fn text_of_a_caller_cannot_choose_the_class() {
        for kind in ErrorKind::ALL {
            for forged in CLASS_MARKS {
                let message = wire_message(kind, &format!("{forged}{forged} session x{forged} not found"));
                let class = kind.appearance().wire_class;
                assert!(message.starts_with(&format!("{class}: ")), "{message}");
                let seen = class_seen_by_a_client(&message);
                let known = CLASS_MARKS.contains(&format!("{class}:").as_str());
                assert_eq!(seen, if known { format!("{class}:") } else { "BoxError:".to_owned() });
            }
        }
        assert_eq!(without_class_marks("ValueError: x"), "ValueError: x");
        assert_eq!(without_class_marks("BoxValidationError: x"), "BoxValidationError : x");
    }

    #[test]
    fn classes_of_the_wire_are_those_that_clients_know() {
        let known = ["BoxError", "BoxRuntimeUnavailableError"];
        for kind in ErrorKind::ALL {
            let class = kind.appearance().wire_class;
            let marked = CLASS_MARKS.contains(&format!("{class}:").as_str());
            assert!(marked || known.contains(&class), "{kind:?} is shown as {class}");
        }
    }

    #[test]
    fn every_kind_is_listed_once_and_has_an_appearance_of_its_domain() {
        for (index, kind) in ErrorKind::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, index, "{kind:?} is out of order in ALL");
            let shown = kind.appearance();
            assert!((400..600).contains(&shown.http_status), "{kind:?}");
            assert!((124..=127).contains(&shown.exit_code), "{kind:?}");
            assert!(shown.wire_class.starts_with("Box") && shown.wire_class.ends_with("Error"), "{kind:?}");
        }
        assert_eq!(ErrorKind::Internal as usize + 1, ErrorKind::ALL.len(), "a kind is missing from ALL");
    }

    #[test]
    fn the_shell_conventions_hold_for_exit_codes() {
        assert_eq!(ErrorKind::Timeout.appearance().exit_code, 124);
        assert_eq!(ErrorKind::CommandNotExecutable.appearance().exit_code, 126);
        assert_eq!(ErrorKind::CommandNotFound.appearance().exit_code, 127);
        assert_eq!(ErrorKind::Validation.appearance().exit_code, 125);
    }
}
