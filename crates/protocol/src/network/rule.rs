//! One rule of the policy language: `[tcp/|udp/]TARGET[:PORT[-PORT]]`, where the target is a name
//! (`example.com`, `*.example.com`), an address or a CIDR range; IPv6 with a port stands in brackets.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::cidr::Cidr;
use super::name::{HostName, NamePattern};

/// Protocols that a rule can tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    Tcp,
    Udp,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

/// What a rule is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Target {
    Name(NamePattern),
    Range(Cidr),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(pattern) => pattern.fmt(f),
            Self::Range(range) => range.fmt(f),
        }
    }
}

/// One port, or some in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ports {
    first: u16,
    last: u16,
}

impl Ports {
    /// `None` for port 0 and for a range that ends before it begins.
    pub fn new(range: RangeInclusive<u16>) -> Option<Self> {
        let (first, last) = range.into_inner();
        (first > 0 && first <= last).then_some(Self { first, last })
    }

    pub fn contains(&self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

/// One line of an allow or deny list.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rule {
    pub target: Target,
    /// `None`: every port.
    pub ports: Option<Ports>,
    /// `None`: every protocol.
    pub transport: Option<Transport>,
}

impl Rule {
    /// True when the rule speaks of this protocol and port, whatever its target.
    pub fn covers(&self, transport: Transport, port: u16) -> bool {
        self.transport.is_none_or(|only| only == transport)
            && self.ports.is_none_or(|ports| ports.contains(port))
    }

    pub fn name(&self) -> Option<&NamePattern> {
        match &self.target {
            Target::Name(pattern) => Some(pattern),
            Target::Range(_) => None,
        }
    }

    pub fn range(&self) -> Option<&Cidr> {
        match &self.target {
            Target::Name(_) => None,
            Target::Range(range) => Some(range),
        }
    }
}

/// Why a rule was not understood. Each names the rule and the way to write it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleError {
    #[error("an empty rule: write a name (`example.com`), a range (`192.0.2.0/24`), or leave it out")]
    Empty,
    #[error("rule `{rule}` would mean everything: write `public` for the whole Internet, or list names")]
    Everything { rule: String },
    #[error("rule `{rule}`: a `*` stands only in front, for whole parts: write `*.example.com`")]
    Wildcard { rule: String },
    #[error("rule `{rule}` is a URL: a rule is a name and perhaps a port: write `{instead}`")]
    Url { rule: String, instead: String },
    #[error("rule `{rule}`: `{name}` is not a host name because it {reason}")]
    Name { rule: String, name: String, reason: &'static str },
    #[error("rule `{rule}`: `{port}` is not a port from 1 to 65535 or a range of them such as `8000-8080`")]
    Port { rule: String, port: String },
    #[error(
        "rule `{rule}`: unknown protocol `{protocol}`: write `tcp/…` or `udp/…`, or leave it out for both"
    )]
    Protocol { rule: String, protocol: String },
    #[error("rule `{rule}`: `{prefix}` is not a prefix length from 0 to {max}")]
    Prefix { rule: String, prefix: String, max: u8 },
    #[error("rule `{rule}` has bits set behind its prefix: write `{instead}`")]
    HostBits { rule: String, instead: String },
    #[error("rule `{rule}`: an IPv6 address with a port stands in brackets: write `[2001:db8::1]:443`")]
    Brackets { rule: String },
    #[error("rule `{rule}` is an IPv4 address in IPv6 clothes: write `{instead}`")]
    Mapped { rule: String, instead: String },
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let rule = text.trim();
        if rule.is_empty() {
            return Err(RuleError::Empty);
        }
        if let Some((_, rest)) = rule.split_once("://") {
            let instead = rest.split(['/', '?', '#']).next().unwrap_or_default().to_owned();
            return Err(RuleError::Url { rule: rule.to_owned(), instead });
        }
        let (transport, rest) = split_transport(rule)?;
        let (target, ports) = split_ports(rule, rest)?;
        if matches!(target, "*" | "*." | "*.*" | "any" | "all") {
            return Err(RuleError::Everything { rule: rule.to_owned() });
        }
        let target = match parse_range(rule, target)? {
            Some(range) => Target::Range(range),
            None => Target::Name(parse_pattern(rule, target)?),
        };
        Ok(Self { target, ports, transport })
    }
}

/// `tcp/x` against `192.0.2.0/24` and a mistyped `icmp/x`: what stands before the first slash is a protocol
/// unless it is an address.
fn split_transport(rule: &str) -> Result<(Option<Transport>, &str), RuleError> {
    let Some((before, rest)) = rule.split_once('/') else { return Ok((None, rule)) };
    match before.to_ascii_lowercase().as_str() {
        "tcp" => Ok((Some(Transport::Tcp), rest)),
        "udp" => Ok((Some(Transport::Udp), rest)),
        word if !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphabetic()) => {
            Err(RuleError::Protocol { rule: rule.to_owned(), protocol: word.to_owned() })
        }
        _ => Ok((None, rule)),
    }
}

fn split_ports<'a>(rule: &str, text: &'a str) -> Result<(&'a str, Option<Ports>), RuleError> {
    let (target, port) = if let Some(inner) = text.strip_prefix('[') {
        let Some((target, rest)) = inner.split_once(']') else {
            return Err(RuleError::Brackets { rule: rule.to_owned() });
        };
        match rest.strip_prefix(':') {
            Some(port) => (target, Some(port)),
            None if rest.is_empty() => (target, None),
            None => return Err(RuleError::Brackets { rule: rule.to_owned() }),
        }
    } else if text.matches(':').count() > 1 {
        // Unbracketed IPv6: all of it is the address.
        (text, None)
    } else {
        match text.split_once(':') {
            Some((target, port)) => (target, Some(port)),
            None => (text, None),
        }
    };
    let Some(port) = port else { return Ok((target, None)) };
    let parsed = match port.split_once('-') {
        Some((first, last)) => {
            number(first).zip(number(last)).and_then(|(first, last)| Ports::new(first..=last))
        }
        None => number(port).and_then(|port| Ports::new(port..=port)),
    };
    match parsed {
        Some(ports) => Ok((target, Some(ports))),
        None => Err(RuleError::Port { rule: rule.to_owned(), port: port.to_owned() }),
    }
}

/// Digits only: `parse` alone would take a sign.
fn number(text: &str) -> Option<u16> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// `None` when the text does not begin like an address.
fn parse_range(rule: &str, text: &str) -> Result<Option<Cidr>, RuleError> {
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (text, None),
    };
    let Ok(address) = address.parse::<IpAddr>() else {
        return if text.contains(':') {
            Err(RuleError::Brackets { rule: rule.to_owned() })
        } else {
            Ok(None)
        };
    };
    if let IpAddr::V6(v6) = address
        && let Some(v4) = mapped(v6)
    {
        return Err(RuleError::Mapped { rule: rule.to_owned(), instead: v4.to_string() });
    }
    let Some(prefix) = prefix else { return Ok(Some(Cidr::single(address))) };
    let max = if address.is_ipv4() { 32 } else { 128 };
    let range = number(prefix)
        .and_then(|prefix| u8::try_from(prefix).ok())
        .and_then(|prefix| Cidr::containing(address, prefix))
        .ok_or_else(|| RuleError::Prefix { rule: rule.to_owned(), prefix: prefix.to_owned(), max })?;
    if range.base() != address {
        return Err(RuleError::HostBits { rule: rule.to_owned(), instead: range.to_string() });
    }
    Ok(Some(range))
}

/// No packet can carry a mapped address, so a rule about one would never match.
fn mapped(v6: Ipv6Addr) -> Option<std::net::Ipv4Addr> {
    v6.to_ipv4_mapped()
}

fn parse_pattern(rule: &str, text: &str) -> Result<NamePattern, RuleError> {
    let (name, below) = match text.strip_prefix("*.") {
        Some(parent) => (parent, true),
        None => (text, false),
    };
    if name.contains('*') {
        return Err(RuleError::Wildcard { rule: rule.to_owned() });
    }
    let parsed: HostName = name.parse().map_err(|reason: super::name::NotAName| RuleError::Name {
        rule: rule.to_owned(),
        name: name.to_owned(),
        reason: reason.0,
    })?;
    Ok(if below { NamePattern::Below(parsed) } else { NamePattern::Exact(parsed) })
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(transport) = self.transport {
            write!(f, "{transport}/")?;
        }
        match (&self.target, self.ports) {
            (Target::Range(range), Some(ports)) if range.base().is_ipv6() => write!(f, "[{range}]:{ports}"),
            (target, Some(ports)) => write!(f, "{target}:{ports}"),
            (target, None) => target.fmt(f),
        }
    }
}

impl TryFrom<String> for Rule {
    type Error = RuleError;

    fn try_from(text: String) -> Result<Self, RuleError> {
        text.parse()
    }
}

impl From<Rule> for String {
    fn from(rule: Rule) -> Self {
        rule.to_string()
    }
}

#[cfg(test)]
#[path = "rule_tests.rs"]
pub(crate) mod tests;
