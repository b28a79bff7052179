//! Running a command: its streams, its deadline, its end.
//!
//! Each command has an nsjail of its own and a driver task, owned by its session. Output is pumped by two further
//! futures of that task, so that a slow consumer never delays a deadline or a kill. How the command ended is told by
//! the runner that waited for it; whether it was the command that ended, or nsjail before it, by the stage.

use std::sync::Arc;
use std::time::Duration;

use sandcrate_backend::{
    BackendError, ExecControl, ExecEvent, ExecExit, ExecRequest, Execution, ExecutionEnds, LimitHit,
    StdinMode, Usage,
};
use sandcrate_driver::pieces::{
    Meter, PATIENCE, Pipes, Streams, Terminal, Watch, asked_over, check, exit_status, start_command,
    start_error, take_input, too_many,
};
use sandcrate_jail::message::{Failure, InitReply, InitRequest, ProcessEnd};
use sandcrate_jail::nsjail::{StageTask, script_path};
use tokio::time::{Instant, timeout};

use crate::runner::Run;
use crate::session::Session;

/// From the kill of a command to its end; a command that outlives it goes with its box.
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// How long the stage may still be heard after its process has ended.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);

/// Starts a command and hands out its execution.
pub(crate) async fn exec(session: &Arc<Session>, request: ExecRequest) -> Result<Execution, BackendError> {
    request.validate()?;
    check(&session.fittings.accounted).await?;
    let stdin_mode = if request.pty.is_some() { StdinMode::Piped } else { request.stdin };
    let command = start_command(&session.fittings, &request)?;
    let script = command.script.is_some();
    let (execution, ends) = Execution::channel(stdin_mode);
    let program = request.program();
    let confined = request.memory_bytes.map(|bytes| session.confine(bytes)).transpose()?.unwrap_or_default();
    let meter = Meter::start(&session.fittings.usage).bounded(request.memory_bytes, confined.usage);
    let started = Instant::now();
    let task = session.next_task();
    let (theirs, streams) = if request.pty.is_some() {
        (None, None)
    } else {
        let failed = |error| BackendError::failed("making pipes", error);
        let (theirs, ours) = session.fittings.pipes.make(stdin_mode).map_err(failed)?;
        (Some(theirs), Some(ours))
    };
    let fds = theirs.as_ref().map(Pipes::fds);
    let fds = fds.as_ref().map_or(&[][..], |fds| &fds[..]);
    let memory = request.memory_bytes.map(|bytes| (bytes, confined.tasks));
    let run = Run::start_bounded(session, task, StageTask::Command(command), fds, memory).await?;
    let driver = Driver {
        session: Arc::clone(session),
        script: script.then(|| script_path(task)),
        run,
        ends,
        program,
        // One beyond the clock never comes.
        deadline: request.timeout.and_then(|limit| started.checked_add(limit)),
        started,
        meter,
    };
    session.spawn(driver.run(streams));
    Ok(execution)
}

struct Driver {
    session: Arc<Session>,
    run: Run,
    /// A file in the box that goes with the command.
    script: Option<String>,
    ends: ExecutionEnds,
    program: String,
    deadline: Option<Instant>,
    started: Instant,
    meter: Meter,
}

/// What the driver found out on the way.
#[derive(Default)]
struct Course {
    /// nsjail has done its part.
    prepared: bool,
    timed_out: bool,
    killed: bool,
    terminated: bool,
    over_disk: Option<LimitHit>,
    start_failure: Option<Failure>,
}

impl Course {
    fn hear(&mut self, reply: InitReply) {
        match reply {
            InitReply::Prepared => self.prepared = true,
            InitReply::StartFailed { failure, .. } | InitReply::Failed { failure } => {
                self.start_failure.get_or_insert(failure);
            }
            _ => {}
        }
    }
}

impl Driver {
    /// Without streams a terminal is still to come from the stage.
    async fn run(mut self, streams: Option<Streams>) {
        let mut course = Course::default();
        let mut streams = match streams {
            Some(streams) => streams,
            // Why it has none is seen below.
            None => self.terminal(&mut course).await.unwrap_or_default(),
        };
        let terminal = streams.its_terminal();
        let input = take_input(&mut self.ends);
        let events = self.ends.events.clone();
        let drains = Arc::clone(&self.session.drains);
        let steer = self.steer(&terminal, &mut course);
        let (end, dropped) = streams.carry(input, &events, &drains, steer).await;
        if course.over_disk.is_none() {
            course.over_disk = asked_over(&self.session.fittings.accounted).await;
        }
        if course.terminated
            && let Some(cgroup) = &self.run.cgroup
        {
            // What a stopped program left behind goes with it.
            let _ = cgroup.kill();
        }
        if let Some(path) = self.script.take() {
            crate::files::remove_script(&self.session, path).await;
        }
        let last = self.conclude(end, course, dropped);
        let Self { session, run, ends, .. } = self;
        run.finish(&session).await;
        let _ = timeout(PATIENCE, ends.events.send(last)).await;
    }

    /// By the master end of the command's terminal.
    async fn terminal(&mut self, course: &mut Course) -> Option<Streams> {
        while let Ok(Some((reply, fds))) = self.run.stage.recv::<InitReply>().await {
            if matches!(reply, InitReply::Terminal { .. }) {
                return fds.into_iter().next().and_then(|master| Streams::terminal(master).ok());
            }
            course.hear(reply);
        }
        None
    }

    /// Waits for the end, and meanwhile does what the caller and the clock say.
    async fn steer(&mut self, terminal: &Terminal, course: &mut Course) -> Option<ProcessEnd> {
        let mut killed_at: Option<Instant> = None;
        let (mut abandoned, mut staged) = (false, true);
        let mut grace_over: Option<Instant> = None;
        let mut watch = Watch::new(&self.session.fittings.accounted);
        let never = Instant::now() + Duration::from_secs(86400 * 365 * 30);
        loop {
            let due = [self.deadline, grace_over].into_iter().flatten().min().unwrap_or(never);
            let wake = killed_at.map_or(due, |at| at + KILL_LIMIT);
            tokio::select! {
                reply = self.run.stage.recv::<InitReply>(), if staged => match reply {
                    Ok(Some((reply, _))) => course.hear(reply),
                    _ => staged = false,
                },
                reply = self.run.runner.recv::<InitReply>() => match reply {
                    Ok(Some((InitReply::Exited { ended, .. }, _))) => {
                        if staged {
                            self.hear_out(course).await;
                        }
                        return Some(ended);
                    }
                    Ok(Some((reply, _))) => course.hear(reply),
                    _ => return None,
                },
                control = self.ends.control.recv(), if !abandoned => match control {
                    Some(ExecControl::Signal(signal)) => self.tell(&InitRequest::Signal { id: 0, signal }).await,
                    Some(ExecControl::Terminate { grace }) => {
                        course.terminated = true;
                        grace_over.get_or_insert(Instant::now() + grace);
                        self.tell(&InitRequest::Terminate { id: 0 }).await;
                    }
                    Some(ExecControl::Kill) => { killed_at.get_or_insert(Instant::now()); self.kill(course).await }
                    Some(ExecControl::Resize(size)) => terminal.resize(size),
                    Some(_) => {}
                    None => abandoned = true,
                },
                () = self.ends.events.closed(), if killed_at.is_none() => {
                    // The caller is gone, and with him the reason for the command.
                    killed_at = Some(Instant::now());
                    self.kill(course).await;
                }
                () = tokio::time::sleep_until(wake) => {
                    if killed_at.is_some() {
                        // A command that outlives its kill goes with its box.
                        self.session.end_box();
                        killed_at = Some(never);
                    } else {
                        course.timed_out = self.deadline.is_some_and(|deadline| deadline <= Instant::now());
                        killed_at = Some(Instant::now());
                        self.kill(course).await;
                    }
                }
                over = watch.exceeded(), if killed_at.is_none() => {
                    course.over_disk = Some(over);
                    killed_at = Some(Instant::now());
                    self.kill_frozen(course).await;
                }
            }
        }
    }

    /// What the stage said before it ended or became the command.
    async fn hear_out(&self, course: &mut Course) {
        let rest = async {
            while let Ok(Some((reply, _))) = self.run.stage.recv::<InitReply>().await {
                course.hear(reply);
            }
        };
        let _ = timeout(DRAIN_LIMIT, rest).await;
    }

    async fn kill(&self, course: &mut Course) {
        course.killed = true;
        self.run.kill(&self.session).await;
    }

    /// Nothing more is written while the kill is under way.
    async fn kill_frozen(&self, course: &mut Course) {
        let cgroup = self.session.ground.cgroup.as_ref();
        let frozen = cgroup.is_some_and(|cgroup| cgroup.freeze().is_ok());
        self.kill(course).await;
        if frozen {
            let _ = cgroup.map(|cgroup| cgroup.thaw());
        }
    }

    async fn tell(&self, request: &InitRequest) {
        // A runner that is gone shows in its replies.
        let _ = self.run.runner.send(request, &[]).await;
    }

    fn conclude(&self, end: Option<ProcessEnd>, course: Course, dropped_bytes: u64) -> ExecEvent {
        let fittings = &self.session.fittings;
        let oom_kills = self.meter.oom_kills(&fittings.usage);
        let gone = || match oom_kills {
            0 => self.session.ended_error(),
            _ => self.session.out_of_memory_error(),
        };
        if let Some(failure) = course.start_failure {
            return ExecEvent::Failed(match self.session.is_alive() {
                true => start_error(&failure, &self.program),
                false => gone(),
            });
        }
        let Some(end) = end else { return ExecEvent::Failed(gone()) };
        if !self.session.is_alive() && !course.killed {
            return ExecEvent::Failed(gone());
        }
        if !course.prepared && !course.killed {
            // nsjail runs in the session's limits, and may be what they hit.
            return ExecEvent::Failed(match (oom_kills, self.meter.pids_refused(&fittings.usage)) {
                (0, 0) => self.run.log.failure("confining the command"),
                (0, _) => too_many(),
                _ => too_much(),
            });
        }
        // Of the whole tree where its cgroup counts it, nsjail's own share included.
        let cpu = self.run.cgroup.as_ref().and_then(|cgroup| cgroup.cpu());
        let (user, system) = cpu.map_or_else(
            || (Duration::from_micros(end.user_micros), Duration::from_micros(end.system_micros)),
            |cpu| (cpu.user, cpu.system),
        );
        let peak_memory = Some(self.meter.peak_memory(&fittings.usage, &end));
        ExecEvent::Exit(ExecExit {
            timed_out: course.timed_out,
            usage: Usage { wall: self.started.elapsed(), user, system, peak_memory },
            limits_hit: self.meter.limits_hit(fittings, course.over_disk),
            dropped_bytes,
            ..ExecExit::new(exit_status(&end), false)
        })
    }
}

fn too_much() -> BackendError {
    BackendError::LimitExceeded {
        what: "starting another command".to_owned(),
        limit: "the session's memory limit".to_owned(),
    }
}
