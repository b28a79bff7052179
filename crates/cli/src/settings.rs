//! Environment variables that this program itself looks at, and the log.

use tracing_subscriber::EnvFilter;

/// What is logged to stderr, in the syntax of `tracing`.
pub(crate) const LOG: &str = "SANDCRATE_LOG";

/// Set to anything but nothing: no colours (<https://no-color.org>).
pub(crate) const NO_COLOR: &str = "NO_COLOR";

/// Name of the unix socket in the state directory: where a server listens, and where clients look first.
pub(crate) const SOCKET_NAME: &str = "sandcrate.sock";

/// Where clients look when there is no such socket.
pub(crate) const DEFAULT_ADDRESS: &str = "127.0.0.1:5410";

/// Where the server is, for clients: `http://HOST:PORT` or `unix:/PATH`.
pub(crate) const URL: &str = "SANDCRATE_URL";

/// The token to show to the server.
pub(crate) const TOKEN: &str = "SANDCRATE_TOKEN";

/// A file with that token.
pub(crate) const TOKEN_FILE: &str = "SANDCRATE_TOKEN_FILE";

/// Starts the log. Stderr belongs to the command in the box, so only errors are shown unless asked for more;
/// a value that does not parse counts as asking for nothing.
pub(crate) fn start_logging() {
    let filter = std::env::var(LOG)
        .ok()
        .and_then(|text| text.parse::<EnvFilter>().ok())
        .unwrap_or_else(|| EnvFilter::new("error"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
}
