//! Signals by name or number.

use serde::Deserialize;
use serde::de::{Deserializer, Error};

/// Linux's names; the numbers are those of x86-64, aarch64 and riscv64.
const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
    "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
    "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];
/// The last real-time signal.
const LAST: i32 = 64;

/// A signal that may be sent: `"TERM"`, `"SIGTERM"`, `"15"` or `15`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Signal(pub(crate) i32);

impl Signal {
    pub(crate) const HUP: Self = Self(1);

    fn from_number(number: i64) -> Option<Self> {
        i32::try_from(number).ok().filter(|number| (1..=LAST).contains(number)).map(Self)
    }

    fn from_name(text: &str) -> Option<Self> {
        let upper = text.trim().to_ascii_uppercase();
        let name = upper.strip_prefix("SIG").unwrap_or(&upper);
        let position = NAMES.iter().position(|known| *known == name);
        match position {
            Some(index) => Self::from_number(index as i64 + 1),
            None => Self::from_number(name.parse().ok()?),
        }
    }
}

impl<'de> Deserialize<'de> for Signal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(i64),
            Name(String),
        }
        let signal = match Written::deserialize(deserializer) {
            Ok(Written::Number(number)) => Self::from_number(number),
            Ok(Written::Name(name)) => Self::from_name(&name),
            Err(_) => None,
        };
        signal.ok_or_else(|| D::Error::custom("a signal is a name such as \"TERM\" or a number from 1 to 64"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_a_name_or_a_number() {
        for (text, number) in
            [("15", 15), ("\"TERM\"", 15), ("\"sigkill\"", 9), ("\"2\"", 2), ("\"SYS\"", 31), ("64", 64)]
        {
            assert_eq!(serde_json::from_str::<Signal>(text).unwrap(), Signal(number), "{text}");
        }
        for text in ["0", "65", "-9", "\"\"", "\"NOPE\"", "null", "1.5", "\"99999999999999999999\""] {
            assert!(serde_json::from_str::<Signal>(text).is_err(), "{text}");
        }
    }
}
