//! One connection's calls: what was asked, and who waits for the answer.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandcrate_protocol::ErrorKind;
use sandcrate_protocol::framing::MAX_MESSAGE_BYTES;
use sandcrate_protocol::rpc::Reply;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::translate::{failure, is_unknown_action};
use crate::{HostError, Result};

/// Requests that wait to be written. More than that many callers wait in turn.
const QUEUED_REQUESTS: usize = 64;

/// A reply is put together from pieces up to this: a result whose every byte is escaped, and more.
const MAX_REPLY_BYTES: usize = 4 * MAX_MESSAGE_BYTES;

#[derive(Debug)]
pub(super) struct Line {
    outgoing: mpsc::Sender<String>,
    waiting: Mutex<HashMap<i64, oneshot::Sender<Reply>>>,
    next_id: AtomicI64,
    /// Calls that were sent and that nobody waits for any more. The runtime is told to end them.
    abandoned: Mutex<Vec<i64>>,
    /// One was added.
    abandonment: Notify,
    /// Why it is closed; said before `closed` is.
    reason: Mutex<String>,
    pub(super) closed: CancellationToken,
    /// The runtime knows no actions for files.
    pub(super) without_files: AtomicBool,
}

impl Line {
    pub(super) fn new() -> (Arc<Self>, mpsc::Receiver<String>) {
        let (outgoing, requests) = mpsc::channel(QUEUED_REQUESTS);
        let line = Self {
            outgoing,
            waiting: Mutex::default(),
            next_id: AtomicI64::new(1),
            abandoned: Mutex::default(),
            abandonment: Notify::new(),
            reason: Mutex::default(),
            closed: CancellationToken::new(),
            without_files: AtomicBool::new(false),
        };
        (Arc::new(line), requests)
    }

    /// # Errors
    /// What the runtime answers, that it does not in time, or that the line is gone. A call that is given up, by
    /// its time or because the caller no longer wants it, is ended in the runtime too.
    pub(super) async fn call(&self, action: &str, data: Value, time: Duration) -> Result<Value> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        self.waiting().insert(id, sender);
        // Whether answered or abandoned, nobody waits afterwards.
        let mut pending = Pending { line: self, id, abandoned: false };
        let request = Request { seq_id: id, action, data, error_kind: true };
        let request = sandcrate_protocol::to_wire_json(&request).map_err(|error| {
            HostError::new(ErrorKind::Internal, format!("request cannot be encoded: {error}"))
        })?;
        let exchange = async {
            self.outgoing.send(request).await.ok()?;
            pending.abandoned = true;
            let reply = answer.await.ok();
            pending.abandoned = false;
            reply
        };
        let reply = tokio::select! {
            reply = tokio::time::timeout(time, exchange) => reply,
            () = self.closed.cancelled() => Ok(None),
        };
        match reply {
            Ok(Some(reply)) if reply.code == 0 => Ok(reply.data),
            Ok(Some(reply)) if is_unknown_action(&reply.message, action) => {
                Err(HostError::new(ErrorKind::Unsupported, reply.message))
            }
            Ok(Some(reply)) => Err(failure(reply.message, &reply.data)),
            Ok(None) => Err(self.gone()),
            Err(_) => Err(HostError::new(ErrorKind::Timeout, format!("Action {action} call timed out"))),
        }
    }

    pub(super) fn close(&self, reason: impl Into<String>) {
        if !self.closed.is_cancelled() {
            *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = reason.into();
            self.closed.cancel();
        }
    }

    pub(super) fn gone(&self) -> HostError {
        let reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone();
        HostError::unavailable(if reason.is_empty() {
            "the connection was closed".to_owned()
        } else {
            reason
        })
    }

    fn deliver(&self, reply: Reply) {
        let waiting = reply.seq_id.as_i64().and_then(|id| self.waiting().remove(&id));
        // Nobody waits for an answer that came too late.
        if let Some(waiting) = waiting {
            let _ = waiting.send(reply);
        }
    }

    /// The requests to write, one after the other, until nobody is left who could ask.
    pub(super) async fn next_request(&self, requests: &mut mpsc::Receiver<String>) -> Option<String> {
        loop {
            let abandoned = self.abandoned.lock().unwrap_or_else(PoisonError::into_inner).pop();
            if let Some(call) = abandoned {
                let seq_id = self.next_id.fetch_add(1, Ordering::Relaxed);
                let data = json!({"seq_id": call});
                let request = Request { seq_id, action: "__cancel_action", data, error_kind: true };
                // Runtimes that cannot end a call answer that they do not know how; nobody waits for that.
                if let Ok(request) = sandcrate_protocol::to_wire_json(&request) {
                    return Some(request);
                }
            }
            tokio::select! {
                request = requests.recv() => return request,
                () = self.abandonment.notified() => {}
            }
        }
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<i64, oneshot::Sender<Reply>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keys in the order in which the reference's clients send them.
#[derive(serde::Serialize)]
struct Request<'a> {
    seq_id: i64,
    action: &'a str,
    data: Value,
    /// That the kind of a failure is wanted too; other runtimes pass over it.
    error_kind: bool,
}

/// A call from its first step to its last.
struct Pending<'a> {
    line: &'a Line,
    id: i64,
    /// It is on its way, and whoever drops it now has not heard the answer.
    abandoned: bool,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.line.waiting().remove(&self.id);
        if self.abandoned && !self.line.closed.is_cancelled() {
            self.line.abandoned.lock().unwrap_or_else(PoisonError::into_inner).push(self.id);
            self.line.abandonment.notify_one();
        }
    }
}

/// Puts replies together that come in pieces, and hands them on.
#[derive(Debug, Default)]
pub(super) struct Replies(String);

impl Replies {
    pub(super) fn take(&mut self, piece: &str, line: &Line) {
        if !self.0.is_empty() {
            self.0.push_str(piece);
            match serde_json::from_str(&self.0) {
                Err(error) if error.is_eof() && self.0.len() <= MAX_REPLY_BYTES => return,
                joined => {
                    self.0 = String::new();
                    if let Ok(reply) = joined {
                        return line.deliver(reply);
                    }
                }
            }
        }
        // A message of its own, also behind pieces that were never completed.
        match serde_json::from_str(piece) {
            Ok(reply) => line.deliver(reply),
            Err(error) if error.is_eof() => self.0.push_str(piece),
            // What is whole and no reply is nothing we asked for.
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    async fn answered(replies: &[&str]) -> Result<Value> {
        let (line, mut requests) = Line::new();
        let serve = async {
            requests.recv().await.unwrap();
            let mut joined = Replies::default();
            replies.iter().for_each(|piece| joined.take(piece, &line));
        };
        let call = line.call("x", json!({}), Duration::from_millis(200));
        tokio::join!(call, serve).0
    }

    #[tokio::test]
    async fn replies_in_pieces_are_joined_and_strange_ones_passed_over() {
        let reply =
            r#"{"seq_id": 1, "code": 0, "message": "success", "data": {"a": 1}, "chunk_status": "continue"}"#;
        let (first, second) = reply.split_at(30);
        assert_eq!(answered(&[first, second]).await.unwrap(), json!({"a": 1}));
        assert_eq!(answered(&["nonsense", "[]", "{}", reply]).await.unwrap(), json!({"a": 1}));
        assert_eq!(answered(&["{\"never\": \"completed", "\"", reply]).await.unwrap(), json!({"a": 1}));
        let other = reply.replace("\"seq_id\": 1", "\"seq_id\": 9");
        let error = answered(&[&other]).await.unwrap_err();
        assert_eq!((error.class(), error.message.as_str()), ("BoxError", "Action x call timed out"));
    }

    #[tokio::test]
    async fn a_line_that_closes_answers_all_that_wait() {
        let (line, _requests) = Line::new();
        let call = line.call("x", json!({}), Duration::from_secs(60));
        let close = async { line.close("the child exited") };
        let error = tokio::join!(call, close).0.unwrap_err();
        assert_eq!(
            (error.class(), error.message.as_str()),
            ("BoxRuntimeUnavailableError", "the child exited")
        );
        assert!(line.waiting().is_empty());
    }
}
