//! UDP and echo: a socket on the host per pair of ends, for as long as somebody uses it.

use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use super::Context;
use super::flow::Fate;
use super::hub::Hub;
use super::packet::{self, Ends, Unreachable};
use super::timers::Armed;
use sandcrate_protocol::network::HostName;

/// Datagrams that one association hands over before others have their turn.
const TURN: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DatagramKind {
    Udp,
    Echo,
}

/// An association.
pub(super) struct DatagramFlow {
    pub(super) kind: DatagramKind,
    pub(super) ends: Ends,
    pub(super) names: Vec<HostName>,
    pub(super) own: bool,
    host: OwnedFd,
    token: u64,
    /// The last packet of the box, for the error that may come back.
    last: Vec<u8>,
    last_active: Instant,
    armed: Armed,
}

impl DatagramFlow {
    pub(super) fn new(
        kind: DatagramKind,
        ends: Ends,
        names: Vec<HostName>,
        own: bool,
        host: OwnedFd,
        token: u64,
        now: Instant,
    ) -> Self {
        Self {
            kind,
            ends,
            names,
            own,
            host,
            token,
            last: Vec::new(),
            last_active: now,
            armed: Armed::default(),
        }
    }

    /// Sends a datagram of the box. One that does not fit now is lost, as on a wire.
    pub(super) fn outward(
        &mut self,
        payload: &[u8],
        original: &[u8],
        hub: &mut Hub,
        cx: &mut Context,
    ) -> Fate {
        if hub.byte_budget(payload.len().max(1), cx.now) < payload.len() {
            return Fate::Live;
        }
        self.last.clear();
        self.last.extend_from_slice(&original[..original.len().min(1280)]);
        self.last_active = cx.now;
        match send(&self.host, payload, SendFlags::NOSIGNAL) {
            Ok(_) => {
                hub.counters.bytes_sent += payload.len() as u64;
                hub.use_bytes(payload.len());
            }
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::MSGSIZE) => {}
            Err(error) => return self.failed(error, hub),
        }
        cx.timers.arm(&mut self.armed, cx.now + hub.limits.udp_idle, self.token);
        Fate::Live
    }

    pub(super) fn event(&mut self, _: EventFlags, hub: &mut Hub, cx: &mut Context) -> Fate {
        for _ in 0..TURN {
            match rustix::io::read(&self.host, &mut cx.rx[..]) {
                Ok(length) => {
                    let payload = &cx.rx[..length];
                    let packet = match self.kind {
                        DatagramKind::Udp => packet::udp(self.ends, payload),
                        DatagramKind::Echo if length >= 8 => packet::echo_reply(self.ends, payload),
                        DatagramKind::Echo => None,
                    };
                    hub.counters.bytes_received += length as u64;
                    hub.use_bytes(length);
                    self.last_active = cx.now;
                    if let Some(packet) = packet {
                        hub.send(&packet);
                    }
                }
                Err(Errno::AGAIN) => return Fate::Live,
                Err(error) => return self.failed(error, hub),
            }
        }
        cx.again.push(self.token);
        Fate::Live
    }

    pub(super) fn timer(&mut self, hub: &mut Hub, cx: &mut Context) -> Fate {
        self.armed.fired();
        let ends_at = self.last_active + hub.limits.udp_idle;
        if ends_at <= cx.now {
            return Fate::Over;
        }
        cx.timers.arm(&mut self.armed, ends_at, self.token);
        Fate::Live
    }

    fn failed(&mut self, error: Errno, hub: &mut Hub) -> Fate {
        let reason = match error {
            Errno::CONNREFUSED => Unreachable::Port,
            _ => Unreachable::Host,
        };
        // The packet was cut; its quote need not be whole, its length fields are.
        if let Some(reply) = packet::unreachable(self.ends.outside.ip(), &self.last, reason) {
            hub.send(&reply);
        }
        Fate::Over
    }
}
