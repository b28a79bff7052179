//! IP packets of boxes: read strictly, and the few that are written by hand.
//!
//! Not accepted: fragments, IPv4 options, IPv6 extension headers, lengths that disagree, anything but TCP, UDP
//! and echo requests. A Linux kernel sends none of these to ordinary peers over a device with a large MTU.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde::{Deserialize, Serialize};

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMP6: u8 = 58;

/// What a packet is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Packet<'a> {
    Tcp { ends: Ends, flags: TcpFlags, bytes: &'a [u8] },
    Udp { ends: Ends, payload: &'a [u8], bytes: &'a [u8] },
    Echo { ends: Ends, message: &'a [u8], bytes: &'a [u8] },
}

/// Both ends of a conversation of a box, its own first; an echo has its identifier as the box's port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ends {
    pub inside: SocketAddr,
    pub outside: SocketAddr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TcpFlags(u8);

impl TcpFlags {
    /// The first packet of a connection.
    pub(super) fn opens(self) -> bool {
        self.0 & 0x17 == 0x02
    }

    pub(super) fn resets(self) -> bool {
        self.0 & 0x04 != 0
    }
}

/// Why a destination cannot be reached, for the program in the box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unreachable {
    /// By policy, for datagrams. Linux reports EHOSTUNREACH for IPv4 and EACCES for IPv6.
    Prohibited,
    Host,
    Port,
}

pub(super) fn parse(bytes: &[u8]) -> Option<Packet<'_>> {
    let (source, destination, protocol, bytes, header) = match bytes.first()? >> 4 {
        4 => parse_v4(bytes)?,
        6 => parse_v6(bytes)?,
        _ => return None,
    };
    let body = &bytes[header..];
    let ports = |body: &[u8]| Ends {
        inside: SocketAddr::new(source, be16(body, 0)),
        outside: SocketAddr::new(destination, be16(body, 2)),
    };
    match protocol {
        TCP if body.len() >= 20 => {
            let offset = usize::from(body[12] >> 4) * 4;
            (offset >= 20 && offset <= body.len() && be16(body, 2) != 0).then(|| Packet::Tcp {
                ends: ports(body),
                flags: TcpFlags(body[13]),
                bytes,
            })
        }
        UDP if body.len() >= 8 => {
            let length = usize::from(be16(body, 4));
            (length >= 8 && length <= body.len() && be16(body, 2) != 0).then(|| Packet::Udp {
                ends: ports(body),
                payload: &body[8..length],
                bytes,
            })
        }
        ICMP | ICMP6 if body.len() >= 8 => {
            let request = if destination.is_ipv4() { ICMP } else { ICMP6 };
            let kind = if destination.is_ipv4() { 8 } else { 128 };
            let ends = Ends {
                inside: SocketAddr::new(source, be16(body, 4)),
                outside: SocketAddr::new(destination, 0),
            };
            (protocol == request && body[0] == kind && body[1] == 0).then_some(Packet::Echo {
                ends,
                message: body,
                bytes,
            })
        }
        _ => None,
    }
}

fn addresses(bytes: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let v4 = |at: usize| Some(IpAddr::from(<[u8; 4]>::try_from(bytes.get(at..at + 4)?).ok()?));
    let v6 = |at: usize| Some(IpAddr::from(<[u8; 16]>::try_from(bytes.get(at..at + 16)?).ok()?));
    match bytes.first()? >> 4 {
        4 => Some((v4(12)?, v4(16)?)),
        6 => Some((v6(8)?, v6(24)?)),
        _ => None,
    }
}

type Parsed<'a> = (IpAddr, IpAddr, u8, &'a [u8], usize);

fn parse_v4(bytes: &[u8]) -> Option<Parsed<'_>> {
    let total = usize::from(be16(bytes.get(..20)?, 2));
    // Don't-fragment may be set; more-fragments, an offset or the reserved bit may not.
    if bytes[0] != 0x45 || total < 20 || be16(bytes, 6) & 0xbfff != 0 {
        return None;
    }
    let bytes = bytes.get(..total)?;
    let source = Ipv4Addr::from(<[u8; 4]>::try_from(&bytes[12..16]).ok()?);
    let destination = Ipv4Addr::from(<[u8; 4]>::try_from(&bytes[16..20]).ok()?);
    Some((source.into(), destination.into(), bytes[9], bytes, 20))
}

fn parse_v6(bytes: &[u8]) -> Option<Parsed<'_>> {
    let total = 40 + usize::from(be16(bytes.get(..40)?, 4));
    let bytes = bytes.get(..total)?;
    let source = Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[8..24]).ok()?);
    let destination = Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[24..40]).ok()?);
    Some((source.into(), destination.into(), bytes[6], bytes, 40))
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// A datagram from `ends.outside` to `ends.inside`; `None` when it does not fit into a packet.
pub(super) fn udp(ends: Ends, payload: &[u8]) -> Option<Vec<u8>> {
    let length = u16::try_from(payload.len() + 8).ok()?;
    let mut body = Vec::with_capacity(payload.len() + 8);
    body.extend(ends.outside.port().to_be_bytes());
    body.extend(ends.inside.port().to_be_bytes());
    body.extend(length.to_be_bytes());
    body.extend([0, 0]);
    body.extend(payload);
    let sum = match checksum(pseudo(ends.outside.ip(), ends.inside.ip(), UDP, body.len()), &body) {
        // Zero would mean "none".
        0 => 0xffff,
        sum => sum,
    };
    body[6..8].copy_from_slice(&sum.to_be_bytes());
    wrap(ends.outside.ip(), ends.inside.ip(), UDP, &body)
}

/// The answer to an echo request, whose message this is.
pub(super) fn echo_reply(ends: Ends, request: &[u8]) -> Option<Vec<u8>> {
    let mut body = request.to_vec();
    let (from, to) = (ends.outside.ip(), ends.inside.ip());
    body[0] = if from.is_ipv4() { 0 } else { 129 };
    body[4..6].copy_from_slice(&ends.inside.port().to_be_bytes());
    icmp(from, to, body)
}

/// Says that `original`, a packet of the box, does not get there. It comes from `from`.
pub(super) fn unreachable(from: IpAddr, original: &[u8], reason: Unreachable) -> Option<Vec<u8>> {
    // The packet may be cut: its addresses are what counts.
    let (source, destination) = addresses(original)?;
    let from = if from.is_ipv4() == source.is_ipv4() { from } else { destination };
    let (kind, code) = match (source.is_ipv4(), reason) {
        (true, Unreachable::Prohibited) => (3, 13),
        (true, Unreachable::Host) => (3, 1),
        (true, Unreachable::Port) => (3, 3),
        (false, Unreachable::Prohibited) => (1, 1),
        (false, Unreachable::Host) => (1, 3),
        (false, Unreachable::Port) => (1, 4),
    };
    let mut body = vec![kind, code, 0, 0, 0, 0, 0, 0];
    // Enough for the kernel to find the socket.
    body.extend(&original[..original.len().min(128)]);
    icmp(from, source, body)
}

fn icmp(from: IpAddr, to: IpAddr, mut body: Vec<u8>) -> Option<Vec<u8>> {
    body[2..4].fill(0);
    let (protocol, start) =
        if from.is_ipv4() { (ICMP, 0) } else { (ICMP6, pseudo(from, to, ICMP6, body.len())) };
    let sum = checksum(start, &body);
    body[2..4].copy_from_slice(&sum.to_be_bytes());
    wrap(from, to, protocol, &body)
}

/// A reset for a segment that belongs to no connection (RFC 9293, 3.10.7.1).
pub(super) fn reset(ends: Ends, segment: &[u8]) -> Option<Vec<u8>> {
    let tcp = &segment[if ends.inside.is_ipv4() { 20 } else { 40 }..];
    let data = usize::from(tcp[12] >> 4) * 4;
    let acknowledges = tcp[13] & 0x10 != 0;
    if acknowledges {
        let sequence = u32::from_be_bytes([tcp[8], tcp[9], tcp[10], tcp[11]]);
        return bare_segment(ends, sequence, 0, 0x04);
    }
    let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
    let flags = u32::from(tcp[13] >> 1 & 1) + u32::from(tcp[13] & 1);
    let next = sequence.wrapping_add((tcp.len() - data) as u32).wrapping_add(flags);
    bare_segment(ends, 0, next, 0x14)
}

/// An acknowledgement of nothing. A kernel that has this connection answers with what it has sent and expects; a
/// reset for that answer is one that it believes.
pub(super) fn challenge(ends: Ends) -> Option<Vec<u8>> {
    bare_segment(ends, 0, 0, 0x10)
}

/// A segment to the box without options or data.
fn bare_segment(ends: Ends, sequence: u32, acknowledged: u32, flags: u8) -> Option<Vec<u8>> {
    let mut body = vec![0_u8; 20];
    body[..2].copy_from_slice(&ends.outside.port().to_be_bytes());
    body[2..4].copy_from_slice(&ends.inside.port().to_be_bytes());
    body[4..8].copy_from_slice(&sequence.to_be_bytes());
    body[8..12].copy_from_slice(&acknowledged.to_be_bytes());
    body[12] = 0x50;
    body[13] = flags;
    let sum = checksum(pseudo(ends.outside.ip(), ends.inside.ip(), TCP, body.len()), &body);
    body[16..18].copy_from_slice(&sum.to_be_bytes());
    wrap(ends.outside.ip(), ends.inside.ip(), TCP, &body)
}

fn wrap(from: IpAddr, to: IpAddr, protocol: u8, body: &[u8]) -> Option<Vec<u8>> {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let total = u16::try_from(body.len() + 20).ok()?;
            let mut out = Vec::with_capacity(body.len() + 20);
            out.extend([0x45, 0]);
            out.extend(total.to_be_bytes());
            out.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
            out.extend(from.octets());
            out.extend(to.octets());
            let sum = checksum(0, &out);
            out[10..12].copy_from_slice(&sum.to_be_bytes());
            out.extend(body);
            Some(out)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let length = u16::try_from(body.len()).ok()?;
            let mut out = Vec::with_capacity(body.len() + 40);
            out.extend([0x60, 0, 0, 0]);
            out.extend(length.to_be_bytes());
            out.extend([protocol, 64]);
            out.extend(from.octets());
            out.extend(to.octets());
            out.extend(body);
            Some(out)
        }
        _ => None,
    }
}

/// The sum over the addresses, protocol and length that transport checksums include.
pub(super) fn pseudo(from: IpAddr, to: IpAddr, protocol: u8, length: usize) -> u32 {
    let octets = |address: IpAddr| match address {
        IpAddr::V4(v4) => sum(0, &v4.octets()),
        IpAddr::V6(v6) => sum(0, &v6.octets()),
    };
    octets(from) + octets(to) + u32::from(protocol) + length as u32
}

fn sum(start: u32, bytes: &[u8]) -> u32 {
    let (pairs, last) = bytes.as_chunks::<2>();
    let pairs = pairs.iter().fold(u64::from(start), |sum, pair| sum + u64::from(u16::from_be_bytes(*pair)));
    let mut total = pairs + last.first().map_or(0, |byte| u64::from(*byte) << 8);
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u32
}

pub(super) fn checksum(start: u32, bytes: &[u8]) -> u16 {
    !(sum(start, bytes) as u16)
}

/// The folded sum that a kernel completes (checksum offload).
pub(super) fn partial(start: u32) -> u16 {
    sum(start, &[]) as u16
}

#[cfg(test)]
#[path = "packet_tests.rs"]
mod tests;
