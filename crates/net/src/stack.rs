//! The user-mode stack: packets of boxes in, ordinary sockets of this process out.
//!
//! One thread, one epoll, any number of boxes. Each TCP connection is terminated by a smoltcp socket of its own
//! (with an interface of its own, so that work per packet does not grow with the number of connections), UDP and
//! echo are associations with a time limit, DNS goes to the forwarder. Whatever is not understood is dropped;
//! whatever is refused is answered at once.

mod bucket;
mod datagram;
mod flow;
mod host_end;
mod hub;
mod network;
mod packet;
mod query;
mod sockets;
mod tcp;
mod timers;
mod tun;

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};

pub use network::{Addressing, NetworkConfig};
pub use packet::Ends;
use sandcrate_protocol::network::Counters;

use crate::enforcer::Enforcer;
use network::Network;
use sandcrate_protocol::network::Denial;
use sandcrate_protocol::network::{Grants, Limits, Policy};
use timers::Timers;

/// Names a box on the helper's channel.
pub type BoxId = u64;

/// What the events of one turn may do before the others' turn comes: 64 wakeups.
const EVENTS: usize = 64;
const CONTROL: u64 = u64::MAX;

/// Shared by all boxes, so that an idle one costs no buffers.
struct Context {
    epoll: OwnedFd,
    timers: Timers,
    /// Flows that used up their share of a turn.
    again: Vec<u64>,
    rx: Vec<u8>,
    tx: Vec<u8>,
    now: Instant,
    started: Instant,
}

impl Context {
    /// smoltcp's clock.
    fn micros(&self) -> smoltcp::time::Instant {
        let micros = self.now.duration_since(self.started).as_micros();
        smoltcp::time::Instant::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
    }

    fn watch(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        use epoll::EventFlags as F;
        Ok(epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), F::IN | F::OUT | F::RDHUP | F::ET)?)
    }
}

/// All boxes that this process serves.
pub struct Stack {
    boxes: HashMap<u32, Network>,
    slots: HashMap<BoxId, u32>,
    next_slot: u32,
    /// Boxes that have denials to tell.
    denied: HashSet<u32>,
    cx: Context,
}

impl std::fmt::Debug for Stack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stack").field("boxes", &self.slots.len()).finish_non_exhaustive()
    }
}

impl Stack {
    pub fn new() -> io::Result<Self> {
        let now = Instant::now();
        Ok(Self {
            boxes: HashMap::new(),
            slots: HashMap::new(),
            next_slot: 0,
            denied: HashSet::new(),
            cx: Context {
                epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
                timers: Timers::default(),
                again: Vec::new(),
                rx: vec![0; tun::BUFFER_BYTES],
                tx: vec![0; tun::BUFFER_BYTES],
                now,
                started: now,
            },
        })
    }

    /// Has [`turn`](Self::turn) return when this descriptor can be read.
    pub fn watch_control(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::add(&self.cx.epoll, fd, epoll::EventData::new_u64(CONTROL), epoll::EventFlags::IN)?)
    }

    /// Begins to serve a box whose tun device this is.
    pub fn attach(&mut self, id: BoxId, tun: OwnedFd, config: NetworkConfig) -> io::Result<()> {
        if self.slots.contains_key(&id) {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the box has a network already"));
        }
        // Slots are never used twice while a descriptor of an old one could still have an event.
        let slot = self.next_slot;
        self.next_slot = slot.checked_add(1).ok_or_else(|| io::Error::other("out of slots"))?;
        rustix::io::ioctl_fionbio(&tun, true)?;
        let data = epoll::EventData::new_u64(u64::from(slot) << 32);
        epoll::add(&self.cx.epoll, tun.as_fd(), data, epoll::EventFlags::IN)?;
        self.boxes.insert(slot, Network::new(id, slot, tun, config));
        self.slots.insert(id, slot);
        Ok(())
    }

    /// Ends a box's network: every connection is reset.
    pub fn detach(&mut self, id: BoxId) -> Option<Counters> {
        let network = self.boxes.remove(&self.slots.remove(&id)?)?;
        Some(network.counters())
    }

    /// Puts another policy in force; connections that it does not allow end now.
    pub fn set_policy(&mut self, id: BoxId, policy: Policy, grants: Grants, limits: Limits) -> bool {
        let Some(slot) = self.slots.get(&id).copied() else { return false };
        self.with(slot, |network, cx| {
            network.set_limits(limits, cx.now);
            network.set_enforcer(Enforcer::new(policy, grants), cx);
        });
        true
    }

    /// Has connections of a box end that were another process's: it does not know that nobody carries them any more.
    pub fn sever(&self, id: BoxId, connections: &[Ends]) {
        if let Some(network) = self.slots.get(&id).and_then(|slot| self.boxes.get(slot)) {
            network.sever(connections);
        }
    }

    /// Carries a connection that somebody made to the host into the box.
    pub fn forward(&mut self, id: BoxId, stream: OwnedFd, port: u16) -> io::Result<()> {
        let slot = self.slots.get(&id).copied();
        slot.and_then(|slot| self.with(slot, |network, cx| network.forward(stream, port, cx)))
            .unwrap_or_else(|| Err(io::Error::new(io::ErrorKind::NotFound, "no such box")))
    }

    pub fn counters(&self, id: BoxId) -> Option<Counters> {
        Some(self.boxes.get(self.slots.get(&id)?)?.counters())
    }

    /// Takes what was refused since the last call: box, at most `max` denials of it, number lost.
    pub fn take_denials(&mut self, max: usize) -> Vec<(BoxId, Vec<Denial>, u64)> {
        let mut all = Vec::new();
        for slot in std::mem::take(&mut self.denied) {
            if let Some(network) = self.boxes.get_mut(&slot).filter(|network| network.has_denials()) {
                let (denials, lost) = network.take_denials(max);
                all.push((network.id(), denials, lost));
                if network.has_denials() {
                    self.denied.insert(slot);
                }
            }
        }
        all
    }

    /// The same of one box; `None` when there is nothing to tell.
    pub fn take_denials_of(&mut self, id: BoxId, max: usize) -> Option<(Vec<Denial>, u64)> {
        let network = self.boxes.get_mut(self.slots.get(&id)?)?;
        network.has_denials().then(|| network.take_denials(max))
    }

    /// Resolvers and own addresses have changed.
    pub fn set_surroundings(&mut self, resolvers: &[std::net::SocketAddr], own: &[IpAddr]) {
        for network in self.boxes.values_mut() {
            network.set_surroundings(resolvers, own);
        }
    }

    /// Waits for something to do, does it, and says whether the control descriptor wants to be read.
    pub fn turn(&mut self, most: Duration) -> io::Result<bool> {
        let now = Instant::now();
        let timeout = if self.cx.again.is_empty() {
            self.cx.timers.next().map_or(most, |at| at.saturating_duration_since(now)).min(most)
        } else {
            Duration::ZERO
        };
        // Rounded up: a timer must not be looked at just before its time, again and again.
        let timeout = Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let mut events = Vec::with_capacity(EVENTS);
        match epoll::wait(&self.cx.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        self.cx.now = Instant::now();
        let mut control = false;
        for event in &events {
            let (data, flags) = (event.data, event.flags);
            match data.u64() {
                CONTROL => control = true,
                token => self.dispatch(token, flags),
            }
        }
        for token in std::mem::take(&mut self.cx.again) {
            self.dispatch(token, epoll::EventFlags::empty());
        }
        while let Some(token) = self.cx.timers.pop(self.cx.now) {
            self.with((token >> 32) as u32, |network, cx| network.timer(token as u32, cx));
        }
        Ok(control)
    }

    fn dispatch(&mut self, token: u64, flags: epoll::EventFlags) {
        self.with((token >> 32) as u32, |network, cx| network.event(token as u32, flags, cx));
    }

    /// Lets a box do something, and notes whether it has something to tell afterwards.
    fn with<R>(&mut self, slot: u32, act: impl FnOnce(&mut Network, &mut Context) -> R) -> Option<R> {
        let network = self.boxes.get_mut(&slot)?;
        let result = act(network, &mut self.cx);
        if network.has_denials() {
            self.denied.insert(slot);
        }
        Some(result)
    }
}
