//! Counts storage that nothing else bounds, while commands run.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use sandcrate_backend::LimitHit;

use crate::session::Session;
use crate::storage::used_bytes;

/// Between two counts; more when counting takes long.
const INTERVAL: Duration = Duration::from_millis(250);
/// Counting takes at most about a tenth of a core.
const DUTY: u32 = 10;

/// One command's view of its session's storage.
pub(crate) struct Watch {
    bounds: Option<(Vec<PathBuf>, u64)>,
    next: tokio::time::Instant,
}

impl Watch {
    pub(crate) fn new(session: &Session) -> Self {
        Self { bounds: session.accounted.clone(), next: tokio::time::Instant::now() + INTERVAL }
    }

    /// Ends when the storage is over its bound; never, when there is no bound to watch. Safe to drop and call
    /// again.
    pub(crate) async fn exceeded(&mut self) -> LimitHit {
        let Some((roots, limit_bytes)) = &self.bounds else { return std::future::pending().await };
        loop {
            tokio::time::sleep_until(self.next).await;
            let roots = roots.clone();
            let began = Instant::now();
            let used = tokio::task::spawn_blocking(move || used_bytes(&roots)).await.unwrap_or(0);
            self.next = tokio::time::Instant::now() + INTERVAL.max(began.elapsed() * DUTY);
            if used > *limit_bytes {
                return LimitHit::Disk { used_bytes: used, limit_bytes: *limit_bytes };
            }
        }
    }
}
