//! What the helper cannot find out by itself, since it opens no file: the host's resolvers and addresses.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

const RESOLVERS: &str = "/etc/resolv.conf";
const DNS: u16 = 53;
/// As many as libc asks.
const MAX_RESOLVERS: usize = 3;
/// More than any host should have; the kernel is asked for each new peer anyway.
const MAX_OWN: usize = 1024;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Surroundings {
    pub(super) resolvers: Vec<SocketAddr>,
    pub(super) own: Vec<IpAddr>,
}

impl Surroundings {
    /// As they are now.
    pub(super) fn look() -> Self {
        let text = std::fs::read_to_string(RESOLVERS).unwrap_or_default();
        let mut own = sandcrate_sys::addresses::own().unwrap_or_default();
        own.truncate(MAX_OWN);
        Self { resolvers: resolvers(&text), own }
    }
}

/// The name servers of a resolv.conf; the local one where it names none, as libc does.
fn resolvers(text: &str) -> Vec<SocketAddr> {
    let named = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some("nameserver")).then(|| words.next()).flatten()
    });
    // One with a scope (`fe80::1%eth0`) is of a link that the helper does not know.
    let mut found: Vec<SocketAddr> = named
        .filter_map(|word| word.parse::<IpAddr>().ok())
        .map(|address| SocketAddr::new(address, DNS))
        .take(MAX_RESOLVERS)
        .collect();
    if found.is_empty() {
        found.push(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), DNS));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolvers_are_those_that_libc_would_ask() {
        let found = |text: &str| resolvers(text).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(found(""), ["127.0.0.1:53"]);
        assert_eq!(
            found(
                "# nameserver 9.9.9.9\nsearch corp\nnameserver 10.0.0.1 # ours\n nameserver fd00::1\nnameserver fe80::1%eth0\nnameserver 10.0.0.2\nnameserver 10.0.0.3\n"
            ),
            ["10.0.0.1:53", "[fd00::1]:53", "10.0.0.2:53"]
        );
    }
}
