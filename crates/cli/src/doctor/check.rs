//! One line of the report: what was looked at, how it stands, and what to do about it.

use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CheckState {
    Ok,
    Weak,
    Missing,
}

impl CheckState {
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Weak => "weak",
            Self::Missing => "MISSING",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    pub(super) name: String,
    pub(super) state: CheckState,
    /// What is there, or why it is not.
    pub(super) detail: String,
    pub(super) fix: Option<Fix>,
}

/// What an operator types, and what is so until then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Fix {
    pub(super) steps: Vec<String>,
    pub(super) until_then: String,
}

impl Fix {
    pub(super) fn new<S: Into<String>>(
        steps: impl IntoIterator<Item = S>,
        until_then: impl Into<String>,
    ) -> Self {
        Self { steps: steps.into_iter().map(Into::into).collect(), until_then: until_then.into() }
    }
}

impl Check {
    pub(super) fn ok(name: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { name: name.into(), state: CheckState::Ok, detail: detail.into(), fix: None }
    }

    pub(super) fn weak(name: impl Into<String>, detail: impl Into<String>, fix: Fix) -> Self {
        Self { name: name.into(), state: CheckState::Weak, detail: detail.into(), fix: Some(fix) }
    }

    pub(super) fn missing(name: impl Into<String>, detail: impl Into<String>, fix: Fix) -> Self {
        Self { name: name.into(), state: CheckState::Missing, detail: detail.into(), fix: Some(fix) }
    }
}
