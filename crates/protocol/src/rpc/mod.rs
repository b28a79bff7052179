//! The envelope of LangBot's action RPC: requests read leniently, every bad frame turned into an answer,
//! replies written byte for byte as the reference writes them.

mod context;
mod frame;
mod response;
mod seq_id;

pub use context::{BadContext, Context};
pub(crate) use frame::peek_seq_id;
pub use frame::{BadFrame, Frame, MAX_JSON_DEPTH, MAX_JSON_NODES, Request};
pub use response::{Reply, Response};
pub use seq_id::{MAX_SEQ_ID_BYTES, SeqId};
