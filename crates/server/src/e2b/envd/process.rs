//! `process.Process`: starting programs, coming back to them, signals and sizes.

use std::time::Duration;

use axum::Json;
use axum::extract::{Extension, Request};
use axum::http::HeaderMap;
use axum::response::Response;
use sandcrate_backend::{Command, ExecControl, ExecRequest, PtySize, StdinMode};
use sandcrate_e2b_wire::connect::Code;
use sandcrate_e2b_wire::control::LogLevel;
use sandcrate_e2b_wire::process::{
    Empty, ListResponse, ProcessConfig, Pty, SelectRequest, SendSignalRequest, Signal, StartRequest,
    UpdateRequest,
};
use sandcrate_protocol::ErrorKind;

use super::super::error::Failed;
use super::super::{HOME, USER};
use super::Here;
use super::call::{self, Unary};
use super::paths::{check_user, resolve, user_of};
use super::processes::{Known, command, running};
use super::stream::Stream;
use crate::rest::files;

/// What SDKs run everything by.
const BASH: &str = "/bin/bash";
/// For boxes without it: what the SDKs say to it means the same here.
const SHELL: &str = "/bin/sh";
const SIGTERM: i32 = 15;
const KILL_PATIENCE: Duration = Duration::from_secs(5);

type Answer<T> = Result<Json<T>, Failed>;

/// Starts a program and streams what it does. It goes on when the client leaves.
pub(super) async fn start(Extension(here): Extension<Here>, request: Request) -> Response {
    let headers = request.headers().clone();
    let started = async {
        let wanted: StartRequest = call::first_message(request).await?;
        start_stream(&here, wanted, &headers).await
    };
    started.await.unwrap_or_else(Failed::into_stream)
}

async fn start_stream(here: &Here, wanted: StartRequest, headers: &HeaderMap) -> Result<Response, Failed> {
    here.check_user(user_of(headers).as_deref())?;
    let limit = call::deadline(headers)?;
    let size = wanted.pty.as_ref().map(pty_size).transpose()?;
    // Older SDKs do not say, and expect one.
    let stdin = size.is_some() || wanted.stdin.unwrap_or(true);
    let request = ExecRequest {
        command: here.command(&wanted.process).await?,
        env: here.environment(&wanted.process),
        cwd: Some(resolve(wanted.process.cwd.as_deref().unwrap_or_default())),
        stdin: if stdin { StdinMode::Piped } else { StdinMode::Closed },
        pty: size,
        timeout: limit,
        memory_bytes: None,
    };
    let runtime = &here.app.runtime;
    let id = runtime.start_command(here.id(), request).await?;
    let pid = id.0.parse().map_err(|_| Failed::new(Code::Internal, "a process has no number"))?;
    let log = runtime.follow_command(here.id(), &id, Some(0))?;
    let name = wanted.process.cmd.clone();
    let known = Known { config: wanted.process, tag: wanted.tag, pty: size.is_some(), stdin };
    here.sandbox.processes.add(pid, known, || running(runtime, here.id()))?;
    here.sandbox.journal.note(LogLevel::Info, "process started", &[("pid", pid.to_string()), ("cmd", name)]);
    let stream = Stream::new(&here.app, pid, size.is_some(), log);
    Ok(stream.on_terms_of(headers).into_response())
}

/// Follows a program that runs, from now on.
pub(super) async fn connect(Extension(here): Extension<Here>, request: Request) -> Response {
    let headers = request.headers().clone();
    let connected = async {
        let SelectRequest { process } = call::first_message(request).await?;
        let (pid, known) = here.sandbox.processes.select(&here.app.runtime, here.id(), &process)?;
        let mut log = here.app.runtime.follow_command(here.id(), &command(pid), None)?;
        // What was written before was for whoever listened then.
        log.skip_written();
        let stream = Stream::new(&here.app, pid, known.pty, log);
        Ok(stream.on_terms_of(&headers).deadline(call::deadline(&headers)?).into_response())
    };
    connected.await.unwrap_or_else(Failed::into_stream)
}

pub(super) async fn list(Extension(here): Extension<Here>, _: Unary<Empty>) -> Answer<ListResponse> {
    let running = running(&here.app.runtime, here.id())?;
    Ok(Json(ListResponse { processes: here.sandbox.processes.list(&running) }))
}

/// Another size of its terminal.
pub(super) async fn update(
    Extension(here): Extension<Here>,
    Unary(request): Unary<UpdateRequest>,
) -> Answer<Empty> {
    let (pid, known) = here.sandbox.processes.select(&here.app.runtime, here.id(), &request.process)?;
    if let Some(pty) = &request.pty {
        if !known.pty {
            return Err(Failed::new(Code::FailedPrecondition, format!("process {pid} has no terminal")));
        }
        here.control(pid, ExecControl::Resize(pty_size(pty)?)).await?;
    }
    Ok(Json(Empty {}))
}

pub(super) async fn send_signal(
    Extension(here): Extension<Here>,
    Unary(request): Unary<SendSignalRequest>,
) -> Answer<Empty> {
    let (pid, _) = here.sandbox.processes.select(&here.app.runtime, here.id(), &request.process)?;
    let control = match (request.signal, request.grace_ms) {
        // With all it started: nobody could reach those any more.
        (Signal::Kill, _) => ExecControl::Kill,
        (Signal::Terminate, Some(grace)) => ExecControl::Terminate { grace: Duration::from_millis(grace) },
        (Signal::Terminate, None) => ExecControl::Signal(SIGTERM),
        (Signal::Number(number), _) => ExecControl::Signal(number),
        (Signal::Unspecified, _) => {
            return Err(Failed::invalid("signal must be SIGNAL_SIGTERM or SIGNAL_SIGKILL"));
        }
    };
    let is_kill = request.signal == Signal::Kill;
    here.control(pid, control).await?;
    if is_kill {
        here.see_end(pid).await?;
    }
    Ok(Json(Empty {}))
}

fn pty_size(pty: &Pty) -> Result<PtySize, Failed> {
    let Some(size) = &pty.size else { return Ok(PtySize { rows: 24, cols: 80 }) };
    match (u16::try_from(size.rows), u16::try_from(size.cols)) {
        (Ok(rows @ 1..), Ok(cols @ 1..)) => Ok(PtySize { rows, cols }),
        _ => Err(Failed::invalid("pty.size has at least one row and one column, and at most 65535 of each")),
    }
}

impl Here {
    pub(super) fn check_user(&self, user: Option<&str>) -> Result<(), Failed> {
        if user.is_none_or(|user| user == USER) {
            return Ok(());
        }
        let session = self.app.runtime.session(self.id())?;
        check_user(user, !session.info.read_only_rootfs).map_err(Failed::invalid)
    }

    async fn control(&self, pid: u32, control: ExecControl) -> Result<(), Failed> {
        match self.app.runtime.control_command(self.id(), &command(pid), control).await {
            // It ended while it was looked for.
            Err(error) if error.kind() == ErrorKind::ProcessConflict => {
                Err(Failed::new(Code::NotFound, format!("process {pid} has ended")))
            }
            other => Ok(other?),
        }
    }

    /// Waits for a killed process, so that whoever asks next is told that it is gone.
    async fn see_end(&self, pid: u32) -> Result<(), Failed> {
        let mut log = self.app.runtime.follow_command(self.id(), &command(pid), None)?;
        log.skip_written();
        // A box that cannot kill is the runtime's to end; the client need not wait for that.
        let _ = tokio::time::timeout(KILL_PATIENCE, async { while log.next().await.is_some() {} }).await;
        Ok(())
    }

    /// What the box is to run.
    async fn command(&self, config: &ProcessConfig) -> Result<Command, Failed> {
        let program = match config.cmd.as_str() {
            "" => return Err(Failed::invalid("process.cmd must name a program")),
            BASH if !self.has_bash().await => SHELL,
            other => other,
        };
        let argv = std::iter::once(program).chain(config.args.iter().map(String::as_str));
        Ok(Command::Argv(argv.map(Into::into).collect()))
    }

    async fn has_bash(&self) -> bool {
        let look = || async {
            let found = files::follow(&self.app.runtime, self.id(), BASH).await;
            // One that cannot be looked at for another reason is tried, and its failure tells more.
            !found.is_err_and(|error| error.is(ErrorKind::FileNotFound))
        };
        *self.sandbox.processes.bash.get_or_init(look).await
    }

    /// E2B's own variables, the sandbox's, the program's: later ones win.
    fn environment(&self, config: &ProcessConfig) -> Vec<(String, String)> {
        let facts = &self.sandbox.facts;
        let own = [
            ("HOME", HOME),
            ("USER", USER),
            ("LOGNAME", USER),
            ("E2B_SANDBOX", "true"),
            ("E2B_SANDBOX_ID", &facts.id),
            ("E2B_TEMPLATE_ID", &facts.template),
        ];
        let own = own.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        let given = facts.envs.iter().chain(&config.envs).map(|(name, value)| (name.clone(), value.clone()));
        own.chain(given).collect()
    }
}
