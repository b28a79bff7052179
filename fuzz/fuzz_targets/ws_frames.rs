//! Any pieces are taken, and a request in pieces comes back whole whatever came before.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sandcrate_protocol::framing::ws::{Joined, REQUEST_PIECE_BYTES, SplitRequests, split_reply};

/// `text` with blanks to the length of a full piece, so that the fuzzer need not find it.
fn full(text: &str) -> String {
    let mut piece = text.to_owned();
    piece.extend(std::iter::repeat_n(' ', REQUEST_PIECE_BYTES.saturating_sub(text.len())));
    piece
}

fuzz_target!(|pieces: Vec<(bool, &str)>| {
    let mut joiner = SplitRequests::new();
    for (is_full, text) in pieces {
        assert_eq!(split_reply(text).collect::<String>(), text);
        joiner.push(if is_full { full(text) } else { text.to_owned() });
    }
    let ping = r#"{"seq_id": 1, "action": "__ping", "data": {}}"#;
    let found = match joiner.push(ping.to_owned()) {
        Joined::Message(text) | Joined::Broken { message: Some(text), .. } => text,
        other => panic!("a request was lost: {other:?}"),
    };
    assert!(found.ends_with(ping));
    assert_eq!(joiner.push(ping.to_owned()), Joined::Message(ping.to_owned()));
});
