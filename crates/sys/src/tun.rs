//! Tun devices: an interface whose packets are read and written by a program.
//!
//! The device belongs to the network namespace of whoever calls [`attach`], and goes with it. Both calls need
//! `CAP_NET_ADMIN` there.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::check;

const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
const TUNSETPERSIST: libc::c_ulong = 0x4004_54cb;
const TUNSETOFFLOAD: libc::c_ulong = 0x4004_54d0;
const TUN_F_CSUM: libc::c_ulong = 1;

/// `struct in6_ifreq` of linux/ipv6.h.
#[repr(C)]
struct AddressV6 {
    address: [u8; 16],
    prefix: u32,
    index: libc::c_int,
}

/// `struct in6_rtmsg` of linux/ipv6_route.h.
#[repr(C)]
struct RouteV6 {
    destination: [u8; 16],
    source: [u8; 16],
    gateway: [u8; 16],
    kind: u32,
    destination_prefix: u16,
    source_prefix: u16,
    metric: u32,
    info: libc::c_ulong,
    flags: u32,
    index: libc::c_int,
}

/// Makes `device`, a fresh descriptor of /dev/net/tun, an interface of this name in the current network
/// namespace: IP packets with a virtio header in front, checksums left to whoever reads.
///
/// The device outlives its descriptors. Were it to go with the last of them, whoever closes that would wait some
/// 40 ms for the kernel to be rid of it; with its namespace it goes by the kernel's own hand, many at a time.
pub fn attach(device: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let mut request = named(name)?;
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
    // SAFETY: TUNSETIFF reads an ifreq and writes the name back into it; `request` is one, and ours alone.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), TUNSETIFF, &raw mut request) };
    check(result.into())?;
    // SAFETY: TUNSETPERSIST takes a plain number.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), TUNSETPERSIST, 1 as libc::c_ulong) };
    check(result.into())?;
    // SAFETY: TUNSETOFFLOAD takes a plain number.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), TUNSETOFFLOAD, TUN_F_CSUM) };
    check(result.into()).map(drop)
}

/// Addresses and default routes of an interface.
#[derive(Debug, Clone, Copy)]
pub struct InterfaceSettings {
    pub v4: (Ipv4Addr, u8),
    pub gateway_v4: Ipv4Addr,
    /// `None` on a kernel without IPv6.
    pub v6: Option<(Ipv6Addr, u8)>,
    pub gateway_v6: Ipv6Addr,
    pub mtu: u32,
}

/// Brings an interface up with these settings.
pub fn configure(name: &str, settings: &InterfaceSettings) -> io::Result<()> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let socket = socket.as_fd();
    let mut request = named(name)?;
    request.ifr_ifru.ifru_mtu = settings.mtu as libc::c_int;
    ioctl(socket, libc::SIOCSIFMTU as libc::c_ulong, &request)?;
    request.ifr_ifru.ifru_addr = address(settings.v4.0);
    ioctl(socket, libc::SIOCSIFADDR as libc::c_ulong, &request)?;
    let mask = u32::MAX.checked_shl(32 - u32::from(settings.v4.1)).unwrap_or(0);
    request.ifr_ifru.ifru_netmask = address(mask.into());
    ioctl(socket, libc::SIOCSIFNETMASK as libc::c_ulong, &request)?;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    ioctl(socket, libc::SIOCSIFFLAGS as libc::c_ulong, &request)?;
    // SAFETY: rtentry is plain data, for which all zeroes is a valid value.
    let mut route: libc::rtentry = unsafe { std::mem::zeroed() };
    route.rt_dst = address(Ipv4Addr::UNSPECIFIED);
    route.rt_genmask = address(Ipv4Addr::UNSPECIFIED);
    route.rt_gateway = address(settings.gateway_v4);
    route.rt_flags = libc::RTF_UP | libc::RTF_GATEWAY;
    ioctl(socket, libc::SIOCADDRT as libc::c_ulong, &route)?;
    match settings.v6 {
        Some(v6) => configure_v6(name, v6, settings.gateway_v6),
        None => Ok(()),
    }
}

fn configure_v6(name: &str, (own, prefix): (Ipv6Addr, u8), gateway: Ipv6Addr) -> io::Result<()> {
    let socket = socket_with(AddressFamily::INET6, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let index = rustix::net::netdevice::name_to_index(&socket, name)? as libc::c_int;
    let request = AddressV6 { address: own.octets(), prefix: prefix.into(), index };
    ioctl(socket.as_fd(), libc::SIOCSIFADDR as libc::c_ulong, &request)?;
    let route = RouteV6 {
        destination: [0; 16],
        source: [0; 16],
        gateway: gateway.octets(),
        kind: 0,
        destination_prefix: 0,
        source_prefix: 0,
        metric: 1024,
        info: 0,
        flags: u32::from(libc::RTF_UP | libc::RTF_GATEWAY),
        index,
    };
    ioctl(socket.as_fd(), libc::SIOCADDRT as libc::c_ulong, &route)
}

fn named(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: ifreq is plain data, for which all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero.
    if name.is_empty() || name.len() >= request.ifr_name.len() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "an interface name has 1 to 15 characters"));
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    Ok(request)
}

/// `sockaddr_in` in the shape that the requests have room for.
fn address(v4: Ipv4Addr) -> libc::sockaddr {
    let mut data = [0; 14];
    for (place, octet) in data[2..6].iter_mut().zip(v4.octets()) {
        *place = octet as libc::c_char;
    }
    libc::sockaddr { sa_family: libc::AF_INET as libc::sa_family_t, sa_data: data }
}

/// Private: every caller above pairs a request with the structure that the kernel reads for it.
fn ioctl<T>(fd: BorrowedFd<'_>, request: libc::c_ulong, argument: &T) -> io::Result<()> {
    // SAFETY: each request that is made through here only reads a structure of the kernel's layout of `T`,
    // which lives across the call.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request, std::ptr::from_ref(argument)) };
    check(result.into()).map(drop)
}
