//! The shared secret, and where a client may put it.

use std::fmt;
use std::str::FromStr;

use axum::http::{HeaderMap, header};
use serde::{Deserialize, Deserializer};
use subtle::ConstantTimeEq;

use crate::ConfigError;

/// A secret that admits whoever sends it. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// LangBot's own header, sent by its dialects B and C.
const LANGBOT_HEADER: &str = "x-langbot-box-control-token";
const API_KEY_HEADER: &str = "x-api-key";

impl Token {
    /// LangBot's rule for its control token, at both ends.
    pub const MIN_CHARS: usize = 32;

    /// Whether `text` is this token; takes the same time wherever they differ.
    pub(crate) fn matches(&self, text: &str) -> bool {
        self.0.as_bytes().ct_eq(text.as_bytes()).into()
    }
}

impl FromStr for Token {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        if text.chars().count() < Self::MIN_CHARS || text.chars().any(char::is_whitespace) {
            return Err(ConfigError::Token { least: Self::MIN_CHARS });
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Every token a request carries. One that is not text counts as an empty one, which matches nothing.
pub(crate) fn presented(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let bearer = headers.get_all(header::AUTHORIZATION).iter().filter_map(|value| {
        let text = value.to_str().unwrap_or_default();
        let (scheme, rest) = text.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| rest.trim())
    });
    let plain = [API_KEY_HEADER, LANGBOT_HEADER]
        .into_iter()
        .flat_map(|name| headers.get_all(name).iter().map(|value| value.to_str().unwrap_or_default().trim()));
    bearer.chain(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn a_token_is_long_and_has_no_white_space() {
        assert!(format!("  {SECRET}\n").parse::<Token>().is_ok_and(|token| token.matches(SECRET)));
        for bad in ["", "short", "0123456789abcdef 0123456789abcdef"] {
            assert!(bad.parse::<Token>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn only_the_whole_token_matches() {
        let token: Token = SECRET.parse().unwrap();
        assert!(token.matches(SECRET));
        for wrong in ["", "0", &SECRET[1..], &format!("{SECRET}0"), &SECRET.to_uppercase()] {
            assert!(!token.matches(wrong), "{wrong:?}");
        }
    }

    #[test]
    fn three_headers_carry_a_token() {
        for (name, value, found) in [
            ("authorization", "Bearer abc", vec!["abc"]),
            ("authorization", "bearer  abc", vec!["abc"]),
            ("authorization", "Basic abc", vec![]),
            ("x-api-key", "abc", vec!["abc"]),
            ("X-LangBot-Box-Control-Token", "abc", vec!["abc"]),
            ("cookie", "abc", vec![]),
        ] {
            let name: header::HeaderName = name.parse().unwrap();
            let headers = HeaderMap::from_iter([(name, value.parse().unwrap())]);
            assert_eq!(presented(&headers).collect::<Vec<_>>(), found, "{value}");
        }
    }
}
