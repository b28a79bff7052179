//! What an agent application embeds: the Box service, the connection to its runtime, and the tools of the agent.

pub mod client;
mod error;
pub mod query;

pub use client::{Client, FileKind, FileMeta};
pub use error::HostError;
pub use query::Query;

/// What everything here fails with.
pub type Result<T> = std::result::Result<T, HostError>;
