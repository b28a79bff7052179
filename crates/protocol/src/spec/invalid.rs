//! Why a spec was refused: one issue per field, and the text in the layout that callers of the reference
//! runtime know. The link to a documentation page that the reference adds to each issue is left out: it
//! names a library that is not in use here.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

use crate::ErrorKind;
use crate::python;

/// One field, or the whole spec, that is not acceptable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Issue {
    /// Dotted, such as `extra_mounts.0.mode`; empty when the issue is with the spec as a whole.
    pub location: String,
    pub message: String,
    /// A stable word for the rule: `missing`, `string_type`, `value_error`.
    #[serde(rename = "type")]
    pub rule: &'static str,
    /// The refused value and its type, for the text only: REST callers have sent it themselves.
    #[serde(skip)]
    input: Shown,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Shown {
    value: String,
    type_name: &'static str,
}

impl Issue {
    pub(super) fn new(rule: &'static str, message: impl Into<String>, input: &Value) -> Self {
        let input = Shown { value: python::shown(input), type_name: python::type_name(input) };
        Self { location: String::new(), message: message.into(), rule, input }
    }

    /// A rule of the model, rather than of a type.
    pub(super) fn value(message: impl fmt::Display, input: &Value) -> Self {
        Self::new("value_error", format!("Value error, {message}"), input)
    }

    /// Puts `part` in front of the location.
    pub(super) fn within(mut self, part: &str) -> Self {
        if self.location.is_empty() {
            self.location = part.to_owned();
        } else {
            self.location = format!("{part}.{}", self.location);
        }
        self
    }

    /// Keeps the value out of the text: it may be a secret.
    pub(super) fn unseen(mut self) -> Self {
        self.input.value = "...".to_owned();
        self
    }
}

/// A spec that cannot be served, with everything that is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidSpec {
    model: &'static str,
    issues: Vec<Issue>,
}

impl InvalidSpec {
    pub(super) fn new(model: &'static str, issues: Vec<Issue>) -> Self {
        Self { model, issues }
    }

    /// What is wrong, in the order of the fields; never empty.
    pub fn issues(&self) -> &[Issue] {
        &self.issues
    }

    pub fn kind(&self) -> ErrorKind {
        ErrorKind::Validation
    }
}

impl fmt::Display for InvalidSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.issues.len();
        let plural = if count == 1 { "" } else { "s" };
        write!(f, "{count} validation error{plural} for {}", self.model)?;
        for Issue { location, message, rule, input: Shown { value, type_name } } in &self.issues {
            if !location.is_empty() {
                write!(f, "\n{location}")?;
            }
            write!(f, "\n  {message} [type={rule}, input_value={value}, input_type={type_name}]")?;
        }
        Ok(())
    }
}

impl std::error::Error for InvalidSpec {}
