//! Attempts on the network of a box whose network is off.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, socket};

use super::Bait;
use super::outcome::{Outcome, must_fail};

/// Loopback answers at once or not at all.
const CONNECT_TIME: Duration = Duration::from_secs(2);

pub(super) fn interfaces(_: &Bait) -> Outcome {
    let table = match std::fs::read_to_string("/proc/net/dev") {
        Ok(table) => table,
        Err(error) => return Outcome::held(format!("the list cannot be read: {error}")),
    };
    let names = table.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim());
    let complaints: Vec<_> =
        names.filter(|name| *name != "lo").map(|name| format!("{name} is there")).collect();
    Outcome::from_complaints(&complaints, "only lo")
}

pub(super) fn tcp4(bait: &Bait) -> Outcome {
    tcp(bait.port4.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port))))
}

pub(super) fn tcp6(bait: &Bait) -> Outcome {
    tcp(bait.port6.map(|port| SocketAddr::from((Ipv6Addr::LOCALHOST, port))))
}

fn tcp(address: Option<SocketAddr>) -> Outcome {
    match address {
        Some(address) => must_fail(TcpStream::connect_timeout(&address, CONNECT_TIME)),
        None => Outcome::not_applicable("the host has no such loopback address"),
    }
}

pub(super) fn udp(_: &Bait) -> Outcome {
    // 192.0.2.0/24 is for documentation (RFC 5737): nobody gets the packet where it can be sent.
    must_fail(UdpSocket::bind("0.0.0.0:0").and_then(|socket| socket.send_to(b"x", "192.0.2.1:53")))
}

pub(super) fn abstract_socket(bait: &Bait) -> Outcome {
    let address = std::os::unix::net::SocketAddr::from_abstract_name(bait.abstract_socket.as_bytes());
    must_fail(address.and_then(|address| UnixStream::connect_addr(&address)))
}

pub(super) fn vsock(_: &Bait) -> Outcome {
    must_not_open(&[("AF_VSOCK", AddressFamily::from_raw(40), SocketType::STREAM)])
}

pub(super) fn netlink(_: &Bait) -> Outcome {
    must_not_open(&[("AF_NETLINK", AddressFamily::NETLINK, SocketType::RAW)])
}

pub(super) fn raw(_: &Bait) -> Outcome {
    must_not_open(&[
        ("AF_PACKET", AddressFamily::PACKET, SocketType::RAW),
        ("raw AF_INET", AddressFamily::INET, SocketType::RAW),
        ("raw AF_INET6", AddressFamily::INET6, SocketType::RAW),
        ("AF_ALG", AddressFamily::from_raw(38), SocketType::SEQPACKET),
    ])
}

fn must_not_open(kinds: &[(&str, AddressFamily, SocketType)]) -> Outcome {
    let mut complaints = Vec::new();
    let mut answers = Vec::new();
    for (name, family, kind) in kinds {
        match socket(*family, *kind, None) {
            Ok(_) => complaints.push(format!("a socket of {name} was opened")),
            Err(error) => answers.push(io::Error::from(error).to_string()),
        }
    }
    answers.dedup();
    Outcome::from_complaints(&complaints, answers.join(", "))
}
