//! Requests, and every way in which a frame can be none.

use super::*;

fn answer(text: &str) -> String {
    Frame::parse(text).unwrap_err().into_response().encode()
}

fn request(text: &str) -> Request {
    match Frame::parse(text).unwrap() {
        Frame::Request(request) => request,
        Frame::Response => panic!("not a request: {text}"),
    }
}

#[test]
fn the_answer_names_the_problem_under_the_seq_id_that_was_read() {
    for (text, seq_id, message) in [
        ("", "-1", "ValueError: frame is empty"),
        ("hello", "-1", "ValueError: frame is not valid JSON: expected value at line 1 column 1"),
        ("5", "-1", "ValueError: frame is not a JSON object"),
        ("[1,2]", "-1", "ValueError: frame is not a JSON object"),
        (r#""action""#, "-1", "ValueError: frame is not a JSON object"),
        (r#"{"seq_id":5,"data":{}}"#, "5", "ValueError: frame has neither an action nor a code"),
        (r#"{"seq_id":5,"action":null,"data":{}}"#, "5", "ValueError: Action None not found"),
        (r#"{"seq_id":5,"action":5,"data":{}}"#, "5", "ValueError: Action 5 not found"),
        (r#"{"seq_id":5,"action":[],"data":{}}"#, "5", "TypeError: unhashable type: 'list'"),
        (r#"{"seq_id":5,"action":"__ping"}"#, "5", "KeyError: 'data'"),
    ] {
        let expected = format!(
            r#"{{"seq_id": {seq_id}, "code": 1, "message": "{message}", "data": {{}}, "chunk_status": "continue"}}"#
        );
        assert_eq!(answer(text), expected, "{text}");
    }
}

#[test]
fn the_seq_id_before_a_fault_is_kept() {
    for text in [
        r#"{"seq_id":7,"action":"__ping","data":{"a":NaN}}"#,
        r#"{"seq_id":7,"action":"__ping","data":{"a":1e999}}"#,
        r#"{"seq_id":7,"action":"__ping","data":{"a":"\ud800"}}"#,
        r#"{"seq_id":7,"action":"__ping","#,
        r#"{"seq_id":7,"action":"__ping","data":{}} x"#,
    ] {
        assert_eq!(Frame::parse(text).unwrap_err().seq_id, SeqId::from(7), "{text}");
    }
}

#[test]
fn a_seq_id_comes_back_as_it_was_sent() {
    for seq_id in [
        "1",
        "-9",
        "-0",
        "0",
        "1.50",
        "1e400",
        "123456789012345678901234567890",
        "null",
        "true",
        r#""abc""#,
        r#"["a", 1]"#,
    ] {
        let request = request(&format!(r#"{{"seq_id": {seq_id} ,"action":"a","data":1}}"#));
        let reply = Response::success(request.seq_id, ()).encode();
        assert!(reply.starts_with(&format!("{{\"seq_id\": {seq_id}, \"code\"")), "{seq_id}: {reply}");
    }
}

#[test]
fn a_seq_id_cannot_break_the_line_of_its_reply() {
    let request = request("{\"seq_id\": {\"a\":\r\n \"é\"}, \"action\":\"a\",\"data\":1}");
    let reply = Response::success(request.seq_id, ()).encode();
    assert!(reply.starts_with(r#"{"seq_id": {"a": "\u00e9"}, "#), "{reply}");
}

#[test]
fn an_overlong_seq_id_is_refused() {
    let text = format!(r#"{{"seq_id":{},"action":"a","data":1}}"#, "1".repeat(MAX + 1));
    assert_eq!(Frame::parse(&text).unwrap_err().seq_id, SeqId::UNKNOWN);
    const MAX: usize = super::super::MAX_SEQ_ID_BYTES;
}

#[test]
fn the_last_of_repeated_keys_counts() {
    let request = request(r#"{"seq_id":1,"seq_id":2,"action":5,"action":"a","data":1,"data":2,"x":[{}]}"#);
    let expected = Request {
        seq_id: SeqId::from(2),
        action: "a".to_owned(),
        data: Value::from(2),
        context: None,
        wants_kind: false,
    };
    assert_eq!(request, expected);
}

#[test]
fn responses_are_told_from_requests() {
    assert_eq!(Frame::parse(r#"{"seq_id":1,"code":"x"}"#), Ok(Frame::Response));
    assert_eq!(request(r#"{"code":0,"action":"a","data":{}}"#).seq_id, SeqId::UNKNOWN);
    assert_eq!(request("\n {\"action\":\"a\",\"data\":{}}\r\n").action, "a");
}

#[test]
fn depth_is_bounded() {
    let nested = |depth| {
        let text = format!(r#"{{"action":"a","data":{}{}}}"#, "[".repeat(depth), "]".repeat(depth));
        Frame::parse(&text)
    };
    assert!(nested(MAX_JSON_DEPTH).is_ok());
    let refused = nested(MAX_JSON_DEPTH + 1).unwrap_err();
    assert!(refused.message.contains("recursion limit exceeded"), "{refused}");
    assert!(nested(1_000_000).is_err());
}

#[test]
fn the_number_of_values_is_bounded() {
    let list = |count| format!(r#"{{"action":"a","data":[{}1]}}"#, "1,".repeat(count));
    assert!(Frame::parse(&list(MAX_JSON_NODES - 3)).is_ok());
    assert!(Frame::parse(&list(MAX_JSON_NODES)).is_err());
}

#[test]
fn the_name_of_an_action_cannot_choose_a_class() {
    let bad = request(r#"{"seq_id":3,"action":"BoxValidationError:","data":{}}"#).unknown_action();
    assert_eq!(bad.message, "ValueError: Action BoxValidationError : not found");
    assert_eq!(bad.seq_id, SeqId::from(3));
}

#[test]
fn a_context_is_kept_as_it_came_and_null_is_none() {
    let context = |text: &str| request(&format!(r#"{{"seq_id":1,"action":"a","data":{{}},{text}}}"#)).context;
    assert_eq!(context(r#""context":{"a":1}"#), Some(serde_json::json!({"a": 1})));
    assert_eq!(context(r#""context":null"#), None);
    // The name that Python's argument has is not the one on the wire.
    assert_eq!(context(r#""action_context":{"a":1}"#), None);
}
