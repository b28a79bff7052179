//! Running a command: its stream, its input, its deadline, its end.
//!
//! Each command has a driver task, owned by its session. Events are pumped, input is fed and the clock is watched by
//! three futures of that task, so that a slow consumer never delays a deadline. A stream that breaks is taken up again
//! where the program still runs; only its own end, or that of its sandbox, ends a command for us.

use std::sync::Arc;
use std::time::Duration;

use sandcrate_backend::{
    BackendError, ExecControl, ExecEvent, ExecExit, ExecRequest, Execution, ExecutionEnds, ExitStatus,
    LimitHit, PtySize, StdinMode, Stream,
};
use sandcrate_driver::pieces::{PATIENCE, Sink};
use sandcrate_e2b_wire::connect::Code;
use sandcrate_e2b_wire::process::{Ended, Output, ProcessEvent};
use tokio::sync::oneshot;
use tokio::task::coop::unconstrained;
use tokio::time::{Instant, timeout};

use crate::ending::{exit_of, usage_of};
use crate::http::EndpointError;
use crate::process::{Process, start_error};
use crate::session::Session;
use crate::stream::EventStream;
use crate::sync::Report;

/// From the kill of a command to its end. An end that is not told within it is taken for granted: somebody who was
/// left behind may hold the program's streams.
const KILL_LIMIT: Duration = Duration::from_secs(5);
/// Waits before a broken stream is taken up again.
const REATTACH: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_millis(200),
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(10),
];

/// Starts a command and hands out its execution.
pub(crate) async fn exec(session: &Arc<Session>, request: ExecRequest) -> Result<Execution, BackendError> {
    request.validate()?;
    if request.memory_bytes.is_some() {
        return Err(BackendError::no_process_memory("an E2B sandbox bounds no single command"));
    }
    if !session.is_open() {
        return Err(session.ended_error());
    }
    let stdin = if request.pty.is_some() { StdinMode::Piped } else { request.stdin };
    let (execution, ends) = Execution::channel(stdin);
    let (ready, started) = oneshot::channel();
    // In a task from its first step: a program that was asked for is started, whether or not somebody still waits.
    session.spawn(drive(Arc::clone(session), request, ends, ready));
    started.await.unwrap_or_else(|_| Err(session.ended_error()))?;
    Ok(execution)
}

async fn drive(
    session: Arc<Session>,
    request: ExecRequest,
    ends: ExecutionEnds,
    ready: oneshot::Sender<Result<(), BackendError>>,
) {
    let opened = tokio::select! {
        opened = open(&session, &request) => opened,
        () = session.end() => Err(session.ended_error()),
    };
    let (process, stream, report) = match opened {
        Ok(opened) => opened,
        // Whoever asked may be gone.
        Err(error) => return drop(ready.send(Err(error))),
    };
    drop(ready.send(Ok(())));
    let started = Instant::now();
    let driver = Driver {
        // One beyond the clock never comes.
        deadline: request.timeout.and_then(|limit| started.checked_add(limit)),
        started,
        terminal: request.pty.is_some(),
        program: request.program(),
        session,
        process,
        ends,
        report,
    };
    driver.run(stream).await;
}

/// What the host shares is brought up to date, then the program starts.
async fn open(
    session: &Arc<Session>,
    request: &ExecRequest,
) -> Result<(Process, EventStream, Report), BackendError> {
    let report = session.shares.push(&session.envd).await?;
    let (process, stream) = Process::start(session, request).await?;
    Ok((process, stream, report))
}

struct Driver {
    session: Arc<Session>,
    process: Process,
    ends: ExecutionEnds,
    deadline: Option<Instant>,
    started: Instant,
    terminal: bool,
    program: String,
    report: Report,
}

/// What was done to a command.
#[derive(Debug, Default)]
struct Course {
    timed_out: bool,
    killed: bool,
    terminated: bool,
}

/// How the wait for a command came to its end.
enum Conclusion {
    Ended(Ended),
    /// It was killed, and nobody told its end.
    Unheard,
    /// It did not start, or could not go on.
    Refused(EndpointError),
    Failed(EndpointError),
    SessionEnded,
}

impl Driver {
    async fn run(mut self, stream: EventStream) {
        let mut course = Course::default();
        let mut sinks = Sinks {
            stdout: Sink::new(Stream::Stdout, self.ends.events.clone()),
            stderr: Sink::new(Stream::Stderr, self.ends.events.clone()),
        };
        let (_, no_input) = tokio::sync::mpsc::channel(1);
        let input = std::mem::replace(&mut self.ends.stdin, no_input);
        let conclusion = {
            let (session, process) = (&self.session, &self.process);
            let mut pump = std::pin::pin!(pump(session, process, stream, &mut sinks));
            // Beside a flood of output the task's budget is always spent: clock and caller must not share in it.
            let mut feed = std::pin::pin!(unconstrained(process.feed(&session.envd, input, self.terminal)));
            let steering = steer(session, process, &mut self.ends, self.deadline, &mut course);
            let mut steer = std::pin::pin!(unconstrained(steering));
            let mut feeding = true;
            loop {
                tokio::select! {
                    // What has come is taken before anything else is looked at.
                    biased;
                    ended = &mut pump => break ended,
                    steered = &mut steer => break steered,
                    fed = &mut feed, if feeding => {
                        feeding = false;
                        if let Err(error) = fed {
                            process.kill(&session.envd).await;
                            break Conclusion::Failed(error);
                        }
                    }
                }
            }
        };
        self.finish(conclusion, &course, sinks).await;
    }

    async fn finish(mut self, conclusion: Conclusion, course: &Course, mut sinks: Sinks) {
        if course.terminated || course.killed {
            // What a stopped program left behind goes with it.
            self.process.sweep(&self.session.envd).await;
        }
        self.process.forget(&self.session.envd).await;
        let mut over = None;
        if !matches!(conclusion, Conclusion::SessionEnded) {
            match self.session.shares.pull(&self.session.envd).await {
                Ok((report, hit)) => {
                    self.report.merge(report);
                    over = hit;
                }
                Err(error) => self.report.failed(&error),
            }
        }
        if let Some(text) = self.report.text() {
            let sink = if self.terminal { &mut sinks.stdout } else { &mut sinks.stderr };
            sink.push(text.into()).await;
        }
        let dropped_bytes = sinks.stdout.dropped() + sinks.stderr.dropped();
        let last = self.conclude(conclusion, course, over, dropped_bytes).await;
        let events = self.ends.events.clone();
        // The caller sees that no more input or control is taken before, or with, the last event.
        drop((self, sinks));
        let _ = timeout(PATIENCE, events.send(last)).await;
    }

    async fn conclude(
        &self,
        conclusion: Conclusion,
        course: &Course,
        over: Option<LimitHit>,
        dropped_bytes: u64,
    ) -> ExecEvent {
        let conclusion = match conclusion {
            // Its stream broke, and it was killed before that was taken up again.
            Conclusion::Failed(_) if course.killed => Conclusion::Unheard,
            conclusion => conclusion,
        };
        let ended = match conclusion {
            Conclusion::Ended(ended) => ended,
            Conclusion::Unheard => {
                Ended { exit_code: -1, status: "signal: killed".to_owned(), ..Ended::default() }
            }
            Conclusion::Refused(error) => {
                return ExecEvent::Failed(start_error(&self.session, &self.program, error).await);
            }
            Conclusion::Failed(error) => return ExecEvent::Failed(self.session.judge(error).await),
            Conclusion::SessionEnded => return ExecEvent::Failed(self.session.ended_error()),
        };
        let status = match exit_of(&ended) {
            // A program that was killed at its deadline ended by that, whatever it made of it.
            _ if course.timed_out => ExitStatus::Signal(9),
            status => status,
        };
        let mut exit = ExecExit::new(status, course.timed_out);
        usage_of(&ended, self.started.elapsed(), &mut exit);
        exit.limits_hit.extend(over);
        exit.dropped_bytes += dropped_bytes;
        ExecEvent::Exit(exit)
    }
}

struct Sinks {
    stdout: Sink,
    stderr: Sink,
}

/// Hands on what the program writes until it ends.
async fn pump(
    session: &Session,
    process: &Process,
    mut stream: EventStream,
    sinks: &mut Sinks,
) -> Conclusion {
    loop {
        let broken = match stream.next().await {
            Ok(Some(ProcessEvent::Data(Output::Stdout(data) | Output::Pty(data)))) => {
                sinks.stdout.push(data.0).await;
                continue;
            }
            Ok(Some(ProcessEvent::Data(Output::Stderr(data)))) => {
                sinks.stderr.push(data.0).await;
                continue;
            }
            Ok(Some(ProcessEvent::End(ended))) => return Conclusion::Ended(ended),
            Ok(Some(ProcessEvent::Start(_) | ProcessEvent::Keepalive(_))) => continue,
            Ok(None) => EndpointError::Malformed {
                what: "running a command",
                problem: "its stream ended before it did".to_owned(),
            },
            Err(error) if is_final(&error) => return Conclusion::Refused(error),
            Err(error) => error,
        };
        match reattach(session, process, broken).await {
            Ok(again) => stream = again,
            Err(conclusion) => return conclusion,
        }
    }
}

/// Whether an error is about the program and not about its stream.
fn is_final(error: &EndpointError) -> bool {
    let of_stream = [
        Code::DataLoss,
        Code::Unavailable,
        Code::Canceled,
        Code::Aborted,
        Code::DeadlineExceeded,
        Code::Unauthenticated,
        Code::Unknown,
    ];
    error.code().is_some_and(|code| !of_stream.contains(&code))
}

/// Takes a broken stream up again while the program runs.
async fn reattach(
    session: &Session,
    process: &Process,
    broken: EndpointError,
) -> Result<EventStream, Conclusion> {
    tracing::debug!(
        session.id = session.id().as_str(),
        error = &broken as &dyn std::error::Error,
        "the stream of a command broke; it is taken up again"
    );
    let mut last = broken;
    for wait in REATTACH {
        tokio::time::sleep(wait).await;
        match session.envd.reattach(process.pid).await {
            Ok(stream) => return Ok(stream),
            // No such process: how it ended was told to nobody.
            Err(EndpointError::Refused { .. }) if session.is_alive().await => {
                return Err(Conclusion::Failed(last));
            }
            Err(EndpointError::Refused { .. }) => return Err(Conclusion::SessionEnded),
            Err(error) => last = error,
        }
    }
    match session.is_alive().await {
        true => Err(Conclusion::Failed(last)),
        false => Err(Conclusion::SessionEnded),
    }
}

/// Does what the caller and the clock say, until nothing more is to be waited for.
async fn steer(
    session: &Session,
    process: &Process,
    ends: &mut ExecutionEnds,
    deadline: Option<Instant>,
    course: &mut Course,
) -> Conclusion {
    let never = Instant::now() + Duration::from_secs(86400 * 365 * 30);
    let mut killed_at: Option<Instant> = None;
    let mut grace_over: Option<Instant> = None;
    let mut abandoned = false;
    loop {
        let due = [deadline, grace_over].into_iter().flatten().min().unwrap_or(never);
        let wake = killed_at.map_or(due, |at| at + KILL_LIMIT);
        let kill = tokio::select! {
            control = ends.control.recv(), if !abandoned => match control {
                Some(ExecControl::Signal(signal)) => { process.signal(&session.envd, signal).await; false }
                Some(ExecControl::Terminate { grace }) => {
                    course.terminated = true;
                    grace_over.get_or_insert(Instant::now() + grace);
                    process.terminate(&session.envd, grace).await;
                    false
                }
                Some(ExecControl::Kill) => true,
                Some(ExecControl::Resize(PtySize { rows, cols })) => {
                    process.resize(&session.envd, rows, cols).await;
                    false
                }
                Some(_) => false,
                None => { abandoned = true; false }
            },
            // The caller is gone, and with him the reason for the command.
            () = ends.events.closed(), if killed_at.is_none() => true,
            () = tokio::time::sleep_until(wake) => {
                if killed_at.is_some() {
                    return Conclusion::Unheard;
                }
                course.timed_out = deadline.is_some_and(|deadline| deadline <= Instant::now());
                true
            }
            () = session.end() => return Conclusion::SessionEnded,
        };
        if kill && killed_at.is_none() {
            course.killed = true;
            killed_at = Some(Instant::now());
            process.kill(&session.envd).await;
        }
    }
}
