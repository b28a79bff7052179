//! Names for boxes: a strict codec of DNS messages, the table that binds names to addresses, and the decisions
//! of the forwarder. No sockets here; `stack` moves the bytes.
//!
//! Nothing of an upstream's answer is handed through as it came: it is parsed, judged and written anew.

mod bindings;
mod forwarder;
mod message;

pub use bindings::Bindings;
pub use forwarder::{Forwarder, Reply, Step};
pub use message::{Data, DnsError, Message, Question, Record, ResponseCode, kind};
