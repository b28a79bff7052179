//! Boxes before they belong to a session: made one at a time, or kept ready.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Signal, pidfd_send_signal};
use sandcrate_backend::BackendError;
use sandcrate_driver::{AsyncChannel, lock, step_failed};
use sandcrate_image::HeldImage;
use sandcrate_jail::cgroup::UsageReader;
use sandcrate_jail::message::InitReply;
use sandcrate_jail::{Channel, NetworkMode};

use crate::launcher::{Launcher, Replies, unavailable};

/// A box whose init waits for a session's plan. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct PreparedBox {
    pub(crate) launcher: Arc<Launcher>,
    pub(crate) box_id: u64,
    pub(crate) replies: Replies,
    pub(crate) control: AsyncChannel,
    pub(crate) life: Life,
    pub(crate) usage: UsageReader,
}

/// Kills the box's init, and with it everything in the box, when dropped.
#[derive(Debug)]
pub(crate) struct Life(OwnedFd);

impl Life {
    pub(crate) fn end(&self) {
        // One that has ended already is no matter.
        let _ = pidfd_send_signal(&self.0, Signal::KILL);
    }

    /// Init's number, as this process counts; 0 where it cannot be told.
    pub(crate) fn pid(&self) -> i32 {
        let facts = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", self.0.as_raw_fd()));
        let facts = facts.unwrap_or_default();
        let told = facts.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok());
        told.unwrap_or(0).max(0)
    }

    /// Readable when init has ended.
    pub(crate) fn is_over(&self) -> bool {
        let mut ready = [rustix::event::PollFd::new(&self.0, rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut ready, Some(&now)).is_ok_and(|count| count > 0)
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.end();
    }
}

/// A box that has been asked for: what comes next can be sent right behind.
#[derive(Debug)]
pub(crate) struct NascentBox {
    launcher: Arc<Launcher>,
    box_id: u64,
    replies: Replies,
    control: AsyncChannel,
}

impl NascentBox {
    pub(crate) async fn ask(
        launcher: Arc<Launcher>,
        network: NetworkMode,
        image: Option<&HeldImage>,
    ) -> Result<Self, BackendError> {
        let failed = |error| BackendError::failed("making init's channel", error);
        let (ours, theirs) = Channel::pair().map_err(failed)?;
        let control = AsyncChannel::new(ours).map_err(failed)?;
        let (box_id, replies) = launcher.prepare(network, image, OwnedFd::from(theirs)).await?;
        Ok(Self { launcher, box_id, replies, control })
    }

    /// Waits until init lives. It may still be preparing: what is sent to it now is read when it is done.
    pub(crate) async fn born(mut self) -> Result<PreparedBox, BackendError> {
        let (_, fds) = self.replies.next().await?;
        let mut fds = fds.into_iter();
        let life = Life(fds.next().ok_or_else(|| unavailable("the launcher sent no pidfd"))?);
        let usage = UsageReader::new(fds.collect());
        let Self { launcher, box_id, replies, control } = self;
        Ok(PreparedBox { launcher, box_id, replies, control, life, usage })
    }
}

impl PreparedBox {
    pub(crate) async fn make(launcher: Arc<Launcher>, network: NetworkMode) -> Result<Self, BackendError> {
        let born = NascentBox::ask(launcher, network, None).await?.born().await?;
        match born.control.recv::<InitReply>().await {
            Ok(Some((InitReply::Prepared, _))) => Ok(born),
            Ok(Some((InitReply::Failed { failure }, _))) => Err(step_failed(&failure)),
            _ => Err(unavailable("the box's init ended while it was being prepared")),
        }
    }
}

/// A box for a session: of the pool, or on its way. What a session needs of the launcher can be asked for right
/// behind: it furnishes while init prepares.
#[derive(Debug)]
pub(crate) enum AskedBox {
    Ready(PreparedBox),
    Nascent(NascentBox),
}

impl AskedBox {
    pub(crate) fn box_id(&self) -> u64 {
        match self {
            Self::Ready(ready) => ready.box_id,
            Self::Nascent(nascent) => nascent.box_id,
        }
    }

    pub(crate) async fn born(self) -> Result<PreparedBox, BackendError> {
        match self {
            Self::Ready(ready) => Ok(ready),
            Self::Nascent(nascent) => nascent.born().await,
        }
    }
}

/// Longer than a first command takes to start. A session that took a box is about to use it, and making another
/// takes a core: boxes are made when none has been taken for so long, and the first one after so long for each that is
/// missing: sessions that came at once share the cores for their first commands.
const FILL_PAUSE: Duration = Duration::from_millis(5);
const FILL_PAUSE_EACH: Duration = Duration::from_millis(1);

/// Boxes made ahead of time, off the path of requests.
#[derive(Debug)]
pub(crate) struct Pool {
    size: usize,
    state: Mutex<PoolState>,
}

#[derive(Debug, Default)]
struct PoolState {
    ready: VecDeque<PreparedBox>,
    taken: Option<Instant>,
    /// Being made by the one filler.
    filling: bool,
    /// Boxes are no longer wanted.
    closed: bool,
}

impl Pool {
    pub(crate) fn new(size: usize) -> Self {
        Self { size, state: Mutex::default() }
    }

    /// A ready box of this launcher, if there is one.
    pub(crate) fn take(&self, launcher: &Arc<Launcher>) -> Option<PreparedBox> {
        let mut state = lock(&self.state);
        while let Some(ready) = state.ready.pop_front() {
            // Those of a launcher that died are dead too.
            if Arc::ptr_eq(&ready.launcher, launcher) && !ready.life.is_over() {
                state.taken = Some(Instant::now());
                return Some(ready);
            }
        }
        None
    }

    /// Makes boxes until the pool is full. One filler at a time; the caller owns the task that runs it.
    pub(crate) async fn fill(&self, launcher: Arc<Launcher>) {
        if std::mem::replace(&mut lock(&self.state).filling, true) {
            return;
        }
        self.rest(self.missing_pause()).await;
        // Boxes of the pool can have an isolated network or none, as the session that claims them wants: they have
        // the filters that the launcher has when it makes them.
        let policies = async {
            launcher.ensure_policy(NetworkMode::Off).await?;
            launcher.ensure_policy(NetworkMode::Isolated).await
        };
        if let Err(error) = policies.await {
            tracing::warn!(error = &error as &dyn std::error::Error, "the pool is not filled");
            lock(&self.state).filling = false;
            return;
        }
        while self.wants_more() {
            self.rest(FILL_PAUSE).await;
            match PreparedBox::make(Arc::clone(&launcher), NetworkMode::Isolated).await {
                Ok(made) => lock(&self.state).ready.push_back(made),
                Err(error) => {
                    // The next session makes its own box and tells its caller why that fails. At the end there is
                    // none, and the launcher is meant to go.
                    if self.wants_more() {
                        tracing::warn!(error = &error as &dyn std::error::Error, "a box cannot be prepared");
                    }
                    break;
                }
            }
        }
        lock(&self.state).filling = false;
    }

    fn missing_pause(&self) -> Duration {
        let missing = u32::try_from(self.size.saturating_sub(lock(&self.state).ready.len()));
        FILL_PAUSE.max(FILL_PAUSE_EACH.saturating_mul(missing.unwrap_or(u32::MAX)))
    }

    /// Waits until no box has been taken for so long.
    async fn rest(&self, pause: Duration) {
        loop {
            let taken = lock(&self.state).taken;
            let left = taken.map_or(Duration::ZERO, |taken| pause.saturating_sub(taken.elapsed()));
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left).await;
        }
    }

    pub(crate) fn wants_filling(&self) -> bool {
        !lock(&self.state).filling && self.wants_more()
    }

    fn wants_more(&self) -> bool {
        let state = lock(&self.state);
        !state.closed && state.ready.len() < self.size
    }

    /// Ends what is ready, for good.
    pub(crate) fn close(&self) {
        // Dropped outside the lock.
        let ready = {
            let mut state = lock(&self.state);
            state.closed = true;
            std::mem::take(&mut state.ready)
        };
        drop(ready);
    }
}

impl AsFd for Life {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}
