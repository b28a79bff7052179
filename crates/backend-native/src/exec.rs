//! Running a command: its streams, its deadline, its end.
//!
//! Each command has a driver task, owned by its session. Output is pumped by two further futures of that task, so
//! that a slow consumer never delays a deadline or a kill.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Gid, Uid, fchown};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::termios::{Winsize, tcsetwinsize};
use sandcrate_backend::{
    BackendError, Command, ExecControl, ExecEvent, ExecExit, ExecRequest, Execution, ExecutionEnds,
    ExitStatus, LimitHit, MAX_STRING_BYTES, MemoryScope, PtySize, StdinMode, Stream, Usage, check_start_size,
    merge_env,
};
use sandcrate_jail::EXECUTING;
use sandcrate_jail::message::{EndStatus, Failure, InitReply, InitRequest, ProcessEnd, StartCommand};
use sandcrate_protocol::network::{Counters, Denial};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};

use crate::DEFAULT_PATH;
use crate::accountant;
use crate::fd_io::FdIo;
use crate::network::Listening;
use crate::pumps::{PATIENCE, feed, pump};
use crate::session::{InitMessage, Session};

/// From the kill of a command to its end; a box whose init does not manage is ended whole.
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// Starts a command and hands out its execution.
pub(crate) async fn exec(session: &Arc<Session>, request: ExecRequest) -> Result<Execution, BackendError> {
    request.validate()?;
    accountant::check(session).await?;
    let stdin_mode = if request.pty.is_some() { StdinMode::Piped } else { request.stdin };
    let command = start_command(session, &request)?;
    let (task, replies) = session.new_task();
    let (execution, ends) = Execution::channel(stdin_mode);
    let program = request.program();
    let listening = session.network.as_ref().map(|network| network.listen(ends.events.clone()));
    let baseline = Baseline::take(session);
    let started = Instant::now();
    let streams = if request.pty.is_some() {
        session.request(&InitRequest::Start { id: task, command }, &[]).await?;
        Streams::Terminal
    } else {
        let failed = |error| BackendError::failed("making pipes", error);
        let (theirs, ours) = Pipes::make(session, stdin_mode).map_err(failed)?;
        let fds = [theirs.stdin.as_fd(), theirs.stdout.as_fd(), theirs.stderr.as_fd()];
        session.request(&InitRequest::Start { id: task, command }, &fds).await?;
        ours
    };
    let driver = Driver {
        session: Arc::clone(session),
        task,
        replies,
        ends,
        program,
        deadline: request.timeout.map(|limit| started + limit),
        started,
        baseline,
        listening,
    };
    session.spawn(driver.run(streams));
    Ok(execution)
}

fn start_command(session: &Session, request: &ExecRequest) -> Result<StartCommand, BackendError> {
    let home = &session.home;
    let mut base = vec![
        ("PATH".to_owned(), format!("{DEFAULT_PATH}:{home}/.local/bin")),
        ("HOME".to_owned(), home.clone()),
        ("LANG".to_owned(), "C.UTF-8".to_owned()),
    ];
    if request.pty.is_some() {
        base.push(("TERM".to_owned(), "xterm-256color".to_owned()));
    }
    let env = merge_env(&[&base, &session.env, &request.env]);
    if let Command::Argv(argv) = &request.command {
        check_start_size(argv, &env)?;
    } else {
        check_start_size(&[], &env)?;
    }
    let mut script = None;
    let argv = match &request.command {
        Command::Argv(argv) => argv.iter().map(|part| part.as_bytes().to_vec()).collect(),
        Command::Shell(text) if text.len() < MAX_STRING_BYTES => {
            vec![b"/bin/sh".to_vec(), b"-c".to_vec(), text.clone().into_bytes()]
        }
        Command::Shell(text) => {
            script = Some(text.clone().into_bytes());
            vec![b"/bin/sh".to_vec()]
        }
    };
    Ok(StartCommand {
        argv,
        env: env.into_iter().map(|(key, value)| format!("{key}={value}").into_bytes()).collect(),
        cwd: request.cwd.as_ref().unwrap_or(&session.workdir).clone().into_bytes(),
        terminal: request.pty.map(|size| (size.rows, size.cols)),
        script,
    })
}

/// Our ends of the streams.
enum Streams {
    Pipes {
        stdin: Option<FdIo>,
        stdout: FdIo,
        stderr: FdIo,
    },
    /// Still to come from init.
    Terminal,
}

/// The program's ends.
struct Pipes {
    stdin: OwnedFd,
    stdout: OwnedFd,
    stderr: OwnedFd,
}

impl Pipes {
    fn make(session: &Session, stdin_mode: StdinMode) -> io::Result<(Self, Streams)> {
        let pipe = || -> io::Result<_> {
            let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
            if let Some((uid, gid)) = session.host_user {
                // Or the program could not open /dev/stdout again.
                fchown(&read, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
            }
            Ok((read, write))
        };
        let (stdin, stdin_write) = pipe()?;
        let (stdout_read, stdout) = pipe()?;
        let (stderr_read, stderr) = pipe()?;
        // Dropped here, it is the end of file.
        let stdin_write = (stdin_mode == StdinMode::Piped).then_some(stdin_write);
        let ours = Streams::Pipes {
            stdin: stdin_write.map(FdIo::new).transpose()?,
            stdout: FdIo::new(stdout_read)?,
            stderr: FdIo::new(stderr_read)?,
        };
        Ok((Self { stdin, stdout, stderr }, ours))
    }
}

/// Counters of the box before the command, so that it is charged only with its own.
struct Baseline {
    oom_kills: u64,
    pids_refused: u64,
    /// The peak is the command's own only when it could be reset.
    peak_reset: bool,
}

impl Baseline {
    fn take(session: &Session) -> Self {
        Self {
            oom_kills: session.usage.oom_kills().unwrap_or(0),
            pids_refused: session.usage.pids_refused().unwrap_or(0),
            peak_reset: session.usage.reset_peak(),
        }
    }
}

struct Driver {
    session: Arc<Session>,
    task: u32,
    replies: mpsc::Receiver<InitMessage>,
    ends: ExecutionEnds,
    program: String,
    deadline: Option<Instant>,
    started: Instant,
    baseline: Baseline,
    listening: Option<Listening>,
}

/// What the driver found out on the way.
#[derive(Default)]
struct Course {
    timed_out: bool,
    over_disk: Option<LimitHit>,
    start_failure: Option<Failure>,
}

impl Driver {
    async fn run(mut self, streams: Streams) {
        let (stdin, stdout, stderr) = match streams {
            Streams::Pipes { stdin, stdout, stderr } => {
                (stdin.map(Arc::new), Some(Arc::new(stdout)), Some(stderr))
            }
            Streams::Terminal => match self.terminal().await {
                Ok(master) => (Some(Arc::clone(&master)), Some(master), None),
                Err(error) => {
                    let _ = self.ends.events.send(ExecEvent::Failed(error)).await;
                    return;
                }
            },
        };
        let terminal = if stderr.is_none() { stdout.clone() } else { None };
        let (finish, finished) = watch::channel(false);
        let (empty, input) = mpsc::channel(1);
        drop(empty);
        let input = std::mem::replace(&mut self.ends.stdin, input);
        let events = self.ends.events.clone();
        let drains = Arc::clone(&self.session.drains);
        let on_terminal = terminal.is_some();
        let pump = |stream: Stream, io: Option<Arc<FdIo>>| {
            pump(stream, io, events.clone(), finished.clone(), Arc::clone(&drains), on_terminal)
        };
        let out = pump(Stream::Stdout, stdout);
        let err = pump(Stream::Stderr, stderr.map(Arc::new));
        let feed = feed(stdin, input, finished.clone());
        let steer = async {
            let end = self.steer(terminal.as_deref()).await;
            finish.send_replace(true);
            drop(finish);
            end
        };
        let ((end, course), dropped_out, dropped_err, ()) = tokio::join!(steer, out, err, feed);
        let mut course = course;
        if course.over_disk.is_none() {
            course.over_disk = accountant::asked_over(&self.session).await;
        }
        let heard = match self.listening.take() {
            Some(listening) => Some(listening.settle().await),
            None => None,
        };
        let last = self.conclude(end, course, dropped_out + dropped_err, heard);
        let _ = timeout(PATIENCE, self.ends.events.send(last)).await;
        self.session.forget_task(self.task);
    }

    /// The master end of the command's terminal.
    async fn terminal(&mut self) -> Result<Arc<FdIo>, BackendError> {
        match self.replies.recv().await {
            Some((InitReply::Terminal { .. }, fds)) => {
                let master = fds.into_iter().next().ok_or_else(|| self.session.ended_error())?;
                Ok(Arc::new(
                    FdIo::new(master).map_err(|error| BackendError::failed("taking the terminal", error))?,
                ))
            }
            Some((InitReply::StartFailed { failure, .. }, _)) => Err(start_error(&failure, &self.program)),
            _ => Err(self.session.ended_error()),
        }
    }

    /// Waits for the end, and meanwhile does what the caller and the clock say.
    async fn steer(&mut self, terminal: Option<&FdIo>) -> (Option<ProcessEnd>, Course) {
        let mut course = Course::default();
        let mut killed_at: Option<Instant> = None;
        let mut abandoned = false;
        let mut grace_over: Option<Instant> = None;
        let mut watch = accountant::Watch::new(&self.session);
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
                    Some(ExecControl::Resize(size)) => resize(terminal, size),
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
                        self.session.life.end();
                        killed_at = Some(never);
                    } else {
                        course.timed_out = self.deadline.is_some_and(|deadline| deadline <= Instant::now());
                        killed_at = Some(Instant::now());
                        self.kill().await;
                    }
                }
                over = watch.exceeded(), if killed_at.is_none() => {
                    course.over_disk = Some(over);
                    let _ = self.session.launcher.freeze(self.session.box_id, true).await;
                    killed_at = Some(Instant::now());
                    self.kill().await;
                    let _ = self.session.launcher.freeze(self.session.box_id, false).await;
                }
            }
        }
    }

    async fn kill(&self) {
        self.tell(&InitRequest::Kill { id: self.task }).await;
    }

    async fn tell(&self, request: &InitRequest) {
        // An init that is gone shows in the replies.
        let _ = self.session.request(request, &[]).await;
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
        let usage = &self.session.usage;
        let oom_kills = usage.oom_kills().unwrap_or(0).saturating_sub(self.baseline.oom_kills);
        let Some(end) = end else {
            let why =
                if oom_kills > 0 { self.session.out_of_memory_error() } else { self.session.ended_error() };
            return ExecEvent::Failed(why);
        };
        let mut limits_hit = Vec::new();
        if oom_kills > 0 {
            let limit_bytes = self.session.limits.memory_bytes;
            limits_hit.push(LimitHit::Memory { oom_kills, limit_bytes, tmpfs_bytes: usage.tmpfs_bytes() });
        }
        let refused = usage.pids_refused().unwrap_or(0).saturating_sub(self.baseline.pids_refused);
        if refused > 0 {
            limits_hit.push(LimitHit::Pids { refused, limit: self.session.limits.pids });
        }
        limits_hit.extend(course.over_disk);
        let session_peak = usage.peak_memory_bytes().filter(|_| self.baseline.peak_reset);
        let peak = session_peak
            .map_or((end.peak_rss_bytes, MemoryScope::Process), |peak| (peak, MemoryScope::Session));
        ExecEvent::Exit(ExecExit {
            status: match end.status {
                EndStatus::Code(code) => ExitStatus::Code(code),
                EndStatus::Signal(signal) => ExitStatus::Signal(signal),
            },
            timed_out: course.timed_out,
            usage: Usage {
                wall: self.started.elapsed(),
                user: Duration::from_micros(end.user_micros),
                system: Duration::from_micros(end.system_micros),
                peak_memory: Some(peak),
            },
            limits_hit,
            dropped_bytes,
            denials,
            network,
        })
    }
}

fn resize(terminal: Option<&FdIo>, size: PtySize) {
    if let Some(terminal) = terminal {
        let size = Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 };
        // A terminal that is gone has no size.
        let _ = tcsetwinsize(terminal.get_ref(), size);
    }
}

/// A failure to start, in the caller's words.
fn start_error(failure: &Failure, program: &str) -> BackendError {
    let why = || io::Error::from_raw_os_error(failure.errno).to_string();
    if failure.step.starts_with(EXECUTING) {
        return match failure.errno {
            libc::ENOENT | libc::ENOTDIR => BackendError::CommandNotFound { program: program.to_owned() },
            libc::E2BIG => BackendError::LimitExceeded {
                what: "the command's arguments and environment together".to_owned(),
                limit: "what the kernel takes for one program".to_owned(),
            },
            libc::EAGAIN => too_many(),
            _ => BackendError::CommandNotExecutable { program: program.to_owned(), why: why() },
        };
    }
    if let Some(path) = failure.step.strip_prefix("entering ") {
        return BackendError::invalid("workdir", format!("`{path}` cannot be entered: {}", why()));
    }
    if failure.errno == libc::EAGAIN {
        return too_many();
    }
    crate::launcher::step_failed(failure)
}

fn too_many() -> BackendError {
    BackendError::LimitExceeded {
        what: "starting another process".to_owned(),
        limit: "the session's process limit".to_owned(),
    }
}
