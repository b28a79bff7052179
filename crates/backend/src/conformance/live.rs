//! A running command, read while it runs.

use tokio::time::{Instant, timeout_at};

use super::bench::{PATIENCE, brief, chain};
use crate::{ExecEvent, ExecExit, Execution, Stream};

/// A running command whose standard output is read piece by piece.
pub(super) struct Live {
    pub(super) execution: Execution,
    seen: Vec<u8>,
}

impl Live {
    pub(super) fn new(execution: Execution) -> Self {
        Self { execution, seen: Vec::new() }
    }

    /// Reads until the text was seen; everything seen so far.
    pub(super) async fn until(&mut self, text: &str) -> Result<String, String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let seen = String::from_utf8_lossy(&self.seen).into_owned();
            if seen.contains(text) {
                return Ok(seen);
            }
            match timeout_at(deadline, self.execution.next()).await {
                Ok(Some(ExecEvent::Output(_, data))) => self.seen.extend_from_slice(&data),
                Ok(Some(ExecEvent::Denied(_))) => {}
                Ok(other) => return Err(format!("waited for {text:?}, saw {} and {other:?}", brief(&seen))),
                Err(_) => return Err(format!("waited in vain for {text:?}, saw {}", brief(&seen))),
            }
        }
    }

    /// The first full line, without its end.
    pub(super) async fn line(&mut self) -> Result<String, String> {
        let seen = self.until("\n").await?;
        Ok(seen.lines().next().unwrap_or_default().to_owned())
    }

    /// Reads to the end: all of standard output, and the exit.
    pub(super) async fn end(&mut self) -> Result<(String, ExecExit), String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match timeout_at(deadline, self.execution.next()).await {
                Ok(Some(ExecEvent::Output(Stream::Stdout, data))) => self.seen.extend_from_slice(&data),
                Ok(Some(ExecEvent::Output(Stream::Stderr, _) | ExecEvent::Denied(_))) => {}
                Ok(Some(ExecEvent::Exit(exit))) => {
                    return Ok((String::from_utf8_lossy(&self.seen).into_owned(), exit));
                }
                Ok(Some(ExecEvent::Failed(error))) => return Err(format!("failed: {}", chain(&error))),
                Ok(None) => return Err("the events ended without an exit".to_owned()),
                Err(_) => return Err("the command did not end".to_owned()),
            }
        }
    }
}
