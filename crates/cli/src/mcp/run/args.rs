//! The flags of `sandcrate mcp run`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::network::NetworkArgs;
use crate::units::{parse_cpus, parse_duration, parse_size};

const AFTER_HELP: &str = "\
Examples:
  sandcrate mcp run -- npx -y @modelcontextprotocol/server-everything
  sandcrate mcp run -v ~/notes:/notes:ro -- npx -y @modelcontextprotocol/server-filesystem /notes
  sandcrate mcp run --network on -- uvx mcp-server-fetch
  sandcrate mcp run -e API_TOKEN --allow-net api.example.com:443 -- npx -y @example/server
  sandcrate mcp run -- python server.py          a project of yours, read-only, with what it needs
  sandcrate mcp run -- uv --directory ~/weather run weather.py

In a client's configuration it goes in front of the command:
  {\"mcpServers\": {\"time\": {\"command\": \"sandcrate\", \"args\": [\"mcp\", \"run\", \"--\", \"uvx\", \"mcp-server-time\"]}}}

Packages that npx and uvx name, and what a project's pyproject.toml, setup.py, requirements.txt,
uv.lock or package.json asks for, are installed once, in a box of their own with a network
(--install-network) and without any of your variables but those of the package index (PIP_*, UV_*,
NPM_CONFIG_*, certificates, proxies). The next start has them; --reinstall makes them anew. They
lie in $XDG_CACHE_HOME/sandcrate/mcp.

The server's own box has no network unless it is asked for, a private HOME and /tmp, and of your
files the project and what -v shows. --env-from-client passes on our variables but for those of the
host: PATH, HOME, USER, SHELL, LANG, TERM, TMPDIR, PWD and the like, PYTHONPATH, NODE_OPTIONS,
proxies, and everything that begins with SSH_, LD_, DBUS_, XDG_, LC_, GPG_, DOCKER_, SANDCRATE_,
SUDO_, SYSTEMD_, PIP_, UV_, NPM_CONFIG_, npm_, CARGO, RUSTUP, CONDA_, NVM_, or belongs to a desktop.

Exit codes: the server's own; 128+N when signal N ended it; 125 sandcrate itself failed or refused;
126 not executable; 127 not found; 130 Ctrl-C. When stdin ends the server reads end of file; then
it gets SIGTERM, and SIGKILL if that does not help.";

/// How the box has the project.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProjectMode {
    /// As it is, for reading
    Ro,
    /// As it is, for writing
    Rw,
    /// A copy that the server may change and that goes with it
    Copy,
}

impl ProjectMode {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Ro => "ro",
            Self::Rw => "rw",
            Self::Copy => "copy",
        }
    }
}

/// Run one stdio MCP server in a box, and speak MCP on our own stdin and stdout
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP, override_usage = "sandcrate mcp run [OPTIONS] -- COMMAND [ARG]...")]
pub(crate) struct McpRunArgs {
    /// Set a variable of the server; a bare KEY passes ours on
    #[arg(short, long, value_name = "KEY[=VALUE]", value_parser = clap::value_parser!(OsString))]
    pub(super) env: Vec<OsString>,

    /// Read variables from a file: a KEY=VALUE or KEY per line, `#` for comments; -e wins
    #[arg(long, value_name = "FILE")]
    pub(super) env_file: Vec<PathBuf>,

    /// Pass on all our variables but those of the host; stderr names what is withheld
    #[arg(long)]
    pub(super) env_from_client: bool,

    /// Mount a directory or file of the host; a relative SRC starts at the current directory
    #[arg(short, long, value_name = "SRC:DST[:ro]", value_parser = clap::value_parser!(OsString))]
    pub(super) volume: Vec<OsString>,

    /// The server's project on the host [default: told from the command]
    #[arg(long, value_name = "DIR")]
    pub(super) project: Option<String>,

    /// How the box has the project
    #[arg(long, value_name = "MODE", default_value = "ro")]
    pub(super) project_mode: ProjectMode,

    /// Image that the boxes' root is made of, instead of the host's /usr; see `sandcrate image`
    #[arg(long, value_name = "NAME")]
    pub(super) image: Option<String>,

    /// Memory of the whole box
    #[arg(short, long, value_name = "SIZE", default_value = "512M", value_parser = parse_size)]
    #[arg(allow_negative_numbers = true)]
    pub(super) memory: u64,

    /// CPUs the box may use at a time
    #[arg(short, long, value_name = "NUMBER", default_value = "1", value_parser = parse_cpus)]
    #[arg(allow_negative_numbers = true)]
    pub(super) cpus: u32,

    /// Processes and threads of the box
    #[arg(long, value_name = "NUMBER", default_value_t = 128, allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(2..=4_194_304))]
    pub(super) pids_limit: u32,

    #[command(flatten)]
    pub(super) network: NetworkArgs,

    /// What the install box may reach, in the words of --network
    #[arg(long, value_name = "off|on|host|POLICY", default_value = "on")]
    pub(super) install_network: String,

    /// Install anew, also what is there already
    #[arg(long)]
    pub(super) reinstall: bool,

    /// Writable root: the server is the box's root without capabilities, changes go with the box
    #[arg(long)]
    pub(super) writable_root: bool,

    /// Name of the box in messages and records
    #[arg(short, long, value_name = "NAME")]
    pub(super) name: Option<String>,

    /// Time for the start, without the install; the server itself has no limit
    #[arg(long, value_name = "DURATION", default_value = "120s", value_parser = parse_duration)]
    #[arg(allow_negative_numbers = true)]
    pub(super) timeout: Duration,

    /// Time for the install
    #[arg(long, value_name = "DURATION", default_value = "15m", value_parser = parse_duration)]
    #[arg(allow_negative_numbers = true)]
    pub(super) install_timeout: Duration,

    /// Say nothing on stderr but errors and what the server says
    #[arg(short, long)]
    pub(super) quiet: bool,

    /// Let the server there make the boxes: http://HOST:PORT; $SANDCRATE_URL is not looked at
    #[arg(long, value_name = "URL")]
    pub(super) url: Option<String>,

    /// File with that server's token; $SANDCRATE_TOKEN has the token itself [default:
    /// $SANDCRATE_TOKEN_FILE]
    #[arg(long, value_name = "FILE", requires = "url")]
    pub(super) token_file: Option<PathBuf>,

    /// The server's program and its arguments
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    pub(super) command: Vec<OsString>,
}
