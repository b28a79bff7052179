//! The flags of `sandcrate mcp serve`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::network::NetworkArgs;
use crate::units::{parse_cpus, parse_duration, parse_size};

const AFTER_HELP: &str = "\
Examples:
  sandcrate mcp serve                                      a private box without a network
  sandcrate mcp serve -v .:/workspace                      the current directory, read-write
  sandcrate mcp serve -v .:/workspace:ro --network on      look at it, and reach the Internet
  sandcrate mcp serve --session notes -m 2G                files that are there the next time
  sandcrate mcp serve --url http://127.0.0.1:5410          a box of a running server
  sandcrate mcp config claude-code                         what to paste into a client

The client starts it and speaks MCP with it; a person does not. Tools: exec, read, write, edit, glob,
grep, session_list, session_reset; files of /workspace are resources. The box is made by the first
call, and goes with the client: at the end of stdin, at SIGTERM and SIGINT, and when we are killed.
With --session the files of /workspace and HOME are kept, in mcp/NAME of the state directory, for the
next server of that name; one at a time has them.

Exit codes: 0 after the client went or a signal; 125 sandcrate itself failed or refused.";

/// Be an MCP server on stdin and stdout that runs commands in a box
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct ServeArgs {
    /// Keep the files of the box under this name for the next time; with --url, the server's session
    #[arg(long, value_name = "NAME")]
    pub(super) session: Option<String>,

    /// Mount a directory or file of the host; a relative SRC starts at the current directory
    #[arg(short, long, value_name = "SRC:DST[:ro]", value_parser = clap::value_parser!(OsString))]
    pub(super) volume: Vec<OsString>,

    /// Set a variable for every command; a bare KEY passes the caller's value on
    #[arg(short, long, value_name = "KEY[=VALUE]", value_parser = clap::value_parser!(OsString))]
    pub(super) env: Vec<OsString>,

    /// Preset of what follows: default, network_basic, network_extended, offline_readonly
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub(super) profile: String,

    /// Image that the box's root is made of, instead of the host's /usr; see `sandcrate image`
    #[arg(long, value_name = "NAME")]
    pub(super) image: Option<String>,

    /// Memory of the whole box, in whole MiB [default: the profile's, 512M]
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size, allow_negative_numbers = true)]
    pub(super) memory: Option<u64>,

    /// CPUs the box may use at a time [default: the profile's, 1]
    #[arg(short, long, value_name = "NUMBER", value_parser = parse_cpus, allow_negative_numbers = true)]
    pub(super) cpus: Option<u32>,

    /// Processes and threads of the box [default: the profile's, 128]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(2..=4_194_304))]
    pub(super) pids_limit: Option<u32>,

    /// Hard limit for files in /workspace, HOME and a writable root, in whole MiB
    #[arg(long, value_name = "SIZE", value_parser = parse_size, allow_negative_numbers = true)]
    pub(super) quota: Option<u64>,

    /// Of a command that names no time of its own [default: the profile's, 30s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(super) timeout: Option<Duration>,

    /// The longest that a command may ask for [default: the profile's, 2m]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(super) max_timeout: Option<Duration>,

    #[command(flatten)]
    pub(super) network: NetworkArgs,

    /// Writable root: commands are the box's root without capabilities
    #[arg(long)]
    pub(super) writable_root: bool,

    /// Take boxes of the server there, as its configuration has them: http://HOST:PORT or unix:/PATH
    #[arg(long, value_name = "URL", conflicts_with_all = BOX_FLAGS)]
    pub(super) url: Option<String>,

    /// File with that server's token; $SANDCRATE_TOKEN has the token itself
    #[arg(long, value_name = "FILE", requires = "url")]
    pub(super) token_file: Option<PathBuf>,
}

/// What a server's own configuration decides.
const BOX_FLAGS: [&str; 15] = [
    "volume",
    "env",
    "profile",
    "image",
    "memory",
    "cpus",
    "pids_limit",
    "quota",
    "timeout",
    "max_timeout",
    "network",
    "allow_net",
    "deny_net",
    "publish",
    "writable_root",
];
