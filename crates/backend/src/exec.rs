//! A command in a box: the request, the running thing, and its end.
//!
//! Streaming is the primitive: an [`Execution`] is a bounded queue of events that ends with exactly one
//! [`ExecEvent::Exit`]. The collected result is a fold over it, [`Execution::collect`].

use std::ffi::OsString;
use std::pin::pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use sandcrate_protocol::network::{Counters, Denial};
use serde::Serialize;
use tokio::sync::mpsc;

use crate::BackendError;

/// What to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// A program, found by PATH when it has no slash, and its arguments.
    Argv(Vec<OsString>),
    /// Text for the box's shell, `sh`; far longer than one argument may be (`MAX_SCRIPT_BYTES`).
    Shell(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StdinMode {
    /// End of file at once.
    Closed,
    /// What the caller sends.
    Piped,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PtySize {
    pub rows: u16,
    pub cols: u16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecRequest {
    pub command: Command,
    /// Over the session's environment; later entries win.
    pub env: Vec<(String, String)>,
    /// Instead of the session's workdir; made when missing.
    pub cwd: Option<String>,
    pub stdin: StdinMode,
    /// With a terminal, stdout carries everything and stdin is piped.
    pub pty: Option<PtySize>,
    /// Wall time after which the command's whole tree is killed.
    pub timeout: Option<Duration>,
    /// What the command and all it starts may use of the session's memory. A backend that cannot hold it refuses.
    pub memory_bytes: Option<u64>,
}

impl ExecRequest {
    pub fn new(command: Command) -> Self {
        Self {
            command,
            env: Vec::new(),
            cwd: None,
            stdin: StdinMode::Closed,
            pty: None,
            timeout: None,
            memory_bytes: None,
        }
    }

    pub fn shell(script: impl Into<String>) -> Self {
        Self::new(Command::Shell(script.into()))
    }

    pub fn argv<I: IntoIterator<Item = S>, S: Into<OsString>>(argv: I) -> Self {
        Self::new(Command::Argv(argv.into_iter().map(Into::into).collect()))
    }

    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory_bytes = Some(bytes);
        self
    }

    #[must_use]
    pub fn env(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((key.into(), value.into()));
        self
    }

    #[must_use]
    pub fn cwd(mut self, cwd: impl Into<String>) -> Self {
        self.cwd = Some(cwd.into());
        self
    }

    /// With standard input from the caller.
    #[must_use]
    pub fn piped(mut self) -> Self {
        self.stdin = StdinMode::Piped;
        self
    }

    /// On a terminal, whose input comes from the caller.
    #[must_use]
    pub fn pty(mut self, size: PtySize) -> Self {
        self.pty = Some(size);
        self.piped()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    Stdout,
    Stderr,
}

/// How the program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitStatus {
    Code(i32),
    Signal(i32),
}

impl ExitStatus {
    /// As a shell shows it: 128 + N for a signal.
    pub fn shell_code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        }
    }
}

/// Whose peak the memory figure is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryScope {
    /// Of the box while the command ran.
    Session,
    /// Of the largest single process of the command.
    Process,
}

/// What the command used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    pub wall: Duration,
    pub user: Duration,
    pub system: Duration,
    pub peak_memory: Option<(u64, MemoryScope)>,
}

/// A limit that fired while the command ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LimitHit {
    /// The kernel killed processes for memory; `tmpfs_bytes` of it lay in /tmp and /dev/shm.
    Memory { oom_kills: u64, limit_bytes: u64, tmpfs_bytes: Option<u64> },
    /// New processes were refused.
    Pids { refused: u64, limit: u32 },
    /// The accounted storage was over its bound; the box was frozen and the command ended.
    Disk { used_bytes: u64, limit_bytes: u64 },
}

/// The end of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExecExit {
    pub status: ExitStatus,
    pub timed_out: bool,
    pub usage: Usage,
    pub limits_hit: Vec<LimitHit>,
    /// Bytes that a consumer too slow for too long did not get.
    pub dropped_bytes: u64,
    /// What the box was refused while the command ran, by whichever of its commands.
    pub denials: Vec<Denial>,
    /// What the box's isolated network carried while the command ran; `None` without one.
    pub network: Option<Box<Counters>>,
}

impl ExecExit {
    /// An end of which nothing else is known.
    pub fn new(status: ExitStatus, timed_out: bool) -> Self {
        Self {
            status,
            timed_out,
            usage: Usage::default(),
            limits_hit: Vec::new(),
            dropped_bytes: 0,
            denials: Vec::new(),
            network: None,
        }
    }
}

#[derive(Debug)]
#[non_exhaustive]
pub enum ExecEvent {
    Output(Stream, Bytes),
    /// The box was refused something just now; equal refusals are told once, and counted in the exit.
    Denied(Denial),
    /// The last event of every execution that started.
    Exit(ExecExit),
    /// The last event when the box died under the command, or the command could not be started.
    Failed(BackendError),
}

/// What a caller can ask of a running command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExecControl {
    /// A signal to the program (its process group where it has one).
    Signal(i32),
    /// SIGTERM to the program; SIGKILL to what is left of its tree when it has ended or the grace is over.
    Terminate {
        grace: Duration,
    },
    /// SIGKILL to the whole tree.
    Kill,
    Resize(PtySize),
}

/// A running command, as its caller holds it. Dropping it before its last event ends the command's tree; what a
/// command leaves in the background after its exit stays until the box ends.
#[derive(Debug)]
pub struct Execution {
    events: mpsc::Receiver<ExecEvent>,
    control: mpsc::Sender<ExecControl>,
    stdin: Option<mpsc::Sender<Bytes>>,
}

/// The backend's side of an [`Execution`].
#[derive(Debug)]
pub struct ExecutionEnds {
    pub events: mpsc::Sender<ExecEvent>,
    pub control: mpsc::Receiver<ExecControl>,
    pub stdin: mpsc::Receiver<Bytes>,
}

impl Execution {
    /// Chunks of up to 64 KiB each: a slow consumer is felt after about 1 MiB.
    const QUEUED_EVENTS: usize = 16;
    const QUEUED_CONTROLS: usize = 8;
    /// Pieces of input that wait for a command to read.
    pub const QUEUED_INPUT: usize = 8;
    const INPUT_PIECE: usize = 64 << 10;

    /// Both sides of a new execution.
    pub fn channel(stdin: StdinMode) -> (Self, ExecutionEnds) {
        let (events_in, events) = mpsc::channel(Self::QUEUED_EVENTS);
        let (control, control_out) = mpsc::channel(Self::QUEUED_CONTROLS);
        let (stdin_in, stdin_out) = mpsc::channel(Self::QUEUED_INPUT);
        let stdin = (stdin == StdinMode::Piped).then_some(stdin_in);
        (
            Self { events, control, stdin },
            ExecutionEnds { events: events_in, control: control_out, stdin: stdin_out },
        )
    }

    /// The next event; `None` after the last.
    pub async fn next(&mut self) -> Option<ExecEvent> {
        self.events.recv().await
    }

    /// The sender of standard input; taken once, and dropped for end of file.
    pub fn take_stdin(&mut self) -> Option<mpsc::Sender<Bytes>> {
        self.stdin.take()
    }

    /// A handle for control that outlives borrows of the execution; it does not keep the command alive.
    pub fn controller(&self) -> mpsc::Sender<ExecControl> {
        self.control.clone()
    }

    /// Sends a control; false when the command has ended.
    pub async fn control(&self, control: ExecControl) -> bool {
        self.control.send(control).await.is_ok()
    }

    /// Runs to the end, keeping the first `keep_bytes` of each stream and counting the rest. Its input, where it
    /// takes any, is at its end.
    pub async fn collect(self, keep_bytes: usize) -> Result<Collected, BackendError> {
        self.collect_with(Bytes::new(), keep_bytes).await
    }

    /// The same with all of the input known. A program may end without reading it.
    pub async fn collect_with(
        mut self,
        mut input: Bytes,
        keep_bytes: usize,
    ) -> Result<Collected, BackendError> {
        let stdin = self.stdin.take();
        let feed = async move {
            if let Some(stdin) = stdin {
                while !input.is_empty() {
                    let piece = input.split_to(input.len().min(Self::INPUT_PIECE));
                    if stdin.send(piece).await.is_err() {
                        break;
                    }
                }
            }
        };
        let (mut feed, mut fold) = (pin!(feed), pin!(self.fold(keep_bytes)));
        tokio::select! {
            result = &mut fold => return result,
            () = &mut feed => {}
        }
        fold.await
    }

    async fn fold(mut self, keep_bytes: usize) -> Result<Collected, BackendError> {
        let mut stdout = Kept::new(keep_bytes);
        let mut stderr = Kept::new(keep_bytes);
        while let Some(event) = self.next().await {
            match event {
                ExecEvent::Output(Stream::Stdout, data) => stdout.push(&data),
                ExecEvent::Output(Stream::Stderr, data) => stderr.push(&data),
                ExecEvent::Denied(_) => {}
                ExecEvent::Exit(exit) => {
                    return Ok(Collected {
                        stdout: stdout.data.freeze(),
                        stderr: stderr.data.freeze(),
                        stdout_bytes: stdout.seen,
                        stderr_bytes: stderr.seen,
                        exit,
                    });
                }
                ExecEvent::Failed(error) => return Err(error),
            }
        }
        Err(BackendError::failed("waiting for the command", std::io::ErrorKind::UnexpectedEof.into()))
    }
}

/// The folded result of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collected {
    pub stdout: Bytes,
    pub stderr: Bytes,
    /// All bytes the command wrote, kept or not.
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    pub exit: ExecExit,
}

struct Kept {
    data: BytesMut,
    limit: usize,
    seen: u64,
}

impl Kept {
    fn new(limit: usize) -> Self {
        Self { data: BytesMut::new(), limit, seen: 0 }
    }

    fn push(&mut self, data: &[u8]) {
        self.seen += data.len() as u64;
        let room = self.limit - self.data.len();
        self.data.extend_from_slice(&data[..data.len().min(room)]);
    }
}
