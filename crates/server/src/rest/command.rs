//! A command as a body asks for it, and how it is started with what goes to its standard input.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use sandcrate_backend::{Command, ExecControl, ExecRequest, PtySize, StdinMode};
use sandcrate_runtime::CommandId;
use serde::Deserialize;
use serde::de::{Deserializer, Error};
use serde_json::{Map, Value};

use super::error::ApiError;
use super::outcome::from_base64;
use crate::App;

/// Fields of a command that are not fields of a box.
pub(crate) const COMMAND_FIELDS: [&str; 4] = ["argv", "stdin", "keep_stdin_open", "pty"];

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Pty {
    pub(crate) rows: u16,
    pub(crate) cols: u16,
}

impl Default for Pty {
    fn default() -> Self {
        Self { rows: 24, cols: 80 }
    }
}

impl Pty {
    pub(crate) fn size(self) -> Result<PtySize, ApiError> {
        match (self.rows, self.cols) {
            (1.., 1..) => Ok(PtySize { rows: self.rows, cols: self.cols }),
            _ => Err(ApiError::invalid("pty", "has at least one row and one column")),
        }
    }
}

/// Text, or bytes as base64.
#[derive(Debug)]
struct Input(Bytes);

impl<'de> Deserialize<'de> for Input {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let problem = || D::Error::custom("expected text, or an object with `base64` alone");
        match Value::deserialize(deserializer)? {
            Value::String(text) => Ok(Self(text.into())),
            Value::Object(fields) if fields.len() == 1 => {
                let text = fields.get("base64").and_then(Value::as_str).ok_or_else(problem)?;
                let bytes = from_base64(text).ok_or_else(|| D::Error::custom("`base64` is not base64"))?;
                Ok(Self(bytes.into()))
            }
            _ => Err(problem()),
        }
    }
}

/// The body of `POST …/commands`, and the command's part of the body of `POST …/exec`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct CommandBody {
    cmd: Option<String>,
    argv: Option<Vec<String>>,
    env: BTreeMap<String, String>,
    workdir: Option<String>,
    timeout_sec: Option<u64>,
    stdin: Option<Input>,
    keep_stdin_open: bool,
    pty: Option<Pty>,
}

/// A request that was found good, and what to send to its standard input.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) request: ExecRequest,
    pub(crate) input: Option<Bytes>,
    /// More input may come.
    pub(crate) open: bool,
}

impl CommandBody {
    /// Takes the command's own fields out of a larger body.
    pub(crate) fn take_from(body: &mut Map<String, Value>) -> Result<Self, ApiError> {
        let own = COMMAND_FIELDS.iter().filter_map(|field| body.remove_entry(*field));
        let own = Value::Object(own.collect());
        serde_path_to_error::deserialize(own).map_err(|error| {
            ApiError::invalid(error.path().to_string(), format!("is not acceptable: {}", error.inner()))
        })
    }

    pub(crate) fn has_argv(&self) -> bool {
        self.argv.is_some()
    }

    pub(crate) fn with_shell(mut self, cmd: String) -> Self {
        self.cmd = Some(cmd);
        self
    }

    pub(crate) fn with(
        mut self,
        env: BTreeMap<String, String>,
        workdir: Option<String>,
        timeout_sec: u64,
    ) -> Self {
        (self.env, self.workdir, self.timeout_sec) = (env, workdir, Some(timeout_sec));
        self
    }

    pub(crate) fn check(self) -> Result<Start, ApiError> {
        let command = match (self.cmd, self.argv) {
            (Some(cmd), None) if cmd.trim().is_empty() => {
                return Err(ApiError::invalid("cmd", "must not be empty"));
            }
            (Some(cmd), None) => Command::Shell(cmd),
            (None, Some(argv)) if argv.is_empty() => {
                return Err(ApiError::invalid("argv", "must name a program"));
            }
            (None, Some(argv)) => Command::Argv(argv.into_iter().map(Into::into).collect()),
            (Some(_), Some(_)) => return Err(ApiError::invalid("argv", "and cmd exclude each other")),
            (None, None) => return Err(ApiError::invalid("cmd", "must be given, or argv")),
        };
        if self.timeout_sec == Some(0) {
            return Err(ApiError::invalid("timeout_sec", "must be greater than 0"));
        }
        let open = self.keep_stdin_open || self.pty.is_some();
        let input = self.stdin.map(|Input(bytes)| bytes);
        let piped = open || input.is_some();
        let request = ExecRequest {
            command,
            env: self.env.into_iter().collect(),
            cwd: self.workdir,
            stdin: if piped { StdinMode::Piped } else { StdinMode::Closed },
            pty: self.pty.map(Pty::size).transpose()?,
            timeout: self.timeout_sec.map(Duration::from_secs),
            memory_bytes: None,
        };
        Ok(Start { request, input, open })
    }
}

/// Starts a command that goes on by itself.
pub(crate) async fn start(app: &App, session: &str, start: Start) -> Result<CommandId, ApiError> {
    let Start { request, input, open } = start;
    let command = app.runtime.start_command(session, request).await?;
    if let Some(input) = input {
        // Beside the caller: a program that does not read must not hold the answer back. Ends with the command;
        // how many there are is bounded by the number of commands.
        let (runtime, session, command) = (app.runtime.clone(), session.to_owned(), command.clone());
        app.tasks.spawn(async move {
            // A program may well end without reading its input.
            let written = runtime.write_command(&session, &command, input).await;
            if written.is_ok() && !open {
                let _ = runtime.close_command_stdin(&session, &command);
            }
        });
    }
    Ok(command)
}

/// Ends the command when dropped, unless it has ended.
#[derive(Debug)]
pub(crate) struct EndOnDrop {
    pub(crate) app: App,
    pub(crate) session: String,
    pub(crate) command: CommandId,
    pub(crate) ended: bool,
}

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let (runtime, session) = (self.app.runtime.clone(), std::mem::take(&mut self.session));
        let command = self.command.clone();
        self.app.tasks.spawn(async move {
            // One that ended in the meantime needs no kill.
            let _ = runtime.control_command(&session, &command, ExecControl::Kill).await;
        });
    }
}
