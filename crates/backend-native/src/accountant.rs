//! Counts storage that nothing else bounds, while commands run.

use std::time::{Duration, Instant};

use sandcrate_backend::{BackendError, LimitHit};

use crate::session::{Bound, Session};
use crate::storage::used_bytes;

/// Between two counts; more when counting takes long.
const INTERVAL: Duration = Duration::from_millis(250);
/// Counting takes at most about a tenth of a core.
const DUTY: u32 = 10;

/// One command's view of its session's storage.
pub(crate) struct Watch {
    bounds: Vec<Bound>,
    next: tokio::time::Instant,
}

impl Watch {
    pub(crate) fn new(session: &Session) -> Self {
        Self { bounds: session.accounted.clone(), next: tokio::time::Instant::now() + INTERVAL }
    }

    /// Ends when the storage is over its bound; never, when there is no bound to watch. Safe to drop and call
    /// again.
    pub(crate) async fn exceeded(&mut self) -> LimitHit {
        if self.bounds.is_empty() {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep_until(self.next).await;
            let began = Instant::now();
            let over = first_over(self.bounds.clone()).await;
            self.next = tokio::time::Instant::now() + INTERVAL.max(began.elapsed() * DUTY);
            if let Some(over) = over {
                return over;
            }
        }
    }
}

/// Before a command: with a quota that is used up nothing starts.
pub(crate) async fn check(session: &Session) -> Result<(), BackendError> {
    match asked_over(session).await {
        Some(LimitHit::Disk { used_bytes, limit_bytes }) => Err(BackendError::LimitExceeded {
            what: format!("the directory with {used_bytes} bytes"),
            limit: format!("its quota of {limit_bytes} bytes"),
        }),
        _ => Ok(()),
    }
}

/// After a command that was too quick to be caught: a quota that it has overrun.
pub(crate) async fn asked_over(session: &Session) -> Option<LimitHit> {
    let asked: Vec<Bound> = session.accounted.iter().filter(|bound| bound.asked).cloned().collect();
    if asked.is_empty() { None } else { first_over(asked).await }
}

async fn first_over(bounds: Vec<Bound>) -> Option<LimitHit> {
    let count = move || {
        bounds.iter().find_map(|bound| {
            let used_bytes = used_bytes(&bound.directories);
            let limit_bytes = bound.bytes;
            (used_bytes > limit_bytes).then_some(LimitHit::Disk { used_bytes, limit_bytes })
        })
    };
    tokio::task::spawn_blocking(count).await.unwrap_or(None)
}
