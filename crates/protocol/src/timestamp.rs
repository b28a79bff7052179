//! Points in time as they stand on the wire: RFC 3339 in UTC, six digits of a second or none.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A moment in UTC, printed with microseconds; a full second has no fraction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub jiff::Timestamp);

impl Timestamp {
    /// The present, cut to the precision of the wire so that a value survives a round trip.
    pub fn now() -> Self {
        Self::truncated(jiff::Timestamp::now())
    }

    fn truncated(time: jiff::Timestamp) -> Self {
        Self(jiff::Timestamp::from_microsecond(time.as_microsecond()).unwrap_or(time))
    }
}

impl From<jiff::Timestamp> for Timestamp {
    fn from(time: jiff::Timestamp) -> Self {
        Self::truncated(time)
    }
}

impl FromStr for Timestamp {
    type Err = jiff::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self::truncated)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.subsec_microsecond() == 0 { write!(f, "{:.0}", self.0) } else { write!(f, "{:.6}", self.0) }
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_six_digits_or_none() {
        for (input, printed) in [
            ("2026-11-15T06:22:25.0325Z", "2026-11-15T06:22:25.032500Z"),
            ("2026-11-15T06:22:25Z", "2026-11-15T06:22:25Z"),
            ("2026-11-15T06:22:25.000001999Z", "2026-11-15T06:22:25.000001Z"),
            ("2026-11-15T06:22:25.000000999Z", "2026-11-15T06:22:25Z"),
            ("2026-11-15T08:22:25.5+02:00", "2026-11-15T06:22:25.500000Z"),
        ] {
            assert_eq!(input.parse::<Timestamp>().unwrap().to_string(), printed);
        }
    }

    #[test]
    fn survives_a_round_trip() {
        assert_eq!(Timestamp(jiff::Timestamp::new(0, 999).unwrap()).to_string(), "1970-01-01T00:00:00Z");
        let now = Timestamp::now();
        let text = serde_json::to_string(&now).unwrap();
        assert_eq!(serde_json::from_str::<Timestamp>(&text).unwrap(), now);
    }
}
