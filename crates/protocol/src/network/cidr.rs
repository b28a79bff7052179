//! A range of addresses in the notation of RFC 4632, with no bits set behind the prefix.

use std::fmt;
use std::net::IpAddr;

/// Addresses that share a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cidr {
    base: IpAddr,
    prefix: u8,
}

impl Cidr {
    /// `None` when the prefix is longer than an address.
    pub fn containing(address: IpAddr, prefix: u8) -> Option<Self> {
        let base = match address {
            IpAddr::V4(v4) if prefix <= 32 => IpAddr::V4((v4.to_bits() & mask32(prefix)).into()),
            IpAddr::V6(v6) if prefix <= 128 => IpAddr::V6((v6.to_bits() & mask128(prefix)).into()),
            _ => return None,
        };
        Some(Self { base, prefix })
    }

    /// The range of one address.
    pub fn single(address: IpAddr) -> Self {
        Self { base: address, prefix: if address.is_ipv4() { 32 } else { 128 } }
    }

    pub fn base(&self) -> IpAddr {
        self.base
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        Self::containing(address, self.prefix).is_some_and(|other| other.base == self.base)
    }

    pub fn is_single(&self) -> bool {
        self.prefix == if self.base.is_ipv4() { 32 } else { 128 }
    }
}

const fn mask32(prefix: u8) -> u32 {
    if prefix == 0 { 0 } else { u32::MAX << (32 - prefix) }
}

const fn mask128(prefix: u8) -> u128 {
    if prefix == 0 { 0 } else { u128::MAX << (128 - prefix) }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_single() { write!(f, "{}", self.base) } else { write!(f, "{}/{}", self.base, self.prefix) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_range_holds_its_addresses_and_no_others() {
        let range = Cidr::containing(ip("10.1.2.3"), 8).unwrap();
        assert_eq!(range.to_string(), "10.0.0.0/8");
        assert!(range.contains(ip("10.255.0.1")) && !range.contains(ip("11.0.0.0")));
        assert!(!range.contains(ip("::ffff:10.0.0.1")), "families do not mix");
        let all = Cidr::containing(ip("::"), 0).unwrap();
        assert!(all.contains(ip("2001:db8::1")) && !all.contains(ip("1.2.3.4")));
        assert!(Cidr::containing(ip("1.2.3.4"), 33).is_none());
        assert_eq!(Cidr::single(ip("2001:db8::1")).to_string(), "2001:db8::1");
    }
}
