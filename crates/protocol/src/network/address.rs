//! What kind of place an address is. Only what is known to be the public Internet is [`AddressClass::Public`];
//! everything else has a class of its own, and an address that carries another one inside it has that one's.
//!
//! The tables are the IANA special-purpose registries (RFC 6890 and its updates), plus the addresses at which
//! clouds serve instance metadata outside of link-local ranges.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

/// Kinds of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum AddressClass {
    Public,
    Unspecified,
    Loopback,
    LinkLocal,
    /// Where a cloud hands out credentials of the machine.
    Metadata,
    Private,
    /// Carrier-grade NAT (RFC 6598); also where overlay networks live.
    Shared,
    Multicast,
    Broadcast,
    /// Documentation, benchmarks, translation, unassigned.
    Reserved,
}

impl AddressClass {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Unspecified => "unspecified",
            Self::Loopback => "loopback",
            Self::LinkLocal => "link-local",
            Self::Metadata => "metadata",
            Self::Private => "private",
            Self::Shared => "shared",
            Self::Multicast => "multicast",
            Self::Broadcast => "broadcast",
            Self::Reserved => "reserved",
        }
    }

    /// Nobody can allow these: a connection to them means nothing, or reaches more than one peer.
    pub const fn is_never_a_peer(self) -> bool {
        matches!(self, Self::Unspecified | Self::Multicast | Self::Broadcast)
    }
}

impl fmt::Display for AddressClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

pub fn classify(address: IpAddr) -> AddressClass {
    match address {
        IpAddr::V4(v4) => classify_v4(v4),
        IpAddr::V6(v6) => classify_v6(v6),
    }
}

/// Metadata services at addresses that the ranges below would not call so: Azure, Alibaba, Oracle.
const METADATA_V4: [Ipv4Addr; 4] = [
    Ipv4Addr::new(169, 254, 169, 254),
    Ipv4Addr::new(168, 63, 129, 16),
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(192, 0, 0, 192),
];

/// AWS and others, in the private range.
const METADATA_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);

fn classify_v4(v4: Ipv4Addr) -> AddressClass {
    if METADATA_V4.contains(&v4) {
        return AddressClass::Metadata;
    }
    match v4.octets() {
        [0, 0, 0, 0] => AddressClass::Unspecified,
        [255, 255, 255, 255] => AddressClass::Broadcast,
        [127, ..] => AddressClass::Loopback,
        [169, 254, ..] => AddressClass::LinkLocal,
        [10, ..] | [192, 168, ..] => AddressClass::Private,
        [172, second, ..] if second & 0xf0 == 16 => AddressClass::Private,
        [100, second, ..] if second & 0xc0 == 64 => AddressClass::Shared,
        [first, ..] if first & 0xf0 == 224 => AddressClass::Multicast,
        // "This network", protocol assignments, three documentation ranges, the retired 6to4 relays,
        // benchmarks, and the former class E.
        [0, ..]
        | [192, 0, 0 | 2, _]
        | [198, 51, 100, _]
        | [203, 0, 113, _]
        | [192, 88, 99, _]
        | [198, 18 | 19, ..]
        | [240..=255, ..] => AddressClass::Reserved,
        _ => AddressClass::Public,
    }
}

fn classify_v6(v6: Ipv6Addr) -> AddressClass {
    if v6 == METADATA_V6 {
        return AddressClass::Metadata;
    }
    if let Some(embedded) = embedded_v4(v6) {
        return classify_v4(embedded);
    }
    match v6.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => AddressClass::Unspecified,
        [0, 0, 0, 0, 0, 0, 0, 1] => AddressClass::Loopback,
        [first, ..] if first & 0xff00 == 0xff00 => AddressClass::Multicast,
        [first, ..] if first & 0xffc0 == 0xfe80 => AddressClass::LinkLocal,
        // Unique local, and the site-local range that came before it.
        [first, ..] if first & 0xfe00 == 0xfc00 || first & 0xffc0 == 0xfec0 => AddressClass::Private,
        // Documentation, both ranges; protocol assignments with Teredo, ORCHID and benchmarks.
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] | [0x2001, 0..=0x1ff, ..] => AddressClass::Reserved,
        // Global unicast is 2000::/3; nothing else is assigned to anybody.
        [first, ..] if first & 0xe000 == 0x2000 => AddressClass::Public,
        _ => AddressClass::Reserved,
    }
}

/// The IPv4 address at which a packet to this address would end, by mapping, NAT64 or 6to4.
fn embedded_v4(v6: Ipv6Addr) -> Option<Ipv4Addr> {
    let low = |segments: [u16; 8]| Ipv4Addr::from_bits(u32::from(segments[6]) << 16 | u32::from(segments[7]));
    match v6.segments() {
        // Mapped (and "translated", RFC 2765).
        segments @ ([0, 0, 0, 0, 0, 0xffff, ..] | [0, 0, 0, 0, 0xffff, 0, ..]) => Some(low(segments)),
        segments @ [0x64, 0xff9b, 0, 0, 0, 0, ..] => Some(low(segments)),
        [0x2002, high, low, ..] => Some(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_the_class_of_their_range() {
        use AddressClass as C;
        let table = [
            ("1.1.1.1", C::Public),
            ("172.15.255.255", C::Public),
            ("172.32.0.0", C::Public),
            ("100.63.255.255", C::Public),
            ("100.128.0.0", C::Public),
            ("223.255.255.255", C::Public),
            ("0.0.0.0", C::Unspecified),
            ("0.1.2.3", C::Reserved),
            ("10.0.0.1", C::Private),
            ("172.16.0.1", C::Private),
            ("172.31.255.255", C::Private),
            ("192.168.1.1", C::Private),
            ("100.64.0.1", C::Shared),
            ("100.100.100.200", C::Metadata),
            ("127.8.8.8", C::Loopback),
            ("169.254.1.1", C::LinkLocal),
            ("169.254.169.254", C::Metadata),
            ("168.63.129.16", C::Metadata),
            ("192.0.0.1", C::Reserved),
            ("192.0.2.1", C::Reserved),
            ("192.0.1.1", C::Public),
            ("198.19.0.1", C::Reserved),
            ("198.51.100.1", C::Reserved),
            ("203.0.113.1", C::Reserved),
            ("224.0.0.1", C::Multicast),
            ("239.255.255.255", C::Multicast),
            ("240.0.0.1", C::Reserved),
            ("255.255.255.254", C::Reserved),
            ("255.255.255.255", C::Broadcast),
            ("::", C::Unspecified),
            ("::1", C::Loopback),
            ("::7f00:1", C::Reserved),
            ("fe80::1", C::LinkLocal),
            ("febf::1", C::LinkLocal),
            ("fec0::1", C::Private),
            ("fc00::1", C::Private),
            ("fdff::1", C::Private),
            ("fd00:ec2::254", C::Metadata),
            ("ff02::1", C::Multicast),
            ("2606:4700::1111", C::Public),
            ("2001:db8::1", C::Reserved),
            ("2001::1", C::Reserved),
            ("2001:200::1", C::Public),
            ("3fff::1", C::Reserved),
            ("3fff:1000::1", C::Public),
            ("4000::1", C::Reserved),
            ("100::1", C::Reserved),
            ("5f00::1", C::Reserved),
            ("::ffff:127.0.0.1", C::Loopback),
            ("::ffff:0:10.0.0.1", C::Private),
            ("::ffff:8.8.8.8", C::Public),
            ("64:ff9b::169.254.169.254", C::Metadata),
            ("64:ff9b::10.0.0.1", C::Private),
            ("64:ff9b::1.1.1.1", C::Public),
            ("64:ff9b:1::1.1.1.1", C::Reserved),
            ("2002:7f00:1::", C::Loopback),
            ("2002:c0a8:101::1", C::Private),
            ("2002:101:101::1", C::Public),
        ];
        for (text, class) in table {
            assert_eq!(classify(text.parse().unwrap()), class, "{text}");
        }
    }
}
