//! Isolated networks: one helper process for all boxes of this backend, and each box's part in it.
//!
//! [`Networks`] starts an owner task with the first isolated session. The task alone talks to the helper: it holds
//! every box's device and configuration, so that a helper that dies can be replaced without asking anybody. A
//! session has a [`BoxNetwork`], whose end is the end of its network.

mod connections;
mod device;
mod helper;
mod ledger;
mod owner;
mod surroundings;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{Access, FileType, access, major, minor, stat};
use sandcrate_backend::{BackendError, ExecEvent, Isolation, NetworkReport};
use sandcrate_jail::Interface;
use sandcrate_net::{Addressing, BoxId, NetworkConfig};
use sandcrate_protocol::network::{Counters, Denial};
use sandcrate_protocol::{Control, Enforcement};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::lock::lock;
pub use device::make_device_in;
use ledger::Ledger;
use owner::{Ask, Departed};

/// Requests that wait for the owner; whoever comes later waits for a place.
const QUEUED_ASKS: usize = 64;
/// For a helper that has to be started, or started again.
const PATIENCE: Duration = Duration::from_secs(15);
/// What a command's result waits for its last denials.
const SETTLE_LIMIT: Duration = Duration::from_millis(500);
const DEVICE: &str = "/dev/net/tun";
/// linux/major.h, linux/miscdevice.h.
const DEVICE_NUMBER: (u32, u32) = (10, 200);

/// The isolated networks of this backend.
#[derive(Debug)]
pub struct Networks {
    backend: &'static str,
    program: PathBuf,
    next: AtomicU64,
    owner: Mutex<Option<Owner>>,
}

#[derive(Debug)]
struct Owner {
    asks: mpsc::Sender<Ask>,
    departed: Arc<Departed>,
    task: JoinHandle<()>,
}

impl Networks {
    /// `program` calls `dispatch_role` first thing.
    pub fn new(backend: &'static str, program: PathBuf) -> Self {
        Self { backend, program, next: AtomicU64::new(1), owner: Mutex::default() }
    }

    /// Has the helper start while the box is made.
    pub fn wake(&self) {
        let _ = self.handles();
    }

    fn handles(&self) -> (mpsc::Sender<Ask>, Arc<Departed>) {
        let mut owner = lock(&self.owner);
        let owner = owner.get_or_insert_with(|| {
            let (asks, queue) = mpsc::channel(QUEUED_ASKS);
            let departed = Arc::new(Departed::default());
            let task = tokio::spawn(owner::run(self.program.clone(), queue, Arc::clone(&departed)));
            Owner { asks, departed, task }
        });
        (owner.asks.clone(), Arc::clone(&owner.departed))
    }

    /// Has the helper serve a box, whose tun device this is. In force when this returns; what holds the helper.
    async fn attach(
        &self,
        tun: OwnedFd,
        init: i32,
        isolation: Isolation,
    ) -> Result<(BoxNetwork, String), BackendError> {
        let (asks, departed) = self.handles();
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let ledger = Arc::new(Ledger::default());
        // Made first: if we are not there for the answer, its end takes the box out again.
        let network = BoxNetwork { backend: self.backend, id, asks, departed, ledger: Arc::clone(&ledger) };
        let Isolation { policy, grants, limits } = isolation;
        let config = NetworkConfig { policy, grants, limits, ..NetworkConfig::default() };
        let (reply, answer) = oneshot::channel();
        network.ask(Ask::Attach { id, tun, init, config: Box::new(config), ledger, reply }).await?;
        let confined = network.answer("attaching the network", answer).await?;
        Ok((network, confined))
    }

    /// Puts an isolated box's network in force, and records it; it must be before anything runs in the box. `init`
    /// is the box's, as this process counts; 0 where it cannot be seen.
    pub async fn attach_to(
        &self,
        tun: OwnedFd,
        init: i32,
        isolation: &Isolation,
        enforcement: &mut Enforcement,
    ) -> Result<Arc<BoxNetwork>, BackendError> {
        let (network, confined) = self.attach(tun, init, isolation.clone()).await?;
        let policy = &isolation.policy;
        enforcement.enforced(
            Control::Network,
            format!("`{policy}` by a helper that has every packet of the box's one device ({confined}); no raw sockets"),
        );
        Ok(Arc::new(network))
    }

    /// Ends the helper.
    pub async fn close(&self) {
        let owner = lock(&self.owner).take();
        if let Some(Owner { asks, departed, task }) = owner {
            drop(asks);
            departed.close();
            let _ = tokio::time::timeout(PATIENCE, task).await;
        }
    }
}

impl Drop for Networks {
    fn drop(&mut self) {
        if let Some(owner) = lock(&self.owner).take() {
            owner.departed.close();
        }
    }
}

/// What a box's device is to be.
pub fn interface() -> Interface {
    let addresses = Addressing::default();
    Interface {
        v4: (addresses.box_v4, addresses.prefix_v4),
        gateway_v4: addresses.gateway_v4,
        v6: (addresses.box_v6, addresses.prefix_v6),
        gateway_v6: addresses.gateway_v6,
        mtu: addresses.mtu,
    }
}

/// Says what is wrong with /dev/net/tun, and what to do about it.
pub fn check_tun_device() -> Result<(), BackendError> {
    check_device(Path::new(DEVICE))
        .map_err(|why| BackendError::Unenforceable { control: Control::Network, why })
}

fn check_device(path: &Path) -> Result<(), String> {
    let name = path.display();
    let facts = stat(path).map_err(|error| {
        format!("{name}: {error}: load the module (`modprobe tun`), or give the container the device (`--device {DEVICE}`), and start Sandcrate again")
    })?;
    let number = (major(facts.st_rdev), minor(facts.st_rdev));
    if FileType::from_raw_mode(facts.st_mode) != FileType::CharacterDevice || number != DEVICE_NUMBER {
        return Err(format!("{name} is not the tun device: make it with `mknod -m 666 {DEVICE} c 10 200`"));
    }
    access(path, Access::READ_OK | Access::WRITE_OK).map_err(|error| {
        format!("{name}: {error}: let this user open it (`chmod 666 {DEVICE}`, as distributions have it)")
    })
}

/// The network of one box. Dropping it takes the box out of the helper.
#[derive(Debug)]
pub struct BoxNetwork {
    backend: &'static str,
    id: BoxId,
    asks: mpsc::Sender<Ask>,
    departed: Arc<Departed>,
    ledger: Arc<Ledger>,
}

impl Drop for BoxNetwork {
    fn drop(&mut self) {
        self.leave();
    }
}

impl BoxNetwork {
    /// Takes the box out of the helper, if it is still there.
    pub fn leave(&self) {
        self.departed.add(self.id);
    }

    pub async fn set(&self, isolation: Isolation) -> Result<(), BackendError> {
        let (reply, answer) = oneshot::channel();
        self.ask(Ask::SetPolicy { id: self.id, isolation: Box::new(isolation), reply }).await?;
        self.answer("setting the network policy", answer).await
    }

    pub async fn report(&self) -> NetworkReport {
        self.count().await;
        self.ledger.report()
    }

    /// Returns when the helper has the stream.
    pub async fn forward(&self, port: u16, stream: OwnedFd) -> Result<(), BackendError> {
        let (reply, answer) = oneshot::channel();
        self.ask(Ask::Forward { id: self.id, port, stream, reply }).await?;
        self.answer("forwarding a connection", answer).await
    }

    /// Everything that the box was refused until now is in the ledger afterwards, or the time is over.
    async fn count(&self) {
        let (reply, answer) = oneshot::channel();
        let counted = async {
            if self.asks.send(Ask::Count { id: self.id, reply }).await.is_ok() {
                let _ = answer.await;
            }
        };
        let _ = tokio::time::timeout(SETTLE_LIMIT, counted).await;
    }

    /// Follows what the box is refused and uses from now on.
    pub(crate) fn listen(self: &Arc<Self>, events: mpsc::Sender<ExecEvent>) -> Listening {
        let (reply, before) = oneshot::channel();
        // Where the queue is full the latest count has to do.
        let _ = self.asks.try_send(Ask::Count { id: self.id, reply });
        let (listener, latest) = self.ledger.listen(events);
        Listening { network: Arc::clone(self), listener, before, latest }
    }

    fn unavailable(&self, why: String) -> BackendError {
        BackendError::Unavailable { backend: self.backend, why }
    }

    async fn ask(&self, ask: Ask) -> Result<(), BackendError> {
        let sent = tokio::time::timeout(PATIENCE, self.asks.send(ask)).await;
        match sent {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(self.unavailable("the networks have ended".to_owned())),
            Err(_) => {
                Err(BackendError::Timeout { what: "asking the network helper".to_owned(), limit: PATIENCE })
            }
        }
    }

    async fn answer<T>(
        &self,
        what: &str,
        answer: oneshot::Receiver<Result<T, String>>,
    ) -> Result<T, BackendError> {
        match tokio::time::timeout(PATIENCE, answer).await {
            Ok(Ok(Ok(answered))) => Ok(answered),
            Ok(Ok(Err(why))) => {
                Err(BackendError::Unenforceable { control: Control::Network, why: format!("{what}: {why}") })
            }
            Ok(Err(_)) => Err(self.unavailable(format!("{what}: the network helper has ended"))),
            Err(_) => Err(BackendError::Timeout { what: what.to_owned(), limit: PATIENCE }),
        }
    }
}

/// A command that follows its box's network.
#[derive(Debug)]
pub(crate) struct Listening {
    network: Arc<BoxNetwork>,
    listener: u32,
    before: oneshot::Receiver<Counters>,
    latest: Counters,
}

impl Listening {
    /// What was refused and used since the start; waits a moment for what the helper has still to tell.
    pub(crate) async fn settle(mut self) -> (Vec<Denial>, Counters) {
        self.network.count().await;
        let before = self.before.try_recv().unwrap_or(self.latest);
        self.network.ledger.conclude(self.listener, &before)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.network.ledger.forget(self.listener);
    }
}

/// The error for a session whose network is not isolated.
pub fn not_isolated(backend: &'static str, what: &str) -> BackendError {
    BackendError::Unsupported {
        backend,
        what: what.to_owned(),
        hint: "the session has no isolated network: make it with one".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_missing_or_another_is_told_with_the_fix() {
        let missing = check_device(Path::new("/dev/net/no-such-device")).unwrap_err();
        assert!(missing.contains("modprobe tun") && missing.contains("--device"), "{missing}");
        let other = check_device(Path::new("/dev/null")).unwrap_err();
        assert!(other.contains("mknod -m 666 /dev/net/tun c 10 200"), "{other}");
    }
}
