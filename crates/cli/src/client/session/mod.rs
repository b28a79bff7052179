//! `sandcrate session`: create, list, look at, remove; their network and ports.

mod create;
mod list;
mod network;
mod progress;
mod remove;
mod show;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::args::OutputFormat;

pub(super) use create::whole_seconds;
pub(super) use list::{ids, is_missing};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sandcrate session create demo --memory 256M      a box with a name
  sandcrate session ls
  sandcrate session show demo                      what it is, and what holds it
  sandcrate session rm demo")]
pub(crate) struct SessionArgs {
    #[command(subcommand)]
    verb: SessionVerb,
}

#[derive(Debug, Subcommand)]
enum SessionVerb {
    /// Create a session and print its id
    Create(Box<create::CreateArgs>),
    /// List sessions
    #[command(visible_alias = "list")]
    Ls(list::ListArgs),
    /// Show what a session is and what holds it
    #[command(visible_alias = "inspect")]
    Show(show::ShowArgs),
    /// Show or change what a session may reach
    Network(network::NetworkArgs),
    /// Show, publish and close ports of a session
    Ports(network::PortsArgs),
    /// Remove sessions, with everything in them
    Rm(remove::RemoveArgs),
}

impl SessionArgs {
    pub(super) fn output(&self) -> OutputFormat {
        match &self.verb {
            SessionVerb::Create(args) => args.output,
            SessionVerb::Ls(args) => args.output,
            SessionVerb::Show(args) => args.output,
            SessionVerb::Network(args) => args.output,
            SessionVerb::Ports(args) => args.output,
            SessionVerb::Rm(args) => args.output,
        }
    }
}

pub(super) async fn run(args: SessionArgs) -> anyhow::Result<ExitCode> {
    match args.verb {
        SessionVerb::Create(args) => create::run(*args).await,
        SessionVerb::Ls(args) => list::run(args).await,
        SessionVerb::Show(args) => show::run(args).await,
        SessionVerb::Network(args) => network::run(args).await,
        SessionVerb::Ports(args) => network::ports(args).await,
        SessionVerb::Rm(args) => remove::run(args).await,
    }
}
