//! What a command is charged with: the counters of its box, less what they showed before it.

use std::os::fd::OwnedFd;

use sandcrate_backend::{ExitStatus, LimitHit, MemoryScope};
use sandcrate_jail::cgroup::UsageReader;
use sandcrate_jail::message::{EndStatus, ProcessEnd};

use crate::link::Fittings;

/// Counters of the box before the command, so that it is charged only with its own.
#[derive(Debug)]
pub struct Meter {
    oom_kills: u64,
    pids_refused: u64,
    /// The peak is the command's own only when it could be reset.
    peak_reset: bool,
    /// The command's own bound of memory, and what counts its kills where the box does not.
    bound: Option<(u64, UsageReader)>,
}

impl Meter {
    pub fn start(usage: &UsageReader) -> Self {
        Self {
            oom_kills: usage.oom_kills().unwrap_or(0),
            pids_refused: usage.pids_refused().unwrap_or(0),
            peak_reset: usage.reset_peak(),
            bound: None,
        }
    }

    /// For a command with a bound of its own; `usage` is the directory of its cgroup, as far as it is not the box's.
    #[must_use]
    pub fn bounded(mut self, memory_bytes: Option<u64>, usage: Option<OwnedFd>) -> Self {
        self.bound = memory_bytes.map(|bytes| (bytes, UsageReader::new(usage.into_iter().collect())));
        self
    }

    pub fn oom_kills(&self, usage: &UsageReader) -> u64 {
        let own = self.bound.as_ref().and_then(|(_, usage)| usage.oom_kills()).unwrap_or(0);
        own + usage.oom_kills().unwrap_or(0).saturating_sub(self.oom_kills)
    }

    pub fn pids_refused(&self, usage: &UsageReader) -> u64 {
        usage.pids_refused().unwrap_or(0).saturating_sub(self.pids_refused)
    }

    /// Limits that the command ran into.
    pub fn limits_hit(&self, fittings: &Fittings, over_disk: Option<LimitHit>) -> Vec<LimitHit> {
        let Fittings { usage, limits, .. } = fittings;
        let mut hit = Vec::new();
        let oom_kills = self.oom_kills(usage);
        if oom_kills > 0 {
            let own = self.bound.as_ref().map_or(u64::MAX, |(bytes, _)| *bytes);
            let (limit_bytes, tmpfs_bytes) = (limits.memory_bytes.min(own), usage.tmpfs_bytes());
            hit.push(LimitHit::Memory { oom_kills, limit_bytes, tmpfs_bytes });
        }
        let refused = self.pids_refused(usage);
        if refused > 0 {
            hit.push(LimitHit::Pids { refused, limit: limits.pids });
        }
        hit.extend(over_disk);
        hit
    }

    /// Of the whole box where that can be told, else of the process.
    pub fn peak_memory(&self, usage: &UsageReader, end: &ProcessEnd) -> (u64, MemoryScope) {
        let session = usage.peak_memory_bytes().filter(|_| self.peak_reset);
        session.map_or((end.peak_rss_bytes, MemoryScope::Process), |peak| (peak, MemoryScope::Session))
    }
}

pub fn exit_status(end: &ProcessEnd) -> ExitStatus {
    match end.status {
        EndStatus::Code(code) => ExitStatus::Code(code),
        EndStatus::Signal(signal) => ExitStatus::Signal(signal),
    }
}
