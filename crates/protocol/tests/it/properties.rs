//! What holds for any input: nothing is lost between writing and reading, nothing panics, nothing grows
//! without bound.

use proptest::collection::vec;
use proptest::prelude::*;
use sandcrate_protocol::framing::stdio::{self, Decoder, Event};
use sandcrate_protocol::framing::ws::{Joined, REQUEST_PIECE_BYTES, SplitRequests, split_reply};
use sandcrate_protocol::rpc::{Frame, Reply, Response, SeqId};
use sandcrate_protocol::{BoxSpec, ProcessSpec, to_wire_json};
use serde_json::{Value, json};

/// Any JSON, with floats of few digits: serde_json reads others to the last digit but one.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i32>().prop_map(|value| Value::from(f64::from(value) / 4.0)),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Value::from),
            proptest::collection::btree_map(any::<String>(), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// A message of a random length on either side of every boundary.
fn any_message() -> impl Strategy<Value = String> {
    (0..50_000_usize, prop_oneof!["[a-z]", "好", "\"", "\\\\", "\u{1f600}", "\n"]).prop_map(
        |(count, filler)| to_wire_json(&json!({"action": "a", "data": filler.repeat(count)})).unwrap(),
    )
}

/// Field names of the models, so that values reach the rules.
fn any_spec() -> impl Strategy<Value = Value> {
    static NAMES: [&str; 22] = [
        "cmd",
        "workdir",
        "timeout_sec",
        "network",
        "session_id",
        "env",
        "image",
        "host_path",
        "host_path_mode",
        "mount_path",
        "extra_mounts",
        "persistent",
        "cpus",
        "memory_mb",
        "pids_limit",
        "read_only_rootfs",
        "workspace_quota_mb",
        "process_id",
        "command",
        "args",
        "cwd",
        "mode",
    ];
    let value = prop_oneof![
        any_json(),
        "[ 0-9_.+-]{0,6}".prop_map(Value::from),
        " ?/[a-z./]{0,6}".prop_map(Value::from)
    ];
    proptest::collection::btree_map(proptest::sample::select(&NAMES[..]), value, 0..8).prop_map(|map| {
        Value::Object(map.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn lines_are_read_back_however_the_stream_is_cut(
        messages in vec(any_message(), 1..4),
        cuts in vec(1..40_000_usize, 1..20),
    ) {
        let mut stream = Vec::new();
        for message in &messages {
            stdio::encode(message, &mut stream);
        }
        prop_assert!(stream.split(|byte| *byte == b'\n').all(|line| line.len() < 65_536));
        let mut decoder = Decoder::new();
        let (mut rest, mut cuts, mut read) = (&stream[..], cuts.iter().cycle(), Vec::new());
        while !rest.is_empty() {
            let (mut part, after) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
            while let Some(event) = decoder.next_event(&mut part) {
                read.push(event);
            }
            rest = after;
        }
        prop_assert_eq!(read, messages.into_iter().map(Event::Message).collect::<Vec<_>>());
    }

    #[test]
    fn pieces_of_requests_are_joined(messages in vec(any_message(), 1..4)) {
        let mut joiner = SplitRequests::new();
        let mut read = Vec::new();
        for message in &messages {
            for piece in message.as_bytes().chunks(REQUEST_PIECE_BYTES) {
                match joiner.push(String::from_utf8(piece.to_vec()).unwrap()) {
                    Joined::Message(text) => read.push(text),
                    Joined::Pending => {}
                    broken => prop_assert!(false, "{broken:?}"),
                }
            }
        }
        prop_assert_eq!(read, messages);
    }

    #[test]
    fn pieces_of_replies_make_the_reply(text in any_message()) {
        prop_assert_eq!(split_reply(&text).collect::<String>(), text);
    }

    #[test]
    fn replies_are_ascii_and_mean_what_was_written(seq_id in any::<i64>(), data in any_json()) {
        let text = Response::success(SeqId::from(seq_id), &data).encode();
        prop_assert!(text.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
        let reply: Reply = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(reply, Reply { seq_id: SeqId::from(seq_id), code: 0, message: "success".to_owned(), data });
    }

    #[test]
    fn floats_keep_their_value(value in proptest::num::f64::NORMAL | proptest::num::f64::SUBNORMAL) {
        prop_assert_eq!(to_wire_json(&value).unwrap().parse::<f64>().unwrap(), value);
    }

    #[test]
    fn an_accepted_spec_is_accepted_again_unchanged(input in any_spec()) {
        if let Ok(spec) = BoxSpec::from_json(&input) {
            let again = BoxSpec::from_json(&serde_json::to_value(&spec).unwrap()).unwrap();
            prop_assert_eq!(spec, again);
        }
        if let Ok(spec) = ProcessSpec::from_json(&input) {
            let again = ProcessSpec::from_json(&serde_json::to_value(&spec).unwrap()).unwrap();
            prop_assert_eq!(spec, again);
        }
    }

    #[test]
    fn refusals_are_short_lines(input in any_spec()) {
        if let Err(refused) = BoxSpec::from_json(&input) {
            prop_assert!(!refused.issues().is_empty());
            let text = refused.to_string();
            let count = refused.issues().len().to_string();
            prop_assert!(text.strip_prefix(&count).is_some_and(|rest| rest.starts_with(" validation error")));
        }
    }

    #[test]
    fn any_text_is_a_frame_or_has_an_answer(text in any::<String>(), json in any_json()) {
        for text in [text, json.to_string(), json!({"seq_id": json, "action": "a", "data": json}).to_string()] {
            if let Err(bad) = Frame::parse(&text) {
                let reply: Reply = serde_json::from_str(&bad.into_response().encode()).unwrap();
                prop_assert_eq!(reply.code, 1);
            }
        }
    }

    #[test]
    fn any_bytes_are_read_to_their_end(
        parts in vec(prop_oneof![
            vec(any::<u8>(), 0..200),
            Just(b"{\"type\": \"chunk_start\"}\n".to_vec()),
            Just(b"{\"type\": \"chunk_data\", \"data\": \"{}\"}\n".to_vec()),
            Just(b"{\"type\": \"chunk_end\"}\n".to_vec()),
            Just(b"\n".to_vec()),
        ], 0..20),
    ) {
        let mut decoder = Decoder::new();
        for part in &parts {
            let mut input = &part[..];
            while decoder.next_event(&mut input).is_some() {}
            prop_assert!(input.is_empty());
        }
        decoder.finish();
        let mut input = &b"{\"action\": 1}\n"[..];
        prop_assert_eq!(decoder.next_event(&mut input), Some(Event::Message("{\"action\": 1}".to_owned())));
    }

    #[test]
    fn any_pieces_are_taken(pieces in vec((any::<bool>(), "[{}\\[\\]\",:a\\\\]{0,30}"), 0..20)) {
        let mut joiner = SplitRequests::new();
        for (full, text) in pieces {
            let piece = if full { format!("{{{text}{}", "x".repeat(REQUEST_PIECE_BYTES - 1 - text.len())) } else { text };
            if let Joined::Broken { message: Some(message), .. } = joiner.push(piece) {
                prop_assert_eq!(message.trim_start().chars().next(), Some('{'));
            }
        }
    }
}
