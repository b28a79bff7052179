//! One box from start to end, with the signals that reach us meanwhile.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use sandcrate_backend::{Backend, ExecControl, ExecExit, Execution, SessionInfo};
use sandcrate_runtime::PortView;

use super::network::{self, Published};
use super::plan::{Input, Plan};
use super::signals::{Asked, SIGINT, Signals};
use super::streams::{self, AtEnd, Drained, Kept, Sink};
use super::terminal::{self, RawTerminal};
use crate::args::OutputFormat;
use crate::native::{NativeBackend, NativeConfig, NewLauncher};

/// How long the orderly end of a box may take; the launcher cleans up after us in any case.
const SHUTDOWN_TIME: Duration = Duration::from_secs(5);

/// For the output of a command that a signal to us ended.
const LAST_OUTPUT: Duration = Duration::from_secs(1);

/// How a run ended, when it did not fail.
#[derive(Debug)]
pub(super) enum Ending {
    Exit(ExecExit),
    /// A signal to us ended the box.
    Signal(i32),
    BrokenPipe,
}

/// What is known at the end.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) ending: Ending,
    pub(super) session: Option<SessionInfo>,
    pub(super) ports: Vec<PortView>,
    pub(super) stdout: Kept,
    pub(super) stderr: Kept,
}

impl Ended {
    fn early(signal: i32) -> Self {
        Self {
            ending: Ending::Signal(signal),
            session: None,
            ports: Vec::new(),
            stdout: Kept::default(),
            stderr: Kept::default(),
        }
    }
}

/// Why there is no [`Ended`]: the error, and how far it got before.
#[derive(Debug)]
pub(super) struct Broken {
    pub(super) error: anyhow::Error,
    pub(super) session: Option<SessionInfo>,
    pub(super) ports: Vec<PortView>,
    pub(super) stdout: Kept,
    pub(super) stderr: Kept,
}

impl<E: Into<anyhow::Error>> From<E> for Broken {
    fn from(error: E) -> Self {
        let (stdout, stderr) = (Kept::default(), Kept::default());
        Self { error: error.into(), session: None, ports: Vec::new(), stdout, stderr }
    }
}

pub(super) async fn execute(
    plan: &Plan,
    config: NativeConfig,
    launcher: Option<NewLauncher>,
) -> Result<Ended, Broken> {
    let mut signals = Signals::install().context("installing signal handlers")?;
    let backend = tokio::select! {
        opened = NativeBackend::open_with(config, launcher) => Arc::new(opened?) as Arc<dyn Backend>,
        signal = signals.ending() => return Ok(Ended::early(signal)),
    };
    let result = in_backend(&backend, plan, &mut signals).await;
    tokio::select! {
        () = backend.shutdown() => {}
        // A second Ctrl-C does not wait.
        _ = signals.ending() => {}
        () = tokio::time::sleep(SHUTDOWN_TIME) => tracing::warn!("the box did not end in time"),
    }
    result
}

async fn in_backend(backend: &Arc<dyn Backend>, plan: &Plan, signals: &mut Signals) -> Result<Ended, Broken> {
    let mut published = Published::bind(&plan.ports).await?;
    let session = tokio::select! {
        started = backend.start(plan.spec.clone()) => started?,
        signal = signals.ending() => return Ok(Ended::early(signal)),
    };
    let mut sink = match plan.format {
        OutputFormat::Raw => Sink::Live,
        OutputFormat::Json => Sink::Keep { stdout: Kept::default(), stderr: Kept::default() },
    };
    // Kept to the end of the command.
    let _carrying = published.carry(backend, &plan.spec.id);
    let ports = published.views;
    if !plan.quiet {
        ports.iter().for_each(|port| crate::output::notice(&network::notice(port)));
    }
    let result = in_box(backend.as_ref(), plan, &mut sink, signals).await;
    let (stdout, stderr) = match sink {
        Sink::Keep { stdout, stderr } => (stdout, stderr),
        Sink::Live => (Kept::default(), Kept::default()),
    };
    let session = Some(session);
    match result {
        Ok(ending) => Ok(Ended { ending, session, ports, stdout, stderr }),
        Err(error) => Err(Broken { error, session, ports, stdout, stderr }),
    }
}

async fn in_box(
    backend: &dyn Backend,
    plan: &Plan,
    sink: &mut Sink,
    signals: &mut Signals,
) -> anyhow::Result<Ending> {
    let mut execution = tokio::select! {
        execution = backend.exec(&plan.spec.id, plan.request.clone()) => execution?,
        signal = signals.ending() => return Ok(Ending::Signal(signal)),
    };
    let on_terminal = plan.request.pty.is_some();
    let raw = if on_terminal && plan.input == Input::Ours { RawTerminal::enter()? } else { None };
    // Held to the end on a terminal without input: closing it would hang the terminal up.
    let mut stdin = execution.take_stdin();
    if plan.input == Input::Ours
        && let Some(stdin) = stdin.take()
    {
        streams::feed(stdin, if on_terminal { AtEnd::TypeEof } else { AtEnd::Close })?;
    }
    let ending = until_end(&mut execution, sink, signals, on_terminal).await;
    drop(raw);
    drop(stdin);
    ending
}

/// Moves output until the command ends, or a signal to us ends it.
async fn until_end(
    execution: &mut Execution,
    sink: &mut Sink,
    signals: &mut Signals,
    on_terminal: bool,
) -> anyhow::Result<Ending> {
    let control = execution.controller();
    let keeps = matches!(sink, Sink::Keep { .. });
    let mut drained = std::pin::pin!(streams::drain(execution, sink));
    loop {
        let asked = tokio::select! {
            drained = &mut drained => return drained.map(|drained| match drained {
                Drained::Exit(exit) => Ending::Exit(exit),
                Drained::BrokenPipe => Ending::BrokenPipe,
            }),
            asked = signals.next() => asked,
        };
        // `try_send`: a queue that is full has the same request in it already.
        let signal = match asked {
            Asked::Interrupt if on_terminal => {
                let _ = control.try_send(ExecControl::Signal(SIGINT));
                continue;
            }
            Asked::Interrupt => SIGINT,
            Asked::End(signal) => signal,
            Asked::Resize => {
                if on_terminal {
                    let _ = control.try_send(ExecControl::Resize(terminal::size()));
                }
                continue;
            }
        };
        if keeps {
            // What was written before the signal is on its way still. Nobody reads it but us, so nobody holds it up.
            let _ = control.try_send(ExecControl::Kill);
            let _ = tokio::time::timeout(LAST_OUTPUT, &mut drained).await;
        }
        return Ok(Ending::Signal(signal));
    }
}
