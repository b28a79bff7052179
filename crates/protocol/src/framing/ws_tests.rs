//! Requests in pieces: complete, cut short, too long, and mixed up with others.

use super::*;

const PING: &str = r#"{"seq_id": 9, "action": "__ping", "data": {}}"#;

fn request(bytes: usize) -> String {
    let (head, tail) = (r#"{"seq_id": 3, "action": "a", "data": {"x": "}{\""#, r#""}}"#);
    format!("{head}{}{tail}", "x".repeat(bytes - head.len() - tail.len()))
}

/// As the client cuts.
fn pieces(text: &str) -> impl Iterator<Item = String> {
    text.as_bytes().chunks(REQUEST_PIECE_BYTES).map(|piece| String::from_utf8(piece.to_vec()).unwrap())
}

fn feed(joiner: &mut SplitRequests, text: &str) -> Vec<Joined> {
    pieces(text).map(|piece| joiner.push(piece)).filter(|joined| *joined != Joined::Pending).collect()
}

#[test]
fn requests_of_every_length_come_back() {
    let mut joiner = SplitRequests::new();
    for bytes in [100, 65_535, 65_536, 65_537, 131_071, 131_072, 131_073, 200_000, MAX_MESSAGE_BYTES] {
        let text = request(bytes);
        assert_eq!(feed(&mut joiner, &text), [Joined::Message(text)], "{bytes} bytes");
    }
}

#[test]
fn text_that_no_client_would_cut_is_passed_on() {
    let mut joiner = SplitRequests::new();
    for text in ["", "hello", r#"{"seq_id":1,"#, &"x".repeat(65_536), &request(70_000)[..66_000]] {
        assert_eq!(joiner.push(text.to_owned()), Joined::Message(text.to_owned()));
    }
}

#[test]
fn a_request_that_breaks_off_costs_only_itself() {
    let mut joiner = SplitRequests::new();
    assert_eq!(joiner.push(request(80_000)[..65_536].to_owned()), Joined::Pending);
    let error = SplitError { seq_id: SeqId::from(3), reason: SplitReason::Incomplete };
    let broken = Joined::Broken { error, message: Some(PING.to_owned()) };
    // Half of a string is open, so the quotes of the next request change sides; it is found all the same.
    assert_eq!(joiner.push(PING.to_owned()), broken);
    assert_eq!(joiner.push(PING.to_owned()), Joined::Message(PING.to_owned()));
}

#[test]
fn an_endless_request_is_skipped_to_its_end() {
    let mut joiner = SplitRequests::new();
    let text = request(3 * MAX_MESSAGE_BYTES);
    let error = SplitError { seq_id: SeqId::from(3), reason: SplitReason::TooLong };
    assert_eq!(feed(&mut joiner, &text), [Joined::Broken { error, message: None }]);
    assert_eq!(joiner.push(PING.to_owned()), Joined::Message(PING.to_owned()));
}

#[test]
fn a_reply_is_cut_where_no_character_is() {
    assert_eq!(split_reply("{}").collect::<Vec<_>>(), ["{}"]);
    let exact = "x".repeat(REPLY_PIECE_BYTES);
    assert_eq!(split_reply(&exact).count(), 1);
    let text = format!("x{}", "好".repeat(REPLY_PIECE_BYTES));
    let pieces: Vec<_> = split_reply(&text).collect();
    assert!(pieces.len() == 4 && pieces.iter().all(|piece| piece.len() <= REPLY_PIECE_BYTES));
    assert_eq!(pieces.concat(), text);
}
