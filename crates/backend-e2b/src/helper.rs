//! Small scripts of our own in a sandbox: what its service has no call for.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use sandcrate_e2b_wire::process::{
    self, Empty, Ended, Input, Output, ProcessConfig, ProcessEvent, SelectRequest, Selector,
    SendInputRequest, StartRequest,
};
use tokio::time::timeout;

use crate::command::Invocation;
use crate::envd::{Envd, User};
use crate::http::EndpointError;

/// For a whole script.
const LIMIT: Duration = Duration::from_secs(60);
/// Of what it writes: the names of all files of a share, at most.
const OUTPUT_BYTES: usize = 16 << 20;
const ERROR_BYTES: usize = 4 << 10;
const INPUT_PIECE: usize = 64 << 10;
const WHAT: &str = "running a script in the sandbox";

/// What a script did.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) ended: Ended,
    pub(crate) stdout: Bytes,
    /// Its beginning.
    pub(crate) stderr: String,
}

impl Done {
    /// Its output, if it succeeded.
    pub(crate) fn succeeded(self) -> Result<Bytes, EndpointError> {
        if self.ended.exit_code == 0 && self.ended.exited {
            return Ok(self.stdout);
        }
        let problem = format!("{}: {}", self.ended.status, self.stderr.trim());
        Err(EndpointError::Malformed { what: WHAT, problem })
    }
}

/// Runs a script of the shell with arguments and input to its end.
pub(crate) async fn run(
    envd: &Envd,
    user: User,
    script: &str,
    arguments: &[&str],
    input: Bytes,
) -> Result<Done, EndpointError> {
    timeout(LIMIT, attend(envd, user, script, arguments, input))
        .await
        .unwrap_or(Err(EndpointError::TimedOut { what: WHAT, limit: LIMIT }))
}

async fn attend(
    envd: &Envd,
    user: User,
    script: &str,
    arguments: &[&str],
    input: Bytes,
) -> Result<Done, EndpointError> {
    let Invocation { program, arguments, .. } = Invocation::shell(script, arguments);
    let message = StartRequest {
        process: ProcessConfig {
            cmd: program,
            args: arguments,
            cwd: Some("/".to_owned()),
            ..ProcessConfig::default()
        },
        stdin: Some(!input.is_empty()),
        ..StartRequest::default()
    };
    let mut stream = envd.start(&message, user).await?;
    let pid = loop {
        match stream.next().await? {
            Some(ProcessEvent::Start(started)) => break started.pid,
            Some(ProcessEvent::Keepalive(_)) => {}
            _ => return Err(malformed("it did not start".to_owned())),
        }
    };
    let mut feed = std::pin::pin!(send(envd, pid, input));
    let mut feeding = true;
    let (mut stdout, mut stderr) = (BytesMut::new(), BytesMut::new());
    loop {
        let event = tokio::select! {
            event = stream.next() => event?,
            fed = &mut feed, if feeding => {
                feeding = false;
                fed?;
                continue;
            }
        };
        match event {
            Some(ProcessEvent::Data(Output::Stdout(data) | Output::Pty(data))) => {
                if stdout.len() + data.0.len() > OUTPUT_BYTES {
                    return Err(malformed(format!("it wrote more than {OUTPUT_BYTES} bytes")));
                }
                stdout.extend_from_slice(&data.0);
            }
            Some(ProcessEvent::Data(Output::Stderr(data))) => {
                let room = ERROR_BYTES - stderr.len();
                stderr.extend_from_slice(&data.0[..data.0.len().min(room)]);
            }
            Some(ProcessEvent::Start(_) | ProcessEvent::Keepalive(_)) => {}
            Some(ProcessEvent::End(ended)) => {
                let stderr = String::from_utf8_lossy(&stderr).into_owned();
                return Ok(Done { ended, stdout: stdout.freeze(), stderr });
            }
            None => return Err(malformed("its stream ended before it did".to_owned())),
        }
    }
}

fn malformed(problem: String) -> EndpointError {
    EndpointError::Malformed { what: WHAT, problem }
}

/// All of the input, and its end. A script may end without reading it.
async fn send(envd: &Envd, pid: u32, mut input: Bytes) -> Result<(), EndpointError> {
    if input.is_empty() {
        return Ok(());
    }
    let process = Selector::Pid(pid);
    while !input.is_empty() {
        let piece = input.split_to(input.len().min(INPUT_PIECE));
        let message = SendInputRequest { process: process.clone(), input: Input::Stdin(piece.into()) };
        let sent = envd.call::<_, Empty>(WHAT, &format!("{}SendInput", process::SERVICE), &message).await;
        match sent {
            Ok(Empty {}) => {}
            Err(EndpointError::Refused { .. }) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    let message = SelectRequest { process };
    match envd.call::<_, Empty>(WHAT, &format!("{}CloseStdin", process::SERVICE), &message).await {
        Ok(Empty {}) | Err(EndpointError::Refused { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}
