//! What was recorded from the reference runtime is replayed, and what must hold for any input is tried with
//! many.

#![expect(clippy::unwrap_used, reason = "helpers of tests stand outside #[test] functions")]

mod properties;
mod specs;
mod wire;

use serde_json::Value;

/// The cases of one recording, a JSON object in each line.
fn cases(recording: &str) -> Vec<Value> {
    recording
        .lines()
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}
