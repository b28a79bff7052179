//! Presents the outcome of a command the way LangBot's hosts know it: decoded, trimmed at both ends, with a
//! notice where output was cut. Other faces give bytes as they are.

use sandcrate_protocol::{ExecResult, ExecStatus, python_trim};

use crate::ExecOutcome;

impl ExecOutcome {
    /// The result on the wire. `timeout_sec` is what the caller asked for.
    pub fn presented(&self, timeout_sec: u64) -> ExecResult {
        let collected = &self.collected;
        let stdout = text(&collected.stdout, collected.stdout_bytes);
        let mut stderr = text(&collected.stderr, collected.stderr_bytes);
        let timed_out = collected.exit.timed_out;
        if timed_out && stderr.is_empty() {
            stderr = format!("Command timed out after {timeout_sec} seconds.");
        }
        ExecResult {
            session_id: self.session_id.clone(),
            backend_name: self.backend.to_owned(),
            status: if timed_out { ExecStatus::TimedOut } else { ExecStatus::Completed },
            exit_code: (!timed_out).then(|| collected.exit.status.shell_code()),
            stdout,
            stderr,
            duration_ms: u64::try_from(self.duration.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// `kept` is the beginning of `total` bytes.
fn text(kept: &[u8], total: u64) -> String {
    let decoded = String::from_utf8_lossy(kept);
    let mut text = python_trim(&decoded).to_owned();
    let discarded = total.saturating_sub(kept.len() as u64);
    if discarded > 0 {
        let limit = kept.len();
        text.push_str(&format!("\n... [raw output clipped at {limit} bytes, {discarded} bytes discarded]"));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sandcrate_backend::{Collected, ExecExit, ExitStatus};

    use super::*;

    fn outcome(
        stdout: &'static [u8],
        stderr: &'static [u8],
        status: ExitStatus,
        timed_out: bool,
    ) -> ExecOutcome {
        let exit = ExecExit::new(status, timed_out);
        let collected = Collected {
            stdout: stdout.into(),
            stderr: stderr.into(),
            stdout_bytes: stdout.len() as u64,
            stderr_bytes: stderr.len() as u64,
            exit,
        };
        let duration = Duration::from_micros(58_900);
        ExecOutcome { session_id: "s".to_owned(), backend: "fake", collected, duration }
    }

    #[test]
    fn a_completed_command_has_its_code_and_trimmed_text() {
        let shown = outcome(b"  hi\n\n", b"\t", ExitStatus::Code(3), false).presented(30);
        let expected = ExecResult {
            session_id: "s".to_owned(),
            backend_name: "fake".to_owned(),
            status: ExecStatus::Completed,
            exit_code: Some(3),
            stdout: "hi".to_owned(),
            stderr: String::new(),
            duration_ms: 58,
        };
        assert_eq!(shown, expected);
        let killed = outcome(b"", b"", ExitStatus::Signal(9), false).presented(30);
        assert_eq!(killed.exit_code, Some(137));
    }

    #[test]
    fn a_timeout_says_so_unless_the_command_wrote_to_stderr() {
        let silent = outcome(b"partial\n", b"\n", ExitStatus::Signal(9), true).presented(3);
        assert_eq!((silent.status, silent.exit_code), (ExecStatus::TimedOut, None));
        assert_eq!(
            (silent.stdout.as_str(), silent.stderr.as_str()),
            ("partial", "Command timed out after 3 seconds.")
        );
        let spoke = outcome(b"", b"oops\n", ExitStatus::Signal(9), true).presented(3);
        assert_eq!(spoke.stderr, "oops");
    }

    #[test]
    fn what_was_cut_is_counted_before_trimming() {
        let limit = 1 << 20;
        let kept = vec![b'x'; limit];
        assert_eq!(text(&kept, limit as u64).len(), limit, "exactly the limit is not cut");
        let cut = text(&kept, limit as u64 + 5);
        assert!(cut.ends_with("x\n... [raw output clipped at 1048576 bytes, 5 bytes discarded]"));
        let mut blank = vec![b' '; limit];
        blank[0] = b'a';
        assert_eq!(
            text(&blank, limit as u64 + 1),
            "a\n... [raw output clipped at 1048576 bytes, 1 bytes discarded]"
        );
    }

    #[test]
    fn bytes_that_are_no_text_are_replaced() {
        assert_eq!(text(b"a\xffb", 3), "a\u{fffd}b");
        // A code point that the limit cut in two.
        assert_eq!(text("é".as_bytes().split_at(1).0, 1), "\u{fffd}");
    }
}
