//! The daemon's handle of a launcher: requests by box, replies sorted to whoever waits, and its end noticed.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandcrate_backend::BackendError;
use sandcrate_driver::{AsyncChannel, lock, step_failed};
use sandcrate_image::HeldImage;
use sandcrate_jail::cgroup::Confined;
use sandcrate_jail::message::{ConfineReply, FurnishOrder, LauncherConfig, LauncherReply, LauncherRequest};
use sandcrate_jail::{Channel, LauncherProcess, NetworkMode, NewLauncher, compile_policy};
use sandcrate_protocol::Enforcement;
use tokio::sync::{OnceCell, mpsc, watch};

use crate::images::image_root;
use crate::storage::Shelf;

/// A box gets at most: prepared or failed, furnished or failed, gone.
const REPLIES_PER_BOX: usize = 4;

/// To end boxes and remove their cgroups; a launcher that needs longer goes on without being watched.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// For a few files of a cgroup; the launcher may be making boxes meanwhile.
const CONFINE_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
enum State {
    Starting,
    Ready(Enforcement, Shelf),
    Dead(String),
}

type Reply = (LauncherReply, Vec<OwnedFd>);

#[derive(Debug)]
pub(crate) struct Launcher {
    channel: Arc<AsyncChannel>,
    state: watch::Receiver<State>,
    boxes: Arc<Mutex<HashMap<u64, mpsc::Sender<Reply>>>>,
    next_box: AtomicU64,
    /// Networks whose policy the launcher has.
    policies: Mutex<HashMap<NetworkMode, Arc<OnceCell<()>>>>,
}

/// What the launcher will say about one box.
#[derive(Debug)]
pub(crate) struct Replies(mpsc::Receiver<Reply>);

impl Launcher {
    pub(crate) fn start(new: NewLauncher, config: &LauncherConfig) -> Result<Self, BackendError> {
        let failed = |error| BackendError::failed("starting the launcher", error);
        let (process, channel) = new.configure(config).map_err(failed)?;
        let channel = Arc::new(AsyncChannel::new(channel).map_err(failed)?);
        let boxes = Arc::new(Mutex::new(HashMap::new()));
        let (tell, state) = watch::channel(State::Starting);
        // Owned by the channel: it ends when that is closed, here or on the other side.
        let directory = config.directory.clone();
        tokio::spawn(read(Arc::clone(&channel), Arc::clone(&boxes), tell, process, directory));
        Ok(Self { channel, state, boxes, next_box: AtomicU64::new(1), policies: Mutex::default() })
    }

    pub(crate) fn is_dead(&self) -> bool {
        matches!(*self.state.borrow(), State::Dead(_))
    }

    /// What holds for every box of this launcher; waits until it is up.
    pub(crate) async fn ready(&self) -> Result<Enforcement, BackendError> {
        let mut state = self.state.clone();
        let settled = state.wait_for(|state| !matches!(state, State::Starting)).await;
        match settled.map(|state| state.clone()) {
            Ok(State::Ready(enforcement, _)) => Ok(enforcement),
            Ok(State::Dead(why)) => Err(unavailable(why)),
            _ => Err(unavailable("the launcher ended")),
        }
    }

    /// The same, when it is up already.
    pub(crate) fn ready_now(&self) -> Option<Enforcement> {
        match &*self.state.borrow() {
            State::Ready(enforcement, _) => Some(enforcement.clone()),
            _ => None,
        }
    }

    /// Where its boxes have their storage, when it is up.
    pub(crate) fn shelf(&self) -> Result<Shelf, BackendError> {
        match &*self.state.borrow() {
            State::Ready(_, shelf) => Ok(shelf.clone()),
            _ => Err(unavailable("the launcher ended")),
        }
    }

    /// Asks for a new box; its first reply is `Prepared`.
    pub(crate) async fn prepare(
        &self,
        network: NetworkMode,
        image: Option<&HeldImage>,
        control: OwnedFd,
    ) -> Result<(u64, Replies), BackendError> {
        self.ensure_policy(network).await?;
        let box_id = self.next_box.fetch_add(1, Ordering::Relaxed);
        let (sender, replies) = mpsc::channel(REPLIES_PER_BOX);
        lock(&self.boxes).insert(box_id, sender);
        if self.is_dead() {
            // Whoever noticed has told those that were there before.
            lock(&self.boxes).remove(&box_id);
            return Err(unavailable("the launcher ended"));
        }
        let mut fds = vec![control.as_fd()];
        fds.extend(image.map(AsFd::as_fd));
        let image = image.map(image_root);
        self.request(&LauncherRequest::Prepare { box_id, network, image }, &fds).await?;
        Ok((box_id, Replies(replies)))
    }

    /// Sends the policy of a network, once. While the launcher starts it is compiled here, on another core.
    pub(crate) async fn ensure_policy(&self, network: NetworkMode) -> Result<(), BackendError> {
        // Whoever comes meanwhile waits: a box must not be asked for before its policy is there.
        let sent = Arc::clone(lock(&self.policies).entry(network).or_default());
        sent.get_or_try_init(|| self.send_policy(network)).await.copied()
    }

    async fn send_policy(&self, network: NetworkMode) -> Result<(), BackendError> {
        let filters = compile_policy(network).map_err(|error| {
            BackendError::failed("compiling the seccomp policy", std::io::Error::other(error))
        })?;
        self.request(&LauncherRequest::Policy { network, filters }, &[]).await
    }

    pub(crate) async fn furnish(
        &self,
        box_id: u64,
        order: FurnishOrder,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), BackendError> {
        self.request(&LauncherRequest::Furnish { box_id, order }, fds).await
    }

    pub(crate) async fn freeze(&self, box_id: u64, frozen: bool) -> Result<(), BackendError> {
        self.request(&LauncherRequest::Freeze { box_id, frozen }, &[]).await
    }

    /// Prepares a bound of memory for one command of the box.
    pub(crate) async fn confine(&self, box_id: u64, memory_bytes: u64) -> Result<Confined, BackendError> {
        let failed = |error| BackendError::failed("bounding a command's memory", error);
        let (ours, theirs) = Channel::pair().map_err(failed)?;
        let ours = AsyncChannel::new(ours).map_err(failed)?;
        self.request(&LauncherRequest::Confine { box_id, memory_bytes }, &[theirs.as_fd()]).await?;
        // Its own is the only one now: a launcher that ends is noticed.
        drop(theirs);
        let reply = tokio::time::timeout(CONFINE_LIMIT, ours.recv::<ConfineReply>()).await;
        match reply.map_err(|late| failed(late.into()))?.map_err(failed)? {
            Some((Ok(()), fds)) => {
                let mut fds = fds.into_iter();
                Ok(Confined { tasks: fds.next(), usage: fds.next() })
            }
            Some((Err(failure), _)) => Err(BackendError::no_process_memory(failure.step)),
            None => Err(unavailable("the launcher ended")),
        }
    }

    /// Ends the launcher and waits until it is gone.
    pub(crate) async fn close(&self) {
        self.channel.close();
        let mut state = self.state.clone();
        // The sender goes with the reader, after the launcher was waited for.
        let gone = async { while state.changed().await.is_ok() {} };
        let _ = tokio::time::timeout(CLOSE_LIMIT, gone).await;
    }

    async fn request(&self, request: &LauncherRequest, fds: &[BorrowedFd<'_>]) -> Result<(), BackendError> {
        self.channel
            .send(request, fds)
            .await
            .map_err(|error| unavailable(format!("the launcher is gone: {error}")))
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // The launcher sees the end of the channel and goes; so does the reader, which takes leave of it.
        self.channel.close();
    }
}

impl Replies {
    /// The next reply; an error when the step failed or the launcher is gone.
    pub(crate) async fn next(&mut self) -> Result<Reply, BackendError> {
        match self.0.recv().await {
            Some((LauncherReply::Failed { failure, .. }, _)) => Err(step_failed(&failure)),
            Some((LauncherReply::Gone { status, .. }, _)) => {
                Err(unavailable(format!("the box ended: {status}")))
            }
            Some(reply) => Ok(reply),
            None => Err(unavailable("the launcher ended")),
        }
    }

    /// Waits until the box is gone, with all its processes and cgroups.
    pub(crate) async fn gone(&mut self) -> String {
        loop {
            match self.0.recv().await {
                Some((LauncherReply::Gone { status, .. }, _)) => return status,
                Some(_) => {}
                None => return "the launcher ended".to_owned(),
            }
        }
    }
}

async fn read(
    channel: Arc<AsyncChannel>,
    boxes: Arc<Mutex<HashMap<u64, mpsc::Sender<Reply>>>>,
    tell: watch::Sender<State>,
    process: LauncherProcess,
    directory: PathBuf,
) {
    let why = loop {
        let (reply, fds) = match channel.recv::<LauncherReply>().await {
            Ok(Some(message)) => message,
            Ok(None) => break "the launcher ended".to_owned(),
            Err(error) => break format!("the launcher cannot be understood: {error}"),
        };
        let box_id = match &reply {
            LauncherReply::Ready { enforcement } => {
                let Some(seen) = fds.into_iter().next().map(Arc::new) else {
                    break "the launcher has no storage".to_owned();
                };
                let shelf = Shelf { directory: directory.join("boxes"), seen };
                tell.send_replace(State::Ready(enforcement.clone(), shelf));
                continue;
            }
            LauncherReply::Unusable { failure } => break failure.to_string(),
            LauncherReply::Prepared { box_id }
            | LauncherReply::Furnished { box_id }
            | LauncherReply::Failed { box_id, .. } => *box_id,
            LauncherReply::Gone { box_id, .. } => {
                if let Some(sender) = lock(&boxes).remove(box_id) {
                    let _ = sender.try_send((reply, fds));
                }
                continue;
            }
        };
        // Nobody waits for a box whose start was cancelled.
        if let Some(sender) = lock(&boxes).get(&box_id) {
            let _ = sender.try_send((reply, fds));
        }
    };
    tell.send_replace(State::Dead(why));
    lock(&boxes).clear();
    drop(channel);
    let last = move || {
        process.wait();
        // Made ahead, and nobody's now. What cannot be removed goes with the instance.
        let _ = std::fs::remove_dir_all(directory.join("spare"));
    };
    let _ = tokio::task::spawn_blocking(last).await;
    drop(tell);
}

pub(crate) fn unavailable(why: impl Into<String>) -> BackendError {
    BackendError::Unavailable { backend: crate::NAME, why: why.into() }
}
