//! Messages there and back, and hostile ones.

use proptest::prelude::*;

use super::*;

fn response(answers: Vec<Record>) -> Message {
    let question = Question { name: "www.example.com".to_owned(), kind: kind::A };
    Message { response: true, answers, udp_size: Some(1232), ..Message::query(7, question) }
}

#[test]
fn messages_survive_their_encoding() {
    let record = |data| Record { name: "www.example.com".to_owned(), ttl_seconds: 60, data };
    let message = response(vec![
        record(Data::Alias("edge.example.net".to_owned())),
        record(Data::Address("192.0.2.1".parse().unwrap())),
        record(Data::Address("2001:db8::1".parse().unwrap())),
        record(Data::Mx { preference: 10, exchange: "mail.example.com".to_owned() }),
        record(Data::Srv { numbers: [1, 2, 443], target: "a.example.com".to_owned() }),
        record(Data::Host { kind: kind::PTR, name: "b.example.com".to_owned() }),
        record(Data::Txt(b"\x03abc".to_vec())),
    ]);
    assert_eq!(Message::parse(&message.encode(4096)).unwrap(), message);
}

#[test]
fn what_does_not_fit_is_left_out_whole() {
    let address = |last: u8| Record {
        name: "www.example.com".to_owned(),
        ttl_seconds: 60,
        data: Data::Address(IpAddr::from([192, 0, 2, last])),
    };
    let bytes = response((0..100).map(address).collect()).encode(512);
    assert!(bytes.len() <= 512);
    let read = Message::parse(&bytes).unwrap();
    assert!(read.answers.len() > 10 && !read.truncated);
}

#[test]
fn compressed_names_are_read_and_loops_are_not() {
    let mut bytes = response(Vec::new()).encode(512);
    bytes.truncate(12 + 17 + 4);
    bytes[7] = 1;
    bytes[11] = 0;
    bytes.extend([0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 9, 0, 7, 4, b'e', b'd', b'g', b'e', 0xc0, 16]);
    let read = Message::parse(&bytes).unwrap();
    assert_eq!(read.answers[0].data, Data::Alias("edge.example.com".to_owned()));
    let pointer = bytes.len() - 1;
    for target in [pointer as u8 - 1, pointer as u8 - 6, 255] {
        bytes[pointer] = target;
        assert!(Message::parse(&bytes).is_err(), "{target}");
    }
}

#[test]
fn odd_messages_are_refused() {
    let good = response(Vec::new()).encode(512);
    let change = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        Message::parse(&bytes)
    };
    assert_eq!(change(5, 2), Err(DnsError::Question));
    assert_eq!(change(5, 0), Err(DnsError::Question));
    assert_eq!(change(2, 0x28), Err(DnsError::Kind));
    assert_eq!(change(13, b'.'), Err(DnsError::Name));
    assert_eq!(change(13, b' '), Err(DnsError::Name));
    assert_eq!(Message::parse(&good[..11]), Err(DnsError::Short));
}

proptest! {
    #[test]
    fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(message) = Message::parse(&bytes) {
            let _ = Message::parse(&message.encode(65_535)).unwrap();
        }
    }

    #[test]
    fn mangled_messages_never_panic(index in 0..90_usize, value in any::<u8>(), cut in 0..100_usize) {
        let record = Record { name: "www.example.com".into(), ttl_seconds: 1, data: Data::Alias("x.example".into()) };
        let mut bytes = response(vec![record]).encode(512);
        if let Some(byte) = bytes.get_mut(index) { *byte = value; }
        bytes.truncate(cut.max(12));
        let _ = Message::parse(&bytes);
    }
}
