//! Which names stand for which addresses, and until when. Bounded: a box cannot make it grow by asking.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use sandcrate_protocol::network::HostName;

/// A program may connect some time after it asked, however short the answer's life is.
pub(super) const MIN_LIFETIME: Duration = Duration::from_secs(300);
/// A name that moved must not keep its old addresses for ever; answers are given out with no longer life.
pub(super) const MAX_LIFETIME: Duration = Duration::from_secs(3600);
/// Enough for an install from many mirrors; about 200 bytes each.
const MAX_ADDRESSES: usize = 2048;
/// Names at one address: shared front ends.
const MAX_NAMES: usize = 16;

/// Addresses that our DNS gave for names.
#[derive(Debug, Default)]
pub struct Bindings {
    by_address: HashMap<IpAddr, Vec<Binding>>,
}

#[derive(Debug)]
struct Binding {
    name: HostName,
    ends: Instant,
}

impl Bindings {
    /// Notes that `name` has `address` for `ttl`, within bounds.
    pub fn bind(&mut self, name: &HostName, address: IpAddr, ttl: Duration, now: Instant) {
        let ends = now + ttl.clamp(MIN_LIFETIME, MAX_LIFETIME);
        if self.by_address.len() >= MAX_ADDRESSES && !self.by_address.contains_key(&address) {
            self.make_room(now);
        }
        let known = self.by_address.entry(address).or_default();
        known.retain(|binding| binding.ends > now && binding.name != *name);
        if known.len() >= MAX_NAMES {
            known.remove(0);
        }
        known.push(Binding { name: name.clone(), ends });
    }

    /// The names of an address, latest first.
    pub fn names(&self, address: IpAddr, now: Instant) -> Vec<HostName> {
        let known = self.by_address.get(&address).map_or(&[][..], Vec::as_slice);
        known.iter().rev().filter(|binding| binding.ends > now).map(|binding| binding.name.clone()).collect()
    }

    /// What has ended goes; if that is nothing, what ends first.
    fn make_room(&mut self, now: Instant) {
        self.by_address.retain(|_, known| known.iter().any(|binding| binding.ends > now));
        if self.by_address.len() < MAX_ADDRESSES {
            return;
        }
        let latest = |known: &[Binding]| known.iter().map(|binding| binding.ends).max();
        if let Some(first) =
            self.by_address.iter().min_by_key(|(_, known)| latest(known)).map(|(address, _)| *address)
        {
            self.by_address.remove(&first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_live_as_long_as_their_answer_within_bounds() {
        let now = Instant::now();
        let address: IpAddr = "192.0.2.1".parse().unwrap();
        let name = |text: &str| text.parse::<HostName>().unwrap();
        let mut table = Bindings::default();
        table.bind(&name("short.example"), address, Duration::from_secs(1), now);
        table.bind(&name("long.example"), address, Duration::from_secs(1 << 30), now);
        assert_eq!(table.names(address, now), [name("long.example"), name("short.example")]);
        assert_eq!(table.names(address, now + MIN_LIFETIME), [name("long.example")]);
        assert!(table.names(address, now + MAX_LIFETIME).is_empty());
        assert!(table.names("192.0.2.2".parse().unwrap(), now).is_empty());
    }

    #[test]
    fn the_table_is_bounded_both_ways() {
        let now = Instant::now();
        let mut table = Bindings::default();
        let name: HostName = "a.example".parse().unwrap();
        for index in 0..MAX_ADDRESSES as u32 + 100 {
            table.bind(&name, IpAddr::from(index.to_be_bytes()), Duration::ZERO, now);
        }
        assert_eq!(table.by_address.len(), MAX_ADDRESSES);
        let address: IpAddr = "192.0.2.1".parse().unwrap();
        for index in 0..MAX_NAMES + 5 {
            table.bind(&format!("n{index}.example").parse().unwrap(), address, Duration::ZERO, now);
        }
        assert_eq!(table.names(address, now).len(), MAX_NAMES);
    }
}
