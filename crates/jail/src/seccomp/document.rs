//! The TOML form of a policy, and the checks that make it a [`Policy`].
//!
//! A policy is security by data, so whatever could be a slip is an error: a
//! field or name that does not exist, a second rule for a call, a rule without a
//! reason or without effect, a comparison that can never hold.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::policy::{
    Action, Case, Condition, Errno, Features, Layer, Network, Policy, PolicyError, Test, Verdict, Width,
};
use super::table;

/// The errors that a policy may answer with.
const ERRNOS: &[(&str, i32)] = &[
    ("EACCES", libc::EACCES),
    ("EAFNOSUPPORT", libc::EAFNOSUPPORT),
    ("EINVAL", libc::EINVAL),
    ("ENOSYS", libc::ENOSYS),
    ("EOPNOTSUPP", libc::EOPNOTSUPP),
    ("EPERM", libc::EPERM),
    ("EPROTONOSUPPORT", libc::EPROTONOSUPPORT),
    ("ESRCH", libc::ESRCH),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    extends: Option<String>,
    default: Option<Errno>,
    unknown: Option<Errno>,
    #[serde(default)]
    allow: Vec<AllowRule>,
    #[serde(default)]
    allow_if: Vec<AllowIfRule>,
    #[serde(default)]
    deny: Vec<DenyRule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AllowRule {
    reason: String,
    calls: Vec<String>,
    only: Option<Only>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AllowIfRule {
    reason: String,
    calls: Vec<String>,
    only: Option<Only>,
    /// Allowed when all conditions of one of these hold.
    when: Vec<Vec<RawCondition>>,
    /// Else the first of these that holds gives the error.
    #[serde(default)]
    refuse: Vec<RefuseCase>,
    /// Else this does.
    otherwise: Errno,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RefuseCase {
    errno: Errno,
    when: Vec<RawCondition>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DenyRule {
    reason: String,
    calls: Vec<String>,
    only: Option<Only>,
    errno: Errno,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Only {
    Network,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCondition {
    arg: u8,
    /// 32 (the default) or 64.
    bits: Option<u8>,
    mask: Option<u64>,
    equals: Option<u64>,
    any_of: Option<Vec<u64>>,
    none_of: Option<Vec<u64>>,
}

impl<'de> Deserialize<'de> for Errno {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        ERRNOS
            .iter()
            .find(|(known, _)| *known == name)
            .and_then(|(_, number)| u16::try_from(*number).ok())
            .map(Self)
            .ok_or_else(|| serde::de::Error::custom(format!("unknown errno `{name}`")))
    }
}

/// A rule of any kind, ready to be filed under its calls.
struct Rule {
    reason: String,
    calls: Vec<String>,
    only: Option<Only>,
    verdict: Result<Verdict, &'static str>,
}

/// Checks a document and lays it over the policy it extends.
pub(super) fn build(name: &str, document: Document, bases: &[Policy]) -> Result<Policy, PolicyError> {
    let base = match &document.extends {
        None => None,
        Some(wanted) => Some(
            bases
                .iter()
                .find(|base| base.name == *wanted)
                .ok_or_else(|| PolicyError::UnknownBase { policy: name.to_owned(), base: wanted.clone() })?,
        ),
    };
    let missing = |field| PolicyError::MissingField { policy: name.to_owned(), field };
    let mut policy = Policy {
        name: name.to_owned(),
        default: document.default.or(base.map(|base| base.default)).ok_or_else(|| missing("default"))?,
        unknown: document.unknown.or(base.map(|base| base.unknown)).ok_or_else(|| missing("unknown"))?,
        layers: base.map(|base| base.layers.clone()).unwrap_or_default(),
    };
    let rules = rules(document);
    for only in [None, Some(Only::Network)] {
        let layer = layer(&policy, only, &rules)?;
        policy.layers.push(layer);
    }
    Ok(policy)
}

fn rules(document: Document) -> Vec<Rule> {
    let allow = document.allow.into_iter().map(|rule| Rule {
        verdict: Ok(Verdict::always(Action::Allow)),
        reason: rule.reason,
        calls: rule.calls,
        only: rule.only,
    });
    let allow_if = document.allow_if.into_iter().map(|rule| Rule {
        verdict: checked(&rule),
        reason: rule.reason,
        calls: rule.calls,
        only: rule.only,
    });
    let deny = document.deny.into_iter().map(|rule| Rule {
        verdict: Ok(Verdict::always(Action::Refuse(rule.errno))),
        reason: rule.reason,
        calls: rule.calls,
        only: rule.only,
    });
    allow.chain(allow_if).chain(deny).collect()
}

/// Files the rules with this `only`, to lie above what `below` already says.
fn layer(below: &Policy, only: Option<Only>, rules: &[Rule]) -> Result<Layer, PolicyError> {
    let policy = || below.name.clone();
    let network = if only.is_some() { Network::On } else { Network::Off };
    let mut verdicts = BTreeMap::new();
    for rule in rules.iter().filter(|rule| rule.only == only) {
        let calls = || rule.calls.join(", ");
        if rule.calls.is_empty() {
            return Err(PolicyError::NoCalls { policy: policy(), reason: rule.reason.clone() });
        }
        if rule.reason.trim().is_empty() {
            return Err(PolicyError::NoReason { policy: policy(), calls: calls() });
        }
        let verdict = rule.verdict.as_ref().map_err(|&problem| PolicyError::BadRule {
            policy: policy(),
            calls: calls(),
            problem,
        })?;
        for call in &rule.calls {
            let name = table::find(call)
                .ok_or_else(|| PolicyError::UnknownCall { policy: policy(), call: call.clone() })?
                .name;
            if below.verdict(Features { network }, name) == Some(verdict) {
                return Err(PolicyError::RedundantRule { policy: policy(), call: call.clone() });
            }
            if verdicts.insert(name, verdict.clone()).is_some() {
                return Err(PolicyError::DuplicateCall { policy: policy(), call: call.clone() });
            }
        }
    }
    Ok(Layer { needs_network: only.is_some(), verdicts })
}

fn checked(rule: &AllowIfRule) -> Result<Verdict, &'static str> {
    if rule.when.is_empty() {
        return Err("has no condition: use `deny`");
    }
    let allowed = rule.when.iter().map(|clause| (clause, Action::Allow));
    let refused = rule.refuse.iter().map(|case| (&case.when, Action::Refuse(case.errno)));
    let cases = allowed
        .chain(refused)
        .map(|(clause, action)| Ok(Case { when: conditions(clause)?, action }))
        .collect::<Result<_, &'static str>>()?;
    Ok(Verdict { cases, otherwise: Action::Refuse(rule.otherwise) })
}

fn conditions(clause: &[RawCondition]) -> Result<Vec<Condition>, &'static str> {
    if clause.is_empty() {
        return Err("has an empty clause, which always holds: use `allow` or `otherwise`");
    }
    clause.iter().map(condition).collect()
}

fn condition(raw: &RawCondition) -> Result<Condition, &'static str> {
    if raw.arg > 5 {
        return Err("looks at an argument above 5");
    }
    let (width, all) = match raw.bits {
        None | Some(32) => (Width::Low32, u64::from(u32::MAX)),
        Some(64) => (Width::Full64, u64::MAX),
        Some(_) => return Err("has `bits` other than 32 and 64"),
    };
    let mask = raw.mask.unwrap_or(all);
    if mask == 0 || mask & !all != 0 {
        return Err("has a mask that is empty or wider than its `bits`");
    }
    let (test, values) = match (raw.equals, &raw.any_of, &raw.none_of) {
        (Some(value), None, None) => (Test::AnyOf(vec![value]), vec![value]),
        (None, Some(values), None) => (Test::AnyOf(values.clone()), values.clone()),
        (None, None, Some(values)) => (Test::NoneOf(values.clone()), values.clone()),
        _ => return Err("needs exactly one of `equals`, `any_of`, `none_of` per condition"),
    };
    if values.is_empty() {
        return Err("compares with no value");
    }
    if values.iter().any(|value| value & !mask != 0) {
        return Err("compares with a value outside its mask, which never matches");
    }
    Ok(Condition { arg: raw.arg, width, mask, test })
}
