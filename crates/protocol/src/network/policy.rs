//! The policy of a box in its one text form, used by profiles, requests, REST and the command line:
//! `off`, `public`, `public, deny ads.example`, `allow *.example.com:443, allow 192.0.2.0/24, deny …`.
//!
//! What a policy means for one connection is decided where connections are made.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::address::{AddressClass, classify};
use super::rule::{Rule, RuleError};
use crate::ErrorKind;

/// One policy is read by people; longer lists belong into a proxy.
const MAX_RULES: usize = 1024;

/// What a box may reach before its rules are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Base {
    /// Only what an allow rule names.
    #[default]
    Nothing,
    /// The Internet: every address of class public.
    Public,
}

/// Which connections a box may make. Deny beats allow.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Policy {
    base: Base,
    allow: Vec<Rule>,
    deny: Vec<Rule>,
}

/// What the operator adds for all boxes of a profile: ranges and names that `public` leaves out, and what no
/// request may have.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Grants {
    pub allow: Vec<Rule>,
    pub deny: Vec<Rule>,
}

/// Why a policy was not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    #[error(transparent)]
    Rule(#[from] RuleError),
    #[error(
        "network policy: `{word}` is not understood: write `off`, `public`, `allow RULE` or `deny RULE`, with commas between"
    )]
    Word { word: String },
    #[error("network policy: `{mode}` stands alone in front, and once")]
    Mode { mode: String },
    #[error("network policy: `off` with rules: drop the rules, or drop `off`")]
    OffWithRules,
    #[error(
        "network policy: `public` already allows what `allow {rule}` would: write the allow rules without `public` to permit only those"
    )]
    PublicWithAllow { rule: String },
    #[error(
        "network policy: deny rules without `public` or an allow rule forbid nothing: write `public, deny …`"
    )]
    DenyOnly,
    #[error("network policy: more than {max} rules")]
    TooMany { max: usize },
    #[error(
        "network rule `{rule}` reaches {class} addresses: the operator has to list it in `network.allow` first"
    )]
    NotGranted { rule: String, class: &'static str },
}

impl PolicyError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NotGranted { .. } => ErrorKind::Denied,
            Self::TooMany { .. } => ErrorKind::LimitExceeded,
            Self::Rule(_)
            | Self::Word { .. }
            | Self::Mode { .. }
            | Self::OffWithRules
            | Self::PublicWithAllow { .. }
            | Self::DenyOnly => ErrorKind::Validation,
        }
    }
}

impl Policy {
    /// No connections at all.
    pub fn off() -> Self {
        Self::default()
    }

    /// What `on` means when nothing else is said.
    pub fn public() -> Self {
        Self { base: Base::Public, allow: Vec::new(), deny: Vec::new() }
    }

    pub fn new(base: Base, allow: Vec<Rule>, deny: Vec<Rule>) -> Result<Self, PolicyError> {
        if allow.len() + deny.len() > MAX_RULES {
            return Err(PolicyError::TooMany { max: MAX_RULES });
        }
        match (base, allow.first(), deny.first()) {
            (Base::Public, Some(rule), _) => Err(PolicyError::PublicWithAllow { rule: rule.to_string() }),
            (Base::Nothing, None, Some(_)) => Err(PolicyError::DenyOnly),
            _ => Ok(Self { base, allow, deny }),
        }
    }

    pub fn is_off(&self) -> bool {
        self.base == Base::Nothing && self.allow.is_empty()
    }

    pub fn base(&self) -> Base {
        self.base
    }

    pub fn allow(&self) -> &[Rule] {
        &self.allow
    }

    pub fn deny(&self) -> &[Rule] {
        &self.deny
    }

    /// Refuses allow rules that could only ever be denied: single addresses and ranges outside of the public
    /// Internet that the operator did not grant. Names are judged when they are resolved.
    pub fn check_against(&self, grants: &Grants) -> Result<(), PolicyError> {
        for rule in &self.allow {
            let Some(range) = rule.range() else { continue };
            let class = classify(range.base());
            let wide = range.base().is_unspecified();
            let granted = grants
                .allow
                .iter()
                .filter_map(Rule::range)
                .any(|grant| grant.contains(range.base()) || range.contains(grant.base()));
            if class != AddressClass::Public && !wide && !granted {
                return Err(PolicyError::NotGranted { rule: rule.to_string(), class: class.name() });
            }
        }
        Ok(())
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_off() {
            return f.write_str("off");
        }
        let mut separator = "";
        if self.base == Base::Public {
            f.write_str("public")?;
            separator = ", ";
        }
        for (word, rules) in [("allow", &self.allow), ("deny", &self.deny)] {
            for rule in rules {
                write!(f, "{separator}{word} {rule}")?;
                separator = ", ";
            }
        }
        Ok(())
    }
}

impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let (mut mode, mut allow, mut deny) = (None, Vec::new(), Vec::new());
        for (index, item) in text.split(',').map(str::trim).enumerate() {
            match item.split_once(char::is_whitespace) {
                Some(("allow", rule)) => allow.push(rule.parse()?),
                Some(("deny", rule)) => deny.push(rule.parse()?),
                None if matches!(item, "off" | "on" | "public") => {
                    if index > 0 {
                        return Err(PolicyError::Mode { mode: item.to_owned() });
                    }
                    mode = Some(item);
                }
                _ => return Err(PolicyError::Word { word: item.chars().take(80).collect() }),
            }
            if allow.len() + deny.len() > MAX_RULES {
                return Err(PolicyError::TooMany { max: MAX_RULES });
            }
        }
        match mode {
            Some("off") if !(allow.is_empty() && deny.is_empty()) => Err(PolicyError::OffWithRules),
            Some("off") | None => Self::new(Base::Nothing, allow, deny),
            Some(_) => Self::new(Base::Public, allow, deny),
        }
    }
}

/// The long form, for JSON and TOML; the text form is accepted there too.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LongForm {
    #[serde(default)]
    base: Base,
    #[serde(default)]
    allow: Vec<Rule>,
    #[serde(default)]
    deny: Vec<Rule>,
}

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Forms;
        impl<'de> Visitor<'de> for Forms {
            type Value = Policy;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a network policy such as \"public\", or a table with `base`, `allow` and `deny`")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Policy, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Policy, A::Error> {
                let long = LongForm::deserialize(de::value::MapAccessDeserializer::new(map))?;
                Policy::new(long.base, long.allow, long.deny).map_err(de::Error::custom)
            }
        }
        // Formats that do not describe themselves carry the text.
        if deserializer.is_human_readable() {
            deserializer.deserialize_any(Forms)
        } else {
            deserializer.deserialize_str(Forms)
        }
    }
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
