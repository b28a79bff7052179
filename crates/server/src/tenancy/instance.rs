//! The id of a LangBot installation.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};

use crate::ConfigError;

/// A letter or a digit, then up to 127 letters, digits, `.`, `_`, `:` and `-`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InstanceId(String);

impl InstanceId {
    const MAX_CHARS: usize = 128;

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for InstanceId {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let first = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        let rest = text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b':' | b'-'));
        if first && rest && text.len() <= Self::MAX_CHARS {
            return Ok(Self(text.to_owned()));
        }
        Err(ConfigError::Instance { text: text.chars().take(Self::MAX_CHARS).collect() })
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for InstanceId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_the_form_that_langbot_gives_them() {
        for good in ["instance_0f3c2f", "a", "0", "A.b_c:d-e", &"x".repeat(128)] {
            assert_eq!(good.parse::<InstanceId>().unwrap().as_str(), good);
        }
        for bad in ["", "-a", "_a", "a b", "a\n", "é", &"x".repeat(129)] {
            assert!(bad.parse::<InstanceId>().is_err(), "{bad:?}");
        }
    }
}
