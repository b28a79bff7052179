//! Counts storage that nothing else bounds, while commands run.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandcrate_backend::{BackendError, LimitHit};
use tokio::task::JoinHandle;

use crate::disk::used_bytes;

/// Between two counts; more when counting takes long.
const INTERVAL: Duration = Duration::from_millis(250);
/// Counting takes at most about a tenth of a core.
const DUTY: u32 = 10;

/// Directories that together may hold so many bytes.
#[derive(Debug, Clone)]
pub struct Bound {
    pub directories: Vec<PathBuf>,
    pub bytes: u64,
    /// Counted before and after a command too: a quota that somebody asked for.
    pub asked: bool,
}

/// One command's view of its session's storage.
pub struct Watch {
    /// Nothing, when there is no bound to watch.
    count: Option<Count>,
    next: tokio::time::Instant,
    /// A count that is under way, and since when. It outlives whoever waits for it.
    walk: Option<(Instant, JoinHandle<Option<LimitHit>>)>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("next", &self.next).field("walk", &self.walk).finish_non_exhaustive()
    }
}

type Count = Arc<dyn Fn() -> Option<LimitHit> + Send + Sync>;

impl Watch {
    pub fn new(bounds: &[Bound]) -> Self {
        let bounds = bounds.to_vec();
        let count = (!bounds.is_empty()).then(|| Arc::new(move || count(&bounds)) as Count);
        Self::of(count)
    }

    fn of(count: Option<Count>) -> Self {
        Self { count, next: tokio::time::Instant::now() + INTERVAL, walk: None }
    }

    /// Ends when the storage is over its bound; never, when there is no bound to watch. Safe to drop and call
    /// again: however often, there is one count at a time.
    pub async fn exceeded(&mut self) -> LimitHit {
        let Some(count) = &self.count else { return std::future::pending().await };
        loop {
            if self.walk.is_none() {
                tokio::time::sleep_until(self.next).await;
            }
            let (began, walk) = self.walk.get_or_insert_with(|| {
                let count = Arc::clone(count);
                (Instant::now(), tokio::task::spawn_blocking(move || count()))
            });
            let began = *began;
            let over = walk.await.unwrap_or(None);
            self.walk = None;
            self.next = tokio::time::Instant::now() + INTERVAL.max(began.elapsed() * DUTY);
            if let Some(over) = over {
                return over;
            }
        }
    }
}

/// Before a command: with a quota that is used up nothing starts.
pub async fn check(bounds: &[Bound]) -> Result<(), BackendError> {
    match asked_over(bounds).await {
        Some(LimitHit::Disk { used_bytes, limit_bytes }) => Err(BackendError::LimitExceeded {
            what: format!("the directory with {used_bytes} bytes"),
            limit: format!("its quota of {limit_bytes} bytes"),
        }),
        _ => Ok(()),
    }
}

/// After a command that was too quick to be caught: a quota that it has overrun.
pub async fn asked_over(bounds: &[Bound]) -> Option<LimitHit> {
    let asked: Vec<Bound> = bounds.iter().filter(|bound| bound.asked).cloned().collect();
    if asked.is_empty() { None } else { first_over(asked).await }
}

async fn first_over(bounds: Vec<Bound>) -> Option<LimitHit> {
    tokio::task::spawn_blocking(move || count(&bounds)).await.unwrap_or(None)
}

/// The first bound that is overrun. Blocks.
fn count(bounds: &[Bound]) -> Option<LimitHit> {
    bounds.iter().find_map(|bound| {
        let limit_bytes = bound.bytes;
        let used_bytes = used_bytes(&bound.directories).unwrap_or_else(|error| {
            tracing::warn!(%error, "a directory cannot be counted: it counts as over its bound");
            limit_bytes.saturating_add(1)
        });
        (used_bytes > limit_bytes).then_some(LimitHit::Disk { used_bytes, limit_bytes })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn a_watch_that_is_asked_often_counts_once_at_a_time() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (done, wait) = std::sync::mpsc::channel();
        let (counts, wait) = (Arc::new(AtomicU32::new(0)), Mutex::new(wait));
        let counted = Arc::clone(&counts);
        let count = move || {
            counted.fetch_add(1, Ordering::Relaxed);
            wait.lock().unwrap().recv().unwrap()
        };
        let mut watch = Watch::of(Some(Arc::new(count)));
        runtime.block_on(async {
            watch.next = tokio::time::Instant::now();
            for _ in 0..50 {
                let early = tokio::time::timeout(Duration::from_millis(1), watch.exceeded()).await;
                assert!(early.is_err());
            }
            assert_eq!(counts.load(Ordering::Relaxed), 1);
            let hit = LimitHit::Disk { used_bytes: 2, limit_bytes: 1 };
            done.send(None).unwrap();
            done.send(Some(hit.clone())).unwrap();
            assert_eq!(watch.exceeded().await, hit);
            assert_eq!(counts.load(Ordering::Relaxed), 2);
        });
    }
}
