//! A question of the box that waits for its answer from upstream.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::net::{SendFlags, send};

use super::Context;
use super::flow::Fate;
use super::hub::Hub;
use super::packet::Ends;
use super::sockets;
use super::timers::Armed;
use crate::dns::{Message, Reply};

/// Before the next resolver is asked; glibc itself waits 5 s for us.
const TRY: Duration = Duration::from_millis(1500);
/// All tries together end before the program's own patience does.
const TRIES: usize = 3;

/// A question under way. Every try has a socket, and so a port, of its own.
pub(super) struct DnsFlow {
    pub(super) ends: Ends,
    query: Message,
    id: u16,
    upstream: Vec<u8>,
    host: OwnedFd,
    token: u64,
    tries: usize,
    deadline: Instant,
    armed: Armed,
}

impl DnsFlow {
    pub(super) fn ask(
        ends: Ends,
        query: Message,
        id: u16,
        upstream: Vec<u8>,
        token: u64,
        hub: &Hub,
        cx: &mut Context,
    ) -> Option<Self> {
        let host = try_resolver(&hub.resolvers, 0, &upstream, token, cx)?;
        let deadline = cx.now + TRY;
        let mut flow =
            Self { ends, query, id, upstream, host, token, tries: 1, deadline, armed: Armed::default() };
        cx.timers.arm(&mut flow.armed, deadline, token);
        Some(flow)
    }

    pub(super) fn event(&mut self, hub: &mut Hub, cx: &mut Context) -> Fate {
        // A few wrong datagrams may come before the right one.
        for _ in 0..8 {
            let length = match rustix::io::read(&self.host, &mut cx.rx[..4096]) {
                Ok(length) => length,
                Err(rustix::io::Errno::AGAIN) => return Fate::Live,
                Err(_) => return self.next_try(hub, cx),
            };
            let own = hub.own.clone();
            let mut is_own = |address| own.contains(&address) || sockets::is_own(address);
            let reply =
                hub.dns.answer(&hub.enforcer, &self.query, self.id, &cx.rx[..length], &mut is_own, cx.now);
            if let Some(reply) = reply {
                self.finish(reply, hub);
                return Fate::Over;
            }
        }
        self.next_try(hub, cx)
    }

    pub(super) fn timer(&mut self, hub: &mut Hub, cx: &mut Context) -> Fate {
        self.armed.fired();
        if cx.now < self.deadline {
            cx.timers.arm(&mut self.armed, self.deadline, self.token);
            return Fate::Live;
        }
        self.next_try(hub, cx)
    }

    fn next_try(&mut self, hub: &mut Hub, cx: &mut Context) -> Fate {
        let next = (self.tries < TRIES)
            .then(|| try_resolver(&hub.resolvers, self.tries, &self.upstream, self.token, cx))
            .flatten();
        let Some(host) = next else {
            let reply = hub.dns.failure(&self.query);
            self.finish(reply, hub);
            return Fate::Over;
        };
        self.host = host;
        self.tries += 1;
        self.deadline = cx.now + TRY;
        cx.timers.arm(&mut self.armed, self.deadline, self.token);
        Fate::Live
    }

    fn finish(&self, reply: Reply, hub: &mut Hub) {
        hub.answer(self.ends, reply);
    }
}

fn try_resolver(
    resolvers: &[SocketAddr],
    index: usize,
    query: &[u8],
    token: u64,
    cx: &Context,
) -> Option<OwnedFd> {
    let resolver = resolvers.get(index % resolvers.len().max(1))?;
    let socket = sockets::connect_udp(*resolver).ok()?;
    send(&socket, query, SendFlags::NOSIGNAL).ok()?;
    cx.watch(std::os::fd::AsFd::as_fd(&socket), token).ok()?;
    Some(socket)
}
