//! Names that are shown, names that are hidden, and bytes of every kind.

use proptest::prelude::*;

use super::*;

/// A ClientHello with these extensions, as one handshake message.
fn hello(extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0x13, 0x01, 1, 0]);
    let mut list = Vec::new();
    for (kind, content) in extensions {
        list.extend(kind.to_be_bytes());
        list.extend((content.len() as u16).to_be_bytes());
        list.extend(content);
    }
    body.extend((list.len() as u16).to_be_bytes());
    body.extend(list);
    let mut message = vec![1, 0];
    message.extend((body.len() as u16).to_be_bytes());
    message.extend(body);
    message
}

fn sni(name: &str) -> (u16, Vec<u8>) {
    let mut content = ((name.len() + 3) as u16).to_be_bytes().to_vec();
    content.push(0);
    content.extend((name.len() as u16).to_be_bytes());
    content.extend(name.as_bytes());
    (0, content)
}

/// The message in records of at most `size` bytes.
fn records(message: &[u8], size: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for chunk in message.chunks(size) {
        out.extend([0x16, 3, 1]);
        out.extend((chunk.len() as u16).to_be_bytes());
        out.extend(chunk);
    }
    out
}

fn tls(name: &str) -> Option<Sniffed> {
    Some(Sniffed::Tls { name: Some(name.parse().unwrap()) })
}

fn http(name: &str) -> Option<Sniffed> {
    Some(Sniffed::Http { name: Some(name.parse().unwrap()) })
}

#[test]
fn the_server_name_is_found_however_the_hello_is_cut() {
    let message = hello(&[(10, vec![0, 2, 0, 29]), sni("Api.Example.com"), (43, vec![2, 3, 4])]);
    for size in [1, 2, 3, 7, 100, 16384] {
        let bytes = records(&message, size);
        assert_eq!(sniff(&bytes), tls("api.example.com"), "records of {size}");
        for end in 0..bytes.len() {
            assert!(sniff(&bytes[..end]).is_none(), "{end} of {} bytes", bytes.len());
        }
    }
}

#[test]
fn a_hello_without_one_clear_name_shows_none() {
    let none = Some(Sniffed::Tls { name: None });
    assert_eq!(sniff(&records(&hello(&[]), 100)), none);
    assert_eq!(sniff(&records(&hello(&[sni("a.example"), sni("b.example")]), 100)), none);
    assert_eq!(sniff(&records(&hello(&[sni("1.2.3.4")]), 100)), none);
    assert_eq!(sniff(&records(&hello(&[sni("")]), 100)), none);
    assert_eq!(sniff(&[0x16, 9, 9, 0, 1]), none);
    assert_eq!(sniff(&[0x80, 0x2e, 1, 0, 2]), none, "the version 2 hello");
    let mut two_types = sni("a.example");
    two_types.1.extend([1, 0, 1, b'x']);
    assert_eq!(sniff(&records(&hello(&[two_types]), 100)), none);
}

#[test]
fn the_host_of_a_request_is_found() {
    assert_eq!(sniff(b"GET / HTTP/1.1\r\nHost: Example.com:8080\r\n\r\n"), http("example.com"));
    assert_eq!(sniff(b"\r\n\nPOST /x HTTP/1.0\nAccept: */*\nhOsT:example.com\n\nbody"), http("example.com"));
    assert_eq!(sniff(b"GET http://example.com/x HTTP/1.1\r\nHost: example.com\r\n\r\n"), http("example.com"));
    assert_eq!(
        sniff(b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n"),
        http("example.com")
    );
    assert_eq!(sniff(b"GET / HTTP/1.1\r\nHost: example.com\r\n"), None);
    assert_eq!(sniff(b"GE"), None);
}

#[test]
fn a_request_that_could_be_read_two_ways_shows_no_name() {
    let none = Some(Sniffed::Http { name: None });
    for head in [
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.example\r\nHost: b.example\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : a.example\r\n\r\n",
        "GET / HTTP/1.1\r\nX: y\r\n Host: b.example\r\nHost: a.example\r\n\r\n",
        "GET http://b.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: user@a.example\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: 10.0.0.1\r\n\r\n",
        "CONNECT b.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "GET /\r\n\r\n",
    ] {
        assert_eq!(sniff(head.as_bytes()), none, "{head:?}");
    }
}

#[test]
fn other_protocols_are_other() {
    for bytes in [
        &b"SSH-2.0-OpenSSH_9.6\r\n"[..],
        b"\x00\x00\x00\x08\x04\xd2\x16\x2f",
        b"\x10\x0c\0\x04MQTT",
        b"EHLO me\r\n",
    ] {
        assert_eq!(sniff(bytes), Some(Sniffed::Other), "{bytes:?}");
    }
}

#[test]
fn an_answer_comes_at_the_bound_at_the_latest() {
    let endless = [b"GET / HTTP/1.1\r\nX: ".as_slice(), &vec![b'x'; MAX_BYTES]].concat();
    assert_eq!(sniff(&endless), Some(Sniffed::Http { name: None }));
    assert_eq!(sniff(&vec![b'\n'; MAX_BYTES]), Some(Sniffed::Http { name: None }));
    assert!(sniff(&[0x16, 3, 1, 0x40, 0, 1, 0, 0x3f, 0].repeat(2000)).is_some());
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic_and_an_answer_never_changes(bytes in proptest::collection::vec(any::<u8>(), 0..400), start in 0..4_usize) {
        let prefix: &[u8] = [&b""[..], b"\x16\x03\x01", b"GET / HTTP/1.1\r\nHost: ", b"\x16\x03\x01\x01\x00\x01\x00\x00"][start];
        let all = [prefix, &bytes].concat();
        let mut answer = None;
        for end in 0..=all.len() {
            let now = sniff(&all[..end]);
            if answer.is_some() {
                prop_assert_eq!(&now, &answer, "after {} bytes", end);
            }
            answer = now;
        }
    }

    #[test]
    fn mangled_hellos_never_panic(index in 0..120_usize, value in any::<u8>(), size in 1..200_usize) {
        let mut bytes = records(&hello(&[sni("api.example.com")]), size);
        if let Some(byte) = bytes.get_mut(index) { *byte = value; }
        let _ = sniff(&bytes);
    }
}
