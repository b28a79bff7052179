//! What a person sees when a server is ready: where it listens, and a first command to paste.

use std::io::IsTerminal;

use super::bind::Bound;
use super::log::Voice;
use crate::config::{Config, LogFormat, Role};
use crate::settings;

/// Set to anything: the hint is printed also where stderr is not a terminal.
pub(crate) const HINT: &str = "SANDCRATE_HINT";

pub(super) fn print(config: &Config, bound: &[Bound], voice: Voice) {
    for bound in bound {
        voice.say(&format!("listening on {}", bound.url));
    }
    let wanted =
        std::io::stderr().is_terminal() || std::env::var_os(HINT).is_some_and(|value| !value.is_empty());
    if wanted && config.role == Role::Serve && config.settings.log.format == LogFormat::Text {
        voice.say(&format!("\nPaste into another terminal:\n\n  {}\n", first_command(bound)));
        if config.token.is_some() {
            voice.say("with the token in SANDCRATE_TOKEN there. Ctrl-C here ends the server.");
        } else {
            voice.say("Ctrl-C here ends the server.");
        }
    }
}

/// One line that makes a session by running a command in it.
fn first_command(bound: &[Bound]) -> String {
    let program =
        std::env::current_exe().map_or_else(|_| "sandcrate".to_owned(), |path| path.display().to_string());
    // Clients look there by themselves; their terminal knows nothing of our variables.
    let usual = format!("http://{}", settings::DEFAULT_ADDRESS);
    // Clients of ours do not speak TLS.
    let url = match bound.iter().find(|bound| !bound.url.starts_with("https:")) {
        Some(first) if !bound.iter().any(|bound| bound.url == usual) => {
            format!("SANDCRATE_URL={} ", first.url)
        }
        _ => String::new(),
    };
    format!("{url}{program} exec demo -- sh -c 'id; python3 -c \"print(2**64)\"'")
}
