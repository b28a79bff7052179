//! What all flows of one box share: its device, policy, names, bounds and counters.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use super::bucket::Bucket;
use super::network::Addressing;
use super::packet::{self, Ends, Unreachable};
use super::{sockets, tun};
use crate::dns::{Forwarder, Reply};
use crate::enforcer::{Enforcer, Refusal};
use sandcrate_protocol::network::HostName;
use sandcrate_protocol::network::Transport;
use sandcrate_protocol::network::{Counters, Limits};
use sandcrate_protocol::network::{Denial, DenialKind, DenialLog};

/// What all flows of a box share.
pub(super) struct Hub {
    pub(super) tun: OwnedFd,
    pub(super) enforcer: Enforcer,
    pub(super) dns: Forwarder,
    pub(super) counters: Counters,
    pub(super) limits: Limits,
    pub(super) addressing: Addressing,
    pub(super) resolvers: Vec<SocketAddr>,
    pub(super) own: Vec<IpAddr>,
    pub(super) denials: DenialLog,
    pub(super) opened: Bucket,
    pub(super) bytes: Option<Bucket>,
    pub(super) slot: u32,
    pub(super) associations_now: u32,
}

impl Hub {
    pub(super) fn send(&self, packet: &[u8]) {
        tun::send(self.tun.as_fd(), packet);
    }

    pub(super) fn answer(&mut self, ends: Ends, reply: Reply) {
        if let Some(packet) = packet::udp(ends, &reply.bytes) {
            self.send(&packet);
        }
        if let Some(denial) = reply.denial {
            self.counters.denied += 1;
            self.denials.push(denial);
        }
    }

    pub(super) fn deny(
        &mut self,
        kind: DenialKind,
        transport: Transport,
        peer: SocketAddr,
        names: &[HostName],
        refusal: Refusal,
    ) {
        let peer =
            if kind == DenialKind::Echo { peer.ip().to_string() } else { format!("{transport} {peer}") };
        let target = match names.first() {
            Some(name) => format!("{peer} ({name})"),
            None => peer,
        };
        self.counters.denied += 1;
        self.denials.push(Denial::new(kind, target, refusal.rule, refusal.hint));
    }

    pub(super) fn over_limit(&mut self, target: String, rule: String) {
        self.counters.denied += 1;
        let hint = "close connections that are not needed, or slow down";
        self.denials.push(Denial::new(DenialKind::Limit, target, rule, hint));
    }

    /// How many of `wanted` bytes may be moved now.
    pub(super) fn byte_budget(&mut self, wanted: usize, now: Instant) -> usize {
        match &mut self.bytes {
            Some(bucket) => usize::try_from(bucket.level(now)).unwrap_or(usize::MAX).min(wanted),
            None => wanted,
        }
    }

    pub(super) fn use_bytes(&mut self, count: usize) {
        if let Some(bucket) = &mut self.bytes {
            bucket.take(count as u64);
        }
    }

    pub(super) fn is_own(&self, address: IpAddr) -> bool {
        self.own.contains(&address) || sockets::is_own(address)
    }

    /// Ends the connection that a packet belongs to, or wants to begin. What the policy refuses ends so and not with
    /// a reason: Linux announces a reason to who polls a socket a moment before it has become the socket's error, and
    /// a program that looks in between takes itself for connected.
    pub(super) fn reset(&self, ends: Ends, segment: &[u8]) {
        if let Some(reply) = packet::reset(ends, segment) {
            self.send(&reply);
        }
    }

    /// Says that a peer cannot be reached to the connection whose first packet this is. A kernel that still works on
    /// the socket passes over the reason, and would try again a second later; it cannot pass over the reset. Where
    /// the reason came first, the reset finds nothing any more.
    pub(super) fn no_way_to_host(&self, ends: Ends, syn: &[u8]) {
        self.refuse(syn, Unreachable::Host);
        self.reset(ends, syn);
    }

    /// Says why a packet goes nowhere.
    pub(super) fn refuse(&self, original: &[u8], reason: Unreachable) {
        if let Some(reply) = packet::unreachable(self.addressing.gateway_v4.into(), original, reason) {
            self.send(&reply);
        }
    }
}
