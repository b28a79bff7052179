//! Failures of our own: what a person sees of them, and the exit code.
//!
//! Everything travels as `anyhow::Error`; here it is turned into kind, message and hint. The kind decides the
//! exit code, by the table of `sandcrate_protocol`.

use std::process::ExitCode;

use sandcrate_backend::BackendError;
use sandcrate_protocol::ErrorKind;
use serde::Serialize;

use crate::args::OutputFormat;
use crate::image;
use crate::native::image::ImageError;
use crate::output;
use crate::run::report::RunReport;

/// The exit code of everything that is our failure and not the command's.
pub(crate) const OUR_EXIT_CODE: u8 = 125;

/// A failure that this crate finds itself.
#[derive(Debug)]
pub(crate) struct Failure {
    kind: ErrorKind,
    message: String,
    hint: Option<String>,
}

impl Failure {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None }
    }

    /// Something in the arguments is not acceptable; the message names the flag and the value.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Validation, message)
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// A failure as it is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Shown {
    pub(crate) kind: ErrorKind,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

impl Shown {
    pub(crate) fn of(error: &anyhow::Error) -> Self {
        let (kind, hint) = if let Some(failure) = error.downcast_ref::<Failure>() {
            (failure.kind, failure.hint.clone())
        } else if let Some(error) = error.downcast_ref::<BackendError>() {
            (error.kind(), backend_hint(error).map(str::to_owned))
        } else if let Some(error) = error.downcast_ref::<ImageError>() {
            (error.kind(), image::hint(error).map(str::to_owned))
        } else {
            (ErrorKind::Internal, None)
        };
        Self { kind, message: format!("{error:#}"), hint }
    }

    pub(crate) fn exit_code(&self) -> u8 {
        self.kind.appearance().exit_code
    }
}

/// What a person can do about an error of the backend, where its own words do not say.
fn backend_hint(error: &BackendError) -> Option<&'static str> {
    Some(match error {
        BackendError::Unavailable { .. } | BackendError::Failed { .. } => {
            "`sandcrate doctor` says what is missing on this machine and how to fix it"
        }
        BackendError::Unenforceable { .. } => {
            "`sandcrate doctor` says how to have it; not in --require, the box starts and reports the gap"
        }
        BackendError::SessionEnded { .. } => {
            "the box was ended from outside, or ran out of memory as a whole: try a larger --memory"
        }
        BackendError::CommandNotFound { .. } => {
            "a box has the programs of the host's /usr, what the command itself stands on, and -v mounts"
        }
        BackendError::MountDenied { .. } => "mount a directory of your own, such as `-v ./data:/data`",
        _ => return None,
    })
}

/// Tells the person and returns the exit code. With JSON the document goes to stdout.
pub(crate) fn report(error: &anyhow::Error, format: OutputFormat) -> ExitCode {
    let shown = Shown::of(error);
    let code = shown.exit_code();
    match format {
        OutputFormat::Raw => {
            output::notice(&format!("error: {}", shown.message));
            if let Some(hint) = &shown.hint {
                output::notice(&format!("hint: {hint}"));
            }
            ExitCode::from(code)
        }
        OutputFormat::Json => {
            output::exit_code_after(output::print_bytes(&RunReport::failed(shown).to_json()), code)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_decide_the_exit_code() {
        let not_found = BackendError::CommandNotFound { program: "nope".into() };
        assert_eq!(Shown::of(&not_found.into()).exit_code(), 127);
        assert_eq!(Shown::of(&Failure::invalid("--memory").into()).exit_code(), OUR_EXIT_CODE);
        assert_eq!(Shown::of(&anyhow::anyhow!("odd")).exit_code(), OUR_EXIT_CODE);
    }

    #[test]
    fn the_kind_survives_added_context() {
        let error =
            anyhow::Error::from(Failure::new(ErrorKind::Denied, "no").hint("ask")).context("mounting /x");
        let shown = Shown::of(&error);
        assert_eq!((shown.kind, shown.hint.as_deref()), (ErrorKind::Denied, Some("ask")));
        assert_eq!(shown.message, "mounting /x: no");
    }
}
