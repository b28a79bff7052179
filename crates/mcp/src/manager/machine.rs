//! The life of one server as a machine: what happened goes in, what to do next comes out. No clock and no I/O.
//!
//! A start has a budget of one attempt and three more. A server that was well for a while gets the whole budget back:
//! four deaths in a month are not four in a minute. What an earlier attempt left to be read does not survive the next
//! success, nor the next start.

use std::time::Duration;

use serde::Serialize;

use crate::{Phase, PhaseError};

/// After each failure but the last.
const DELAYS: [Duration; 3] = [Duration::from_secs(2), Duration::from_secs(4), Duration::from_secs(8)];
/// Longer than all delays and the looks at a process together: who lives so long did not fail at its start.
pub(crate) const HEALTHY_PERIOD: Duration = Duration::from_secs(60);

/// How it stands with a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Nobody wants it to run now.
    Stopped,
    /// It is configured not to run.
    Disabled,
    /// An attempt is under way, or the next one is waited for.
    Connecting,
    Connected,
    Error,
}

impl Status {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::Disabled => "disabled",
            Self::Connecting => "connecting",
            Self::Connected => "connected",
            Self::Error => "error",
        }
    }
}

/// What follows a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    RetryAfter(Duration),
    /// The budget is spent.
    GiveUp,
    /// It cannot run here; that may change, and then it is started as if for the first time.
    Refuse,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Machine {
    status: Status,
    /// Of the present budget.
    failures: u32,
    retry_count: u32,
    error: Option<PhaseError>,
    /// Whoever waits for this start has their answer.
    ready: bool,
    /// Starts so far, so that an answer to an earlier one is not taken for this one's.
    start: u64,
}

impl Machine {
    pub(crate) fn new(status: Status) -> Self {
        Self { status, failures: 0, retry_count: 0, error: None, ready: false, start: 0 }
    }

    pub(crate) fn status(&self) -> Status {
        self.status
    }

    pub(crate) fn retry_count(&self) -> u32 {
        self.retry_count
    }

    pub(crate) fn error(&self) -> Option<&PhaseError> {
        self.error.as_ref()
    }

    pub(crate) fn start_number(&self) -> u64 {
        self.start
    }

    /// Whether this start, or a later one, has an outcome.
    pub(crate) fn is_ready(&self, start: u64) -> bool {
        self.start > start || (self.start == start && self.ready)
    }

    /// A new start with everything fresh.
    pub(crate) fn begin(&mut self) {
        *self = Self { start: self.start + 1, ..Self::new(Status::Connecting) };
    }

    pub(crate) fn connected(&mut self) {
        self.status = Status::Connected;
        self.error = None;
        self.retry_count = 0;
        self.ready = true;
    }

    /// An attempt failed, or a connected server ended after it was `well_for`.
    pub(crate) fn failed(&mut self, error: PhaseError, well_for: Option<Duration>) -> Next {
        // Boxes may come back; what else is not worth a retry is the configuration's fault.
        let refused = error.phase == Phase::BoxUnavailable;
        if !error.phase.is_worth_a_retry() {
            self.status = Status::Error;
            self.error = Some(error);
            self.ready = true;
            return if refused { Next::Refuse } else { Next::GiveUp };
        }
        if well_for.is_some_and(|time| time >= HEALTHY_PERIOD) {
            self.failures = 0;
        }
        self.failures += 1;
        self.retry_count = self.failures;
        let delay = usize::try_from(self.failures - 1).ok().and_then(|index| DELAYS.get(index));
        if let Some(delay) = delay {
            self.status = Status::Connecting;
            self.error = None;
            return Next::RetryAfter(*delay);
        }
        let message = format!("Failed after {} attempts: {}: {}", self.failures, error.phase, error.message);
        self.status = Status::Error;
        self.error = Some(PhaseError { phase: error.phase, message });
        self.ready = true;
        Next::GiveUp
    }

    /// Whoever waited for the start has no more patience; the attempt goes on.
    pub(crate) fn waited_in_vain(&mut self, start: u64, seconds: u64) {
        if self.start == start && !self.ready {
            self.status = Status::Error;
            let message = format!("Connection timeout after {seconds} seconds");
            self.error = Some(PhaseError::new(Phase::McpInit, message));
        }
    }

    pub(crate) fn stopped(&mut self) {
        self.status = Status::Stopped;
        self.error = None;
        self.retry_count = 0;
        self.ready = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trouble(text: &str) -> PhaseError {
        PhaseError::new(Phase::DepInstall, text)
    }

    fn begun() -> Machine {
        let mut machine = Machine::new(Status::Stopped);
        machine.begin();
        machine
    }

    #[test]
    fn four_attempts_with_growing_delays_then_the_last_error_with_its_phase() {
        let mut machine = begun();
        for (count, seconds) in [(1, 2), (2, 4), (3, 8)] {
            let next = machine.failed(trouble("no pip"), None);
            assert_eq!(next, Next::RetryAfter(Duration::from_secs(seconds)));
            assert_eq!((machine.status(), machine.retry_count()), (Status::Connecting, count));
            assert_eq!(machine.error(), None, "a failure in between is not shown");
            assert!(!machine.is_ready(1), "nor does it answer who waits");
        }
        assert_eq!(machine.failed(trouble("no pip"), None), Next::GiveUp);
        let error = machine.error().unwrap();
        assert_eq!(error.message, "Failed after 4 attempts: dep_install: no pip");
        assert_eq!((error.phase, machine.retry_count()), (Phase::DepInstall, 4));
        assert!(machine.is_ready(1));
    }

    #[test]
    fn what_cannot_run_here_is_refused_at_once_in_its_own_words() {
        let mut machine = begun();
        let refusal = PhaseError::new(Phase::BoxUnavailable, "box_disabled_in_config");
        assert_eq!(machine.failed(refusal.clone(), None), Next::Refuse);
        assert_eq!((machine.status(), machine.error()), (Status::Error, Some(&refusal)));
        assert_eq!(machine.retry_count(), 0);
        assert!(machine.is_ready(1));
        let mut machine = begun();
        let missing = PhaseError::new(Phase::Staging, "no such directory");
        assert_eq!(machine.failed(missing.clone(), None), Next::GiveUp, "no box that comes back would help");
        assert_eq!((machine.status(), machine.error()), (Status::Error, Some(&missing)));
    }

    #[test]
    fn nothing_stale_survives_a_success_or_a_new_start() {
        let mut machine = begun();
        machine.failed(trouble("x"), None);
        machine.connected();
        assert_eq!((machine.retry_count(), machine.error()), (0, None));
        for _ in 0..3 {
            machine.failed(trouble("x"), Some(Duration::ZERO));
        }
        assert_eq!(machine.status(), Status::Error, "the budget is of the start, not of the success");
        machine.begin();
        assert_eq!((machine.status(), machine.error(), machine.retry_count()), (Status::Connecting, None, 0));
        assert!(machine.is_ready(1) && !machine.is_ready(2), "an earlier start's answer is not this one's");
    }

    #[test]
    fn a_healthy_period_renews_the_budget() {
        let mut machine = begun();
        for _ in 0..20 {
            machine.connected();
            let next = machine.failed(trouble("died"), Some(HEALTHY_PERIOD));
            assert_eq!(next, Next::RetryAfter(Duration::from_secs(2)));
        }
    }

    #[test]
    fn an_impatient_wait_is_an_error_that_a_success_clears() {
        let mut machine = begun();
        machine.waited_in_vain(1, 150);
        assert_eq!(machine.error().unwrap().message, "Connection timeout after 150 seconds");
        machine.connected();
        machine.waited_in_vain(1, 150);
        assert_eq!((machine.status(), machine.error()), (Status::Connected, None));
        machine.stopped();
        assert_eq!(machine.status(), Status::Stopped);
    }
}
