//! Sessions in sandboxes of E2B's cloud, or of anything else that speaks its API: another Sandcrate first of all.
//!
//! [`E2bBackend`] is a client. A session is a sandbox at the endpoint, its commands are processes of the sandbox's own
//! service (`envd`), and directories of the host are copies that are brought up to date around every command (`sync`).
//! What E2B has no word for is said in the session's record, and refused where it was required.

mod backend;
mod command;
mod config;
mod control;
mod ending;
mod envd;
mod exec;
mod files;
mod helper;
mod http;
mod network;
mod places;
mod process;
mod record;
mod session;
mod start;
mod stream;
mod sync;
mod tls;

pub use backend::E2bBackend;
pub use config::{E2bConfig, E2bSettings};

/// The backend's name in configuration, records and errors.
pub const NAME: &str = "e2b";
