//! The connection to a box's init: who waits for what it says, and what its commands go by.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandcrate_backend::{BackendError, Limits, SessionId};
use sandcrate_jail::cgroup::{Confined, UsageReader};
use sandcrate_jail::message::{Failure, InitReply, InitRequest};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;

use crate::accountant::Bound;
use crate::channel::AsyncChannel;
use crate::lock::lock;
use crate::network::BoxNetwork;
use crate::pipes::PipeMaker;

/// A command gets at most: its terminal, why it did not start, its end; a file operation its outcome.
const REPLIES_PER_TASK: usize = 4;
/// Leftover pipes drained for a session; beyond it they are closed.
pub const MAX_DRAINS: usize = 64;

/// For one request; an init that lives takes it at once.
const SEND_LIMIT: Duration = Duration::from_secs(5);

pub(crate) type InitMessage = (InitReply, Vec<OwnedFd>);

/// A backend's session, as far as its commands need it.
pub trait LiveBox: Send + Sync + 'static {
    fn link(&self) -> &BoxLink;

    /// Ends everything in the box, whatever its init does.
    fn end(&self);

    /// Stops or continues all processes of the box, where the backend can.
    fn freeze(&self, frozen: bool) -> impl Future<Output = ()> + Send;

    /// Prepares a bound of memory for one command.
    fn confine(&self, _memory_bytes: u64) -> impl Future<Output = Result<Confined, BackendError>> + Send {
        let why = format!("the {} backend has no bound for one process", self.link().fittings.backend);
        async move { Err(BackendError::no_process_memory(why)) }
    }

    /// The error for whoever still wanted something of a box that is gone.
    fn ended_error(&self) -> BackendError;
}

/// What a box's commands go by.
#[derive(Debug)]
pub struct Fittings {
    pub backend: &'static str,
    pub id: SessionId,
    pub env: Vec<(String, String)>,
    pub workdir: String,
    pub limits: Limits,
    pub home: String,
    pub pipes: PipeMaker,
    pub usage: UsageReader,
    /// Of an isolated network.
    pub network: Option<Arc<BoxNetwork>>,
    /// Directories whose size has to be watched, and the bound.
    pub accounted: Vec<Bound>,
}

/// A live box's init, and everything that runs because of it.
#[derive(Debug)]
pub struct BoxLink {
    pub fittings: Fittings,
    control: Arc<AsyncChannel>,
    routes: Arc<Routes>,
    next_task: AtomicU32,
    /// The router and the drivers of commands; they end with the session.
    tasks: Mutex<JoinSet<()>>,
    /// Pipes that children of ended commands keep open.
    pub(crate) drains: Arc<Semaphore>,
}

/// Who waits for what init says.
#[derive(Debug)]
struct Routes {
    waiting: Mutex<HashMap<u32, mpsc::Sender<InitMessage>>>,
    ended: watch::Sender<bool>,
}

impl BoxLink {
    /// Takes over the channel of an init that is configured.
    pub fn new(control: AsyncChannel, fittings: Fittings) -> Self {
        let control = Arc::new(control);
        let routes = Arc::new(Routes { waiting: Mutex::default(), ended: watch::channel(false).0 });
        let mut tasks = JoinSet::new();
        tasks.spawn(route(Arc::clone(&control), Arc::clone(&routes)));
        Self {
            fittings,
            control,
            routes,
            next_task: AtomicU32::new(1),
            tasks: Mutex::new(tasks),
            drains: Arc::new(Semaphore::new(MAX_DRAINS)),
        }
    }

    /// True until the channel has ended.
    pub fn is_open(&self) -> bool {
        !*self.routes.ended.borrow()
    }

    /// Returns when the channel has ended, which is when init has.
    pub async fn ended(&self) {
        let mut ended = self.routes.ended.subscribe();
        // The sender lives as long as we do.
        let _ = ended.wait_for(|ended| *ended).await;
    }

    /// Ends the channel: an init without one ends itself and the box.
    pub fn close(&self) {
        self.control.close();
    }

    /// A new task's number and where its replies arrive.
    pub(crate) fn new_task(&self) -> (u32, mpsc::Receiver<InitMessage>) {
        let task = self.next_task.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = mpsc::channel(REPLIES_PER_TASK);
        let mut waiting = lock(&self.routes.waiting);
        // Looked at under the lock: whoever ends the routes clears them under it afterwards.
        if !*self.routes.ended.borrow() {
            waiting.insert(task, sender);
        }
        (task, receiver)
    }

    pub(crate) fn forget_task(&self, task: u32) {
        lock(&self.routes.waiting).remove(&task);
    }

    /// Sends a request. An init that is gone shows in the replies too. One that does not read what it is sent loses
    /// the channel, and with it the box.
    pub(crate) async fn send(&self, request: &InitRequest, fds: &[BorrowedFd<'_>]) -> std::io::Result<()> {
        match tokio::time::timeout(SEND_LIMIT, self.control.send(request, fds)).await {
            Ok(sent) => sent,
            Err(late) => {
                tracing::warn!("a box's init takes no requests; its channel is closed");
                self.close();
                Err(late.into())
            }
        }
    }

    /// Runs a command's driver until it or the session ends.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// The error of a box that is gone, for one whose kernel killed processes for memory just before.
    pub(crate) fn out_of_memory_error(&self) -> BackendError {
        let why = "the box ran out of memory and its init was ended; raise the memory limit".to_owned();
        BackendError::SessionEnded { session: self.fittings.id.clone(), why }
    }
}

/// Hands init's messages to whoever waits for them, until init is gone.
async fn route(control: Arc<AsyncChannel>, routes: Arc<Routes>) {
    while let Ok(Some((reply, fds))) = control.recv::<InitReply>().await {
        let (task, last) = match &reply {
            InitReply::Terminal { id } | InitReply::StartFailed { id, .. } => (*id, false),
            InitReply::Exited { id, .. } | InitReply::FileDone { id, .. } => (*id, true),
            InitReply::Failed { failure } => {
                tracing::warn!(error = %failure, "a box's init has failed");
                continue;
            }
            InitReply::Prepared | InitReply::Configured { .. } => continue,
        };
        let mut waiting = lock(&routes.waiting);
        if let Some(sender) = waiting.get(&task) {
            let _ = sender.try_send((reply, fds));
        }
        if last {
            waiting.remove(&task);
        }
    }
    routes.ended.send_replace(true);
    // Whoever waits learns it by the end of his queue.
    lock(&routes.waiting).clear();
}

/// Sends a request to a box that must be there.
pub(crate) async fn request_of<B: LiveBox>(
    session: &B,
    request: &InitRequest,
    fds: &[BorrowedFd<'_>],
) -> Result<(), BackendError> {
    session.link().send(request, fds).await.map_err(|_| session.ended_error())
}

/// A step of init's, or of whoever made the box, that failed.
pub fn step_failed(failure: &Failure) -> BackendError {
    BackendError::failed(failure.step.clone(), std::io::Error::from_raw_os_error(failure.errno))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandcrate_jail::Channel;

    #[tokio::test(start_paused = true)]
    async fn an_init_that_does_not_read_loses_its_channel() {
        let (ours, theirs) = Channel::pair().unwrap();
        let fittings = Fittings {
            backend: "test",
            id: SessionId::new("x").unwrap(),
            env: Vec::new(),
            workdir: "/".to_owned(),
            limits: Limits::default(),
            home: "/".to_owned(),
            pipes: PipeMaker::default(),
            usage: UsageReader::new(Vec::new()),
            network: None,
            accounted: Vec::new(),
        };
        let link = BoxLink::new(AsyncChannel::new(ours).unwrap(), fittings);
        let refused = loop {
            // What the socket holds is taken.
            if let Err(error) = link.send(&InitRequest::Kill { id: 1 }, &[]).await {
                break error;
            }
        };
        assert_eq!(refused.kind(), std::io::ErrorKind::TimedOut);
        link.ended().await;
        assert!(!link.is_open());
        drop(theirs);
    }
}
