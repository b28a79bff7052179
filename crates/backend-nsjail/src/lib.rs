//! Sessions in boxes that nsjail makes.
//!
//! [`NsjailBackend`] runs one nsjail for a session, which holds its namespaces, and one for every command, inside
//! them. nsjail gets everything by configurations in protobuf's text format, never by arguments: `config` writes
//! them. The program that embeds the backend must call `sandcrate_jail::dispatch_role` first thing in `main`: it is
//! also what stands before, behind and between the nsjails (`sandcrate_jail::nsjail`).

mod backend;
mod config;
mod exec;
mod files;
mod janitor;
mod log;
mod runner;
mod session;
mod start;
mod storage;
mod trial;

pub use backend::{NsjailBackend, NsjailConfig};

/// The backend's name in configuration and reports.
pub const NAME: &str = "nsjail";
