//! The process of one context, and the lines we exchange with it. What it says is the box's word: a line is passed on
//! only when it is JSON of a kind that clients expect.

use std::time::Duration;

use axum::http::StatusCode;
use bytes::Bytes;
use sandcrate_protocol::{ProcessSpec, ProcessStatus};
use sandcrate_runtime::{RelayEvent, RelayReader, RelayWriter, RuntimeError};
use serde::Deserialize;
use serde_json::json;

use super::ExecuteBody;
use super::contexts::Context;
use crate::App;
use crate::e2b::HOME;
use crate::e2b::error::Refused;
use crate::e2b::sandbox::Sandbox;

/// The kernel: its parts in the order of their names.
const PROGRAM: &str = concat!(
    include_str!("kernel/channel.py"),
    "\n",
    include_str!("kernel/display.py"),
    "\n",
    include_str!("kernel/languages.py"),
    "\n",
    include_str!("kernel/serve.py"),
);

/// From the start of Python to its first line, on a box that is short of processor time and has IPython to load.
const START: Duration = Duration::from_secs(30);
/// Exit code of a program that was not found.
const NOT_FOUND: i32 = 127;

/// What a line of the kernel's is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    Ready,
    /// For the client, as it is.
    Event,
    /// The execution of this id ended.
    End(String),
    /// Nothing that a kernel of ours says.
    Nonsense,
}

pub(super) fn said(line: &[u8]) -> Said {
    #[derive(Deserialize)]
    struct Line {
        r#type: String,
        id: Option<String>,
    }
    let Ok(Line { r#type, id }) = serde_json::from_slice(line) else { return Said::Nonsense };
    match (r#type.as_str(), id) {
        ("ready", _) => Said::Ready,
        ("end", Some(id)) => Said::End(id),
        ("stdout" | "stderr" | "result" | "error" | "number_of_executions", _) => Said::Event,
        _ => Said::Nonsense,
    }
}

#[derive(Debug)]
pub(crate) struct Kernel {
    pub(super) reader: RelayReader,
    writer: RelayWriter,
    executions: u64,
}

impl Kernel {
    /// Starts the process and waits until it can be spoken with. One that is there already is ended first.
    pub(super) async fn start(app: &App, sandbox: &Sandbox, context: &Context) -> Result<Self, Refused> {
        let process = context.process_id();
        let mut env = sandbox.facts.envs.clone();
        env.entry("HOME".to_owned()).or_insert_with(|| HOME.to_owned());
        let spec = ProcessSpec {
            process_id: process.clone(),
            args: vec!["-c".to_owned(), PROGRAM.to_owned(), context.language.name().to_owned()],
            env,
            cwd: context.cwd.clone(),
            ..ProcessSpec::new("python3")
        };
        app.runtime.start_process(sandbox.id(), &spec).await?;
        let attachment = app.runtime.attach_process(sandbox.id(), &process, true).await?;
        let mut kernel = Self { reader: attachment.reader, writer: attachment.writer, executions: 0 };
        match tokio::time::timeout(START, kernel.until_ready()).await {
            Ok(None) => Ok(kernel),
            Ok(Some(exit_code)) => Err(why_not(app, sandbox, &process, exit_code)),
            Err(_) => {
                // Its end is waited for, so that nothing of it is left when the next one starts.
                app.runtime.stop_process(sandbox.id(), &process).await?;
                let message = format!("the code interpreter did not start within {} s", START.as_secs());
                Err(Refused::new(StatusCode::INTERNAL_SERVER_ERROR, message))
            }
        }
    }

    /// Or how it ended instead.
    async fn until_ready(&mut self) -> Option<Option<i32>> {
        loop {
            match self.reader.next().await {
                RelayEvent::Line(line) if said(&line) == Said::Ready => return None,
                RelayEvent::Exited { exit_code } => return Some(exit_code),
                _ => {}
            }
        }
    }

    /// Hands code over, and tells the id that its end will have.
    pub(super) async fn execute(&mut self, body: &ExecuteBody) -> Result<String, RuntimeError> {
        self.executions += 1;
        let id = self.executions.to_string();
        self.send(&json!({"op": "execute", "id": id, "code": body.code, "env": body.env_vars})).await?;
        Ok(id)
    }

    pub(super) async fn interrupt(&mut self, id: &str) -> Result<(), RuntimeError> {
        self.send(&json!({"op": "interrupt", "id": id})).await
    }

    async fn send(&mut self, request: &serde_json::Value) -> Result<(), RuntimeError> {
        self.writer.send_line(Bytes::from(request.to_string())).await
    }
}

/// False when the process ended while nobody looked, or went with a pause.
pub(super) fn runs(app: &App, sandbox: &Sandbox, context: &Context) -> bool {
    let process = app.runtime.process(sandbox.id(), &context.process_id());
    process.is_ok_and(|process| process.status == ProcessStatus::Running)
}

fn why_not(app: &App, sandbox: &Sandbox, process: &str, exit_code: Option<i32>) -> Refused {
    if exit_code == Some(NOT_FOUND) {
        return Refused::invalid(
            "this sandbox has no python3, which the code interpreter runs on: use a template whose image has it",
        );
    }
    let said =
        app.runtime.process(sandbox.id(), process).map(|process| process.stderr_preview).unwrap_or_default();
    let last = said.lines().last().unwrap_or("it said nothing").to_owned();
    Refused::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the code interpreter did not start: {last}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_clients_expect_is_passed_on() {
        assert_eq!(said(br#"{"type":"ready"}"#), Said::Ready);
        assert_eq!(said(br#"{"type":"end","id":"7"}"#), Said::End("7".to_owned()));
        assert_eq!(said(br#"{"type":"stdout","text":"x","timestamp":1}"#), Said::Event);
        for line in
            [&b"half a line\"}"[..], b"", b"[]", br#"{"type":"end"}"#, br#"{"type":"other"}"#, b"{\"type\":"]
        {
            assert_eq!(said(line), Said::Nonsense, "{line:?}");
        }
    }

    #[test]
    fn the_program_fits_an_argument() {
        // The kernel takes no argument of more than 128 KiB.
        assert!(PROGRAM.len() < 100 << 10 && !PROGRAM.contains('\0'));
    }
}
