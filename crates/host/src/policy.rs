//! What an application lets its agent do: which tools, in which sessions, and whether it may ask for more.
//!
//! A policy only narrows. Tools run in a box or not at all, so a mode that keeps a session out of the sandbox
//! means that its tools are refused, never that they run on the host.

use sandcrate_protocol::{BoxSpec, ErrorKind};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{HostError, Query, skills};

/// For which sessions there is a sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxMode {
    /// For none.
    Off,
    /// For all but the default one.
    NonDefault,
    /// For every session.
    #[default]
    All,
}

/// How packages of skills appear in boxes; the service is built with it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SkillMounts {
    /// As the service lists them.
    #[default]
    AsListed,
    /// Read-only, but for those that the query has activated. A box is made anew at an activation.
    ReadOnlyUntilActivated,
}

impl SkillMounts {
    /// Mounts the packages accordingly.
    pub fn apply(self, spec: &mut BoxSpec, query: &Query) {
        match self {
            Self::AsListed => {}
            Self::ReadOnlyUntilActivated => skills::restrict_mounts(spec, query),
        }
    }
}

/// The rules that a [`Toolbox`](crate::tools::Toolbox) asks before every call.
///
/// ```
/// use sandcrate_host::policy::Policy;
///
/// let policy = Policy { deny: vec!["exec".to_owned()], ..Policy::default() };
/// assert!(policy.check_tool("exec").is_err());
/// assert!(policy.check_tool("read").is_ok());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    pub mode: SandboxMode,
    /// Ids of the sessions that `non_default` leaves out.
    pub default_sessions: Vec<String>,
    /// Empty: every tool.
    pub allow: Vec<String>,
    /// Wins over `allow`.
    pub deny: Vec<String>,
    /// Whether a call may carry `elevated: true`.
    pub allow_elevation: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            mode: SandboxMode::All,
            default_sessions: vec!["global".to_owned()],
            allow: Vec::new(),
            deny: Vec::new(),
            allow_elevation: false,
        }
    }
}

/// Which rule forbids a call.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PolicyError {
    #[error("tool `{tool}` is denied by policy")]
    ToolDenied { tool: String },
    #[error("tool `{tool}` is not among the tools that policy allows")]
    ToolNotAllowed { tool: String },
    #[error("the sandbox is off, and tools run nowhere else")]
    SandboxOff,
    #[error("session `{session}` has no sandbox by policy, and tools run nowhere else")]
    DefaultSession { session: String },
    #[error("elevated calls are not allowed by policy")]
    Elevation,
}

impl PolicyError {
    pub const fn kind(&self) -> ErrorKind {
        ErrorKind::Denied
    }
}

impl From<PolicyError> for HostError {
    fn from(error: PolicyError) -> Self {
        Self::new(error.kind(), error.to_string())
    }
}

impl Policy {
    /// Whether a tool may be used at all.
    pub fn check_tool(&self, tool: &str) -> Result<(), PolicyError> {
        let names = |list: &[String]| list.iter().any(|name| name == tool);
        if self.mode == SandboxMode::Off {
            return Err(PolicyError::SandboxOff);
        }
        if names(&self.deny) {
            return Err(PolicyError::ToolDenied { tool: tool.to_owned() });
        }
        if !self.allow.is_empty() && !names(&self.allow) {
            return Err(PolicyError::ToolNotAllowed { tool: tool.to_owned() });
        }
        Ok(())
    }

    /// Whether a session has a sandbox.
    pub fn check_session(&self, session: &str) -> Result<(), PolicyError> {
        match self.mode {
            SandboxMode::Off => Err(PolicyError::SandboxOff),
            SandboxMode::NonDefault if self.default_sessions.iter().any(|id| id == session) => {
                Err(PolicyError::DefaultSession { session: session.to_owned() })
            }
            SandboxMode::NonDefault | SandboxMode::All => Ok(()),
        }
    }

    /// Whether a call may ask for more than the box gives.
    pub fn check_elevation(&self) -> Result<(), PolicyError> {
        if self.allow_elevation { Ok(()) } else { Err(PolicyError::Elevation) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn an_empty_allow_list_allows_all_and_deny_wins() {
        let policy = Policy::default();
        policy.check_tool("exec").unwrap();
        let policy = Policy { allow: names(&["exec", "read"]), deny: names(&["exec"]), ..policy };
        assert_eq!(policy.check_tool("exec"), Err(PolicyError::ToolDenied { tool: "exec".into() }));
        policy.check_tool("read").unwrap();
        assert_eq!(policy.check_tool("write"), Err(PolicyError::ToolNotAllowed { tool: "write".into() }));
    }

    #[test]
    fn the_mode_decides_which_sessions_have_a_sandbox() {
        let mut policy = Policy::default();
        policy.check_session("global").unwrap();
        policy.mode = SandboxMode::NonDefault;
        assert_eq!(
            policy.check_session("global"),
            Err(PolicyError::DefaultSession { session: "global".into() })
        );
        policy.check_session("person_1").unwrap();
        policy.mode = SandboxMode::Off;
        assert_eq!(policy.check_session("person_1"), Err(PolicyError::SandboxOff));
        assert_eq!(policy.check_tool("read"), Err(PolicyError::SandboxOff));
    }

    #[test]
    fn elevation_is_refused_unless_it_is_allowed() {
        let refused = Policy::default().check_elevation().unwrap_err();
        assert_eq!(HostError::from(refused).kind, ErrorKind::Denied);
        Policy { allow_elevation: true, ..Policy::default() }.check_elevation().unwrap();
    }

    #[test]
    fn a_policy_is_read_from_its_names_and_a_wrong_key_is_an_error() {
        let policy: Policy = serde_json::from_str(r#"{"mode":"non_default","deny":["exec"]}"#).unwrap();
        assert_eq!((policy.mode, policy.deny), (SandboxMode::NonDefault, names(&["exec"])));
        assert!(serde_json::from_str::<Policy>(r#"{"denied":["exec"]}"#).is_err());
    }
}
