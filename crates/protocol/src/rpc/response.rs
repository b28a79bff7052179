//! Replies: five keys in a fixed order, in the format of Python's `json.dumps`.

use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

use super::SeqId;
use crate::{ErrorKind, to_wire_json, wire_message};

/// A reply to be sent. `T` is the result, serialised once and straight into the text.
#[derive(Debug, Clone, PartialEq)]
pub struct Response<T = Value> {
    pub seq_id: SeqId,
    /// 0 for success, 1 for failure.
    pub code: i64,
    pub message: String,
    pub data: T,
}

impl<T: Serialize> Response<T> {
    /// `data` has to serialise as an object.
    pub fn success(seq_id: SeqId, data: T) -> Self {
        Self { seq_id, code: 0, message: "success".to_owned(), data }
    }

    /// The text to send. A result that cannot be JSON becomes a failure: the peer waits for an answer.
    pub fn encode(&self) -> String {
        to_wire_json(self).unwrap_or_else(|error| {
            let message = wire_message(ErrorKind::Internal, &format!("result cannot be encoded: {error}"));
            to_wire_json(&Response::failure(self.seq_id.clone(), message)).unwrap_or_default()
        })
    }
}

impl Response {
    /// `message` is sent as it is; see [`wire_message`] for one that names a class.
    pub fn failure(seq_id: SeqId, message: String) -> Self {
        Self { seq_id, code: 1, message, data: Value::Object(Map::new()) }
    }
}

impl<T: Serialize> Serialize for Response<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Response", 5)?;
        fields.serialize_field("seq_id", &self.seq_id)?;
        fields.serialize_field("code", &self.code)?;
        fields.serialize_field("message", &self.message)?;
        fields.serialize_field("data", &self.data)?;
        // No action streams, and this is what a reply that does not stream says.
        fields.serialize_field("chunk_status", "continue")?;
        fields.end()
    }
}

/// A reply as a client reads it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Reply {
    pub seq_id: SeqId,
    pub code: i64,
    pub message: String,
    pub data: Value,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ExecResult, ExecStatus};

    #[test]
    fn a_reply_has_five_keys_in_order() {
        let result = ExecResult {
            session_id: "st".to_owned(),
            backend_name: "docker".to_owned(),
            status: ExecStatus::Completed,
            exit_code: Some(0),
            stdout: "hi".to_owned(),
            stderr: String::new(),
            duration_ms: 58,
        };
        assert_eq!(
            Response::success(SeqId::from(21), &result).encode(),
            r#"{"seq_id": 21, "code": 0, "message": "success", "data": {"session_id": "st", "backend_name": "docker", "status": "completed", "exit_code": 0, "stdout": "hi", "stderr": "", "duration_ms": 58}, "chunk_status": "continue"}"#
        );
        assert_eq!(
            Response::failure(SeqId::UNKNOWN, "ValueError: x".to_owned()).encode(),
            r#"{"seq_id": -1, "code": 1, "message": "ValueError: x", "data": {}, "chunk_status": "continue"}"#
        );
    }

    #[test]
    fn a_result_that_cannot_be_encoded_is_still_answered() {
        let bad = std::collections::BTreeMap::from([([1, 2], 3)]);
        let reply: Reply = serde_json::from_str(&Response::success(SeqId::from(4), bad).encode()).unwrap();
        assert_eq!((reply.seq_id, reply.code), (SeqId::from(4), 1));
    }
}
