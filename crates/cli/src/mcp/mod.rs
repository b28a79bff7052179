//! `sandcrate mcp`: MCP servers in boxes.

use std::process::ExitCode;

use clap::Subcommand;

use crate::client::mcp::McpClientVerb;

#[derive(Debug, Subcommand)]
pub(crate) enum McpVerb {
    #[command(flatten)]
    Client(McpClientVerb),
}

pub(crate) fn main(verb: McpVerb) -> ExitCode {
    match verb {
        McpVerb::Client(verb) => crate::client::mcp::main(verb),
    }
}
