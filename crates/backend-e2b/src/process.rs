//! One program in a sandbox: its start, what it is sent, and how it is ended.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sandcrate_backend::{BackendError, ExecRequest, StdinMode};
use sandcrate_e2b_wire::connect::Code;
use sandcrate_e2b_wire::filesystem::{self, PathRequest};
use sandcrate_e2b_wire::process::{
    self, Empty, Input, ProcessConfig, ProcessEvent, Pty, PtySize, SelectRequest, Selector, SendInputRequest,
    SendSignalRequest, Signal, StartRequest, UpdateRequest,
};
use tokio::sync::mpsc;

use crate::command::{Invocation, environment};
use crate::envd::{Envd, Peer, User};
use crate::helper;
use crate::http::EndpointError;
use crate::session::Session;
use crate::stream::EventStream;

/// A program may leave its input lying for as long as it runs, and a piece of input waits with it; whoever waits is
/// gone when the program is.
const INPUT_LIMIT: Duration = Duration::from_secs(86400);
/// Marks what a command started, where the sandbox ends a single process and not a tree.
const MARK: &str = "SANDCRATE_COMMAND";
/// Ends everything with the mark, in as many rounds as it tries to get away, and says how many it found.
const SWEEP: &str = r#"n=0; round=0
while [ "$round" -lt 10 ]; do
  found=
  for p in /proc/[0-9]*; do
    if [ "$p" != "/proc/$$" ] && tr '\0' '\n' 2>/dev/null <"$p/environ" | grep -qxF "$1"; then
      kill -9 "${p#/proc/}" 2>/dev/null && found=1 && n=$((n+1))
    fi
  done
  [ -n "$found" ] || break
  round=$((round+1))
done
echo "$n""#;

/// A running program.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// The variable that everything it starts has.
    mark: Option<String>,
    /// A file of ours that goes with it.
    script: Option<String>,
}

impl Process {
    pub(crate) async fn start(
        session: &Arc<Session>,
        request: &ExecRequest,
    ) -> Result<(Self, EventStream), BackendError> {
        let env = environment(&session.spec.env, request)?;
        let cwd = session.places.remote(request.cwd.as_ref().unwrap_or(&session.spec.workdir));
        let mut invocation = Invocation::of(&request.command);
        // What the sandbox gives already is not sent along.
        let new = |(key, value): &(String, String)| session.given.get(key) != Some(value);
        let mut envs: BTreeMap<String, String> = env.into_iter().filter(new).collect();
        let mark = (session.envd.peer == Peer::Other).then(|| session.fresh_name());
        // A place may be a link: shells tell it by the name that was asked for.
        envs.entry("PWD".to_owned()).or_insert_with(|| cwd.clone());
        if let Some(mark) = &mark {
            envs.insert(MARK.to_owned(), mark.clone());
        }
        let mut process = Self { pid: 0, mark: mark.map(|mark| format!("{MARK}={mark}")), script: None };
        if let Some(text) = invocation.script.take() {
            let path = format!("/tmp/.sandcrate-script-{}", session.fresh_name());
            if let Err(error) = session.envd.write(&path, text).await {
                return Err(session.judge(error).await);
            }
            invocation.arguments.push(path.clone());
            process.script = Some(path);
        }
        let message = StartRequest {
            process: ProcessConfig {
                cmd: invocation.program,
                args: invocation.arguments,
                envs,
                cwd: Some(cwd.clone()),
            },
            pty: request.pty.map(|size| pty(size.rows, size.cols)),
            tag: None,
            stdin: Some(request.stdin == StdinMode::Piped || request.pty.is_some()),
        };
        let started = match begin(session, &message, &cwd).await {
            // Somebody removed the directory.
            Err(Start::Failed(_)) if is_missing(session, &cwd).await => {
                session.forget_directory(&cwd);
                begin(session, &message, &cwd).await
            }
            started => started,
        };
        match started {
            Ok((pid, stream)) => Ok((Self { pid, ..process }, stream)),
            Err(problem) => {
                process.forget(&session.envd).await;
                Err(match problem {
                    Start::Workdir(error) => workdir_error(session, request, error).await,
                    Start::Failed(error) => start_error(session, &request.program(), error).await,
                })
            }
        }
    }

    fn selector(&self) -> Selector {
        Selector::Pid(self.pid)
    }

    /// Hands input on until the caller or the program has had enough of it.
    pub(crate) async fn feed(
        &self,
        envd: &Envd,
        mut input: mpsc::Receiver<Bytes>,
        terminal: bool,
    ) -> Result<(), EndpointError> {
        const WHAT: &str = "sending input";
        let method = format!("{}SendInput", process::SERVICE);
        while let Some(data) = input.recv().await {
            let input = if terminal { Input::Pty(data.into()) } else { Input::Stdin(data.into()) };
            let message = SendInputRequest { process: self.selector(), input };
            match envd.call_within::<_, Empty>(WHAT, &method, &message, INPUT_LIMIT).await {
                Ok(Empty {}) => {}
                // A program that has ended or closed its input wants no more of it.
                Err(EndpointError::Refused { .. }) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        if terminal {
            return Ok(());
        }
        let message = SelectRequest { process: self.selector() };
        let method = format!("{}CloseStdin", process::SERVICE);
        match envd.call::<_, Empty>("ending input", &method, &message).await {
            Ok(Empty {}) | Err(EndpointError::Refused { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn send(&self, envd: &Envd, signal: Signal, grace: Option<Duration>) -> Result<(), EndpointError> {
        let message = SendSignalRequest {
            process: self.selector(),
            signal,
            grace_ms: grace.map(|grace| u64::try_from(grace.as_millis()).unwrap_or(u64::MAX)),
        };
        let method = format!("{}SendSignal", process::SERVICE);
        envd.call::<_, Empty>("sending a signal", &method, &message).await.map(drop)
    }

    /// Any signal: by the service where it knows it, else by a program in the sandbox.
    pub(crate) async fn signal(&self, envd: &Envd, signal: i32) {
        let by_name = match signal {
            9 => Some(Signal::Kill),
            15 => Some(Signal::Terminate),
            _ if envd.peer == Peer::Sandcrate => Some(Signal::Number(signal)),
            _ => None,
        };
        let sent = match by_name {
            Some(by_name) => self.send(envd, by_name, None).await,
            None => {
                let (signal, pid) = (signal.to_string(), self.pid.to_string());
                let script = r#"kill -s "$1" -- "$2""#;
                helper::run(envd, User::Default, script, &[&signal, &pid], Bytes::new()).await.map(drop)
            }
        };
        unheard("a signal", sent);
    }

    /// SIGTERM; whoever knows how ends the rest of the tree with the program.
    pub(crate) async fn terminate(&self, envd: &Envd, grace: Duration) {
        let grace = (envd.peer == Peer::Sandcrate).then_some(grace);
        unheard("a stop", self.send(envd, Signal::Terminate, grace).await);
    }

    /// SIGKILL to the whole tree.
    pub(crate) async fn kill(&self, envd: &Envd) {
        unheard("a kill", self.send(envd, Signal::Kill, None).await);
        self.sweep(envd).await;
    }

    /// Ends what the program started, where a kill does not.
    pub(crate) async fn sweep(&self, envd: &Envd) {
        if let Some(mark) = &self.mark {
            unheard("a kill", helper::run(envd, User::Default, SWEEP, &[mark], Bytes::new()).await.map(drop));
        }
    }

    pub(crate) async fn resize(&self, envd: &Envd, rows: u16, cols: u16) {
        let message = UpdateRequest { process: self.selector(), pty: Some(pty(rows, cols)) };
        let method = format!("{}Update", process::SERVICE);
        unheard(
            "a new size",
            envd.call::<_, Empty>("changing a terminal", &method, &message).await.map(drop),
        );
    }

    /// Removes what was put there for it.
    pub(crate) async fn forget(&self, envd: &Envd) {
        if let Some(path) = &self.script {
            let message = PathRequest { path: path.clone() };
            let method = format!("{}Remove", filesystem::SERVICE);
            unheard(
                "a removal",
                envd.call::<_, Empty>("removing a script", &method, &message).await.map(drop),
            );
        }
    }
}

fn pty(rows: u16, cols: u16) -> Pty {
    Pty { size: Some(PtySize { cols: cols.into(), rows: rows.into() }) }
}

/// A program that has ended hears nothing, and that is no failure; the rest shows in its stream.
fn unheard(what: &'static str, sent: Result<(), EndpointError>) {
    if let Err(error) = sent {
        tracing::debug!(
            what,
            error = &error as &dyn std::error::Error,
            "a program did not hear of something"
        );
    }
}

/// What kept a program from starting.
enum Start {
    Workdir(EndpointError),
    Failed(EndpointError),
}

async fn begin(session: &Session, message: &StartRequest, cwd: &str) -> Result<(u32, EventStream), Start> {
    session.make_directory(cwd).await.map_err(Start::Workdir)?;
    let mut stream = session.envd.start(message, User::Default).await.map_err(Start::Failed)?;
    loop {
        match stream.next().await.map_err(Start::Failed)? {
            Some(ProcessEvent::Start(started)) => return Ok((started.pid, stream)),
            Some(ProcessEvent::Keepalive(_)) => {}
            _ => {
                let problem = "the stream does not begin with the program's start".to_owned();
                return Err(Start::Failed(EndpointError::Malformed { what: "starting a command", problem }));
            }
        }
    }
}

async fn is_missing(session: &Session, path: &str) -> bool {
    let message = PathRequest { path: path.to_owned() };
    let method = format!("{}Stat", filesystem::SERVICE);
    let looked =
        session.envd.call::<_, filesystem::EntryResponse>("looking at a directory", &method, &message);
    looked.await.is_err_and(|error| error.code() == Some(Code::NotFound))
}

async fn workdir_error(session: &Session, request: &ExecRequest, error: EndpointError) -> BackendError {
    match error {
        EndpointError::Refused { message, code, .. } if code != Code::Unavailable => {
            let path = request.cwd.as_ref().unwrap_or(&session.spec.workdir);
            BackendError::invalid("workdir", format!("`{path}` cannot be made: {message}"))
        }
        error => session.judge(error).await,
    }
}

/// A failure to start, in the caller's words. Services tell little by codes, and more by the kernel's text.
pub(crate) async fn start_error(session: &Session, program: &str, error: EndpointError) -> BackendError {
    let EndpointError::Refused { code, message, .. } = &error else { return session.judge(error).await };
    let lower = message.to_lowercase();
    let says = |texts: &[&str]| texts.iter().any(|text| lower.contains(text));
    let program = program.to_owned();
    match code {
        Code::NotFound if !session.is_alive().await => session.ended_error(),
        Code::NotFound => BackendError::CommandNotFound { program },
        Code::PermissionDenied => BackendError::CommandNotExecutable { program, why: message.clone() },
        Code::ResourceExhausted => {
            BackendError::LimitExceeded { what: "starting the command".to_owned(), limit: message.clone() }
        }
        Code::Unavailable | Code::Unauthenticated => session.judge(error).await,
        _ if says(&["no such file or directory", "executable file not found"]) => {
            BackendError::CommandNotFound { program }
        }
        _ if says(&["permission denied", "exec format error", "is a directory"]) => {
            BackendError::CommandNotExecutable { program, why: message.clone() }
        }
        _ if says(&["argument list too long"]) => BackendError::LimitExceeded {
            what: "the command's arguments and environment together".to_owned(),
            limit: "what the kernel takes for one program".to_owned(),
        },
        Code::InvalidArgument => BackendError::invalid("command", format!("is refused: {message}")),
        _ => session.judge(error).await,
    }
}
