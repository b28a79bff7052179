//! How a followed command ended: exit code, words for a person, the document of `-o json`.

use std::time::Duration;

use sandcrate_backend::LimitHit;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::client::events::Exit;
use crate::run::notices;
use crate::run::report::{TIMEOUT_EXIT_CODE, text};
use crate::run::streams::Kept;
use crate::units::{show_duration, show_size};

/// Output that is kept for the document.
#[derive(Debug, Default)]
pub(super) struct Collected {
    pub(super) stdout: Kept,
    pub(super) stderr: Kept,
    pub(super) dropped_bytes: u64,
}

/// The exit code of sandcrate itself.
pub(super) fn exit_code(exit: &Exit) -> u8 {
    match (exit.timed_out, exit.exit_code, exit.signal) {
        (true, _, _) => TIMEOUT_EXIT_CODE,
        // Codes are bytes; a signal's number is at most 64.
        (_, Some(code), _) => u8::try_from(code & 0xff).unwrap_or(u8::MAX),
        (_, None, Some(signal)) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        (_, None, None) => u8::MAX,
    }
}

/// What a person is told after the command.
pub(super) fn notices(exit: &Exit, timeout: Duration) -> Vec<String> {
    let mut lines = Vec::new();
    if exit.timed_out {
        let limit = show_duration(timeout);
        lines.push(format!(
            "the time limit of {limit} was hit and the command was killed; raise it with --timeout"
        ));
    }
    lines.extend(
        exit.limits_hit
            .iter()
            .filter_map(|hit| Hit::deserialize(hit).ok())
            .map(|hit| notices::limit(&hit.into())),
    );
    if exit.dropped_bytes > 0 {
        let bytes = show_size(exit.dropped_bytes);
        lines.push(format!("{bytes} of output were dropped because they were not read in time"));
    }
    lines.extend(notices::denials(&exit.denials));
    lines
}

/// A [`LimitHit`] as the server writes it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Hit {
    Memory { oom_kills: u64, limit_bytes: u64, tmpfs_bytes: Option<u64> },
    Pids { refused: u64, limit: u32 },
    Disk { used_bytes: u64, limit_bytes: u64 },
}

impl From<Hit> for LimitHit {
    fn from(hit: Hit) -> Self {
        match hit {
            Hit::Memory { oom_kills, limit_bytes, tmpfs_bytes } => {
                Self::Memory { oom_kills, limit_bytes, tmpfs_bytes }
            }
            Hit::Pids { refused, limit } => Self::Pids { refused, limit },
            Hit::Disk { used_bytes, limit_bytes } => Self::Disk { used_bytes, limit_bytes },
        }
    }
}

/// The document; `exit` is missing when a signal to us ended it.
pub(super) fn document(
    session: &str,
    command: &str,
    code: u8,
    exit: Option<&Exit>,
    collected: &Collected,
) -> Value {
    let status = match exit {
        None => "interrupted",
        Some(exit) if exit.timed_out => "timed_out",
        Some(exit) if exit.signal.is_some() => "signaled",
        Some(_) => "exited",
    };
    let (stdout, stdout_base64) = text(&collected.stdout);
    let (stderr, stderr_base64) = text(&collected.stderr);
    let dropped = collected.dropped_bytes + exit.map_or(0, |exit| exit.dropped_bytes);
    let mut document = json!({
        "ok": code == 0,
        "status": status,
        "exit_code": code,
        "signal": exit.and_then(|exit| exit.signal),
        "timed_out": exit.is_some_and(|exit| exit.timed_out),
        "session_id": session,
        "command_id": command,
        "stdout": stdout,
        "stderr": stderr,
        "stdout_bytes": collected.stdout.seen,
        "stderr_bytes": collected.stderr.seen,
        "dropped_bytes": dropped,
        "truncated": collected.stdout.is_cut() || collected.stderr.is_cut() || dropped > 0,
        "usage": exit.map(|exit| exit.usage.clone()),
        "limits_hit": exit.map(|exit| exit.limits_hit.clone()).unwrap_or_default(),
        "denials": exit.map(|exit| exit.denials.clone()).unwrap_or_default(),
        "network": exit.map(|exit| exit.network.clone()).unwrap_or_default(),
    });
    for (key, bytes) in [("stdout_base64", stdout_base64), ("stderr_base64", stderr_base64)] {
        if let Some(bytes) = bytes {
            document[key] = json!(bytes);
        }
    }
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(exit_code: Option<i32>, signal: Option<i32>, timed_out: bool) -> Exit {
        Exit {
            exit_code,
            signal,
            timed_out,
            usage: Value::Null,
            limits_hit: Vec::new(),
            dropped_bytes: 0,
            denials: Vec::new(),
            network: Value::Null,
        }
    }

    #[test]
    fn exit_codes_follow_the_shell() {
        for (ended, code) in [
            (exit(Some(7), None, false), 7),
            (exit(Some(137), Some(9), false), 137),
            (exit(None, Some(9), false), 137),
            (exit(None, Some(9), true), 124),
        ] {
            assert_eq!(exit_code(&ended), code, "{ended:?}");
        }
    }

    #[test]
    fn limits_are_told_in_the_words_of_run() {
        let mut ended = exit(None, Some(9), true);
        ended.limits_hit = vec![
            serde_json::to_value(LimitHit::Memory { oom_kills: 1, limit_bytes: 64 << 20, tmpfs_bytes: None })
                .unwrap(),
            serde_json::to_value(LimitHit::Pids { refused: 2, limit: 8 }).unwrap(),
            json!({"moon": {}}),
        ];
        let lines = notices(&ended, Duration::from_secs(2));
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[0].contains("time limit of 2s"), "{lines:?}");
        assert!(
            lines[1].contains("memory limit of 64M") && lines[2].contains("limit of 8 processes"),
            "{lines:?}"
        );
    }

    #[test]
    fn the_document_has_what_was_seen() {
        let mut collected = Collected::default();
        collected.stdout.push(b"a\xff");
        let document = document("s", "c1", 124, Some(&exit(None, Some(9), true)), &collected);
        assert_eq!(document["status"], "timed_out");
        assert_eq!(document["stdout_base64"], "Yf8=");
        assert_eq!((&document["stdout_bytes"], &document["ok"]), (&json!(2), &json!(false)));
        assert!(document.get("stderr_base64").is_none());
    }
}
