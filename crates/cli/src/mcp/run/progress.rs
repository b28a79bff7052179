//! What happens before the server runs, told on stderr and as MCP log messages.
//!
//! Slow installs are all there is to tell. A client that waits for the answer to `initialize` may get log messages
//! before it; nothing else of ours ever stands on stdout.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sandcrate_mcp::Progress;
use serde_json::json;

use crate::output;

/// Lines of package managers come in floods: of those one per this long.
const PACE: Duration = Duration::from_millis(700);

#[derive(Debug)]
pub(super) struct Teller {
    quiet: bool,
    last: Mutex<Option<Instant>>,
}

impl Teller {
    pub(super) fn new(quiet: bool) -> Self {
        Self { quiet, last: Mutex::new(None) }
    }

    fn is_due(&self) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last.is_none_or(|last| last.elapsed() >= PACE);
        if due {
            *last = Some(Instant::now());
        }
        due
    }
}

/// Ours, in full; the rest are a package manager's.
fn is_ours(line: &str) -> bool {
    ["installing ", "installed ", "another process "].iter().any(|start| line.starts_with(start))
}

fn message(line: &str) -> String {
    let params = json!({"level": "info", "logger": "sandcrate", "data": line});
    format!("{}\n", json!({"jsonrpc": "2.0", "method": "notifications/message", "params": params}))
}

impl Progress for Teller {
    fn say(&self, line: &str) {
        if !is_ours(line) && !self.is_due() {
            return;
        }
        if !self.quiet {
            output::notice(line);
        }
        super::pump::write_if_room(message(line).as_bytes());
    }

    /// For the person who wrote the command: the client could do nothing about it.
    fn note(&self, text: &str) {
        if !self.quiet {
            output::notice(&format!("note: {text}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_of_the_protocol() {
        let text = message("a \"b\"\n");
        assert_eq!(text.matches('\n').count(), 1);
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&read["method"], &read["params"]["data"]),
            (&json!("notifications/message"), &json!("a \"b\"\n"))
        );
        assert!(read.get("id").is_none());
    }

    #[test]
    fn floods_are_thinned_and_our_own_lines_are_not() {
        let teller = Teller::new(true);
        assert!(teller.is_due() && !teller.is_due());
        assert!(is_ours("installing x") && !is_ours("npm http fetch GET 200"));
    }
}
