//! Sockets of this process, on behalf of boxes.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{
    AddressFamily, Protocol, SocketFlags, SocketType, connect, getsockname, ipproto, socket_with,
};

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

/// A TCP socket whose connection has begun.
pub(super) fn connect_tcp(peer: SocketAddr) -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family(peer.ip()), SocketType::STREAM, flags, None)?;
    // The box's kernel has done the waiting that Nagle's algorithm would do.
    let _ = rustix::net::sockopt::set_tcp_nodelay(&socket, true);
    match connect(&socket, &peer) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

/// A datagram socket that talks to one peer only.
pub(super) fn connect_udp(peer: SocketAddr) -> io::Result<OwnedFd> {
    connect_datagram(peer, None)
}

/// An echo socket (ping without privilege), where the host lets us have one.
pub(super) fn connect_echo(peer: IpAddr) -> io::Result<OwnedFd> {
    let protocol = if peer.is_ipv4() { ipproto::ICMP } else { ipproto::ICMPV6 };
    connect_datagram(SocketAddr::new(peer, 0), Some(protocol))
}

fn connect_datagram(peer: SocketAddr, protocol: Option<Protocol>) -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family(peer.ip()), SocketType::DGRAM, flags, protocol)?;
    connect(&socket, &peer)?;
    Ok(socket)
}

/// Whether an address is the host's own: the kernel would then send from it. Connecting a datagram socket sends
/// nothing, and this way no list of addresses can be out of date.
pub(super) fn is_own(address: IpAddr) -> bool {
    connect_udp(SocketAddr::new(address, 9)).is_ok_and(|socket| local_address(&socket) == Some(address))
}

pub(super) fn local_address(socket: impl AsFd) -> Option<IpAddr> {
    SocketAddr::try_from(getsockname(socket).ok()?).ok().map(|address| address.ip())
}

/// Closing then tells the peer that something went wrong.
pub(super) fn reset_on_close(socket: impl AsFd) {
    let _ = rustix::net::sockopt::set_socket_linger(socket, Some(std::time::Duration::ZERO));
}
