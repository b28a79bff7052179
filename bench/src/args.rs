//! The command line, and how much of everything it asks for.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Parser, ValueEnum};

use crate::repeat::What;

/// Measure Sandcrate beside the kernel's floor and other sandboxes.
#[derive(Debug, Parser)]
#[command(name = "sandcrate-bench", disable_version_flag = true)]
pub(crate) struct Options {
    /// Half a minute instead of several; the figures are rougher
    #[arg(long)]
    pub(crate) quick: bool,
    /// Rounds in which everything is measured in turns [default: 7, quick 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Idle sessions held at once for the memory figures [default: 300, quick 60]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    sessions: Option<u32>,
    /// Idle sessions that the server holds at once [default: 1000, quick 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    crowd: Option<u32>,
    /// Sessions that the server makes, uses and deletes to show what stays [default: 10000, quick 400]
    #[arg(long, value_name = "N")]
    churn: Option<usize>,
    /// GiB of output of one command through the server [default: 10, quick 0.5]
    #[arg(long, value_name = "GIB")]
    flood: Option<f64>,
    /// Write every figure to a file too
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Exit with 1 when a target is missed
    #[arg(long)]
    pub(crate) check: bool,
    /// Measure nothing else: repeat one thing for five seconds, for a profiler
    #[arg(long, value_name = "WHAT")]
    pub(crate) repeat: Option<What>,
    /// Measure one group alone
    #[arg(long, value_name = "GROUP", conflicts_with = "repeat")]
    pub(crate) only: Option<Group>,
    /// The `sandcrate` program [default: the one built beside this program, if any]
    #[arg(long, value_name = "PATH")]
    sandcrate: Option<PathBuf>,
}

/// What can be measured alone, with its own targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Group {
    /// The isolated network, beside veth, pasta and slirp4netns
    Network,
    /// What idle sessions cost
    Idle,
    /// Commands a second, by the backend and by the server, beside the floor's
    Rate,
    /// An MCP server in a box, beside the same without
    Mcp,
    /// Commands and lines through the server, beside LangBot's own
    Reference,
}

pub(crate) fn parse() -> Options {
    Options::parse()
}

impl Options {
    pub(crate) fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.quick { 3 } else { 7 })
    }

    /// Turns that every variant has in one round.
    pub(crate) fn turns(&self) -> u32 {
        if self.quick { 2 } else { 5 }
    }

    /// How long one throughput figure is counted.
    pub(crate) fn window(&self) -> Duration {
        Duration::from_millis(if self.quick { 150 } else { 700 })
    }

    pub(crate) fn sessions(&self) -> u32 {
        self.sessions.unwrap_or(if self.quick { 60 } else { 300 })
    }

    /// The command-line program, when there is one to measure.
    pub(crate) fn sandcrate(&self) -> Option<PathBuf> {
        let beside = || Some(std::env::current_exe().ok()?.with_file_name("sandcrate"));
        self.sandcrate.clone().or_else(beside).filter(|path| Path::new(path).exists())
    }

    /// Sessions that the server holds at once.
    pub(crate) fn crowd(&self) -> u32 {
        self.crowd.unwrap_or(if self.quick { 100 } else { 1000 })
    }

    pub(crate) fn churn(&self) -> usize {
        self.churn.unwrap_or(if self.quick { 400 } else { 10_000 })
    }

    pub(crate) fn flood_bytes(&self) -> u64 {
        let gibibytes = self.flood.unwrap_or(if self.quick { 0.5 } else { 10.0 });
        (gibibytes * f64::from(1 << 30)) as u64
    }
}
