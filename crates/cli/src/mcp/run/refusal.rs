//! Answers a client whose server could not be started: it waits for the answer to `initialize`.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::pump;

/// A start may fail before the client has said anything; one that says nothing for so long is not waited for.
const FIRST_REQUEST: Duration = Duration::from_secs(1);
/// Most of what is read for it. A client has sent a message or two.
const MOST_BYTES: usize = 1 << 20;
/// JSON-RPC's internal error.
const INTERNAL_ERROR: i32 = -32603;

/// Answers every request that came, or the first that comes, with an error of this text.
pub(super) async fn answer(
    first: Vec<Bytes>,
    mut ended: bool,
    input: &mut mpsc::Receiver<Bytes>,
    text: &str,
) {
    let mut said = first.concat();
    let more = async {
        while !ended && said.len() < MOST_BYTES && requests(&said).next().is_none() {
            match input.recv().await {
                Some(piece) => said.extend_from_slice(&piece),
                None => ended = true,
            }
        }
    };
    let _ = tokio::time::timeout(FIRST_REQUEST, more).await;
    for id in requests(&said) {
        let error = json!({"code": INTERNAL_ERROR, "message": text});
        let answer = format!("{}\n", json!({"jsonrpc": "2.0", "id": id, "error": error}));
        // Nobody may be there to read it, or want to.
        if !matches!(tokio::time::timeout(FIRST_REQUEST, pump::write(answer.as_bytes())).await, Ok(Ok(()))) {
            return;
        }
    }
}

/// The ids of the requests in whole lines.
fn requests(said: &[u8]) -> impl Iterator<Item = Value> {
    let whole = said.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    said[..whole].split(|byte| *byte == b'\n').filter_map(|line| {
        let mut message: Value = serde_json::from_slice(line).ok()?;
        let id = message.get_mut("id")?.take();
        (message.get("method").is_some() && !id.is_null()).then_some(id)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_requests_alone_are_answered() {
        let said = concat!(
            "{\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"initialize\"}\n",
            "no JSON\n",
            "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n",
            "{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}}\r\n",
            "{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"method\":\"ping\"}\n",
            "{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"cut\"}",
        );
        assert_eq!(requests(said.as_bytes()).collect::<Vec<_>>(), [json!(0), json!("a")]);
        assert_eq!(requests(b"").next(), None);
    }
}
