//! `sandcrate mcp`: MCP servers in boxes.

mod run;

use std::process::ExitCode;

use clap::Subcommand;

use crate::client::mcp::McpClientVerb;

#[derive(Debug, Subcommand)]
pub(crate) enum McpVerb {
    /// Run one stdio MCP server in a box, and speak MCP on our own stdin and stdout
    Run(Box<run::McpRunArgs>),
    #[command(flatten)]
    Client(McpClientVerb),
}

pub(crate) fn main(verb: McpVerb) -> ExitCode {
    match verb {
        McpVerb::Run(args) => run::main(&args),
        McpVerb::Client(verb) => crate::client::mcp::main(verb),
    }
}
