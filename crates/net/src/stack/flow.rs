//! What a box has going: one entry per connection, association or question.

use rustix::event::epoll::EventFlags;

use super::Context;
use super::datagram::{DatagramFlow, DatagramKind};
use super::hub::Hub;
use super::packet::Ends;
use super::query::DnsFlow;
use super::tcp::TcpFlow;

/// Whether a flow goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Live,
    Over,
}

pub(super) enum Flow {
    Tcp(TcpFlow),
    Datagram(DatagramFlow),
    Dns(DnsFlow),
}

/// Finds the flow of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Tcp(Ends),
    Udp(Ends),
    Echo(Ends),
}

impl Flow {
    /// Questions are found by their socket alone.
    pub(super) fn key(&self) -> Option<Key> {
        match self {
            Self::Tcp(flow) => Some(Key::Tcp(flow.ends())),
            Self::Datagram(flow) => Some(match flow.kind {
                DatagramKind::Udp => Key::Udp(flow.ends),
                DatagramKind::Echo => Key::Echo(flow.ends),
            }),
            Self::Dns(_) => None,
        }
    }

    pub(super) fn event(&mut self, flags: EventFlags, hub: &mut Hub, cx: &mut Context) -> Fate {
        match self {
            Self::Tcp(flow) => flow.event(flags, hub, cx),
            Self::Datagram(flow) => flow.event(flags, hub, cx),
            Self::Dns(flow) => flow.event(hub, cx),
        }
    }

    pub(super) fn timer(&mut self, hub: &mut Hub, cx: &mut Context) -> Fate {
        match self {
            Self::Tcp(flow) => flow.timer(hub, cx),
            Self::Datagram(flow) => flow.timer(hub, cx),
            Self::Dns(flow) => flow.timer(hub, cx),
        }
    }
}
