//! Running a command: its streams, its deadline, its end.
//!
//! Each command has a driver task, owned by its session. Output is pumped by two further futures of that task, so
//! that a slow consumer never delays a deadline or a kill.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use sandcrate_backend::{
    BackendError, ExecControl, ExecEvent, ExecExit, ExecRequest, Execution, ExecutionEnds, LimitHit,
    StdinMode, Usage,
};
use sandcrate_jail::cgroup::Confined;
use sandcrate_jail::message::{Failure, InitReply, InitRequest, ProcessEnd};
use sandcrate_protocol::network::{Counters, Denial};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use crate::accountant;
use crate::command::{start_command, start_error};
use crate::link::{InitMessage, LiveBox, request_of};
use crate::meter::{Meter, exit_status};
use crate::network::Listening;
use crate::pumps::PATIENCE;
use crate::streams::{Streams, Terminal, take_input};

/// From the kill of a command to its end; a box whose init does not manage is ended whole.
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// From the request for a command to its terminal.
const TERMINAL_LIMIT: Duration = Duration::from_secs(30);

/// Starts a command and hands out its execution.
pub async fn exec<B: LiveBox>(session: &Arc<B>, request: ExecRequest) -> Result<Execution, BackendError> {
    let link = session.link();
    request.validate()?;
    accountant::check(&link.fittings.accounted).await?;
    let stdin_mode = if request.pty.is_some() { StdinMode::Piped } else { request.stdin };
    let command = start_command(&link.fittings, &request)?;
    let memory_bytes = request.memory_bytes;
    let Confined { tasks, usage } = match memory_bytes {
        Some(bytes) => session.confine(bytes).await?,
        None => Confined::default(),
    };
    let (task, replies) = link.new_task();
    let (execution, ends) = Execution::channel(stdin_mode);
    let program = request.program();
    let listening = link.fittings.network.as_ref().map(|network| network.listen(ends.events.clone()));
    let meter = Meter::start(&link.fittings.usage).bounded(memory_bytes, usage);
    let started = Instant::now();
    let start = InitRequest::Start { id: task, command, memory_bytes };
    let tasks = tasks.as_ref().map(AsFd::as_fd);
    let streams = if request.pty.is_some() {
        request_of(&**session, &start, &Vec::from_iter(tasks)).await?;
        None
    } else {
        let failed = |error| BackendError::failed("making pipes", error);
        let (theirs, ours) = link.fittings.pipes.make(stdin_mode).map_err(failed)?;
        let fds: Vec<_> = theirs.fds().into_iter().chain(tasks).collect();
        request_of(&**session, &start, &fds).await?;
        Some(ours)
    };
    let driver = Driver {
        session: Arc::clone(session),
        task,
        replies,
        ends,
        program,
        // One beyond the clock never comes.
        deadline: request.timeout.and_then(|limit| started.checked_add(limit)),
        started,
        meter,
        listening,
    };
    link.spawn(driver.run(streams));
    Ok(execution)
}

struct Driver<B> {
    session: Arc<B>,
    task: u32,
    replies: mpsc::Receiver<InitMessage>,
    ends: ExecutionEnds,
    program: String,
    deadline: Option<Instant>,
    started: Instant,
    meter: Meter,
    listening: Option<Listening>,
}

/// What the driver found out on the way.
#[derive(Default)]
struct Course {
    timed_out: bool,
    over_disk: Option<LimitHit>,
    start_failure: Option<Failure>,
}

impl<B: LiveBox> Driver<B> {
    /// Without streams a terminal is still to come from init.
    async fn run(mut self, streams: Option<Streams>) {
        let mut streams = match streams {
            Some(streams) => streams,
            None => match self.terminal().await {
                Ok(streams) => streams,
                Err(error) => {
                    let _ = self.ends.events.send(ExecEvent::Failed(error)).await;
                    return;
                }
            },
        };
        // While the program starts.
        self.session.link().fittings.pipes.restock();
        let terminal = streams.its_terminal();
        let input = take_input(&mut self.ends);
        let events = self.ends.events.clone();
        let drains = Arc::clone(&self.session.link().drains);
        let steer = self.steer(&terminal);
        let ((end, mut course), dropped) = streams.carry(input, &events, &drains, steer).await;
        if course.over_disk.is_none() {
            course.over_disk = accountant::asked_over(&self.session.link().fittings.accounted).await;
        }
        let heard = match self.listening.take() {
            Some(listening) => Some(listening.settle().await),
            None => None,
        };
        let last = self.conclude(end, course, dropped, heard);
        let _ = timeout(PATIENCE, self.ends.events.send(last)).await;
        let link = self.session.link();
        link.forget_task(self.task);
        link.fittings.pipes.retire(streams);
    }

    /// By the master end of the command's terminal.
    async fn terminal(&mut self) -> Result<Streams, BackendError> {
        let Ok(reply) = timeout(TERMINAL_LIMIT, self.replies.recv()).await else {
            // Init does not do its work: it goes, and everything with it.
            self.session.end();
            return Err(BackendError::Timeout {
                what: "making a terminal".to_owned(),
                limit: TERMINAL_LIMIT,
            });
        };
        match reply {
            Some((InitReply::Terminal { .. }, fds)) => {
                let master = fds.into_iter().next().ok_or_else(|| self.session.ended_error())?;
                Streams::terminal(master).map_err(|error| BackendError::failed("taking the terminal", error))
            }
            Some((InitReply::StartFailed { failure, .. }, _)) => Err(start_error(&failure, &self.program)),
            _ => Err(self.session.ended_error()),
        }
    }

    /// Waits for the end, and meanwhile does what the caller and the clock say.
    async fn steer(&mut self, terminal: &Terminal) -> (Option<ProcessEnd>, Course) {
        let mut course = Course::default();
        let mut killed_at: Option<Instant> = None;
        let mut abandoned = false;
        let mut grace_over: Option<Instant> = None;
        let mut watch = accountant::Watch::new(&self.session.link().fittings.accounted);
        let never = Instant::now() + Duration::from_secs(86400 * 365 * 30);
        loop {
            let due = [self.deadline, grace_over].into_iter().flatten().min().unwrap_or(never);
            let wake = killed_at.map_or(due, |at| at + KILL_LIMIT);
            tokio::select! {
                reply = self.replies.recv() => match reply {
                    Some((InitReply::Exited { ended, .. }, _)) => return (Some(ended), course),
                    Some((InitReply::StartFailed { failure, .. }, _)) => course.start_failure = Some(failure),
                    Some(_) => {}
                    None => return (None, course),
                },
                control = self.ends.control.recv(), if !abandoned => match control {
                    Some(ExecControl::Signal(signal)) => self.tell(&InitRequest::Signal { id: self.task, signal }).await,
                    Some(ExecControl::Terminate { grace }) => {
                        grace_over.get_or_insert(Instant::now() + grace);
                        self.tell(&InitRequest::Terminate { id: self.task }).await;
                    }
                    Some(ExecControl::Kill) => { killed_at.get_or_insert(Instant::now()); self.kill().await }
                    Some(ExecControl::Resize(size)) => terminal.resize(size),
                    Some(_) => {}
                    None => abandoned = true,
                },
                () = self.ends.events.closed(), if killed_at.is_none() => {
                    // The caller is gone, and with him the reason for the command.
                    killed_at = Some(Instant::now());
                    self.kill().await;
                }
                () = tokio::time::sleep_until(wake) => {
                    if killed_at.is_some() {
                        // Init does not do its work: it goes, and everything with it.
                        self.session.end();
                        killed_at = Some(never);
                    } else {
                        course.timed_out = self.deadline.is_some_and(|deadline| deadline <= Instant::now());
                        killed_at = Some(Instant::now());
                        self.kill().await;
                    }
                }
                over = watch.exceeded(), if killed_at.is_none() => {
                    course.over_disk = Some(over);
                    self.session.freeze(true).await;
                    killed_at = Some(Instant::now());
                    self.kill().await;
                    self.session.freeze(false).await;
                }
            }
        }
    }

    async fn kill(&self) {
        self.tell(&InitRequest::Kill { id: self.task }).await;
    }

    async fn tell(&self, request: &InitRequest) {
        // An init that is gone shows in the replies.
        let _ = self.session.link().send(request, &[]).await;
    }

    fn conclude(
        &self,
        end: Option<ProcessEnd>,
        course: Course,
        dropped_bytes: u64,
        heard: Option<(Vec<Denial>, Counters)>,
    ) -> ExecEvent {
        let (denials, network) =
            heard.map_or((Vec::new(), None), |(denials, used)| (denials, Some(Box::new(used))));
        if let Some(failure) = course.start_failure {
            return ExecEvent::Failed(start_error(&failure, &self.program));
        }
        let fittings = &self.session.link().fittings;
        let Some(end) = end else {
            let why = if self.meter.oom_kills(&fittings.usage) > 0 {
                self.session.link().out_of_memory_error()
            } else {
                self.session.ended_error()
            };
            return ExecEvent::Failed(why);
        };
        ExecEvent::Exit(ExecExit {
            status: exit_status(&end),
            timed_out: course.timed_out,
            usage: Usage {
                wall: self.started.elapsed(),
                user: Duration::from_micros(end.user_micros),
                system: Duration::from_micros(end.system_micros),
                peak_memory: Some(self.meter.peak_memory(&fittings.usage, &end)),
            },
            limits_hit: self.meter.limits_hit(fittings, course.over_disk),
            dropped_bytes,
            denials,
            network,
        })
    }
}
