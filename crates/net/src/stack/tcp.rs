//! One TCP connection of a box: a smoltcp socket on its side, a kernel socket on the other, bytes between.
//!
//! The host's connection is made first, and only when it stands does the box's handshake go on: a peer that
//! refuses looks to the program as it would without us. Back-pressure is each side's window. Under name rules
//! nothing that the box sends passes before its first bytes have shown a name that is allowed.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use smoltcp::iface::{Config, Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::socket::tcp;
use smoltcp::wire::{HardwareAddress, IpCidr, IpListenEndpoint};

use super::Context;
use super::flow::Fate;
use super::host_end::{Broken, HostEnd};
use super::hub::Hub;
use super::packet::Ends;
use super::timers::Armed;
use super::tun::Port;
use crate::enforcer::{Attempt, Inspection, Refusal};
use crate::sniff::{self, Sniffed};
use sandcrate_protocol::network::DenialKind;
use sandcrate_protocol::network::HostName;
use sandcrate_protocol::network::Transport;

/// Four of the largest segments: what keeps bulk data flowing while we are busy elsewhere. The pages are only
/// taken when bytes come.
const BUFFER_BYTES: usize = 256 << 10;
/// What one connection may move before others have their turn.
const TURN_BYTES: usize = 1 << 20;
/// How often a connection that has used up its box's rate looks again.
const RATE_PAUSE: Duration = Duration::from_millis(10);

/// A connection.
pub(super) struct TcpFlow {
    ends: Ends,
    host: HostEnd,
    token: u64,
    /// Names that were bound to the peer when the connection began.
    names: Vec<HostName>,
    own: bool,
    phase: Phase,
    /// First bytes are still to be looked at.
    inspect: bool,
    sniffed: Option<Sniffed>,
    /// Into the box, by the host's wish: the policy speaks of the other direction.
    inbound: bool,
    last_active: Instant,
    armed: Armed,
}

/// How a connection of the box begins.
pub(super) struct Outset<'a> {
    /// Its first packet.
    pub(super) syn: &'a [u8],
    pub(super) names: Vec<HostName>,
    pub(super) own: bool,
    pub(super) inspection: Inspection,
}

enum Phase {
    /// The host's connection is under way; the box's first packet waits.
    Connecting {
        syn: Vec<u8>,
    },
    Open(Box<Splice>),
}

/// The box's side.
struct Splice {
    interface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
}

impl TcpFlow {
    /// A connection that the policy lets begin.
    pub(super) fn begin(ends: Ends, host: OwnedFd, token: u64, outset: Outset<'_>, cx: &Context) -> Self {
        Self {
            ends,
            host: HostEnd::new(host),
            token,
            names: outset.names,
            own: outset.own,
            phase: Phase::Connecting { syn: outset.syn.to_vec() },
            inspect: outset.inspection == Inspection::Name,
            sniffed: None,
            inbound: false,
            last_active: cx.now,
            armed: Armed::default(),
        }
    }

    /// A connection into the box, for which `host` is already connected.
    pub(super) fn inward(ends: Ends, host: OwnedFd, token: u64, hub: &Hub, cx: &Context) -> Option<Self> {
        let mut splice = Splice::new(ends.outside, hub, cx);
        let socket = splice.sockets.get_mut::<tcp::Socket<'_>>(splice.handle);
        socket.connect(splice.interface.context(), ends.inside, ends.outside).ok()?;
        let outset = Outset { syn: &[], names: Vec::new(), own: false, inspection: Inspection::None };
        let mut flow = Self::begin(ends, host, token, outset, cx);
        flow.phase = Phase::Open(Box::new(splice));
        flow.inbound = true;
        flow.host.note(EventFlags::IN | EventFlags::OUT);
        Some(flow)
    }

    pub(super) fn ends(&self) -> Ends {
        self.ends
    }

    fn attempt(&self) -> Attempt<'_> {
        Attempt {
            transport: Transport::Tcp,
            address: self.ends.outside.ip(),
            port: self.ends.outside.port(),
            names: &self.names,
            own: self.own,
        }
    }

    pub(super) fn names(&self) -> &[HostName] {
        &self.names
    }

    /// Whether the policy in force still allows this connection.
    pub(super) fn reconsider(&mut self, hub: &Hub) -> Result<(), Refusal> {
        if self.inbound {
            return Ok(());
        }
        let allowed = hub.enforcer.judge(&self.attempt())?;
        match &self.sniffed {
            _ if allowed.inspection == Inspection::None => {
                self.inspect = false;
                Ok(())
            }
            Some(sniffed) => hub.enforcer.judge_first_bytes(&self.attempt(), sniffed),
            // What has been sent without being looked at cannot be vouched for now.
            None if !self.inspect && matches!(self.phase, Phase::Open(_)) => {
                hub.enforcer.judge_first_bytes(&self.attempt(), &Sniffed::Other)
            }
            None => {
                self.inspect = true;
                Ok(())
            }
        }
    }

    /// Ends both sides with a reset.
    pub(super) fn abort(&mut self, hub: &mut Hub, cx: &mut Context) {
        self.host.reset_on_close();
        match &mut self.phase {
            Phase::Connecting { syn } => hub.reset(self.ends, syn),
            Phase::Open(splice) => {
                splice.socket().abort();
                splice.egress(hub, cx);
            }
        }
    }

    /// A packet of the box for this connection. What follows from it is done in [`pump`](Self::pump).
    pub(super) fn ingress(&mut self, bytes: &[u8], hub: &mut Hub, cx: &mut Context, scratch: &mut [u8]) {
        // A repeated first packet, while we connect, says nothing new.
        let Phase::Open(splice) = &mut self.phase else { return };
        let now = cx.micros();
        let mut port = Port { tun: hub.tun.as_fd(), incoming: Some(bytes), scratch };
        splice.interface.poll_ingress_single(now, &mut port, &mut splice.sockets);
        self.last_active = cx.now;
    }

    /// The host's socket has news.
    pub(super) fn event(&mut self, flags: EventFlags, hub: &mut Hub, cx: &mut Context) -> Fate {
        self.host.note(flags);
        if let Phase::Connecting { syn } = &self.phase {
            match rustix::net::sockopt::socket_error(&self.host.socket) {
                Ok(Ok(())) if flags.contains(EventFlags::OUT) => {
                    let syn = syn.clone();
                    hub.counters.connections_opened += 1;
                    let mut splice = Box::new(Splice::new(self.ends.outside, hub, cx));
                    let endpoint = IpListenEndpoint::from(self.ends.outside);
                    if splice.socket().listen(endpoint).is_err() {
                        return Fate::Over;
                    }
                    self.phase = Phase::Open(splice);
                    let mut scratch = std::mem::take(&mut cx.tx);
                    self.ingress(&syn, hub, cx, &mut scratch);
                    cx.tx = scratch;
                }
                Ok(Ok(())) => return Fate::Live,
                Ok(Err(error)) | Err(error) => return self.failed(error, hub),
            }
        }
        self.pump(hub, cx)
    }

    /// Tells the box why there is no connection.
    fn failed(&mut self, error: Errno, hub: &mut Hub) -> Fate {
        if let Phase::Connecting { syn } = &self.phase {
            hub.counters.connections_failed += 1;
            match error {
                Errno::CONNREFUSED => hub.reset(self.ends, syn),
                _ => hub.no_way_to_host(self.ends, syn),
            }
        }
        Fate::Over
    }

    /// The time that was asked for has come.
    pub(super) fn timer(&mut self, hub: &mut Hub, cx: &mut Context) -> Fate {
        self.armed.fired();
        let idle = cx.now.saturating_duration_since(self.last_active);
        match &self.phase {
            Phase::Connecting { .. } if idle >= hub.limits.connect_timeout => {
                self.failed(Errno::TIMEDOUT, hub)
            }
            Phase::Open(_) if idle >= hub.limits.tcp_idle => {
                self.abort(hub, cx);
                Fate::Over
            }
            _ => self.pump(hub, cx),
        }
    }

    /// Moves what can be moved, and sends what there is to send.
    pub(super) fn pump(&mut self, hub: &mut Hub, cx: &mut Context) -> Fate {
        if let Phase::Connecting { .. } = self.phase {
            cx.timers.arm(&mut self.armed, self.last_active + hub.limits.connect_timeout, self.token);
            return Fate::Live;
        }
        if self.inspect
            && let Err(refusal) = self.look(hub)
        {
            hub.deny(DenialKind::Name, Transport::Tcp, self.ends.outside, &self.names, refusal);
            self.abort(hub, cx);
            return Fate::Over;
        }
        let budget = hub.byte_budget(TURN_BYTES, cx.now);
        let Ok(moved) = self.exchange(budget, hub, cx) else {
            self.abort(hub, cx);
            return Fate::Over;
        };
        if moved > 0 {
            self.last_active = cx.now;
            hub.use_bytes(moved);
        }
        let Phase::Open(splice) = &mut self.phase else { return Fate::Live };
        let socket = splice.socket();
        // Both sides have said all, but what the box said last may still wait for the host's socket.
        if matches!(socket.state(), tcp::State::Closed | tcp::State::TimeWait) && !socket.can_recv() {
            if !self.host.ended {
                // Not by our end of it: the box has reset the connection.
                self.host.reset_on_close();
            }
            return Fate::Over;
        }
        let mut at = self.last_active + hub.limits.tcp_idle;
        if moved == budget && budget < TURN_BYTES {
            at = cx.now + RATE_PAUSE;
        } else if moved >= budget {
            cx.again.push(self.token);
        }
        if let Some(wanted) = splice.poll_at(cx) {
            at = at.min(wanted);
        }
        cx.timers.arm(&mut self.armed, at, self.token);
        Fate::Live
    }

    /// Moves up to `budget` bytes, both ways together, until neither side has more or room for more.
    fn exchange(&mut self, budget: usize, hub: &mut Hub, cx: &mut Context) -> Result<usize, Broken> {
        let Phase::Open(splice) = &mut self.phase else { return Ok(0) };
        let mut moved = 0;
        loop {
            let socket = splice.socket();
            let sent = if self.inspect { 0 } else { self.host.take_from(socket, budget - moved)? };
            let received = self.host.give_to(socket, budget - moved - sent)?;
            hub.counters.bytes_sent += sent as u64;
            hub.counters.bytes_received += received as u64;
            let ended = !matches!(
                socket.state(),
                tcp::State::SynSent
                    | tcp::State::SynReceived
                    | tcp::State::Established
                    | tcp::State::FinWait1
                    | tcp::State::FinWait2
            );
            if ended && !socket.can_recv() && socket.state() != tcp::State::Closed {
                self.host.tell_end();
            }
            splice.egress(hub, cx);
            moved += sent + received;
            if sent + received == 0 || moved == budget {
                return Ok(moved);
            }
        }
    }

    /// Looks at the first bytes, which stay where they are.
    fn look(&mut self, hub: &Hub) -> Result<(), Refusal> {
        let Phase::Open(splice) = &mut self.phase else { return Ok(()) };
        let socket = splice.socket();
        let over =
            !matches!(socket.state(), tcp::State::Established | tcp::State::FinWait1 | tcp::State::FinWait2)
                && socket.recv_queue() > 0;
        // Nothing has been taken out of the ring yet, so the bytes are in one piece.
        let bytes = socket.peek(sniff::MAX_BYTES).unwrap_or_default();
        let sniffed = match sniff::sniff(bytes) {
            Some(sniffed) => sniffed,
            None if over => Sniffed::Other,
            None => {
                if bytes.is_empty() && matches!(socket.state(), tcp::State::CloseWait | tcp::State::LastAck) {
                    self.inspect = false;
                }
                return Ok(());
            }
        };
        self.inspect = false;
        let verdict = hub.enforcer.judge_first_bytes(&self.attempt(), &sniffed);
        self.sniffed = Some(sniffed);
        verdict
    }
}

impl Splice {
    fn new(local: SocketAddr, hub: &Hub, cx: &Context) -> Self {
        let mut seed = [0; 8];
        // Sequence numbers must not be guessable by what else runs in the box.
        let _ = rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty());
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = u64::from_ne_bytes(seed);
        let now = cx.micros();
        let mut port = Port { tun: hub.tun.as_fd(), incoming: None, scratch: &mut [] };
        let mut interface = Interface::new(config, &mut port, now);
        let prefix = if local.is_ipv4() { 32 } else { 128 };
        interface.update_ip_addrs(|addresses| {
            let _ = addresses.push(IpCidr::new(local.ip().into(), prefix));
        });
        let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER_BYTES]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        // One acknowledgement per batch of packets is few enough.
        socket.set_ack_delay(None);
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let handle = sockets.add(socket);
        Self { interface, sockets, handle }
    }

    fn socket(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    fn egress(&mut self, hub: &Hub, cx: &mut Context) {
        let now = cx.micros();
        let mut port = Port { tun: hub.tun.as_fd(), incoming: None, scratch: &mut cx.tx };
        while self.interface.poll_egress(now, &mut port, &mut self.sockets) == PollResult::SocketStateChanged
        {
        }
    }

    fn poll_at(&mut self, cx: &Context) -> Option<Instant> {
        let at = self.interface.poll_at(cx.micros(), &self.sockets)?;
        let micros = u64::try_from(at.total_micros()).unwrap_or(0);
        // "At once" after everything was sent would mean a loop.
        Some((cx.started + Duration::from_micros(micros)).max(cx.now + Duration::from_millis(1)))
    }
}
