//! Host names and patterns of them, in one canonical form: ASCII, lower case, no dot at the end.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A host name that DNS could carry.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostName(Box<str>);

/// Why a text is not a host name; a phrase that follows "because it".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotAName(pub(crate) &'static str);

impl HostName {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn labels(&self) -> impl Iterator<Item = &str> {
        self.0.split('.')
    }
}

impl FromStr for HostName {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        let text = text.strip_suffix('.').unwrap_or(text);
        if text.is_empty() {
            return Err(NotAName("is empty"));
        }
        // The wire form has a length byte per label and one for the root, 255 in all (RFC 1035).
        if text.len() > 253 {
            return Err(NotAName("is longer than 253 characters"));
        }
        if !text.is_ascii() {
            return Err(NotAName("is not ASCII: write it in its `xn--` form"));
        }
        for label in text.split('.') {
            if label.is_empty() || label.len() > 63 {
                return Err(NotAName("has an empty part or one over 63 characters"));
            }
            // Underscores are no host name by RFC 952, and common in DNS.
            if !label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_') {
                return Err(NotAName("has a character other than a letter, digit, `-`, `_` or `.`"));
            }
        }
        // `127.1` and `0x7f000001` are addresses to inet_aton, and so to many programs.
        let last = text.rsplit('.').next().unwrap_or_default();
        if last.bytes().all(|byte| byte.is_ascii_digit()) || last.starts_with("0x") || last.starts_with("0X")
        {
            return Err(NotAName("ends in a number, so programs may read it as an address"));
        }
        Ok(Self(text.to_ascii_lowercase().into_boxed_str()))
    }
}

impl TryFrom<String> for HostName {
    type Error = NotAName;

    fn try_from(text: String) -> Result<Self, NotAName> {
        text.parse()
    }
}

impl From<HostName> for String {
    fn from(name: HostName) -> Self {
        name.0.into()
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A name, or everything below one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NamePattern {
    Exact(HostName),
    /// `*.example.com`: names below at any depth, not `example.com` itself.
    Below(HostName),
}

impl NamePattern {
    pub fn matches(&self, name: &HostName) -> bool {
        match self {
            Self::Exact(exact) => exact == name,
            Self::Below(parent) => {
                name.0.strip_suffix(parent.as_str()).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
            }
        }
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => name.fmt(f),
            Self::Below(parent) => write!(f, "*.{parent}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_canonical() {
        assert_eq!("Example.COM.".parse::<HostName>().unwrap().as_str(), "example.com");
        let long = "a".repeat(64);
        for bad in ["", ".", "a..b", "a b", "ä.de", "1.2.3.4", "127.1", "x.0x7f", "a/b", "*", long.as_str()]
        {
            assert!(bad.parse::<HostName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_wildcard_covers_what_is_below_and_not_the_apex() {
        let below = NamePattern::Below("example.com".parse().unwrap());
        for (name, expected) in [
            ("a.example.com", true),
            ("a.b.example.com", true),
            ("example.com", false),
            ("badexample.com", false),
            ("example.com.evil.org", false),
        ] {
            assert_eq!(below.matches(&name.parse().unwrap()), expected, "{name}");
        }
    }
}
