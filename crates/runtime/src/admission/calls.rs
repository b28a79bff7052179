//! Calls that a grant allows, counted: when the grant ends they are ended, waited for, and only then followed by
//! those of the next.

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::RuntimeError;

/// The calls of one grant, and of those that renew it.
#[derive(Debug, Clone, Default)]
pub(super) struct Calls {
    over: CancellationToken,
    under_way: TaskTracker,
    /// Set when nothing of the grants before is left.
    cleared: CancellationToken,
}

/// A call that is under way. While this lives, the end of its grant is not through.
#[derive(Debug)]
pub struct Admitted {
    over: CancellationToken,
    _counted: TaskTrackerToken,
}

/// The end of a grant.
#[derive(Debug)]
pub(super) struct Ending {
    old: Option<Calls>,
    next: Option<Calls>,
}

impl Admitted {
    /// Ends when the grant has.
    pub async fn over(&self) {
        self.over.cancelled().await;
    }

    /// What a call is told that its grant's end has ended.
    pub fn ended() -> RuntimeError {
        RuntimeError::admission("Sandbox admission grant ended while the action ran")
    }
}

impl Calls {
    /// Waits until what was before has gone.
    pub(super) async fn enter(self) -> Result<Admitted, RuntimeError> {
        let counted = self.under_way.token();
        tokio::select! {
            biased;
            () = self.over.cancelled() => Err(Admitted::ended()),
            () = self.cleared.cancelled() => Ok(Admitted { over: self.over, _counted: counted }),
        }
    }
}

impl Ending {
    /// Ends the calls of one grant, if there is one; those of the next wait for [`Self::cleared`].
    pub(super) fn of(old: Option<Calls>, next: Option<Calls>) -> Self {
        if let Some(old) = &old {
            old.over.cancel();
        }
        Self { old, next }
    }

    /// Waits for the calls that were under way.
    pub(super) async fn ended(&self) {
        if let Some(old) = &self.old {
            old.under_way.close();
            old.under_way.wait().await;
        }
    }

    pub(super) fn cleared(self) {
        if let Some(next) = self.next {
            next.cleared.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn calls_of_the_next_grant_wait_for_those_of_the_last() {
        let (first, second) = (Calls::default(), Calls::default());
        Ending::of(None, Some(first.clone())).cleared();
        let under_way = first.clone().enter().await.unwrap();
        let ending = Ending::of(Some(first.clone()), Some(second.clone()));
        under_way.over().await;
        assert!(first.enter().await.is_err(), "nothing begins in a grant that is over");
        let waiting = tokio::spawn(second.enter());
        let moment = Duration::from_secs(1);
        assert!(tokio::time::timeout(moment, ending.ended()).await.is_err(), "one is still under way");
        assert!(!waiting.is_finished());
        drop(under_way);
        ending.ended().await;
        ending.cleared();
        waiting.await.unwrap().unwrap();
    }
}
