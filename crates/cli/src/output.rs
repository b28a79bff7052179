//! Writing to our own stdout and stderr: locked, flushed, with a broken pipe as a result and not as a panic.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use crate::failure::OUR_EXIT_CODE;
use crate::settings;

/// What a shell shows for a program that died of SIGPIPE.
pub(crate) const BROKEN_PIPE_EXIT_CODE: u8 = 141;

/// Writes text to stdout and says with which code to leave: 0, or that of a reader that went away.
pub(crate) fn print(text: &str) -> ExitCode {
    exit_code_after(print_bytes(text.as_bytes()), 0)
}

pub(crate) fn print_bytes(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

/// One line on stderr from us, marked as ours among the command's own.
pub(crate) fn notice(text: &str) {
    // Nobody is left to tell when stderr itself is gone.
    let _ = writeln!(io::stderr().lock(), "sandcrate: {text}");
}

/// `code`, unless writing the result failed.
pub(crate) fn exit_code_after(written: io::Result<()>, code: u8) -> ExitCode {
    match written {
        Ok(()) => ExitCode::from(code),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::from(BROKEN_PIPE_EXIT_CODE),
        Err(error) => {
            notice(&format!("error: cannot write to stdout: {error}"));
            ExitCode::from(OUR_EXIT_CODE)
        }
    }
}

/// Whether stdout takes colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paint {
    Colour,
    Plain,
}

impl Paint {
    pub(crate) fn for_stdout() -> Self {
        let refused = std::env::var_os(settings::NO_COLOR).is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        if io::stdout().is_terminal() && !refused { Self::Colour } else { Self::Plain }
    }

    /// `text` in the colour with this ANSI code.
    pub(crate) fn paint(self, ansi: &str, text: &str) -> String {
        match self {
            Self::Colour => format!("\x1b[{ansi}m{text}\x1b[0m"),
            Self::Plain => text.to_owned(),
        }
    }
}
