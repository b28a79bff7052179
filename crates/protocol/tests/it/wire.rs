//! Frames, lines and replies as they were seen on the wire of the reference.

use sandcrate_protocol::framing::stdio::{Decoder, Event, encode};
use sandcrate_protocol::framing::ws::{Joined, SplitRequests};
use sandcrate_protocol::rpc::{Frame, Reply, Response, SeqId};
use sandcrate_protocol::{
    BackendStatus, BoxSpec, ErrorKind, ExecResult, ProcessInfo, ProcessSpec, RuntimeStatus, SessionDetails,
    wire_message,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cases;

const CORE: &str = include_str!("../fixtures/rpc-ws-core.jsonl");
const PROCESSES: &str = include_str!("../fixtures/managed-process.jsonl");
const FRAMING: &str = include_str!("../fixtures/rpc-ws-framing.jsonl");
const STDIO: &str = include_str!("../fixtures/rpc-stdio.jsonl");

/// A server with the one action that the recordings of frames use.
fn answer(text: &str) -> Option<String> {
    match Frame::parse(text) {
        Ok(Frame::Request(request)) if request.action == "__ping" => {
            Some(Response::success(request.seq_id, Value::Object(Default::default())).encode())
        }
        Ok(Frame::Request(request)) => Some(request.unknown_action().into_response().encode()),
        Ok(Frame::Response) => None,
        Err(bad) => Some(bad.into_response().encode()),
    }
}

fn texts<'a>(case: &'a Value, key: &str) -> Vec<&'a str> {
    case[key].as_array().unwrap().iter().filter_map(Value::as_str).collect()
}

#[test]
fn frames_get_the_recorded_replies_and_malformed_ones_get_any() {
    // Here the reference fails in a way of its own, or accepts what is not JSON: we answer in our words.
    let differs = ["json-string", "nan-data"];
    let mut replayed = 0;
    for case in cases(FRAMING) {
        let (name, abbreviated) = (case["case"].as_str().unwrap(), |text: &str| text.starts_with('<'));
        if case.get("send").is_none() || texts(&case, "send").iter().any(|text| abbreviated(text)) {
            continue;
        }
        replayed += 1;
        let mut joiner = SplitRequests::new();
        let replies: Vec<_> = texts(&case, "send")
            .into_iter()
            .filter_map(|piece| match joiner.push(piece.to_owned()) {
                Joined::Message(text) => answer(&text),
                other => panic!("{name}: {other:?}"),
            })
            .collect();
        let expected: Vec<_> =
            case["recv"].as_array().unwrap().iter().filter_map(|reply| reply["data"].as_str()).collect();
        if expected.is_empty() || differs.contains(&name) {
            let ignored = name.starts_with("response-from-client");
            assert_eq!(replies.is_empty(), ignored, "{name}");
            assert!(
                replies.iter().all(|reply| reply.contains(r#""code": 1, "message": "ValueError: "#)),
                "{name}"
            );
        } else {
            assert_eq!(replies, expected, "{name}");
        }
    }
    assert_eq!(replayed, 26);
}

#[test]
fn lines_get_the_recorded_replies() {
    let mut replayed = 0;
    let mut decoder = Decoder::new();
    for case in cases(STDIO).iter().filter(|case| case.get("send").is_some()) {
        let sent = texts(case, "send").concat();
        // Abbreviated ones, and those that need a session.
        if sent.contains("...(len") || sent.contains("box_") {
            continue;
        }
        replayed += 1;
        for step in [1, 7, sent.len()] {
            let mut written = Vec::new();
            for mut part in sent.as_bytes().chunks(step) {
                while let Some(event) = decoder.next_event(&mut part) {
                    let Event::Message(text) = event else { panic!("{event:?}") };
                    if let Some(reply) = answer(&text) {
                        encode(&reply, &mut written);
                    }
                }
            }
            let mut lines: Vec<_> = std::str::from_utf8(&written).unwrap().split_inclusive('\n').collect();
            if case["case"] == "braced-bad-json" {
                assert!(lines.remove(0).contains("not valid JSON"), "the reference does not answer this");
            }
            assert_eq!(lines, texts(case, "recv"), "{}", case["case"]);
        }
    }
    assert_eq!(replayed, 11);
}

/// Reads the result as `T` and checks that writing it gives the recorded text.
fn round_trip<T: DeserializeOwned + Serialize>(case: &Value) {
    let text = case["response"].to_string();
    let reply: Reply = serde_json::from_str(&text).unwrap();
    let data: T =
        serde_json::from_value(reply.data.clone()).unwrap_or_else(|error| panic!("{error}: {case}"));
    let ours = Response::success(reply.seq_id, &data).encode();
    assert_eq!(serde_json::from_str::<Value>(&ours).unwrap(), case["response"], "{}", case["case"]);
}

#[test]
fn results_are_read_and_written_as_recorded() {
    let mut counts = [0; 5];
    for case in cases(CORE).iter().chain(&cases(PROCESSES)) {
        if case["response"]["code"] != 0 {
            continue;
        }
        match case["request"]["action"].as_str().unwrap() {
            "box_exec" => (counts[0] += 1, round_trip::<ExecResult>(case)),
            "box_create_session" | "box_get_session" => (counts[1] += 1, round_trip::<SessionDetails>(case)),
            "box_start_managed_process" | "box_get_managed_process" => {
                (counts[2] += 1, round_trip::<ProcessInfo>(case))
            }
            "box_status" => (counts[3] += 1, round_trip::<RuntimeStatus>(case)),
            "box_health" | "box_get_backend_info" => (counts[4] += 1, round_trip::<BackendStatus>(case)),
            _ => continue,
        };
    }
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
}

#[test]
fn a_recorded_reply_is_written_byte_for_byte() {
    let lines: Vec<_> = cases(STDIO)
        .iter()
        .filter(|case| case["case"] == "create" || case["case"] == "exec-small")
        .map(|case| texts(case, "recv").concat())
        .collect();
    let [create, exec] = &lines[..] else { panic!("recordings are missing") };
    fn rewritten<T: DeserializeOwned + Serialize>(line: &str) -> String {
        let reply: Reply = serde_json::from_str(line).unwrap();
        let data: T = serde_json::from_value(reply.data).unwrap();
        Response::success(reply.seq_id, data).encode() + "\n"
    }
    assert_eq!(&rewritten::<SessionDetails>(create), create);
    assert_eq!(&rewritten::<ExecResult>(exec), exec);
}

#[test]
fn refused_specs_carry_the_recorded_words() {
    let mut replayed = 0;
    for case in cases(CORE).iter().chain(&cases(PROCESSES)) {
        let message = case["response"]["message"].as_str().unwrap_or_default();
        if !message.starts_with("BoxValidationError: ") || !message.contains(" validation error") {
            continue;
        }
        replayed += 1;
        let data = &case["request"]["data"];
        let refused = match case["request"]["action"].as_str().unwrap() {
            "box_start_managed_process" => ProcessSpec::from_json(&data["spec"]).unwrap_err(),
            _ => BoxSpec::from_json(data).unwrap_err(),
        };
        let ours = wire_message(ErrorKind::Validation, &refused.to_string());
        let words = |text: &str| -> Vec<String> {
            let lines = text.lines().filter(|line| !line.starts_with("    For further information"));
            lines.map(|line| line.split(" [type=").next().unwrap_or(line).to_owned()).collect()
        };
        assert_eq!(words(&ours), words(message), "{}", case["case"]);
    }
    assert_eq!(replayed, 29);
}

#[test]
fn a_large_reply_is_written_in_good_time() {
    let result = serde_json::json!({"stdout": "好".repeat(350_000), "stderr": "x".repeat(1 << 20)});
    let response = Response::success(SeqId::from(1), &result);
    let start = std::time::Instant::now();
    let text = response.encode();
    let took = start.elapsed();
    // The length that Python gives.
    assert_eq!(text.len(), 3_148_688);
    // 6 to 8 ms in the dev profile when written; the bound only catches a change of order.
    assert!(took.as_millis() < 500, "{took:?}");
}
