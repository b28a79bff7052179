//! Signals and ends of programs: how they are named on the wire, and what two of our own kind tell each other besides.

use std::fmt;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

const TERMINATE: i32 = 15;
const KILL: i32 = 9;

/// By its name; or, where the protocol has none for it, by its number. Protobuf's JSON takes both.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Signal {
    #[default]
    Unspecified,
    Terminate,
    Kill,
    /// Between two of our own kind.
    Number(i32),
}

impl Serialize for Signal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Unspecified => serializer.serialize_str("SIGNAL_UNSPECIFIED"),
            Self::Terminate => serializer.serialize_str("SIGNAL_SIGTERM"),
            Self::Kill => serializer.serialize_str("SIGNAL_SIGKILL"),
            Self::Number(number) => serializer.serialize_i32(*number),
        }
    }
}

impl<'de> Deserialize<'de> for Signal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl Visitor<'_> for Either {
            type Value = Signal;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name or the number of a signal")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<Signal, E> {
                match name {
                    "SIGNAL_UNSPECIFIED" => Ok(Signal::Unspecified),
                    "SIGNAL_SIGTERM" => Ok(Signal::Terminate),
                    "SIGNAL_SIGKILL" => Ok(Signal::Kill),
                    _ => Err(E::custom("there are SIGNAL_SIGTERM and SIGNAL_SIGKILL")),
                }
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Signal, E> {
                match i32::try_from(number) {
                    Ok(0) => Ok(Signal::Unspecified),
                    Ok(KILL) => Ok(Signal::Kill),
                    Ok(TERMINATE) => Ok(Signal::Terminate),
                    Ok(number @ 1..=64) => Ok(Signal::Number(number)),
                    _ => Err(E::custom("signals have numbers from 1 to 64")),
                }
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Signal, E> {
                self.visit_i64(i64::try_from(number).unwrap_or(-1))
            }
        }

        deserializer.deserialize_any(Either)
    }
}

/// The words for signals in the text of an end, from number 1 on.
const WORDS: [&str; 15] = [
    "hangup",
    "interrupt",
    "quit",
    "illegal instruction",
    "trace/breakpoint trap",
    "aborted",
    "bus error",
    "floating point exception",
    "killed",
    "user defined signal 1",
    "segmentation fault",
    "user defined signal 2",
    "broken pipe",
    "alarm clock",
    "terminated",
];

/// The text of an end by a code.
pub fn status_of_code(code: i32) -> String {
    format!("exit status {code}")
}

/// The text of an end by a signal.
pub fn status_of_signal(signal: i32) -> String {
    let word = usize::try_from(signal).ok().and_then(|signal| WORDS.get(signal.checked_sub(1)?));
    word.map_or_else(|| format!("signal: signal {signal}"), |word| format!("signal: {word}"))
}

/// The signal that the text of an end names, if it names one.
pub fn signal_of(status: &str) -> Option<i32> {
    let word = status.strip_prefix("signal: ")?;
    let word = word.strip_suffix(" (core dumped)").unwrap_or(word);
    if let Some(index) = WORDS.iter().position(|known| *known == word) {
        return i32::try_from(index + 1).ok();
    }
    word.strip_prefix("signal ")?.parse().ok()
}

/// What our own server tells of an end besides.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Details {
    pub user_micros: u64,
    pub system_micros: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
    /// The peak is that of the largest process, not of the whole box.
    pub peak_of_process: bool,
    /// Output that nobody took in time.
    pub dropped_bytes: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub limits_hit: Vec<LimitHit>,
}

/// A limit of the box that fired while the program ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum LimitHit {
    Memory { oom_kills: u64, limit_bytes: u64, tmpfs_bytes: Option<u64> },
    Pids { refused: u64, limit: u32 },
    Disk { used_bytes: u64, limit_bytes: u64 },
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn signals_have_names_and_numbers() {
        for (signal, json) in [
            (Signal::Kill, json!("SIGNAL_SIGKILL")),
            (Signal::Terminate, json!("SIGNAL_SIGTERM")),
            (Signal::Number(2), json!(2)),
        ] {
            assert_eq!(serde_json::to_value(signal).unwrap(), json);
            assert_eq!(serde_json::from_value::<Signal>(json).unwrap(), signal);
        }
        assert_eq!(serde_json::from_value::<Signal>(json!(9)).unwrap(), Signal::Kill);
        for bad in [json!("SIGNAL_SIGINT"), json!(65), json!(-1), json!(u64::MAX)] {
            assert!(serde_json::from_value::<Signal>(bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_text_of_an_end_tells_its_signal() {
        for signal in 1..=64 {
            assert_eq!(signal_of(&status_of_signal(signal)), Some(signal));
        }
        assert_eq!(status_of_signal(9), "signal: killed");
        assert_eq!(signal_of("signal: segmentation fault (core dumped)"), Some(11));
        assert_eq!((signal_of("exit status 9"), signal_of("signal: unheard of")), (None, None));
    }

    #[test]
    fn details_are_left_out_where_there_are_none() {
        let hit = LimitHit::Disk { used_bytes: 2, limit_bytes: 1 };
        let details = Details { user_micros: 5, limits_hit: vec![hit], ..Details::default() };
        let json = serde_json::to_value(&details).unwrap();
        assert_eq!(json["limitsHit"], json!([{"disk": {"usedBytes": 2, "limitBytes": 1}}]));
        assert_eq!(serde_json::from_value::<Details>(json).unwrap(), details);
        assert_eq!(serde_json::from_value::<Details>(json!({})).unwrap(), Details::default());
    }
}
