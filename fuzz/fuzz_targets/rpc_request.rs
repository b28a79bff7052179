//! Any text is a frame or has an answer, and the answer is a reply in one line.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sandcrate_protocol::rpc::{Frame, Reply, Response};

fuzz_target!(|text: &str| {
    let (seq_id, answer) = match Frame::parse(text) {
        Ok(Frame::Response) => return,
        Ok(Frame::Request(request)) => {
            (request.seq_id.clone(), Response::success(request.seq_id, request.data).encode())
        }
        Err(bad) => (bad.seq_id.clone(), bad.into_response().encode()),
    };
    assert!(answer.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
    let reply: Reply = serde_json::from_str(&answer).expect("a reply is JSON");
    assert_eq!(reply.seq_id, seq_id);
});
