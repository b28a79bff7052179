//! How messages are cut for each transport and put together again. Pure functions and state machines: bytes
//! or pieces in, messages or typed errors out; reading and writing is somebody else's.

pub mod stdio;
pub mod ws;

/// The longest message that is put together, on any transport: what current clients accept and send at most.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;
