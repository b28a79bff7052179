//! A network by its prefix.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::ConfigError;

/// All addresses that share the first `prefix` bits with `network`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cidr {
    network: IpAddr,
    prefix: u8,
}

impl Cidr {
    /// An IPv4 address in its IPv6 form counts as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        let bits = |address: IpAddr| match address.to_canonical() {
            IpAddr::V4(v4) => (32, u128::from(v4.to_bits())),
            IpAddr::V6(v6) => (128, v6.to_bits()),
        };
        let ((width, ours), (their_width, theirs)) = (bits(self.network), bits(address));
        let free = width - u32::from(self.prefix);
        // A shift by the whole width is no shift at all for the machine, hence the question.
        width == their_width && (self.prefix == 0 || ours >> free == theirs >> free)
    }
}

impl FromStr for Cidr {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ConfigError::Cidr { text: text.to_owned() };
        let (address, prefix) = match text.trim().split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text.trim(), None),
        };
        let network: IpAddr = address.parse().map_err(|_| wrong())?;
        let width = if network.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().map_err(|_| wrong())?
            }
            Some(_) => return Err(wrong()),
            None => width,
        };
        // An IPv4 network in IPv6 form would never match a canonical address.
        if prefix > width || network.to_canonical() != network {
            return Err(wrong());
        }
        Ok(Self { network, prefix })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_contains_what_shares_its_prefix() {
        for (cidr, address, inside) in [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.0/8", "::ffff:10.1.2.3", true),
            ("10.1.2.3", "10.1.2.3", true),
            ("10.1.2.3", "10.1.2.4", false),
            ("0.0.0.0/0", "203.0.113.9", true),
            ("0.0.0.0/0", "fd00::1", false),
            ("fd00::/8", "fdff::1", true),
            ("fd00::/8", "fe80::1", false),
            ("::/0", "fe80::1", true),
            ("::/0", "10.0.0.1", false),
            ("172.17.0.0/16", "172.17.9.9", true),
        ] {
            let parsed: Cidr = cidr.parse().unwrap();
            assert_eq!(parsed.contains(address.parse().unwrap()), inside, "{address} in {cidr}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in [
            "",
            "10.0.0.0/33",
            "10.0.0/8",
            "host/8",
            "::/129",
            "10.0.0.0/-1",
            "10.0.0.0/+8",
            "::ffff:1.2.3.4/128",
        ] {
            assert!(bad.parse::<Cidr>().is_err(), "{bad}");
        }
    }
}
