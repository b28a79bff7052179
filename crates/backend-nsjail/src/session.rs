//! A live session: the nsjail that holds it, what runs in it, and its end.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandcrate_backend::{BackendError, SessionId};
use sandcrate_driver::pieces::MAX_DRAINS;
use sandcrate_driver::{AsyncChannel, Fittings, lock, on_disk};
use sandcrate_jail::cgroup::{BoxCgroup, CommandCgroup, Confined};
use tokio::process::Child;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::log::Log;
use crate::storage::Storage;

/// From the end of PID 1 to a gone box. Processes in uninterruptible sleep can hold it up.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// What a session is while it lives.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) fittings: Fittings,
    /// Box id of commands.
    pub(crate) user: u32,
    /// Bounds each process where no cgroup bounds the box.
    pub(crate) data_bytes: Option<u64>,
    pub(crate) tools: Arc<Tools>,
    /// nsjail's configuration for commands.
    pub(crate) configuration: OwnedFd,
    /// PID 1 of the box.
    pub(crate) holder: OwnedFd,
    /// Drivers of commands; they end with the session.
    pub(crate) tasks: Mutex<JoinSet<()>>,
    /// Pipes that children of ended commands keep open.
    pub(crate) drains: Arc<Semaphore>,
    /// Cgroups of ended commands that still have processes.
    leftovers: Mutex<Vec<CommandCgroup>>,
    next_task: AtomicU32,
    /// The box lives as long as this end is open.
    control: AsyncChannel,
    _log: Log,
    ended: watch::Receiver<bool>,
    /// It was told to end.
    ending: AtomicBool,
    pub(crate) ground: Ground,
}

/// What every command needs of the host.
#[derive(Debug)]
pub(crate) struct Tools {
    /// The file, opened once: what is at its path later does not matter.
    pub(crate) nsjail: File,
    /// This program, for the roles.
    pub(crate) program: File,
    pub(crate) program_path: PathBuf,
}

/// What is left of a box when its processes are gone. Dropped, it goes in the background.
#[derive(Debug, Default)]
pub(crate) struct Ground {
    pub(crate) cgroup: Option<BoxCgroup>,
    pub(crate) storage: Mutex<Option<Storage>>,
}

/// What a session's start has made.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) control: AsyncChannel,
    pub(crate) log: Log,
    pub(crate) nsjail: Child,
    pub(crate) holder: OwnedFd,
    pub(crate) configuration: OwnedFd,
    pub(crate) ground: Ground,
    pub(crate) user: u32,
    pub(crate) data_bytes: Option<u64>,
}

impl Session {
    pub(crate) fn new(fittings: Fittings, made: Made, tools: Arc<Tools>) -> Arc<Self> {
        let (end, ended) = watch::channel(false);
        let mut tasks = JoinSet::new();
        tasks.spawn(watch_over(made.nsjail, end));
        Arc::new(Self {
            fittings,
            user: made.user,
            data_bytes: made.data_bytes,
            tools,
            configuration: made.configuration,
            holder: made.holder,
            tasks: Mutex::new(tasks),
            drains: Arc::new(Semaphore::new(MAX_DRAINS)),
            leftovers: Mutex::default(),
            next_task: AtomicU32::new(1),
            control: made.control,
            _log: made.log,
            ended,
            ending: AtomicBool::new(false),
            ground: made.ground,
        })
    }

    pub(crate) fn id(&self) -> &SessionId {
        &self.fittings.id
    }

    pub(crate) fn next_task(&self) -> u32 {
        self.next_task.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn is_alive(&self) -> bool {
        !self.ending.load(Ordering::Acquire) && !*self.ended.borrow()
    }

    pub(crate) fn ended_error(&self) -> BackendError {
        BackendError::SessionEnded { session: self.id().clone(), why: "its box is gone".to_owned() }
    }

    /// The same, for a box whose kernel killed processes for memory just before.
    pub(crate) fn out_of_memory_error(&self) -> BackendError {
        let why = "the box ran out of memory and its PID 1 was ended; raise the memory limit".to_owned();
        BackendError::SessionEnded { session: self.id().clone(), why }
    }

    /// Runs a command's driver until it or the session ends.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// A cgroup for a command, where there is a v2 tree.
    pub(crate) fn command_cgroup(&self, task: u32) -> Result<Option<CommandCgroup>, BackendError> {
        self.clear_leftovers();
        let Some(run) = self.ground.cgroup.as_ref().and_then(BoxCgroup::run_dir) else { return Ok(None) };
        let made = CommandCgroup::create(run, task);
        made.map(Some).map_err(|error| BackendError::failed("making the command's cgroup", error))
    }

    /// Prepares a bound of memory for one command.
    pub(crate) fn confine(&self, memory_bytes: u64) -> Result<Confined, BackendError> {
        let cgroup = self.ground.cgroup.as_ref();
        let cgroup = cgroup.ok_or_else(|| BackendError::no_process_memory("the box has no cgroup"))?;
        cgroup.confine(memory_bytes).map_err(|error| BackendError::no_process_memory(error.chain()))
    }

    /// A command has ended; what it left in the background may still be in its cgroup.
    pub(crate) fn leave(&self, cgroup: CommandCgroup) {
        if cgroup.remove().is_err() {
            lock(&self.leftovers).push(cgroup);
        }
    }

    fn clear_leftovers(&self) {
        lock(&self.leftovers).retain(|cgroup| cgroup.remove().is_err());
    }

    /// Ends everything in the box. It does not wait.
    pub(crate) fn end_box(&self) {
        self.ending.store(true, Ordering::Release);
        self.control.close();
        if let Some(cgroup) = &self.ground.cgroup
            && let Err(error) = cgroup.kill()
        {
            tracing::warn!(session.id = self.id().as_str(), %error, "a box's processes cannot be killed");
        }
    }

    /// Ends the box and gives its files back. Returns when its processes and cgroups are gone.
    pub(crate) async fn take_down(self: &Arc<Self>) -> Result<Option<Storage>, BackendError> {
        self.end_box();
        let mut ended = self.ended.clone();
        let gone = tokio::time::timeout(STOP_LIMIT, ended.wait_for(|ended| *ended)).await.is_ok();
        if !gone {
            return Err(BackendError::Timeout { what: "ending the box".to_owned(), limit: STOP_LIMIT });
        }
        lock(&self.leftovers).clear();
        let session = Arc::clone(self);
        let removed = tokio::task::spawn_blocking(move || {
            session.ground.cgroup.as_ref().map_or(Ok(()), BoxCgroup::remove)
        });
        let removed = removed.await.map_err(std::io::Error::other);
        removed
            .and_then(|removed| removed.map_err(std::io::Error::other))
            .map_err(|error| BackendError::failed("removing the session's cgroups", error))?;
        Ok(lock(&self.ground.storage).take())
    }

    /// The same, and removes its files.
    pub(crate) async fn stop(self: &Arc<Self>) -> Result<(), BackendError> {
        let Some(storage) = self.take_down().await? else { return Ok(()) };
        let removed = on_disk(move || storage.remove()).await;
        removed.map_err(|error| BackendError::failed("removing the session's files", error))
    }
}

/// The session's nsjail ends with PID 1 of its box.
async fn watch_over(mut nsjail: Child, end: watch::Sender<bool>) {
    let _ = nsjail.wait().await;
    end.send_replace(true);
}

impl Drop for Ground {
    fn drop(&mut self) {
        let (cgroup, storage) = (self.cgroup.take(), lock(&self.storage).take());
        let clear = move || {
            if let Some(cgroup) = cgroup {
                // What is left of either is swept by a later instance.
                let _ = cgroup.kill();
                let _ = cgroup.remove();
            }
            storage.map(|storage| storage.remove())
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(clear)),
            Err(_) => drop(clear()),
        }
    }
}
