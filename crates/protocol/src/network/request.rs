//! What one request says of its box's network: `off`, `on`, `host`, or a policy of its own.
//!
//! `on` is not a policy: it means whatever the operator says it means, and only more can be denied beside it.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::policy::{Base, Policy, PolicyError};
use super::rule::Rule;
use crate::NetworkMode;

/// The network that a caller asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkRequest {
    Off,
    /// The operator's policy, and less by these rules.
    On {
        deny: Vec<Rule>,
    },
    /// The host's own network, without isolation.
    Host,
    /// A policy that allows something.
    Policy(Policy),
}

impl NetworkRequest {
    pub fn on() -> Self {
        Self::On { deny: Vec::new() }
    }

    /// As LangBot's wire has it: anything but `off` is `on`.
    pub fn mode(&self) -> NetworkMode {
        if *self == Self::Off { NetworkMode::Off } else { NetworkMode::On }
    }

    /// Whether it is one of the two that LangBot's wire can say.
    pub fn is_plain(&self) -> bool {
        match self {
            Self::Off => true,
            Self::On { deny } => deny.is_empty(),
            Self::Host | Self::Policy(_) => false,
        }
    }
}

impl From<NetworkMode> for NetworkRequest {
    fn from(mode: NetworkMode) -> Self {
        match mode {
            NetworkMode::Off => Self::Off,
            NetworkMode::On => Self::on(),
        }
    }
}

impl From<Policy> for NetworkRequest {
    fn from(policy: Policy) -> Self {
        if policy.is_off() { Self::Off } else { Self::Policy(policy) }
    }
}

impl fmt::Display for NetworkRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::On { deny } => {
                f.write_str("on")?;
                deny.iter().try_for_each(|rule| write!(f, ", deny {rule}"))
            }
            Self::Host => f.write_str("host"),
            Self::Policy(policy) => policy.fmt(f),
        }
    }
}

impl FromStr for NetworkRequest {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let first = text.split(',').next().unwrap_or_default().trim();
        if first == "host" {
            return if text.trim() == first {
                Ok(Self::Host)
            } else {
                Err(PolicyError::Mode { mode: first.to_owned() })
            };
        }
        let policy: Policy = text.parse()?;
        // The policy language knows `on` as another word for `public`; here it is the operator's.
        if first == "on" {
            return Ok(Self::On { deny: policy.deny().to_vec() });
        }
        Ok(policy.into())
    }
}

impl Serialize for NetworkRequest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for NetworkRequest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Forms;
        impl<'de> Visitor<'de> for Forms {
            type Value = NetworkRequest;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "\"off\", \"on\", \"host\", a policy such as \"allow example.com\", or an object with \
                     `base`, `allow` and `deny`",
                )
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<NetworkRequest, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<NetworkRequest, A::Error> {
                Policy::deserialize(de::value::MapAccessDeserializer::new(map)).map(NetworkRequest::from)
            }
        }
        deserializer.deserialize_any(Forms)
    }
}

impl Policy {
    /// The same policy, and less by these rules.
    pub fn without(&self, deny: &[Rule]) -> Result<Self, PolicyError> {
        if self.is_off() {
            return Ok(self.clone());
        }
        let more = deny.iter().filter(|rule| !self.deny().contains(rule));
        let deny = self.deny().iter().chain(more).cloned().collect();
        Self::new(self.base(), self.allow().to_vec(), deny)
    }

    /// Whether nothing but what stands in its list is allowed.
    pub fn is_list(&self) -> bool {
        self.base() == Base::Nothing && !self.allow().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_read_and_print_as_written() {
        for text in [
            "off",
            "on",
            "on, deny ads.example",
            "host",
            "public",
            "allow *.example.com:443, deny x.example.com",
        ] {
            assert_eq!(text.parse::<NetworkRequest>().unwrap().to_string(), text);
            let json = serde_json::to_string(text).unwrap();
            let read: NetworkRequest = serde_json::from_str(&json).unwrap();
            assert_eq!(serde_json::to_string(&read).unwrap(), json);
        }
        let long = r#"{"base": "public", "deny": ["ads.example"]}"#;
        assert_eq!(
            serde_json::from_str::<NetworkRequest>(long).unwrap().to_string(),
            "public, deny ads.example"
        );
        assert_eq!(serde_json::from_str::<NetworkRequest>("{}").unwrap(), NetworkRequest::Off);
        assert_ne!(
            "on".parse::<NetworkRequest>().unwrap(),
            "public".parse().unwrap(),
            "`on` is the operator's"
        );
    }

    #[test]
    fn what_is_not_understood_says_what_is() {
        for (text, part) in [
            ("host, deny x.example", "stands alone"),
            ("full", "`off`"),
            ("on, allow x.example", "without `public`"),
            ("allow *", "write `public`"),
            ("", "not understood"),
        ] {
            let error = text.parse::<NetworkRequest>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        for bad in ["3", "[]", r#"{"alow": []}"#] {
            assert!(serde_json::from_str::<NetworkRequest>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_wire_sees_two_modes() {
        for (text, mode, plain) in [
            ("off", NetworkMode::Off, true),
            ("on", NetworkMode::On, true),
            ("on, deny x.example", NetworkMode::On, false),
            ("host", NetworkMode::On, false),
            ("allow x.example", NetworkMode::On, false),
        ] {
            let request: NetworkRequest = text.parse().unwrap();
            assert_eq!((request.mode(), request.is_plain()), (mode, plain), "{text}");
        }
    }

    #[test]
    fn rules_are_added_to_what_is_denied() {
        let rule = |text: &str| text.parse::<Rule>().unwrap();
        let list: Policy = "allow a.example, deny b.a.example".parse().unwrap();
        let less = list.without(&[rule("c.a.example"), rule("b.a.example")]).unwrap();
        assert_eq!(less.to_string(), "allow a.example, deny b.a.example, deny c.a.example");
        assert!(less.is_list() && !Policy::public().is_list());
        assert!(Policy::off().without(&[rule("x.example")]).unwrap().is_off());
    }
}
