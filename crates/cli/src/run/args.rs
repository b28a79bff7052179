//! The flags of `sandcrate run`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::strictness::{self, Required};
use crate::args::OutputFormat;
use crate::network::NetworkArgs;
use crate::units::{parse_cpus, parse_duration, parse_size};

const AFTER_HELP: &str = "\
Examples:
  sandcrate run -- python3 -c 'print(2**64)'
  sandcrate run -v .:/workspace -- make test            the current directory, read-write
  sandcrate run -v ./data:/data:ro -e TOKEN -- ./job    a read-only directory, $TOKEN passed on
  echo 'print(1)' | sandcrate run -i -- python3 -       standard input
  sandcrate run -it --timeout 0 -- bash                 a shell on a terminal, without a time limit
  sandcrate run -o json -m 1G -c 2 -- ./solve | jq .usage
  sandcrate run --network on -- curl -s https://example.com
  sandcrate run --allow-net index.example.org --allow-net files.example.org -- pip install --user flask
  sandcrate run -p 8080:80 --timeout 0 -- python3 -m http.server 80
  sandcrate run --image python -- python3 -V            a root of its own, see `sandcrate image`
  sandcrate run --require memory,pids,seccomp -- ./x    fail where one of these cannot be enforced

The box: network off, read-only root with the host's /usr, private /workspace and HOME, an
environment of PATH, HOME, LANG (and TERM with -t). A program outside /usr (a pyenv's python, a node
of nvm) works: what it stands on is mounted read-only at the same path. A relative program path is
one in the workdir of the box.

Exit codes: the command's own; 128+N when signal N ended it; 124 timeout; 125 sandcrate itself
failed or refused; 126 not executable; 127 not found; 130 Ctrl-C; 141 the reader of stdout went
away. With -o json, `exit_code` is the same number.";

/// Run one command in a new box, and exit with its code
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP, override_usage = "sandcrate run [OPTIONS] -- COMMAND [ARG]...")]
pub(crate) struct RunArgs {
    /// Set a variable; a bare KEY passes the caller's value on
    #[arg(short, long, value_name = "KEY[=VALUE]", value_parser = clap::value_parser!(OsString))]
    pub(crate) env: Vec<OsString>,

    /// Read variables from a file: a KEY=VALUE or KEY per line, `#` for comments; -e wins
    #[arg(long, value_name = "FILE")]
    pub(crate) env_file: Vec<PathBuf>,

    /// Directory of the box to start in; made when missing
    #[arg(short, long, value_name = "DIR", default_value = "/workspace")]
    pub(crate) workdir: String,

    /// Mount a directory or file of the host; a relative SRC starts at the current directory
    #[arg(short, long, value_name = "SRC:DST[:ro]", value_parser = clap::value_parser!(OsString))]
    pub(crate) volume: Vec<OsString>,

    /// Image that the box's root is made of, instead of the host's /usr; see `sandcrate image`
    #[arg(long, value_name = "NAME")]
    pub(crate) image: Option<String>,

    /// Memory of the whole box
    #[arg(short, long, value_name = "SIZE", default_value = "512M", value_parser = parse_size)]
    #[arg(allow_negative_numbers = true)]
    pub(crate) memory: u64,

    /// CPUs the box may use at a time
    #[arg(short, long, value_name = "NUMBER", default_value = "1", value_parser = parse_cpus)]
    #[arg(allow_negative_numbers = true)]
    pub(crate) cpus: u32,

    /// Processes and threads of the box
    #[arg(long, value_name = "NUMBER", default_value_t = 128, allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(2..=4_194_304))]
    pub(crate) pids_limit: u32,

    /// Hard limit for files in /workspace, HOME and a writable root [default: 1G, accounted]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, allow_negative_numbers = true)]
    pub(crate) quota: Option<u64>,

    /// Size of /tmp; counts as memory
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_size)]
    #[arg(allow_negative_numbers = true)]
    pub(crate) tmp_size: u64,

    /// Wall time after which everything is killed; 0 for none
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration)]
    #[arg(allow_negative_numbers = true)]
    pub(crate) timeout: Duration,

    #[command(flatten)]
    pub(crate) network: NetworkArgs,

    /// Read-only root: the command is an ordinary user of the box (the default)
    #[arg(long, conflicts_with = "writable_root")]
    pub(crate) read_only: bool,

    /// Writable root: the command is the box's root without capabilities, changes go with the box
    #[arg(long)]
    pub(crate) writable_root: bool,

    /// Pass standard input on; otherwise the command reads end of file
    #[arg(short, long)]
    pub(crate) interactive: bool,

    /// Give the command a terminal; stdout carries stderr too
    #[arg(short, long)]
    pub(crate) tty: bool,

    /// Name of the box in messages and records
    #[arg(short, long, value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// Result as live streams, or as one document with streams, usage, limits and enforcement
    #[arg(short, long, value_name = "FORMAT", default_value = "raw")]
    pub(crate) output: OutputFormat,

    /// Say nothing on stderr but errors
    #[arg(short, long)]
    pub(crate) quiet: bool,

    /// Controls that must be enforced in full, or the box does not start; `all` for every one
    #[arg(long, value_name = "CONTROL,...", value_delimiter = ',', value_parser = strictness::parse)]
    pub(crate) require: Vec<Required>,

    /// The program and its arguments
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    pub(crate) command: Vec<OsString>,
}
