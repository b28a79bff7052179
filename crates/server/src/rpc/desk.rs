//! Where requests of one connection are taken in and their replies handed out, whatever the transport.
//!
//! Each request is a task of its own, owned by the server and not by the connection: a client that leaves
//! does not undo what it asked for. Replies come in order of completion.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandcrate_protocol::framing::MAX_MESSAGE_BYTES;
use sandcrate_protocol::rpc::{BadFrame, Context, Frame, Request, Response};
use sandcrate_runtime::Admitted;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::actions::{self, Call};
use super::answer::{self, ActionError, Answer};
use super::dialect::{self, Dialect, is_brief};
use crate::tenancy::FenceError;
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

/// Calls of one connection of the newer dialects at once; the number stands in an answer that hosts know.
const TENANT_AT_ONCE: usize = 128;
/// Brief ones beside them.
const BRIEF_AT_ONCE: usize = 4;
/// Ends another call of the same connection.
const CANCEL: &str = "__cancel_action";
/// Says that a piece of a streamed reply has arrived.
const STREAM_ACK: &str = "__stream_ack";

#[derive(Debug)]
pub(super) struct Desk {
    app: App,
    identity: Arc<Identity>,
    replies: mpsc::Sender<Reply>,
    dialect: Dialect,
    slots: Arc<Semaphore>,
    /// For brief calls of a connection that is busy; newer dialects only.
    brief_slots: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    /// Calls that can be cancelled.
    running: Arc<Running>,
    /// That the last request taken in has done its first step.
    first_step: Option<oneshot::Receiver<()>>,
}

/// By `seq_id`: for whom it is, and how it is ended.
type Running = Mutex<HashMap<i64, (Option<Context>, CancellationToken)>>;

/// The right to take in one more request. Clients of the newer dialects have none before they are read: one request
/// too many is answered, where the first dialect waits.
#[derive(Debug)]
pub(super) struct Slot(#[expect(dead_code, reason = "held, never read")] Option<OwnedSemaphorePermit>);

impl Desk {
    pub(super) fn new(app: App, identity: Identity, dialect: Dialect) -> (Self, mpsc::Receiver<Reply>) {
        let (replies, written) = mpsc::channel(QUEUED_REPLIES);
        let slots = Arc::new(Semaphore::new(most_at_once(&app, dialect)));
        let desk = Self {
            app,
            identity: Arc::new(identity),
            replies,
            dialect,
            slots,
            brief_slots: Arc::new(Semaphore::new(BRIEF_AT_ONCE)),
            bytes: Arc::new(Semaphore::new(REQUEST_BYTES / BYTES_PER_UNIT)),
            running: Arc::default(),
            first_step: None,
        };
        (desk, written)
    }

    pub(super) fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Waits until one more request may be read. Nothing is read meanwhile: the peer feels it.
    pub(super) async fn slot(&self) -> Option<Slot> {
        match self.dialect {
            Dialect::First => self.slots.clone().acquire_owned().await.ok().map(|slot| Slot(Some(slot))),
            Dialect::Tenant => Some(Slot(None)),
        }
    }

    /// Room for a request of a newer dialect, if there is any now.
    fn slot_for(&self, action: &str) -> Option<Slot> {
        let slot = self.slots.clone().try_acquire_owned().ok();
        let slot = match slot {
            None if is_brief(action) => self.brief_slots.clone().try_acquire_owned().ok(),
            slot => slot,
        };
        slot.map(|slot| Slot(Some(slot)))
    }

    /// Serves one message; its reply appears at the other end when it is done.
    pub(super) async fn take(&mut self, slot: Slot, message: &str) {
        self.settle().await;
        let request = match Frame::parse(message) {
            Ok(Frame::Request(request)) => request,
            // Nobody here calls a client, so nobody waits for its answer.
            Ok(Frame::Response) => return,
            Err(bad) => return self.refuse(bad).await,
        };
        let (slot, context) = match self.dialect {
            Dialect::First => (slot, None),
            Dialect::Tenant => {
                let Some(slot) = self.slot_for(&request.action) else {
                    let most = most_at_once(&self.app, self.dialect);
                    let message = format!("Runtime connection is busy (max {most} concurrent actions)");
                    return self.refuse(BadFrame { seq_id: request.seq_id, message }).await;
                };
                let of_a_call = matches!(request.action.as_str(), CANCEL | STREAM_ACK);
                if !of_a_call && actions::find(self.dialect, &request.action).is_none() {
                    return self.refuse(request.unknown_action()).await;
                }
                match dialect::context(&self.app.tenancy, &request) {
                    Ok(context) => (slot, context),
                    Err(error) => {
                        let message = answer::for_tenant(error.message(), None);
                        return self.refuse(BadFrame { seq_id: request.seq_id, message }).await;
                    }
                }
            }
        };
        let of_a_call = match request.action.as_str() {
            // The reference has it since 4.10.7. It does no harm before that, and hosts of ours use it.
            CANCEL => Some(self.cancel(&request, context.as_ref())),
            STREAM_ACK if context.is_some() => Some(acknowledged(&request.data)),
            _ => None,
        };
        if let Some(result) = of_a_call {
            let _ = self.replies.send(answer::reply(request.seq_id, result, request.wants_kind)).await;
            return;
        }
        let Some(action) = actions::find(self.dialect, &request.action) else {
            return self.refuse(request.unknown_action()).await;
        };
        let units = u32::try_from(message.len().div_ceil(BYTES_PER_UNIT)).unwrap_or(u32::MAX);
        let Ok(bytes) = self.bytes.clone().acquire_many_owned(units).await else { return };
        // Last, and only for a request that is there: an idle connection takes nothing from the others.
        let Ok(place) = self.app.in_flight.clone().acquire_owned().await else { return };
        let (app, identity, replies) = (self.app.clone(), self.identity.clone(), self.replies.clone());
        let (dialect, running) = (self.dialect, self.running.clone());
        let work = Box::pin(async move {
            let _held = (slot, bytes, place);
            let reply = tokio::select! {
                reply = run(action, request, &app, &identity, dialect, context, &running) => reply,
                () = app.abort.cancelled() => return,
            };
            // A client that left does not miss it.
            let _ = replies.send(reply).await;
        });
        let (done, first_step) = oneshot::channel();
        self.first_step = Some(first_step);
        self.app.tasks.spawn(telling_first_step(work, done));
    }

    /// Returns when all that was taken in is under way: in its first step a request takes its turn in the session, and can
    /// be cancelled from then on. So it goes by the order of arrival.
    pub(super) async fn settle(&mut self) {
        if let Some(before) = self.first_step.take() {
            let _ = before.await;
        }
    }

    /// Ends a call of the same connection and the same workspace, if there is one.
    fn cancel(&self, request: &Request, context: Option<&Context>) -> Result<Answer, ActionError> {
        let seq_id = integer(&request.data, "seq_id");
        let seq_id = seq_id.ok_or(ActionError::Value("Cancellation requires an integer seq_id"))?;
        let running = locked(&self.running);
        let found = running.get(&seq_id).filter(|(theirs, _)| theirs.as_ref() == context);
        Ok(Answer::Cancelled { cancelled: found.inspect(|(_, end)| end.cancel()).is_some() })
    }

    /// Answers what could not be read.
    pub(super) async fn refuse(&self, bad: impl Into<BadFrame>) {
        let BadFrame { seq_id, message } = bad.into();
        tracing::debug!(error = message, "frame refused");
        let _ = self.replies.send(answer::failure(seq_id, message)).await;
    }
}

/// Runs `work`, and says when it has been polled once. It is polled first in its own task, not in the connection's: who
/// wakes two tasks at once wakes a second thread.
fn telling_first_step(
    mut work: Pin<Box<impl Future<Output = ()>>>,
    done: oneshot::Sender<()>,
) -> impl Future<Output = ()> {
    let mut done = Some(done);
    poll_fn(move |context| {
        let step = work.as_mut().poll(context);
        if let Some(done) = done.take() {
            let _ = done.send(());
        }
        step
    })
}

/// No action here streams its reply, so there is none whose pieces could be waited for.
fn acknowledged(data: &Value) -> Result<Answer, ActionError> {
    match integer(data, "seq_id").zip(integer(data, "index")) {
        Some(_) => Ok(Answer::Accepted { accepted: false }),
        None => Err(ActionError::Value("Stream acknowledgement requires integer sequence and index")),
    }
}

fn integer(data: &Value, key: &str) -> Option<i64> {
    data.get(key).and_then(Value::as_i64)
}

#[tracing::instrument(level = "debug", skip_all, fields(action = request.action))]
async fn run(
    action: actions::Action,
    request: Request,
    app: &App,
    identity: &Identity,
    dialect: Dialect,
    context: Option<Context>,
    running: &Running,
) -> Reply {
    let begin = tokio::time::Instant::now();
    let placement = context.as_ref().map(dialect::placement);
    let (runtime, data) = (&app.runtime, &request.data);
    let call = Call { app, runtime, identity, data, dialect, placement: placement.as_ref() };
    let granted = dialect::needs_grant(&request.action) && app.runtime.admission_policy().is_some();
    let result = match context {
        context if dialect::is_fenced(&request.action) && (context.is_some() || !granted) => {
            let listed = Listed::new(running, &request, context);
            tokio::select! {
                biased;
                () = listed.end.cancelled() => Err(ActionError::Cancelled),
                result = admitted(app, action, call, granted) => result,
            }
        }
        _ if granted => Err(ActionError::WithoutGrants),
        _ => action(call).await,
    };
    let mut reply = answer::reply(request.seq_id, result, request.wants_kind);
    if dialect == Dialect::Tenant && reply.code != 0 {
        reply.message = answer::for_tenant(reply.message, placement.as_ref());
    }
    let duration_ms = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
    tracing::debug!(duration_ms, code = reply.code, "action done");
    reply
}

/// A call for one workspace: where grants are required, one that has a grant, for as long as that lasts.
async fn admitted(
    app: &App,
    action: actions::Action,
    call: Call<'_>,
    granted: bool,
) -> Result<Answer, ActionError> {
    let Some(placement) = call.placement.filter(|_| granted) else { return fenced(app, action, call).await };
    let admitted = app.runtime.admit(placement).await?;
    tokio::select! {
        biased;
        () = admitted.over() => Err(Admitted::ended().into()),
        result = fenced(app, action, call) => result,
    }
}

/// A call for one workspace: of its newest generation, and answered when a newer one comes.
async fn fenced(app: &App, action: actions::Action, call: Call<'_>) -> Result<Answer, ActionError> {
    let Some(placement) = call.placement else { return action(call).await };
    let entered = app.tenancy.fence.enter(app, placement).await?;
    tokio::select! {
        biased;
        () = entered.over() => Err(FenceError::Stale.into()),
        result = action(call) => result,
    }
}

/// A call in the list of those that can be cancelled, for as long as it runs.
struct Listed<'a> {
    running: &'a Running,
    seq_id: Option<i64>,
    end: CancellationToken,
}

impl<'a> Listed<'a> {
    fn new(running: &'a Running, request: &Request, context: Option<Context>) -> Self {
        let (seq_id, end) = (request.seq_id.as_i64(), CancellationToken::new());
        if let Some(seq_id) = seq_id {
            locked(running).insert(seq_id, (context, end.clone()));
        }
        Self { running, seq_id, end }
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        if let Some(seq_id) = &self.seq_id {
            locked(self.running).remove(seq_id);
        }
    }
}

fn locked(running: &Running) -> MutexGuard<'_, HashMap<i64, (Option<Context>, CancellationToken)>> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

fn most_at_once(app: &App, dialect: Dialect) -> usize {
    let configured = app.config.limits.in_flight_per_connection;
    if dialect == Dialect::Tenant { configured.min(TENANT_AT_ONCE) } else { configured }
}
