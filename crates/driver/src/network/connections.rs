//! What connections a box has, by the kernel's own table of its network namespace: who carried them may be gone
//! without having told.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use sandcrate_net::{Addressing, BoxId, Ends};

/// For each box, so that all of them fit into one message. A box has fewer, unless its limit was raised; the rest
/// end when they are used.
const MAX_CONNECTIONS: usize = 2048;

/// States in which nothing is on its way that would be sent again and answered with a reset
/// (include/net/tcp_states.h): established, waiting for the peer's end, waiting for our own.
const QUIET: [u8; 3] = [1, 5, 8];

/// A box, and connections of it.
pub(super) type Connections = (BoxId, Vec<Ends>);

/// The connections of boxes, each known by its init. Scans tables: not for an async thread.
pub(super) fn of_boxes(boxes: &[(BoxId, i32)]) -> Vec<Connections> {
    let found = boxes.iter().filter(|(_, init)| *init > 0).map(|(id, init)| (*id, of_process(*init)));
    found.filter(|(_, connections)| !connections.is_empty()).collect()
}

/// A process that is gone has none.
fn of_process(pid: i32) -> Vec<Ends> {
    let table = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
    let (v4, v6) = (table("tcp"), table("tcp6"));
    v4.lines().chain(v6.lines()).filter_map(parse).take(MAX_CONNECTIONS).collect()
}

/// One line of a table, if it is a quiet connection over the box's device.
fn parse(line: &str) -> Option<Ends> {
    let mut words = line.split_whitespace().skip(1);
    let (inside, outside) = (address(words.next()?)?, address(words.next()?)?);
    let state = u8::from_str_radix(words.next()?, 16).ok()?;
    let addressing = Addressing::default();
    let ours = inside.ip() == addressing.box_v4 || inside.ip() == addressing.box_v6;
    (ours && QUIET.contains(&state)).then_some(Ends { inside, outside })
}

/// `0100007F:0050`: words of 32 bits as the processor has them in memory, each written as a number.
fn address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let mut bytes = Vec::with_capacity(16);
    for word in address.as_bytes().chunks(8) {
        let word = u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()?;
        bytes.extend(word.to_ne_bytes());
    }
    let ip = match bytes.len() {
        4 => IpAddr::from(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        16 => IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)).to_canonical(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_seen_with_its_connections() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (inside, outside) = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
        let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
        let seen = table.lines().filter_map(|line| {
            let mut words = line.split_whitespace().skip(1);
            Some((address(words.next()?)?, address(words.next()?)?))
        });
        assert!(seen.into_iter().any(|pair| pair == (inside, outside)), "{inside} {outside}\n{table}");
        // Not over a box's device.
        let ours = Ends { inside, outside };
        assert!(!of_process(i32::try_from(std::process::id()).unwrap()).contains(&ours));
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn quiet_connections_of_the_device_are_taken() {
        let line = |inside: &str, state: &str| {
            parse(&format!("   1: {inside} 0A7100CB:0007 {state} 00000000:00000000 00:00000000 00000000"))
        };
        let outside = "203.0.113.10:7".parse().unwrap();
        let wanted = Some(Ends { inside: "192.0.0.2:4660".parse().unwrap(), outside });
        assert_eq!(line("020000C0:1234", "01"), wanted, "established");
        assert_eq!(line("020000C0:1234", "08"), wanted, "the peer has ended");
        assert_eq!(line("020000C0:1234", "02"), None, "its first packet is sent again");
        assert_eq!(line("0100007F:1234", "01"), None, "of the box's own loopback");
        assert_eq!(parse("  sl  local_address rem_address   st tx_queue rx_queue"), None);
        // An IPv6 socket that speaks IPv4 is found with the others.
        let mapped = "   1: 0000000000000000FFFF0000020000C0:1234 0000000000000000FFFF00000A7100CB:0007 01 0";
        assert_eq!(parse(mapped), wanted);
    }
}
