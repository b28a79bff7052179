//! The newest generation of each workspace. A newer one ends the calls and the sessions of those before it, and
//! goes on only when they are gone.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sandcrate_runtime::Placement;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::App;

#[derive(Debug, Default)]
pub(crate) struct Fence {
    /// By the name of the workspace. In memory alone: a host says its generation with every call.
    reigns: Mutex<HashMap<String, Reign>>,
}

/// One generation, while it is the newest.
#[derive(Debug, Clone)]
struct Reign {
    generation: u64,
    /// Set when a newer one came.
    over: CancellationToken,
    /// Its calls under way.
    calls: TaskTracker,
    /// Set when nothing of the older ones is left.
    cleared: CancellationToken,
}

/// A call that is under way. While this lives, a newer generation waits.
#[derive(Debug)]
pub(crate) struct Entered {
    over: CancellationToken,
    _counted: TaskTrackerToken,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FenceError {
    /// A newer generation is known.
    Stale,
    /// As many workspaces as may be remembered are.
    Full { limit: usize },
}

impl Entered {
    /// Ends when a newer generation came.
    pub(crate) async fn over(&self) {
        self.over.cancelled().await;
    }
}

impl Fence {
    /// Lets a call of the newest generation in; one that is newer still becomes the newest first.
    pub(crate) async fn enter(&self, app: &App, placement: &Placement) -> Result<Entered, FenceError> {
        let limit = app.runtime.box_limits().max_admission_records;
        let (reign, counted, before) = self.take_in(placement, limit)?;
        if let Some(before) = before {
            let (runtime, placement, reign) = (app.runtime.clone(), placement.clone(), reign.clone());
            app.tasks.spawn(async move {
                if let Before::Reign(old) = before {
                    old.calls.close();
                    old.calls.wait().await;
                }
                runtime.end_older(&placement).await;
                reign.cleared.cancel();
            });
        }
        tokio::select! {
            biased;
            () = reign.over.cancelled() => Err(FenceError::Stale),
            () = reign.cleared.cancelled() => Ok(Entered { over: reign.over, _counted: counted }),
        }
    }

    fn take_in(
        &self,
        placement: &Placement,
        limit: usize,
    ) -> Result<(Reign, TaskTrackerToken, Option<Before>), FenceError> {
        let mut reigns = self.reigns();
        let known = reigns.get(placement.workspace()).cloned();
        let before = match known {
            Some(known) if known.generation > placement.generation() => return Err(FenceError::Stale),
            Some(known) if known.generation == placement.generation() => {
                let counted = known.calls.token();
                return Ok((known, counted, None));
            }
            Some(known) => {
                known.over.cancel();
                Before::Reign(known)
            }
            None if reigns.len() >= limit => return Err(FenceError::Full { limit }),
            None => Before::Nothing,
        };
        let reign = Reign {
            generation: placement.generation(),
            over: CancellationToken::new(),
            calls: TaskTracker::new(),
            cleared: CancellationToken::new(),
        };
        reigns.insert(placement.workspace().to_owned(), reign.clone());
        let counted = reign.calls.token();
        Ok((reign, counted, Some(before)))
    }

    /// Whether a newer generation than this is known.
    pub(crate) fn is_past(&self, placement: &Placement) -> bool {
        let reigns = self.reigns();
        reigns.get(placement.workspace()).is_some_and(|reign| reign.generation > placement.generation())
    }

    /// Whether an action has made exactly this generation the newest.
    pub(crate) fn is_current(&self, placement: &Placement) -> bool {
        let reigns = self.reigns();
        reigns.get(placement.workspace()).is_some_and(|reign| reign.generation == placement.generation())
    }

    fn reigns(&self) -> MutexGuard<'_, HashMap<String, Reign>> {
        self.reigns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What there was when a generation became the newest.
#[derive(Debug)]
enum Before {
    Nothing,
    Reign(Reign),
}
