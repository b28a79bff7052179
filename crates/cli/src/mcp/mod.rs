//! `sandcrate mcp`: MCP servers in boxes, boxes for MCP clients, and what their configuration needs.

mod config;
mod run;
mod serve;

use std::process::ExitCode;

use clap::Subcommand;

use crate::client::mcp::McpClientVerb;
use crate::native::NewLauncher;

#[derive(Debug, Subcommand)]
pub(crate) enum McpVerb {
    /// Run one stdio MCP server in a box, and speak MCP on our own stdin and stdout
    Run(Box<run::McpRunArgs>),
    /// Be an MCP server on stdin and stdout that runs commands in a box
    Serve(Box<serve::ServeArgs>),
    /// Print, or write, the entry that makes a client use a box
    Config(config::ConfigArgs),
    #[command(flatten)]
    Client(McpClientVerb),
}

pub(crate) fn main(verb: McpVerb, launcher: Option<NewLauncher>) -> ExitCode {
    match verb {
        McpVerb::Run(args) => run::main(&args, launcher),
        McpVerb::Serve(args) => serve::main(*args),
        McpVerb::Config(args) => config::main(&args),
        McpVerb::Client(verb) => crate::client::mcp::main(verb),
    }
}
