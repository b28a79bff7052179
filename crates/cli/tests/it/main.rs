//! Tests of the built binary, and of the repository's own rules.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod boxed;
mod cleanup;
mod client;
mod client_copy;
mod client_exec;
mod client_process;
mod client_session;
mod client_skill;
mod client_tool;
mod config;
mod doctor;
mod driver;
mod errors;
mod golden;
mod help;
mod host;
mod host_seeds;
mod image;
mod image_archive;
mod layers;
mod limits;
mod load;
mod mcp_run;
mod mcp_serve;
mod mcp_servers;
mod mounts;
mod network;
mod nsjail;
mod programs;
mod run;
mod serve;
mod server;
mod signals;
mod sizes;
mod skip;
mod source_tree;
mod sudden_death;
mod terminal;
mod toolchains;
mod unsafe_code;
