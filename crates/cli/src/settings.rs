//! Environment variables that this program itself looks at, and the log.

use tracing_subscriber::EnvFilter;

/// What is logged to stderr, in the syntax of `tracing`.
pub(crate) const LOG: &str = "SANDCRATE_LOG";

/// Set to anything but nothing: no colours (<https://no-color.org>).
pub(crate) const NO_COLOR: &str = "NO_COLOR";

/// Starts the log. Stderr belongs to the command in the box, so only errors are shown unless asked for more;
/// a value that does not parse counts as asking for nothing.
pub(crate) fn start_logging() {
    let filter = std::env::var(LOG)
        .ok()
        .and_then(|text| text.parse::<EnvFilter>().ok())
        .unwrap_or_else(|| EnvFilter::new("error"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
}
