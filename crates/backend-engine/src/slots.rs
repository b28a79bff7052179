//! What stands for a session's id, and who waits for a box.

use std::sync::Arc;

use sandcrate_backend::{BackendError, SessionInfo};
use tokio::sync::{oneshot, watch};

use crate::session::Session;
use crate::storage::Storage;

#[derive(Debug)]
pub(crate) enum Slot {
    Starting(Starting),
    Live(Arc<Session>),
    /// No box: a restart failed. The files wait for the next one, or for the end of the session.
    Kept(Storage),
}

/// A box that is being made.
#[derive(Debug)]
pub(crate) struct Starting {
    /// Tells it from a later start of the same id.
    pub(crate) number: u64,
    /// Whether somebody waits for it.
    pub(crate) wanted: bool,
    /// Whether it has files of an earlier box, to be kept when it fails.
    pub(crate) keeps: bool,
}

impl Slot {
    /// Whether this is the start with that number.
    pub(crate) fn is_start(&self, number: u64) -> bool {
        matches!(self, Self::Starting(start) if start.number == number)
    }
}

/// Where the outcome of a start goes.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) outcome: oneshot::Sender<Result<SessionInfo, BackendError>>,
    pub(crate) closing: watch::Receiver<bool>,
}

impl Caller {
    /// Returns when nobody waits any more, or all is being shut down.
    pub(crate) async fn gone(&mut self) {
        tokio::select! {
            () = self.outcome.closed() => {}
            // Without a sender there is no backend any more.
            _ = self.closing.wait_for(|closing| *closing) => {}
        }
    }
}
