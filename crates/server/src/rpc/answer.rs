//! What actions answer, in the shapes and the key order of the wire, and how they fail.

use sandcrate_protocol::rpc::{BadContext, Response, SeqId};
use sandcrate_protocol::{
    ErrorKind, ExecResult, InvalidSpec, ProcessInfo, RuntimeStatus, SessionDetails, SessionInfo,
    wire_message, with_causes, without_class_marks,
};
use sandcrate_runtime::{Placement, Readiness, RuntimeError};
use sandcrate_skills::{Candidate, Listing, Skill, SkillError};
use serde::Serialize;

use super::admission_actions::{BackendInfo, Granted};
use super::file_actions::FileMeta;
use super::tenant_actions::{Storage, TenantSession, TenantStatus};
use crate::tenancy::FenceError;

/// The result of an action.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Answer {
    Empty {},
    Initialized {
        initialized: bool,
    },
    Backend(Box<BackendInfo>),
    Readiness(Box<Readiness>),
    Status(RuntimeStatus),
    Exec(ExecResult),
    Session(Box<SessionDetails>),
    Sessions {
        sessions: Vec<SessionInfo>,
    },
    Deleted {
        deleted: String,
    },
    Process(Box<ProcessInfo>),
    Stopped {
        stopped: String,
    },
    Skills {
        skills: Vec<Skill>,
    },
    Skill {
        skill: Option<Box<Skill>>,
    },
    ScannedSkill(Box<Skill>),
    SkillFiles(SkillFiles),
    SkillFile {
        skill: SkillName,
        path: String,
        content: String,
    },
    WrittenSkillFile {
        skill: SkillName,
        path: String,
        bytes_written: usize,
    },
    SkillCandidates {
        skills: Vec<Candidate>,
    },
    TenantStatus(Box<TenantStatus>),
    TenantSession(Box<TenantSession>),
    TenantSessions {
        sessions: Vec<TenantSession>,
    },
    Storage(Box<Storage>),
    Granted(Granted),
    Revoked {
        revoked: bool,
        workspace_uuid: String,
        entitlement_revision: u64,
    },
    SharedWorkspace {
        marker_name: String,
        sha256: String,
        size: usize,
    },
    Cancelled {
        cancelled: bool,
    },
    Accepted {
        accepted: bool,
    },
    FileEntry {
        entry: Option<Box<FileMeta>>,
    },
    FileEntries {
        entries: Vec<FileMeta>,
    },
    FileData {
        data: String,
        size: u64,
    },
    /// Of a failure, for callers that want it.
    Failure {
        kind: ErrorKind,
    },
}

#[derive(Debug, Serialize)]
pub(crate) struct SkillFiles {
    pub(super) skill: SkillName,
    #[serde(flatten)]
    pub(super) listing: Listing,
}

#[derive(Debug, Serialize)]
pub(crate) struct SkillName {
    pub(super) name: String,
}

/// Why an action gave no result.
#[derive(Debug, thiserror::Error)]
pub(super) enum ActionError {
    #[error(transparent)]
    Spec(#[from] InvalidSpec),
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    #[error(transparent)]
    Skill(#[from] SkillError),
    /// Named as Python names it: hosts show it.
    #[error("'{key}'")]
    MissingKey { key: &'static str },
    #[error("{problem}")]
    Invalid { problem: String },
    /// Whoever asks may not; hosts know these words.
    #[error("{0}")]
    Permission(&'static str),
    #[error(transparent)]
    Context(BadContext),
    /// The first dialect where grants are required.
    #[error("this runtime holds workspaces to admission grants, which LangBot has since 4.10.7")]
    WithoutGrants,
    #[error("the action was cancelled")]
    Cancelled,
    /// Of a call about another call; hosts know these words.
    #[error("{0}")]
    Value(&'static str),
    /// In the words of Python's base64.
    #[error("Incorrect padding")]
    Padding,
}

impl From<FenceError> for ActionError {
    fn from(error: FenceError) -> Self {
        match error {
            FenceError::Stale => Self::Permission("Stale Box placement generation"),
            FenceError::Full { limit } => {
                Self::Runtime(RuntimeError::CapacityReached { what: "workspace", limit })
            }
        }
    }
}

impl ActionError {
    pub(super) fn invalid(problem: impl Into<String>) -> Self {
        Self::Invalid { problem: problem.into() }
    }

    /// The text on the wire: a class name, then the whole chain.
    pub(super) fn message(&self) -> String {
        let class = match self {
            Self::MissingKey { .. } => "KeyError",
            Self::Padding => "Error",
            Self::Permission(_) => "PermissionError",
            Self::Value(_) => "ValueError",
            Self::Context(_) => {
                return format!("ValidationError: {}", without_class_marks(&self.to_string()));
            }
            Self::Cancelled => "CancelledError",
            Self::Runtime(RuntimeError::Invalid { field, .. }) if field.starts_with("box.limits") => {
                "ValueError"
            }
            _ => return wire_message(self.kind(), &with_causes(self)),
        };
        format!("{class}: {self}")
    }

    pub(super) fn kind(&self) -> ErrorKind {
        match self {
            Self::MissingKey { .. }
            | Self::Padding
            | Self::Value(_)
            | Self::Context(_)
            | Self::Invalid { .. } => ErrorKind::Validation,
            Self::Permission(_) => ErrorKind::Denied,
            Self::Cancelled => ErrorKind::Timeout,
            Self::WithoutGrants => ErrorKind::Admission,
            Self::Skill(error) => error.kind(),
            Self::Spec(error) => error.kind(),
            Self::Runtime(error) => error.kind(),
        }
    }

    /// The same as a fault of the request, whatever it is: so the reference shows all failures of most skill
    /// actions.
    pub(super) fn as_invalid(&self) -> Self {
        Self::invalid(with_causes(self))
    }
}

/// How much of a failure hosts since 4.10.7 are told.
const MESSAGE_CHARS: usize = 4096;

/// The message of a failure for a workspace: with its own ids, and not too long.
pub(super) fn for_tenant(message: String, placement: Option<&Placement>) -> String {
    let mut message = match placement {
        Some(placement) => message.replace(&placement.prefix(), ""),
        None => message,
    };
    if let Some((end, _)) = message.char_indices().nth(MESSAGE_CHARS) {
        message.truncate(end);
        message.push_str("... [protocol error truncated]");
    }
    message
}

/// The reply to a request; `with_kind` for callers that want to know the kind of a failure.
pub(super) fn reply(seq_id: SeqId, result: Result<Answer, ActionError>, with_kind: bool) -> Response<Answer> {
    match result {
        Ok(answer) => Response::success(seq_id, answer),
        Err(error) if with_kind => {
            Response { data: Answer::Failure { kind: error.kind() }, ..failure(seq_id, error.message()) }
        }
        Err(error) => failure(seq_id, error.message()),
    }
}

pub(super) fn failure(seq_id: SeqId, message: String) -> Response<Answer> {
    Response { seq_id, code: 1, message, data: Answer::Empty {} }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use sandcrate_backend::BackendError;

    use super::*;

    fn message(error: RuntimeError) -> String {
        ActionError::from(error).message()
    }

    #[test]
    fn failures_have_the_class_and_the_words_of_the_reference() {
        let session = || "s".to_owned();
        assert_eq!(
            message(RuntimeError::SessionNotFound { session: session() }),
            "BoxSessionNotFoundError: session s not found"
        );
        assert_eq!(
            message(RuntimeError::ProcessNotFound { session: session(), process: "p".to_owned() }),
            "BoxManagedProcessNotFoundError: session s has no managed process with process_id=p"
        );
        assert_eq!(ActionError::MissingKey { key: "session_id" }.message(), "KeyError: 'session_id'");
        assert_eq!(
            ActionError::invalid("cmd must not be empty").message(),
            "BoxValidationError: cmd must not be empty"
        );
    }

    #[test]
    fn the_whole_chain_is_told_once() {
        let source = io::Error::new(io::ErrorKind::StorageFull, "no space left");
        let failed = RuntimeError::Failed { step: "writing the record".to_owned(), source: Arc::new(source) };
        assert_eq!(message(failed), "BoxError: writing the record failed: no space left");
        let backend = BackendError::failed("starting init", io::Error::other("EPERM"));
        let text = message(RuntimeError::from(backend));
        assert!(text.starts_with("BoxError: ") && text.contains(": EPERM"), "{text}");
    }

    #[test]
    fn success_and_failure_have_the_five_keys() {
        let done = reply(SeqId::from(3), Ok(Answer::Deleted { deleted: "s".to_owned() }), true);
        assert_eq!(
            done.encode(),
            r#"{"seq_id": 3, "code": 0, "message": "success", "data": {"deleted": "s"}, "chunk_status": "continue"}"#
        );
        let failed = reply(SeqId::from(4), Err(ActionError::MissingKey { key: "spec" }), false);
        assert_eq!(
            failed.encode(),
            r#"{"seq_id": 4, "code": 1, "message": "KeyError: 'spec'", "data": {}, "chunk_status": "continue"}"#
        );
        let failed = reply(SeqId::from(5), Err(ActionError::MissingKey { key: "spec" }), true);
        assert_eq!(
            failed.encode(),
            r#"{"seq_id": 5, "code": 1, "message": "KeyError: 'spec'", "data": {"kind": "validation"}, "chunk_status": "continue"}"#
        );
    }
}
