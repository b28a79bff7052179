//! The addresses of this machine's interfaces, which rustix cannot ask for.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::check;

/// Addresses of all interfaces in the current network namespace.
pub fn own() -> io::Result<Vec<IpAddr>> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: getifaddrs writes the head of a list that it allocates to the pointer it is given.
    check(unsafe { libc::getifaddrs(&raw mut list) }.into())?;
    let mut found = Vec::new();
    let mut next = list;
    // SAFETY: `next` is null or points to an entry of the list, which lives until it is freed below.
    while let Some(entry) = unsafe { next.as_ref() } {
        found.extend(address(entry.ifa_addr));
        next = entry.ifa_next;
    }
    // SAFETY: the list came from getifaddrs, is freed once, and nothing of it is used afterwards.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// `address` is null or points to a socket address of the family that it says, as getifaddrs makes them.
fn address(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: every socket address begins with its family.
    let family = unsafe { address.as_ref() }?.sa_family;
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: of this family, so it is a sockaddr_in; read without asking for its alignment.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: of this family, so it is a sockaddr_in6; read without asking for its alignment.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_among_them_where_it_is_up() {
        let found = own().unwrap();
        let up =
            std::net::UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.connect("127.0.0.1:9")).is_ok();
        assert_eq!(found.contains(&IpAddr::from(Ipv4Addr::LOCALHOST)), up, "{found:?}");
    }
}
