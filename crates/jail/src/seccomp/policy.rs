//! What a policy says: rules, conditions on arguments, and their meaning.
//!
//! A policy is a stack of layers: those of the policies it extends, then its
//! own, each without and then with a feature. For any call the topmost layer
//! that names it decides alone; the call's other rules do not matter. Within a
//! layer a call has one rule. [`Policy::decide`] is this meaning written out;
//! the compiled filter must agree with it and is tested to do so.

use std::collections::BTreeMap;

use super::document::{self, Document};
use super::table;

/// Whether the box has a network: a policy's `only = "network"` rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    Off,
    On,
}

/// What of a box decides which of a policy's `only` rules apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    pub network: Network,
}

/// An error number that a filter can answer with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Errno(pub(super) u16);

impl Errno {
    /// What the kernel says of a call it does not have: libc then falls back.
    pub const NOT_IMPLEMENTED: Self = Self(libc::ENOSYS as u16);

    pub fn raw(self) -> u16 {
        self.0
    }
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    Allow,
    Refuse(Errno),
}

/// How much of an argument's register the kernel looks at.
///
/// An `int` argument is its low half whatever the high half holds, so comparing
/// all of it would let a caller dodge a rule by setting a high bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Width {
    Low32,
    Full64,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Test {
    AnyOf(Vec<u64>),
    NoneOf(Vec<u64>),
}

/// A test of one masked argument.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Condition {
    pub(super) arg: u8,
    pub(super) width: Width,
    pub(super) mask: u64,
    pub(super) test: Test,
}

impl Condition {
    fn holds(&self, args: &[u64; 6]) -> bool {
        let value = args[usize::from(self.arg)] & self.mask;
        match &self.test {
            Test::AnyOf(values) => values.contains(&value),
            Test::NoneOf(values) => !values.contains(&value),
        }
    }
}

/// An action taken when all conditions hold.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Case {
    pub(super) when: Vec<Condition>,
    pub(super) action: Action,
}

/// The fate of a call: that of the first case that holds, or `otherwise`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Verdict {
    pub(super) cases: Vec<Case>,
    pub(super) otherwise: Action,
}

impl Verdict {
    pub(super) fn always(action: Action) -> Self {
        Self { cases: Vec::new(), otherwise: action }
    }

    fn decide(&self, args: &[u64; 6]) -> Action {
        self.cases
            .iter()
            .find(|case| case.when.iter().all(|condition| condition.holds(args)))
            .map_or(self.otherwise, |case| case.action)
    }
}

/// Why a policy was not accepted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    #[error("policy `{policy}` is not valid TOML of a policy")]
    Syntax {
        policy: String,
        #[source]
        source: toml::de::Error,
    },
    #[error("policy `{policy}` extends `{base}`, which is not known")]
    UnknownBase { policy: String, base: String },
    #[error("policy `{policy}` extends nothing and does not say `{field}`")]
    MissingField { policy: String, field: &'static str },
    #[error("policy `{policy}`: a rule for {calls} gives no reason")]
    NoReason { policy: String, calls: String },
    #[error("policy `{policy}`: the rule with reason \"{reason}\" names no call")]
    NoCalls { policy: String, reason: String },
    #[error("policy `{policy}`: no system call is named `{call}`")]
    UnknownCall { policy: String, call: String },
    #[error("policy `{policy}`: `{call}` has two rules")]
    DuplicateCall { policy: String, call: String },
    #[error("policy `{policy}`: the rule for `{call}` says what already holds without it")]
    RedundantRule { policy: String, call: String },
    #[error("policy `{policy}`: the rule for {calls} {problem}")]
    BadRule { policy: String, calls: String, problem: &'static str },
    #[error("policy `{policy}` compiles to {length} instructions, more than the kernel takes")]
    TooLong { policy: String, length: usize },
}

/// The rules that one policy file gives for one state of the features.
#[derive(Clone, Debug, Default)]
pub(super) struct Layer {
    /// The layer applies only with a network.
    pub(super) needs_network: bool,
    pub(super) verdicts: BTreeMap<&'static str, Verdict>,
}

/// A policy that was read and found sound.
#[derive(Clone, Debug)]
pub struct Policy {
    pub(super) name: String,
    /// For calls of the table that no rule names.
    pub(super) default: Errno,
    /// For numbers that are not in the table.
    pub(super) unknown: Errno,
    pub(super) layers: Vec<Layer>,
}

impl Policy {
    /// Reads a policy from TOML; `bases` are what it may name in `extends`.
    pub fn parse(name: &str, text: &str, bases: &[Self]) -> Result<Self, PolicyError> {
        let document: Document =
            toml::from_str(text).map_err(|source| PolicyError::Syntax { policy: name.to_owned(), source })?;
        document::build(name, document, bases)
    }

    /// What happens to a native call with this number and these arguments.
    pub fn decide(&self, features: Features, number: u32, args: &[u64; 6]) -> Action {
        if number >= table::FOREIGN_ABI {
            return Action::Refuse(Errno::NOT_IMPLEMENTED);
        }
        match table::CALLS.iter().find(|call| call.number == Some(number)) {
            None => Action::Refuse(self.unknown),
            Some(call) => self
                .verdict(features, call.name)
                .map_or(Action::Refuse(self.default), |verdict| verdict.decide(args)),
        }
    }

    /// The rule that decides a call, if any names it.
    pub(super) fn verdict(&self, features: Features, call: &str) -> Option<&Verdict> {
        self.layers
            .iter()
            .rev()
            .filter(|layer| !layer.needs_network || features.network == Network::On)
            .find_map(|layer| layer.verdicts.get(call))
    }
}
