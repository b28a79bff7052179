//! What goes wrong between us and a server, and how a person or a program is told.

use std::io;
use std::process::ExitCode;

use sandcrate_protocol::ErrorKind;
use serde::Deserialize;
use serde_json::json;

use super::address::Address;
use crate::args::OutputFormat;
use crate::failure::{OUR_EXIT_CODE, Shown};
use crate::output;

#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    #[error("no server answers at {address}")]
    Unreachable { address: Address, source: io::Error },
    /// The connection was there and went away.
    #[error("the connection to the server at {address} was lost")]
    Lost { address: Address, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("the answer of {address} is not one of a sandcrate server: {why}")]
    Garbled { address: Address, why: String },
    #[error(transparent)]
    Server(#[from] ServerError),
}

/// A request that the server refused, in its words.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, thiserror::Error)]
#[error("{message} ({code})")]
pub(super) struct ServerError {
    /// A stable word.
    pub(super) code: String,
    pub(super) message: String,
    #[serde(default)]
    pub(super) field: Option<String>,
}

impl ClientError {
    /// Whether another try may help: the server did not say no.
    pub(super) fn is_connection(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Lost { .. })
    }

    fn code(&self) -> &str {
        match self {
            Self::Unreachable { .. } => "server_unreachable",
            Self::Lost { .. } => "connection_lost",
            Self::Garbled { .. } => "not_a_server",
            Self::Server(error) => &error.code,
        }
    }

    pub(super) fn exit_code(&self) -> u8 {
        exit_code(self.code())
    }

    fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Unreachable { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                "the server is another user's: ask for its token, and use its address with --url"
            }
            Self::Unreachable { .. } => {
                "start one with `sandcrate serve`, or say where it is with --url or $SANDCRATE_URL"
            }
            Self::Lost { .. } => "it may have been stopped: its log says why",
            Self::Garbled { .. } => "check --url and $SANDCRATE_URL",
            Self::Server(error) => match error.code.as_str() {
                "session_not_found" => "`sandcrate session ls` lists the sessions",
                "skill_not_found" => "`sandcrate skill ls` lists the skills",
                "mcp_server_not_found" => "`sandcrate mcp ls` lists the MCP servers",
                "mcp_server_conflict" => "`--replace` takes its place, `sandcrate mcp rm` removes it",
                "managed_process_not_found" => "`sandcrate ps --all` lists processes and commands",
                "unauthorized" => "give the server's token by $SANDCRATE_TOKEN or --token-file",
                _ => return None,
            },
        })
    }
}

/// The server's word for why it refused, when it is the reason of this error.
pub(super) fn server_code(error: &anyhow::Error) -> Option<&str> {
    match error.downcast_ref::<ClientError>() {
        Some(ClientError::Server(error)) => Some(&error.code),
        _ => None,
    }
}

/// The exit code for a word of the server: a shell's own where a program could not be started.
pub(super) fn exit_code(code: &str) -> u8 {
    let kind = match code {
        "command_not_found" => ErrorKind::CommandNotFound,
        "command_not_executable" => ErrorKind::CommandNotExecutable,
        _ => return OUR_EXIT_CODE,
    };
    kind.appearance().exit_code
}

/// Tells the person, or the program, and returns the exit code.
pub(super) fn report(error: &anyhow::Error, format: OutputFormat) -> ExitCode {
    let shown = Shown::of(error);
    let (code, hint, exit_code) = match error.downcast_ref::<ClientError>() {
        Some(client) => (json!(client.code()), client.hint().map(str::to_owned), exit_code(client.code())),
        None => (json!(shown.kind), shown.hint.clone(), OUR_EXIT_CODE),
    };
    match format {
        OutputFormat::Raw => {
            output::notice(&format!("error: {}", shown.message));
            if let Some(hint) = hint {
                output::notice(&format!("hint: {hint}"));
            }
            ExitCode::from(exit_code)
        }
        OutputFormat::Json => {
            let error = json!({"code": code, "message": shown.message, "hint": hint});
            let document = json!({"ok": false, "exit_code": exit_code, "error": error});
            output::exit_code_after(output::print_bytes(format!("{document:#}\n").as_bytes()), exit_code)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_s_words_decide_the_exit_code() {
        for (code, exit) in [
            ("command_not_found", 127),
            ("command_not_executable", 126),
            ("session_not_found", 125),
            ("new", 125),
        ] {
            assert_eq!(exit_code(code), exit, "{code}");
        }
    }

    #[test]
    fn an_error_is_the_server_s_message_with_its_code() {
        let body = r#"{"code":"session_not_found","message":"session s not found","existing":"x"}"#;
        let error = ClientError::from(serde_json::from_str::<ServerError>(body).unwrap());
        assert_eq!(error.to_string(), "session s not found (session_not_found)");
        let error = anyhow::Error::from(error).context("looking");
        assert_eq!(server_code(&error), Some("session_not_found"));
    }
}
