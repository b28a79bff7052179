//! What nsjail says of itself: read only when it has failed, to tell why.

use std::os::fd::OwnedFd;

use rustix::pipe::{PipeFlags, pipe_with};
use sandcrate_backend::BackendError;

use sandcrate_driver::pieces::FdIo;

/// A few lines of warnings; the rest of a pipe is of no use to anybody.
const SHOWN_BYTES: usize = 4096;

/// Our end of nsjail's log.
#[derive(Debug)]
pub(crate) struct Log(FdIo);

impl Log {
    /// And nsjail's end.
    pub(crate) fn new() -> Result<(Self, OwnedFd), BackendError> {
        let failed = |error| BackendError::failed("making a pipe for nsjail's log", error);
        let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
        Ok((Self(FdIo::new(ours).map_err(failed)?), theirs))
    }

    /// nsjail has failed at `step`.
    pub(crate) fn failure(&self, step: &str) -> BackendError {
        let said = self.0.read_now(SHOWN_BYTES).ok().flatten().unwrap_or_default();
        let why = summary(&String::from_utf8_lossy(&said));
        BackendError::failed(step, std::io::Error::other(format!("nsjail: {why}")))
    }
}

/// The lines without their time stamps and process numbers.
fn summary(log: &str) -> String {
    let lines: Vec<&str> = log
        .lines()
        .map(|line| line.rsplit_once("] ").map_or(line, |(_, text)| text).trim())
        .filter(|line| !line.is_empty())
        .collect();
    if lines.is_empty() { "it ended without a word".to_owned() } else { lines.join("; ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_causes_are_told_without_their_stamps() {
        let log = "[W][2026-01-01T00:00:00+0000][12] void cmdline(): mount('/x') failed: No such file\n\
                   [F][2026-01-01T00:00:00+0000][1] bool subproc::runChild():514 Launching child process failed\n";
        let told = summary(log);
        assert!(told.contains("mount('/x') failed: No such file") && told.contains("Launching"), "{told}");
        assert!(!told.contains("2026"), "{told}");
        assert_eq!(summary("\n"), "it ended without a word");
    }
}
