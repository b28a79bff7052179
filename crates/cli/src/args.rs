//! The argument tree, from which help, completions and the manual page are made.
//!
//! Clap's own errors leave with our code for a request that is not acceptable, not with clap's 2, which a
//! command in the box could have returned as well; `-o json` has them as a document.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind as ClapKind;
use clap::{Parser, Subcommand, ValueEnum};

use crate::client::{self, ClientVerb};
use crate::config::ConfigVerb;
use crate::doctor::DoctorArgs;
use crate::failure::{self, Failure};
use crate::image::ImageVerb;
use crate::mcp::McpVerb;
use crate::output;
use crate::run::RunArgs;
use crate::serve::{BoxArgs, ServeArgs};
use crate::tls::TlsVerb;

/// Run untrusted commands in a sandbox: no container engine, no virtual machine.
#[derive(Debug, Parser)]
#[command(name = "sandcrate", version, propagate_version = false, max_term_width = 100)]
#[command(after_help = "\
Examples:
  sandcrate run -- python3 -c 'print(2**64)'      a throw-away box, the command's own exit code
  sandcrate run -v .:/workspace -- make test      work on the current directory
  sandcrate run -it -- bash                       look around inside
  sandcrate doctor                                what this machine can enforce, and what to fix
  sandcrate serve                                 a server for boxes that last, and for their clients
  sandcrate exec demo -- echo hello               a command in a session of it
  sandcrate image import tools ./tools.tar        an image for boxes, then `run --image tools`
  sandcrate mcp run -- npx -y @example/server     an MCP server in a box, for any MCP client
  sandcrate mcp config claude-code --write        a sandbox for Claude Code, Cursor and other agents

Environment:
  SANDCRATE_URL         the server of clients, http://HOST:PORT or unix:/PATH
                        [the socket in the state directory, or http://127.0.0.1:5410]
  SANDCRATE_TOKEN       its token; SANDCRATE_TOKEN_FILE names a file with it
  SANDCRATE_STATE_DIR   where private storage of boxes lives
                        [/var/lib/sandcrate for root, $XDG_STATE_HOME/sandcrate for others]
  SANDCRATE_CONFIG      the configuration file of a server [./sandcrate.toml, then
                        /etc/sandcrate/sandcrate.toml]; SANDCRATE__SECTION__KEY sets one of its keys
  SANDCRATE_LOG         what is logged to stderr, such as `debug` or `sandcrate_jail=trace`
                        [error; info for a server]
  NO_COLOR              no colours, also on a terminal")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run one command in a new box, and exit with its code
    Run(Box<RunArgs>),
    /// Say what this machine can enforce, and how to fix what it cannot
    Doctor(DoctorArgs),
    /// Serve boxes over REST, LangBot's RPC and WebSockets
    Serve(ServeArgs),
    /// Stand in for LangBot's Box runtime, with its options
    Box(BoxArgs),
    /// Look at the configuration of a server
    #[command(subcommand)]
    Config(ConfigVerb),
    /// Import, list and remove images that boxes can be made of
    #[command(subcommand)]
    Image(ImageVerb),
    /// Run MCP servers in boxes, and give MCP clients a box
    #[command(subcommand)]
    Mcp(McpVerb),
    /// Make a certificate for a server that is reached by TLS
    #[command(subcommand)]
    Tls(TlsVerb),
    #[command(flatten)]
    Client(ClientVerb),
    /// Print the completion script for a shell
    #[command(after_help = "\
Examples:
  sandcrate completions bash > /etc/bash_completion.d/sandcrate
  sandcrate completions zsh > ~/.zfunc/_sandcrate
  sandcrate completions fish > ~/.config/fish/completions/sandcrate.fish")]
    Completions { shell: clap_complete::Shell },
    /// Print the manual page
    #[command(after_help = "\
Example:
  sandcrate man > /usr/local/share/man/man1/sandcrate.1")]
    Man,
}

/// How results are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum OutputFormat {
    /// For people; `run` passes the command's streams through as they come
    #[default]
    Raw,
    /// One JSON document on stdout at the end
    Json,
}

/// Parses the arguments of this process. `Err` is the exit code after help, version or a complaint.
pub(crate) fn parse() -> Result<Cli, ExitCode> {
    parse_from(&std::env::args_os().collect::<Vec<_>>())
}

/// The same for other arguments, the program's name included.
pub(crate) fn parse_from(argv: &[OsString]) -> Result<Cli, ExitCode> {
    Cli::try_parse_from(argv).map_err(|error| {
        match error.kind() {
            ClapKind::DisplayHelp | ClapKind::DisplayVersion => {
                return output::print(&error.render().to_string());
            }
            _ if asks_for_json(argv) => {
                let text = error.render().to_string();
                // The rest is advice for a terminal.
                let text = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
                let failure = Failure::invalid(text);
                let words = words(argv);
                if client::is_client(&words) {
                    let hint = format!("`sandcrate {} --help` lists what is accepted", words[0]);
                    return client::refuse(failure.hint(hint));
                }
                let failure =
                    failure.hint("`sandcrate --help` and `sandcrate run --help` list what is accepted");
                return failure::report(&failure.into(), OutputFormat::Json);
            }
            _ => {}
        }
        // Clap picks the stream and honours colours; there is nobody to tell when stderr is gone.
        let _ = error.print();
        ExitCode::from(failure::OUR_EXIT_CODE)
    })
}

/// The arguments of this process that are no flags; the verb is the first of them, as no flag stands before it.
fn words(argv: &[OsString]) -> Vec<&str> {
    let words = argv.iter().skip(1).map_while(|arg| arg.to_str());
    words.take_while(|arg| *arg != "--").filter(|arg| !arg.starts_with('-')).collect()
}

/// Whether the arguments before `--` ask for JSON: looked up by hand, because parsing has failed.
fn asks_for_json(argv: &[OsString]) -> bool {
    let ours: Vec<&str> = argv.iter().map_while(|arg| arg.to_str()).take_while(|arg| *arg != "--").collect();
    ours.iter().any(|arg| matches!(*arg, "-ojson" | "-o=json" | "--output=json"))
        || ours.windows(2).any(|pair| matches!(pair, ["-o" | "--output", "json"]))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_tree_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn json_is_recognised_before_the_separator_only() {
        let asks = |args: &[&str]| asks_for_json(&args.iter().map(OsString::from).collect::<Vec<_>>());
        assert!(asks(&["sandcrate", "run", "-o", "json", "--bad"]));
        assert!(asks(&["sandcrate", "run", "--output=json", "--", "ls"]));
        assert!(!asks(&["sandcrate", "run", "--", "kubectl", "-o", "json"]));
        assert!(!asks(&["sandcrate", "run", "-o", "raw"]));
    }
}
