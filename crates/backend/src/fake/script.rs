//! What a command of the fake does, and the task that plays it.

use std::time::Duration;

use bytes::Bytes;
use sandcrate_protocol::network::{Counters, Denial};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::{
    BackendError, ExecControl, ExecEvent, ExecExit, ExecutionEnds, ExitStatus, LimitHit, SessionId, Stream,
    Usage,
};

/// Steps in order, then an end. The default writes nothing and exits with 0.
#[derive(Debug, Default)]
pub struct FakeScript {
    steps: Vec<Step>,
    end: End,
    limits_hit: Vec<LimitHit>,
    denials: Vec<Denial>,
    network: Option<Box<Counters>>,
    ignored_signals: bool,
}

#[derive(Debug)]
enum Step {
    Output(Stream, Bytes),
    Wait(Duration),
    Echo,
    Denied(Denial),
}

#[derive(Debug)]
enum End {
    Exit(ExitStatus),
    Hang,
    Fail(BackendError),
}

impl Default for End {
    fn default() -> Self {
        Self::Exit(ExitStatus::Code(0))
    }
}

impl FakeScript {
    pub fn new() -> Self {
        Self::default()
    }

    /// A command that never starts: its only event is the failure.
    pub fn refused(error: BackendError) -> Self {
        Self { end: End::Fail(error), ..Self::default() }
    }

    #[must_use]
    pub fn stdout(self, data: impl Into<Bytes>) -> Self {
        self.step(Step::Output(Stream::Stdout, data.into()))
    }

    #[must_use]
    pub fn stderr(self, data: impl Into<Bytes>) -> Self {
        self.step(Step::Output(Stream::Stderr, data.into()))
    }

    /// Does nothing for a time of tokio's clock.
    #[must_use]
    pub fn wait(self, time: Duration) -> Self {
        self.step(Step::Wait(time))
    }

    /// Copies standard input to standard output up to its end.
    #[must_use]
    pub fn echo_stdin(self) -> Self {
        self.step(Step::Echo)
    }

    #[must_use]
    pub fn exit(mut self, code: i32) -> Self {
        self.end = End::Exit(ExitStatus::Code(code));
        self
    }

    #[must_use]
    pub fn signalled(mut self, signal: i32) -> Self {
        self.end = End::Exit(ExitStatus::Signal(signal));
        self
    }

    /// Never ends by itself.
    #[must_use]
    pub fn hang(mut self) -> Self {
        self.end = End::Hang;
        self
    }

    /// Only a kill, a deadline or the end of the box ends it.
    #[must_use]
    pub fn ignoring_signals(mut self) -> Self {
        self.ignored_signals = true;
        self
    }

    /// The exit reports this limit.
    #[must_use]
    pub fn hitting(mut self, limit: LimitHit) -> Self {
        self.limits_hit.push(limit);
        self
    }

    /// The box is refused this; told at once, and at the exit.
    #[must_use]
    pub fn denied(mut self, denial: Denial) -> Self {
        self.denials.push(denial.clone());
        self.step(Step::Denied(denial))
    }

    /// The exit reports this traffic.
    #[must_use]
    pub fn carrying(mut self, counters: Counters) -> Self {
        self.network = Some(Box::new(counters));
        self
    }

    fn step(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    /// Plays to the end, or until the deadline, a signal, the end of the box or of the caller's interest.
    pub(super) async fn play(
        self,
        session: SessionId,
        timeout: Option<Duration>,
        ends: ExecutionEnds,
        mut ended: watch::Receiver<Option<String>>,
    ) {
        const KILLED: ExitStatus = ExitStatus::Signal(9);
        let ExecutionEnds { events, mut control, stdin } = ends;
        let begin = Instant::now();
        let outcome = tokio::select! {
            // In this order, so that a box that ends with its command tells the same story every time.
            biased;
            () = events.closed() => return,
            why = box_ended(&mut ended) => Outcome::Failed(BackendError::SessionEnded { session, why }),
            () = deadline(timeout) => Outcome::Exit { status: KILLED, timed_out: true },
            status = signalled(&mut control, self.ignored_signals) => {
                Outcome::Exit { status, timed_out: false }
            }
            end = run(self.steps, self.end, &events, stdin) => match end {
                Ok(status) => Outcome::Exit { status, timed_out: false },
                Err(error) => Outcome::Failed(error),
            },
        };
        let event = match outcome {
            Outcome::Exit { status, timed_out } => ExecEvent::Exit(ExecExit {
                usage: Usage { wall: begin.elapsed(), ..Usage::default() },
                limits_hit: self.limits_hit,
                denials: self.denials,
                network: self.network,
                ..ExecExit::new(status, timed_out)
            }),
            Outcome::Failed(error) => ExecEvent::Failed(error),
        };
        // A caller that is gone by now needs no answer.
        let _ = events.send(event).await;
    }
}

enum Outcome {
    Exit { status: ExitStatus, timed_out: bool },
    Failed(BackendError),
}

async fn run(
    steps: Vec<Step>,
    end: End,
    events: &mpsc::Sender<ExecEvent>,
    mut stdin: mpsc::Receiver<Bytes>,
) -> Result<ExitStatus, BackendError> {
    for step in steps {
        match step {
            Step::Output(stream, data) => emit(events, stream, data).await,
            // A closed queue is noticed by the caller.
            Step::Denied(denial) => drop(events.send(ExecEvent::Denied(denial)).await),
            Step::Wait(time) => tokio::time::sleep(time).await,
            Step::Echo => {
                while let Some(data) = stdin.recv().await {
                    emit(events, Stream::Stdout, data).await;
                }
            }
        }
    }
    match end {
        End::Exit(status) => Ok(status),
        End::Hang => std::future::pending().await,
        End::Fail(error) => Err(error),
    }
}

async fn emit(events: &mpsc::Sender<ExecEvent>, stream: Stream, data: Bytes) {
    // A closed queue is noticed by the caller of `run`.
    let _ = events.send(ExecEvent::Output(stream, data)).await;
}

async fn deadline(timeout: Option<Duration>) {
    match timeout {
        Some(limit) => tokio::time::sleep(limit).await,
        None => std::future::pending().await,
    }
}

async fn box_ended(ended: &mut watch::Receiver<Option<String>>) -> String {
    match ended.wait_for(Option::is_some).await {
        Ok(why) => why.clone().unwrap_or_default(),
        Err(_) => "the backend is gone".to_owned(),
    }
}

async fn signalled(control: &mut mpsc::Receiver<ExecControl>, ignored: bool) -> ExitStatus {
    loop {
        match control.recv().await {
            Some(ExecControl::Kill) => return ExitStatus::Signal(9),
            Some(ExecControl::Signal(signal)) if signal == 9 || !ignored => {
                return ExitStatus::Signal(signal);
            }
            Some(ExecControl::Terminate { .. }) if !ignored => return ExitStatus::Signal(15),
            Some(ExecControl::Terminate { grace }) => {
                tokio::time::sleep(grace).await;
                return ExitStatus::Signal(9);
            }
            Some(_) => {}
            None => std::future::pending().await,
        }
    }
}
