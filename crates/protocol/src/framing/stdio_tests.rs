//! Lines and chunks: what the reference sends, and what would have ended it.

use super::*;
use crate::rpc::Response;

const PING: &str = r#"{"seq_id":1,"action":"__ping","data":{}}"#;

fn decode(decoder: &mut Decoder, mut input: &[u8]) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some(event) = decoder.next_event(&mut input) {
        events.push(event);
    }
    events
}

fn message(text: &str) -> Event {
    Event::Message(text.to_owned())
}

fn encoded(message: &str) -> String {
    let mut out = Vec::new();
    encode(message, &mut out);
    String::from_utf8(out).unwrap()
}

/// JSON of exactly so many bytes.
fn json(bytes: usize, filler: &str) -> String {
    format!("{{\"x\": \"{}\"}}", filler.repeat((bytes - 9) / filler.len()))
}

#[test]
fn the_boundary_is_where_the_reference_has_it() {
    let reply = |bytes: usize| {
        let text = format!("BoxSessionNotFoundError: session {} not found", "q".repeat(bytes - 123));
        Response::failure(SeqId::from(22), text).encode()
    };
    assert_eq!(encoded(&reply(16_384)).len(), 16_385);
    let lines = encoded(&reply(16_385));
    let lengths: Vec<_> = lines.split_inclusive('\n').map(str::len).collect();
    assert_eq!(lengths, [45, 16_446, 53, 22]);
    assert!(lines.starts_with(
        "{\"type\": \"chunk_start\", \"total_size\": 16385}\n{\"type\": \"chunk_data\", \"data\": \"{"
    ));
    assert!(lines.ends_with(
        "\n{\"type\": \"chunk_data\", \"data\": \"}\", \"offset\": 16384}\n{\"type\": \"chunk_end\"}\n"
    ));
}

#[test]
fn no_line_is_longer_than_the_peers_read() {
    let lines = encoded(&json(100_009, "\\\\"));
    assert!(lines.split_inclusive('\n').all(|line| line.len() < 65_536));
    let wide = encoded(&format!("{{\"x\": \"{}\"}}", "好".repeat(10_000)));
    assert!(wide.is_ascii());
    let mut decoder = Decoder::new();
    assert_eq!(
        decode(&mut decoder, wide.as_bytes()),
        [message(&format!("{{\"x\": \"{}\"}}", "好".repeat(10_000)))]
    );
}

#[test]
fn lines_that_are_no_messages_are_dropped() {
    let mut decoder = Decoder::new();
    let input = format!("\n\n   \nhello world\n[1]\n{PING}\r\n \u{a0}{PING}\t\n");
    assert_eq!(decode(&mut decoder, input.as_bytes()), [message(PING), message(PING)]);
    assert_eq!(decode(&mut decoder, b"{oops}\n"), [message("{oops}")]);
    assert_eq!(decode(&mut decoder, b"{\"type\":\"x\"}\n{\"type\":5}\n").len(), 2);
    assert_eq!(
        decode(&mut decoder, b"{\"type\":\"chunk_data\",\"data\":\"z\"}\n{\"type\":\"chunk_end\"}\n"),
        []
    );
}

#[test]
fn a_line_that_cannot_be_read_costs_only_itself() {
    let mut decoder = Decoder::new();
    let mut input = b"{\"x\": \"\xff\"}\n".to_vec();
    input.extend([b'{'].repeat(3 * MAX_LINE_BYTES));
    input.extend(format!("}}\n{PING}\n").as_bytes());
    for piece in [1, 1000, input.len()] {
        let events: Vec<_> = input.chunks(piece).flat_map(|part| decode(&mut decoder, part)).collect();
        let broken = [LineError::NotUtf8, LineError::LineTooLong].map(Event::Broken);
        assert_eq!(events, [&broken[..], &[message(PING)]].concat());
    }
}

#[test]
fn a_line_of_the_greatest_length_is_read() {
    let mut decoder = Decoder::new();
    let line = json(MAX_LINE_BYTES, "x");
    assert_eq!(decode(&mut decoder, format!("{line}\n").as_bytes()), [message(&line)]);
    assert_eq!(
        decode(&mut decoder, format!("{line} \n").as_bytes()),
        [Event::Broken(LineError::LineTooLong)]
    );
}

#[test]
fn a_broken_sequence_costs_only_itself() {
    let mut decoder = Decoder::new();
    let start = "{\"type\":\"chunk_start\"}\n";
    let data = "{\"type\":\"chunk_data\",\"data\":\"{}\"}\n";
    let end = "{\"type\":\"chunk_end\"}\n";
    let bad = "{\"type\":\"chunk_data\",\"data\":5}\n";
    let cases = [
        (
            format!("{start}{data}{start}{data}{end}"),
            vec![Event::Broken(LineError::Interrupted), message("{}")],
        ),
        (format!("{start}{bad}{data}{end}{PING}\n"), vec![Event::Broken(LineError::BadChunk), message(PING)]),
        (format!("{start}{PING}\n{data}{end}"), vec![message(PING), message("{}")]),
        (
            format!(
                "{start}junk\n{{junk}}\n{{\"type\":\"other\"}}\n{{\"type\":\"chunk_data\"}}\n{data}{end}"
            ),
            vec![message("{}")],
        ),
        (format!("{start}{end}"), vec![message("")]),
    ];
    for (input, events) in cases {
        assert_eq!(decode(&mut decoder, input.as_bytes()), events, "{input}");
    }
}

#[test]
fn an_endless_sequence_is_given_up() {
    let mut decoder = Decoder::new();
    let data = format!("{{\"type\":\"chunk_data\",\"data\":\"{}\"}}\n", "x".repeat(1_000_000));
    let mut input = "{\"type\":\"chunk_start\"}\n".to_owned();
    input.extend(std::iter::repeat_n(data.as_str(), 20));
    input.push_str("{\"type\":\"chunk_end\"}\n");
    assert_eq!(decode(&mut decoder, input.as_bytes()), [Event::Broken(LineError::MessageTooLong)]);
    assert!(decoder.chunks.is_none());
}

#[test]
fn the_last_line_needs_no_line_feed() {
    let mut decoder = Decoder::new();
    assert_eq!(decode(&mut decoder, PING.as_bytes()), []);
    assert_eq!(decoder.finish(), Some(message(PING)));
    assert_eq!(decoder.finish(), None);
}

#[test]
fn a_strict_reader_holds_chunks_to_what_they_announce() {
    let read = |lines: &str| {
        let mut decoder = Decoder::strict();
        let mut bytes = lines.as_bytes();
        decoder.next_event(&mut bytes)
    };
    let chunks = |total: usize, offset: usize| {
        format!(
            "{{\"type\":\"chunk_start\",\"total_size\":{total}}}\n\
             {{\"type\":\"chunk_data\",\"data\":\"{{}}\",\"offset\":{offset}}}\n\
             {{\"type\":\"chunk_end\"}}\n"
        )
    };
    assert_eq!(read(&chunks(2, 0)), Some(Event::Message("{}".to_owned())));
    assert_eq!(read(&chunks(3, 0)), Some(Event::Broken(LineError::Torn)), "the total is wrong");
    assert_eq!(read(&chunks(2, 1)), Some(Event::Broken(LineError::Torn)), "the offset is wrong");
    let mut lines = Vec::new();
    let message = format!("{{\"a\": \"{}\"}}", "é\\".repeat(20_000));
    encode(&message, &mut lines);
    assert_eq!(read(std::str::from_utf8(&lines).unwrap()), Some(Event::Message(message)), "ours are right");
    assert!(lines.split(|byte| *byte == b'\n').all(|line| line.len() < 64 << 10));
}
