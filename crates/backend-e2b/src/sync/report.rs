//! What did not travel, in words for whoever reads a command's output.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use sandcrate_backend::BackendError;

/// Names shown of each report; the others are counted.
const SHOWN: usize = 20;
const SHOWN_CHARS: usize = 200;

/// What an exchange left out.
#[derive(Debug, Default)]
pub(crate) struct Report {
    lines: BTreeSet<String>,
}

impl Report {
    pub(crate) fn skipped(&mut self, path: &str, why: &str) {
        let path: String = path.chars().take(SHOWN_CHARS).flat_map(char::escape_debug).collect();
        self.lines.insert(format!("{path}: {why}"));
    }

    /// An exchange that came to nothing.
    pub(crate) fn failed(&mut self, error: &BackendError) {
        self.lines.insert(format!("everything: {error}"));
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.lines.extend(other.lines);
    }

    pub(super) fn lines(&self) -> Vec<String> {
        self.lines.iter().cloned().collect()
    }

    pub(super) fn add(&mut self, lines: impl Iterator<Item = String>) {
        self.lines.extend(lines);
    }

    /// Nothing when there is nothing to say.
    pub(crate) fn text(&self) -> Option<String> {
        if self.lines.is_empty() {
            return None;
        }
        let mut text = "[sandcrate] not copied between the host and the sandbox:\n".to_owned();
        for line in self.lines.iter().take(SHOWN) {
            let _ = writeln!(text, "  {line}");
        }
        if self.lines.len() > SHOWN {
            let _ = writeln!(text, "  and {} more", self.lines.len() - SHOWN);
        }
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_out_is_said_and_counted() {
        assert_eq!(Report::default().text(), None);
        let mut report = Report::default();
        report.skipped("a\nb", "it is a socket");
        report.skipped("a\nb", "it is a socket");
        let text = report.text().unwrap();
        assert_eq!(text.lines().count(), 2);
        assert!(text.contains("  a\\nb: it is a socket\n"));
        for number in 0..50 {
            report.skipped(&format!("file {number}"), "too large");
        }
        assert!(report.text().unwrap().ends_with("  and 31 more\n"));
    }
}
