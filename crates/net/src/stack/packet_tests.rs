//! What is read, what is dropped, and that what we write can be read.

use proptest::prelude::*;

use super::*;

fn ends(v6: bool) -> Ends {
    let (inside, outside) =
        if v6 { ("[fd00::2]:4000", "[2001:db8::1]:80") } else { ("192.0.0.2:4000", "203.0.113.1:80") };
    Ends { inside: inside.parse().unwrap(), outside: outside.parse().unwrap() }
}

fn flipped(ends: Ends) -> Ends {
    Ends { inside: ends.outside, outside: ends.inside }
}

#[test]
fn datagrams_are_written_as_they_are_read() {
    for v6 in [false, true] {
        let bytes = udp(ends(v6), b"hello").unwrap();
        let Some(Packet::Udp { ends: read, payload, .. }) = parse(&bytes) else { panic!("not read") };
        assert_eq!((read, payload), (flipped(ends(v6)), &b"hello"[..]));
        let header = if v6 { 40 } else { 20 };
        let sum = pseudo(ends(v6).outside.ip(), ends(v6).inside.ip(), UDP, bytes.len() - header);
        assert_eq!(checksum(sum, &bytes[header..]), 0, "the checksum is right");
        assert!(udp(ends(v6), &vec![0; 65536]).is_none());
    }
}

#[test]
fn fragments_options_and_wrong_lengths_are_dropped() {
    let good = udp(ends(false), b"hello").unwrap();
    assert!(parse(&good).is_some());
    let change = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        parse(&bytes).is_some()
    };
    assert!(!change(0, 0x46), "options");
    assert!(!change(0, 0x55), "version 5");
    assert!(!change(6, 0x20), "more fragments");
    assert!(!change(7, 1), "an offset");
    assert!(!change(6, 0x80), "the reserved bit");
    assert!(!change(3, 200), "longer than it is");
    assert!(!change(9, 47), "another protocol");
    assert!(!change(25, 200), "a datagram longer than its packet");
    let v6 = udp(ends(true), b"hello").unwrap();
    for next in [0, 43, 44, 60] {
        let mut bytes = v6.clone();
        bytes[6] = next;
        assert!(parse(&bytes).is_none(), "extension header {next}");
    }
    for end in 0..good.len() {
        assert!(parse(&good[..end]).is_none());
    }
}

#[test]
fn refusals_quote_the_packet() {
    for v6 in [false, true] {
        let original = udp(flipped(ends(v6)), b"hello").unwrap();
        let bytes = unreachable(ends(v6).outside.ip(), &original, Unreachable::Prohibited).unwrap();
        let header = if v6 { 40 } else { 20 };
        assert_eq!(&bytes[header..header + 2], if v6 { &[1, 1] } else { &[3, 13] });
        assert!(bytes[header + 8..].starts_with(&original[..28]));
    }
}

#[test]
fn a_reset_acknowledges_what_it_answers() {
    let mut segment =
        wrap("192.0.0.2".parse().unwrap(), "203.0.113.1".parse().unwrap(), TCP, &[0; 20]).unwrap();
    segment[20 + 12] = 0x50;
    segment[20 + 13] = 0x02;
    segment[20 + 4..20 + 8].copy_from_slice(&41_u32.to_be_bytes());
    let reset = reset(ends(false), &segment).unwrap();
    assert_eq!(reset[20 + 8..20 + 12], 42_u32.to_be_bytes());
    assert_eq!(reset[20 + 13], 0x14);
}

proptest! {
    #[test]
    fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..120), version in 0..3_usize) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() && version < 2 {
            *first = [0x45, 0x60][version];
            let total = bytes.len() as u16;
            if bytes.len() > 6 {
                let (at, value) = if version == 0 { (2, total) } else { (4, total.saturating_sub(40)) };
                bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
                if version == 0 && bytes.len() > 9 { bytes[6] = 0x40; bytes[7] = 0; bytes[9] = [6, 17, 1][bytes.len() % 3]; }
                if version == 1 { bytes[6] = [6, 17, 58][bytes.len() % 3]; }
            }
        }
        match parse(&bytes) {
            Some(Packet::Tcp { ends, bytes, .. }) => { let _ = reset(ends, bytes); }
            Some(Packet::Echo { ends, message, .. }) => { let _ = echo_reply(ends, message); }
            _ => {}
        }
        let _ = unreachable("192.0.0.1".parse().unwrap(), &bytes, Unreachable::Port);
    }
}
