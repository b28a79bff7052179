//! The network of one box: decides what each packet means and keeps what goes on.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::event::epoll::EventFlags;
use serde::{Deserialize, Serialize};

use super::bucket::Bucket;
use super::datagram::{DatagramFlow, DatagramKind};
use super::flow::{Fate, Flow, Key};
use super::hub::Hub;
use super::packet::{self, Ends, Packet, Unreachable};
use super::query::DnsFlow;
use super::tcp::{Outset, TcpFlow};
use super::{BoxId, Context};
use super::{sockets, tun};
use crate::dns::{Forwarder, Step};
use crate::enforcer::{Attempt, Enforcer, Refusal};
use sandcrate_protocol::network::Transport;
use sandcrate_protocol::network::{Counters, Limits};
use sandcrate_protocol::network::{Denial, DenialKind, DenialLog};
use sandcrate_protocol::network::{Grants, Policy};

/// Packets of one box before the others have their turn.
const BATCH: usize = 64;
/// Denials that wait to be taken.
const DENIALS: usize = 256;
const DNS: u16 = 53;

/// The addresses inside: the box's, and ours, where its resolver is.
///
/// From 192.0.0.0/29 (RFC 7335: the client's side of a translator), which no network routes, so that nothing an
/// operator could want to allow is hidden behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Addressing {
    pub box_v4: Ipv4Addr,
    pub gateway_v4: Ipv4Addr,
    pub prefix_v4: u8,
    pub box_v6: Ipv6Addr,
    pub gateway_v6: Ipv6Addr,
    pub prefix_v6: u8,
    pub mtu: u32,
}

impl Default for Addressing {
    fn default() -> Self {
        Self {
            box_v4: Ipv4Addr::new(192, 0, 0, 2),
            gateway_v4: Ipv4Addr::new(192, 0, 0, 1),
            prefix_v4: 29,
            // A unique local prefix; programs prefer IPv4 with it, which is right where the host has no IPv6.
            box_v6: Ipv6Addr::new(0xfd73, 0x616e, 0x6463, 0, 0, 0, 0, 2),
            gateway_v6: Ipv6Addr::new(0xfd73, 0x616e, 0x6463, 0, 0, 0, 0, 1),
            prefix_v6: 64,
            mtu: tun::MTU as u32,
        }
    }
}

impl Addressing {
    fn is_gateway(&self, address: IpAddr) -> bool {
        address == self.gateway_v4 || address == self.gateway_v6
    }

    fn is_box(&self, address: IpAddr) -> bool {
        address == self.box_v4 || address == self.box_v6
    }
}

/// What the network of one box is to be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkConfig {
    pub policy: Policy,
    pub grants: Grants,
    pub limits: Limits,
    pub addressing: Addressing,
    /// Asked in this order; the process opens no file to find them.
    pub resolvers: Vec<SocketAddr>,
    /// Addresses of the host, beside those that the kernel itself calls so.
    pub own: Vec<IpAddr>,
}

pub(super) struct Network {
    id: BoxId,
    flows: HashMap<u32, Flow>,
    by_key: HashMap<Key, u32>,
    next_flow: u32,
    dirty: Vec<u32>,
    hub: Hub,
}

impl Network {
    pub(super) fn new(id: BoxId, slot: u32, tun: OwnedFd, config: NetworkConfig) -> Self {
        let now = Instant::now();
        let limits = config.limits;
        Self {
            id,
            flows: HashMap::new(),
            by_key: HashMap::new(),
            next_flow: 1,
            dirty: Vec::new(),
            hub: Hub {
                tun,
                enforcer: Enforcer::new(config.policy, config.grants),
                dns: Forwarder::default(),
                counters: Counters::default(),
                addressing: config.addressing,
                resolvers: config.resolvers,
                own: config.own,
                denials: DenialLog::new(DENIALS),
                opened: Bucket::new(limits.opened_per_second.into(), now),
                bytes: limits.bytes_per_second.map(|rate| Bucket::new(rate, now)),
                limits,
                slot,
                associations_now: 0,
            },
        }
    }

    pub(super) fn id(&self) -> BoxId {
        self.id
    }

    pub(super) fn counters(&self) -> Counters {
        self.hub.counters
    }

    pub(super) fn has_denials(&self) -> bool {
        !self.hub.denials.is_empty()
    }

    pub(super) fn take_denials(&mut self, max: usize) -> (Vec<Denial>, u64) {
        self.hub.denials.take(max)
    }

    /// Ends connections that the box has and we do not.
    pub(super) fn sever(&self, connections: &[Ends]) {
        for ends in connections.iter().filter(|ends| !self.by_key.contains_key(&Key::Tcp(**ends))) {
            if let Some(packet) = packet::challenge(*ends) {
                self.hub.send(&packet);
            }
        }
    }

    pub(super) fn set_surroundings(&mut self, resolvers: &[SocketAddr], own: &[IpAddr]) {
        self.hub.resolvers = resolvers.to_vec();
        self.hub.own = own.to_vec();
    }

    /// Other bounds from now on; what is open stays.
    pub(super) fn set_limits(&mut self, limits: Limits, now: Instant) {
        if limits == self.hub.limits {
            return;
        }
        self.hub.opened = Bucket::new(limits.opened_per_second.into(), now);
        self.hub.bytes = limits.bytes_per_second.map(|rate| Bucket::new(rate, now));
        self.hub.limits = limits;
    }

    /// Puts another policy in force and ends what it does not allow.
    pub(super) fn set_enforcer(&mut self, enforcer: Enforcer, cx: &mut Context) {
        self.hub.enforcer = enforcer;
        let mut over = Vec::new();
        for (id, flow) in &mut self.flows {
            match flow {
                Flow::Tcp(flow) => {
                    if let Err(refusal) = flow.reconsider(&self.hub) {
                        let (peer, names) = (flow.ends().outside, flow.names().to_vec());
                        self.hub.deny(DenialKind::Connect, Transport::Tcp, peer, &names, refusal);
                        flow.abort(&mut self.hub, cx);
                        over.push(*id);
                    }
                }
                Flow::Datagram(flow) => {
                    let peer = flow.ends.outside;
                    let verdict = match flow.kind {
                        DatagramKind::Udp => {
                            let attempt = Attempt {
                                transport: Transport::Udp,
                                address: peer.ip(),
                                port: peer.port(),
                                names: &flow.names,
                                own: flow.own,
                            };
                            self.hub.enforcer.judge(&attempt).map(drop)
                        }
                        DatagramKind::Echo => self.hub.enforcer.judge_echo(peer.ip(), &flow.names, flow.own),
                    };
                    if verdict.is_err() {
                        over.push(*id);
                    }
                }
                // Judged again with its answer.
                Flow::Dns(_) => {}
            }
        }
        for id in over {
            self.remove(id);
        }
    }

    /// The device or a socket has news.
    pub(super) fn event(&mut self, flow: u32, flags: EventFlags, cx: &mut Context) {
        if flow == 0 {
            return self.packets(cx);
        }
        let fate = self.flows.get_mut(&flow).map(|flow| flow.event(flags, &mut self.hub, cx));
        if fate == Some(Fate::Over) {
            self.remove(flow);
        }
    }

    pub(super) fn timer(&mut self, flow: u32, cx: &mut Context) {
        let fate = self.flows.get_mut(&flow).map(|flow| flow.timer(&mut self.hub, cx));
        if fate == Some(Fate::Over) {
            self.remove(flow);
        }
    }

    fn packets(&mut self, cx: &mut Context) {
        let mut buffer = std::mem::take(&mut cx.rx);
        for _ in 0..BATCH {
            let received = tun::recv(self.hub.tun.as_fd(), &mut buffer);
            let Ok(Some(bytes)) = received else { break };
            match packet::parse(bytes) {
                Some(packet) if self.is_ours(&packet) => self.packet(&packet, cx),
                _ => self.hub.counters.packets_dropped += 1,
            }
        }
        if cx.rx.is_empty() {
            cx.rx = buffer;
        }
        for id in std::mem::take(&mut self.dirty) {
            self.event_of_dirty(id, cx);
        }
    }

    fn event_of_dirty(&mut self, id: u32, cx: &mut Context) {
        let fate = match self.flows.get_mut(&id) {
            Some(Flow::Tcp(flow)) => flow.pump(&mut self.hub, cx),
            _ => return,
        };
        if fate == Fate::Over {
            self.remove(id);
        }
    }

    /// Packets with another source than the box's are somebody's trick.
    fn is_ours(&self, packet: &Packet<'_>) -> bool {
        let (Packet::Tcp { ends, .. } | Packet::Udp { ends, .. } | Packet::Echo { ends, .. }) = packet;
        self.hub.addressing.is_box(ends.inside.ip())
    }

    fn packet(&mut self, packet: &Packet<'_>, cx: &mut Context) {
        match *packet {
            Packet::Tcp { ends, flags, bytes } => {
                if let Some(id) = self.by_key.get(&Key::Tcp(ends)).copied() {
                    if let Some(Flow::Tcp(flow)) = self.flows.get_mut(&id) {
                        let mut scratch = std::mem::take(&mut cx.tx);
                        flow.ingress(bytes, &mut self.hub, cx, &mut scratch);
                        cx.tx = scratch;
                        if !self.dirty.contains(&id) {
                            self.dirty.push(id);
                        }
                    }
                } else if flags.opens() {
                    self.open_tcp(ends, bytes, cx);
                } else if !flags.resets() {
                    self.hub.reset(ends, bytes);
                }
            }
            Packet::Udp { ends, payload, bytes } => self.udp(ends, payload, bytes, cx),
            Packet::Echo { ends, message, bytes } => self.echo(ends, message, bytes, cx),
        }
    }

    fn open_tcp(&mut self, ends: Ends, bytes: &[u8], cx: &mut Context) {
        let peer = ends.outside;
        if self.hub.addressing.is_gateway(peer.ip()) {
            if peer.port() == DNS {
                let refusal = Refusal {
                    rule: "dns".to_owned(),
                    hint: "the box's resolver answers over UDP only".to_owned(),
                };
                self.hub.deny(DenialKind::Connect, Transport::Tcp, peer, &[], refusal);
            }
            return self.hub.reset(ends, bytes);
        }
        let names = self.hub.dns.bindings.names(peer.ip(), cx.now);
        let own = self.hub.is_own(peer.ip());
        let attempt =
            Attempt { transport: Transport::Tcp, address: peer.ip(), port: peer.port(), names: &names, own };
        let allowed = match self.hub.enforcer.judge(&attempt) {
            Ok(allowed) => allowed,
            Err(refusal) => {
                self.hub.deny(DenialKind::Connect, Transport::Tcp, peer, &names, refusal);
                return self.hub.reset(ends, bytes);
            }
        };
        let limit = self.hub.limits.connections;
        if self.hub.counters.connections_now >= limit {
            self.hub.over_limit(format!("tcp {peer}"), format!("at most {limit} connections"));
            return self.hub.reset(ends, bytes);
        }
        if !self.may_open(format_args!("tcp {peer}"), cx) {
            return self.hub.reset(ends, bytes);
        }
        let Some((id, token)) = self.next_id() else { return };
        let host = match sockets::connect_tcp(peer) {
            Ok(host) => host,
            Err(_) => {
                self.hub.counters.connections_failed += 1;
                return self.hub.no_way_to_host(ends, bytes);
            }
        };
        if cx.watch(host.as_fd(), token).is_err() {
            return self.hub.no_way_to_host(ends, bytes);
        }
        let mut flow = TcpFlow::begin(
            ends,
            host,
            token,
            Outset { syn: bytes, names, own, inspection: allowed.inspection },
            cx,
        );
        // Sets the time limit.
        flow.pump(&mut self.hub, cx);
        self.insert(id, Flow::Tcp(flow));
    }

    /// Carries a host's connection to a port of the box.
    pub(super) fn forward(&mut self, stream: OwnedFd, port: u16, cx: &mut Context) -> std::io::Result<()> {
        cx.now = Instant::now();
        rustix::io::ioctl_fionbio(&stream, true)?;
        let inside = SocketAddr::new(self.hub.addressing.box_v4.into(), port);
        let gateway = IpAddr::from(self.hub.addressing.gateway_v4);
        let free = (0..u16::MAX - 20_000)
            .map(|step| 20_000 + (self.next_flow as u16).wrapping_add(step) % 45_000)
            .find(|port| {
                let ends = Ends { inside, outside: SocketAddr::new(gateway, *port) };
                !self.by_key.contains_key(&Key::Tcp(ends))
            });
        let (Some(from), Some((id, token))) = (free, self.next_id()) else {
            return Err(std::io::ErrorKind::AddrInUse.into());
        };
        if self.hub.counters.connections_now >= self.hub.limits.connections {
            return Err(std::io::ErrorKind::QuotaExceeded.into());
        }
        cx.watch(stream.as_fd(), token)?;
        let ends = Ends { inside, outside: SocketAddr::new(gateway, from) };
        let flow = TcpFlow::inward(ends, stream, token, &self.hub, cx)
            .ok_or(std::io::ErrorKind::AddrNotAvailable)?;
        self.insert(id, Flow::Tcp(flow));
        self.event_of_dirty(id, cx);
        Ok(())
    }

    fn udp(&mut self, ends: Ends, payload: &[u8], bytes: &[u8], cx: &mut Context) {
        let peer = ends.outside;
        if self.hub.addressing.is_gateway(peer.ip()) {
            return if peer.port() == DNS {
                self.question(ends, payload, bytes, cx);
            } else {
                self.hub.refuse(bytes, Unreachable::Port);
            };
        }
        self.datagram(DatagramKind::Udp, ends, payload, bytes, cx);
    }

    fn question(&mut self, ends: Ends, payload: &[u8], bytes: &[u8], cx: &mut Context) {
        self.hub.counters.names_asked += 1;
        let mut id = [0; 2];
        let _ = rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty());
        let id = u16::from_ne_bytes(id);
        match self.hub.dns.question(&self.hub.enforcer, payload, id) {
            Step::Ignore => self.hub.counters.packets_dropped += 1,
            Step::Reply(reply) => self.hub.answer(ends, reply),
            Step::Ask { query, upstream } => {
                if !self.room_for_association(format_args!("dns {}", query.question.name), cx) {
                    return self.hub.refuse(bytes, Unreachable::Prohibited);
                }
                let failure = self.hub.dns.failure(&query);
                let Some((flow, token)) = self.next_id() else { return };
                match DnsFlow::ask(ends, query, id, upstream, token, &self.hub, cx) {
                    Some(asked) => self.insert(flow, Flow::Dns(asked)),
                    None => self.hub.answer(ends, failure),
                }
            }
        }
    }

    fn echo(&mut self, ends: Ends, message: &[u8], bytes: &[u8], cx: &mut Context) {
        if self.hub.addressing.is_gateway(ends.outside.ip()) {
            if let Some(reply) = packet::echo_reply(ends, message) {
                self.hub.send(&reply);
            }
            return;
        }
        self.datagram(DatagramKind::Echo, ends, message, bytes, cx);
    }

    fn datagram(&mut self, kind: DatagramKind, ends: Ends, payload: &[u8], bytes: &[u8], cx: &mut Context) {
        let key = if kind == DatagramKind::Udp { Key::Udp(ends) } else { Key::Echo(ends) };
        let id = match self.by_key.get(&key) {
            Some(id) => *id,
            None => match self.open_datagram(kind, ends, bytes, cx) {
                Some(id) => id,
                None => return,
            },
        };
        if let Some(Flow::Datagram(flow)) = self.flows.get_mut(&id)
            && flow.outward(payload, bytes, &mut self.hub, cx) == Fate::Over
        {
            self.remove(id);
        }
    }

    fn open_datagram(
        &mut self,
        kind: DatagramKind,
        ends: Ends,
        bytes: &[u8],
        cx: &mut Context,
    ) -> Option<u32> {
        let peer = ends.outside;
        let names = self.hub.dns.bindings.names(peer.ip(), cx.now);
        let own = self.hub.is_own(peer.ip());
        let (denial, verdict) = match kind {
            DatagramKind::Udp => {
                let attempt = Attempt {
                    transport: Transport::Udp,
                    address: peer.ip(),
                    port: peer.port(),
                    names: &names,
                    own,
                };
                (DenialKind::Datagram, self.hub.enforcer.judge(&attempt).map(drop))
            }
            DatagramKind::Echo => (DenialKind::Echo, self.hub.enforcer.judge_echo(peer.ip(), &names, own)),
        };
        if let Err(refusal) = verdict {
            self.hub.deny(denial, Transport::Udp, peer, &names, refusal);
            self.hub.refuse(bytes, Unreachable::Prohibited);
            return None;
        }
        if !self.room_for_association(format_args!("udp {peer}"), cx) {
            self.hub.refuse(bytes, Unreachable::Prohibited);
            return None;
        }
        let host = match kind {
            DatagramKind::Udp => sockets::connect_udp(peer),
            DatagramKind::Echo => sockets::connect_echo(peer.ip()),
        };
        let (id, token) = self.next_id()?;
        match host.and_then(|host| cx.watch(host.as_fd(), token).map(|()| host)) {
            Ok(host) => {
                self.hub.counters.associations_opened += 1;
                let flow = DatagramFlow::new(kind, ends, names, own, host, token, cx.now);
                self.insert(id, Flow::Datagram(flow));
                Some(id)
            }
            Err(_) => {
                self.hub.refuse(bytes, Unreachable::Host);
                None
            }
        }
    }

    fn room_for_association(&mut self, target: std::fmt::Arguments<'_>, cx: &Context) -> bool {
        let limit = self.hub.limits.associations;
        if self.hub.associations_now >= limit {
            self.hub.over_limit(target.to_string(), format!("at most {limit} associations"));
            return false;
        }
        self.may_open(target, cx)
    }

    fn may_open(&mut self, target: std::fmt::Arguments<'_>, cx: &Context) -> bool {
        if self.hub.opened.level(cx.now) == 0 {
            let rate = self.hub.limits.opened_per_second;
            self.hub.over_limit(target.to_string(), format!("at most {rate} new connections per second"));
            return false;
        }
        self.hub.opened.take(1);
        true
    }

    /// Numbers are not used twice: an event of a closed socket finds nobody.
    fn next_id(&mut self) -> Option<(u32, u64)> {
        let id = self.next_flow;
        self.next_flow = self.next_flow.checked_add(1).unwrap_or(1);
        let token = u64::from(self.hub.slot) << 32 | u64::from(id);
        (!self.flows.contains_key(&id)).then_some((id, token))
    }

    fn insert(&mut self, id: u32, flow: Flow) {
        match &flow {
            Flow::Tcp(_) => self.hub.counters.connections_now += 1,
            Flow::Datagram(_) | Flow::Dns(_) => self.hub.associations_now += 1,
        }
        if let Some(key) = flow.key() {
            self.by_key.insert(key, id);
        }
        self.flows.insert(id, flow);
    }

    fn remove(&mut self, id: u32) {
        let Some(flow) = self.flows.remove(&id) else { return };
        match &flow {
            Flow::Tcp(_) => self.hub.counters.connections_now -= 1,
            Flow::Datagram(_) | Flow::Dns(_) => self.hub.associations_now -= 1,
        }
        if let Some(key) = flow.key() {
            self.by_key.remove(&key);
        }
    }
}
