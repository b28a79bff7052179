//! Where requests of one connection are taken in and their replies handed out, whatever the transport.
//!
//! Each request is a task of its own, owned by the server and not by the connection: a client that leaves
//! does not undo what it asked for. Replies come in order of completion.

use std::sync::Arc;

use sandcrate_protocol::framing::MAX_MESSAGE_BYTES;
use sandcrate_protocol::rpc::{BadFrame, Frame, Request, Response};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::actions::{self, Call};
use super::answer::{self, Answer};
use crate::{App, Identity};

/// A reply that waits to be written.
pub(super) type Reply = Response<Answer>;

/// Replies that wait for the writer. Few: each can hold 2 MiB of output, and a task that cannot hand over
/// its reply keeps its slot, which stops the reading.
const QUEUED_REPLIES: usize = 8;
/// Bytes of requests of one connection under way: a few of the longest, many thousands of the usual.
const REQUEST_BYTES: usize = 4 * MAX_MESSAGE_BYTES;
/// What the byte budget counts in, so that its counter does not limit it.
const BYTES_PER_UNIT: usize = 1024;

#[derive(Debug)]
pub(super) struct Desk {
    app: App,
    identity: Arc<Identity>,
    replies: mpsc::Sender<Reply>,
    slots: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

/// The right to take in one more request.
#[derive(Debug)]
pub(super) struct Slot(#[expect(dead_code, reason = "held, never read")] OwnedSemaphorePermit);

impl Desk {
    pub(super) fn new(app: App, identity: Identity) -> (Self, mpsc::Receiver<Reply>) {
        let (replies, written) = mpsc::channel(QUEUED_REPLIES);
        let slots = Arc::new(Semaphore::new(app.config.limits.in_flight_per_connection));
        let bytes = Arc::new(Semaphore::new(REQUEST_BYTES / BYTES_PER_UNIT));
        (Self { app, identity: Arc::new(identity), replies, slots, bytes }, written)
    }

    /// Waits until one more request may be read. Nothing is read meanwhile: the peer feels it.
    pub(super) async fn slot(&self) -> Option<Slot> {
        self.slots.clone().acquire_owned().await.ok().map(Slot)
    }

    /// Serves one message; its reply appears at the other end when it is done.
    pub(super) async fn take(&self, slot: Slot, message: &str) {
        let request = match Frame::parse(message) {
            Ok(Frame::Request(request)) => request,
            // Nobody here calls a client, so nobody waits for its answer.
            Ok(Frame::Response) => return,
            Err(bad) => return self.refuse(bad).await,
        };
        let Some(action) = actions::find(&request.action) else {
            return self.refuse(request.unknown_action()).await;
        };
        let units = u32::try_from(message.len().div_ceil(BYTES_PER_UNIT)).unwrap_or(u32::MAX);
        let Ok(bytes) = self.bytes.clone().acquire_many_owned(units).await else { return };
        // Last, and only for a request that is there: an idle connection takes nothing from the others.
        let Ok(place) = self.app.in_flight.clone().acquire_owned().await else { return };
        let (app, identity, replies) = (self.app.clone(), self.identity.clone(), self.replies.clone());
        let mut work = Box::pin(async move {
            let _held = (slot, bytes, place);
            let reply = tokio::select! {
                reply = run(action, request, &app, &identity) => reply,
                () = app.abort.cancelled() => return,
            };
            // A client that left does not miss it.
            let _ = replies.send(reply).await;
        });
        // The first step here, in the order of arrival: commands of a session take their turns in that order.
        if futures_util::poll!(work.as_mut()).is_pending() {
            self.app.tasks.spawn(work);
        }
    }

    /// Answers what could not be read.
    pub(super) async fn refuse(&self, bad: impl Into<BadFrame>) {
        let BadFrame { seq_id, message } = bad.into();
        tracing::debug!(error = message, "frame refused");
        let _ = self.replies.send(answer::failure(seq_id, message)).await;
    }
}

#[tracing::instrument(level = "debug", skip_all, fields(action = request.action))]
async fn run(action: actions::Action, request: Request, app: &App, identity: &Identity) -> Reply {
    let begin = tokio::time::Instant::now();
    let result = action(Call { runtime: &app.runtime, identity, data: &request.data }).await;
    let reply = answer::reply(request.seq_id, result);
    let duration_ms = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
    tracing::debug!(duration_ms, code = reply.code, "action done");
    reply
}
