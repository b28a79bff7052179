//! MCP servers inside boxes, and boxes as an MCP server.
//!
//! A [`ServerConfig`] says what to start and in which box. What goes wrong on the way says where it did, by its
//! [`Phase`].

pub mod box_server;
pub mod config;
pub mod gateway;
mod http_session;
pub mod launch;
pub mod manager;
mod phase;
#[cfg(test)]
mod reference_tests;
mod server_config;
mod start;

pub use launch::{LaunchConfig, Launcher};
pub use phase::{Phase, PhaseError};
pub use server_config::{BoxSettings, ServerConfig};
pub use start::{Identity, Life, Progress, Start, Started};
