//! How commands end, as JSON: the collected result, the exit of a followed command, and bytes as text.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sandcrate_backend::{Collected, ExecExit, ExitStatus, LimitHit, MemoryScope, Usage};
use sandcrate_protocol::network::{Counters, Denial};
use sandcrate_protocol::{ExecStatus, Timestamp};
use sandcrate_runtime::{CommandView, ExecOutcome};
use serde::Serialize;
use utoipa::ToSchema;

use super::schema::{CounterFacts, DenialFacts};

/// What the command used.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct UsageBody {
    #[schema(example = 12.4)]
    wall_ms: f64,
    #[schema(example = 8.1)]
    user_ms: f64,
    #[schema(example = 2.2)]
    system_ms: f64,
    #[schema(example = 10_485_760)]
    peak_memory_bytes: Option<u64>,
    /// Whose peak that is: of the box (`session`), or of the largest process (`process`).
    #[schema(value_type = Option<String>, example = "session")]
    peak_memory_scope: Option<MemoryScope>,
}

impl From<&Usage> for UsageBody {
    fn from(usage: &Usage) -> Self {
        // Microseconds are as fine as the kernel's figures are.
        let millis = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        Self {
            wall_ms: millis(usage.wall),
            user_ms: millis(usage.user),
            system_ms: millis(usage.system),
            peak_memory_bytes: usage.peak_memory.map(|(bytes, _)| bytes),
            peak_memory_scope: usage.peak_memory.map(|(_, scope)| scope),
        }
    }
}

/// The end of a command.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ExitBody {
    /// As a shell shows it, 128 + N for a signal; absent when the command timed out.
    #[schema(example = 0)]
    exit_code: Option<i32>,
    /// The signal that ended it.
    signal: Option<i32>,
    timed_out: bool,
    usage: UsageBody,
    /// Limits of the box that fired while it ran, such as `{"memory": {"oom_kills": 1, …}}`.
    #[schema(value_type = Vec<Object>)]
    limits_hit: Vec<LimitHit>,
    /// Bytes that nobody read in time.
    dropped_bytes: u64,
    /// What the box was refused while the command ran, and what could be done about it.
    #[schema(value_type = Vec<DenialFacts>)]
    denials: Vec<Denial>,
    /// What the box's network carried while the command ran; absent without an isolated one.
    #[schema(value_type = Option<CounterFacts>)]
    network: Option<Counters>,
}

impl From<&ExecExit> for ExitBody {
    fn from(exit: &ExecExit) -> Self {
        let signal = match exit.status {
            ExitStatus::Signal(signal) => Some(signal),
            ExitStatus::Code(_) => None,
        };
        Self {
            exit_code: (!exit.timed_out).then(|| exit.status.shell_code()),
            signal,
            timed_out: exit.timed_out,
            usage: (&exit.usage).into(),
            limits_hit: exit.limits_hit.clone(),
            dropped_bytes: exit.dropped_bytes,
            denials: exit.denials.clone(),
            network: exit.network.as_deref().copied(),
        }
    }
}

/// A command that ran to its end.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ExecBody {
    #[schema(example = "demo")]
    session_id: String,
    #[schema(example = "native")]
    backend_name: String,
    /// `completed` or `timed_out`.
    #[schema(value_type = String, example = "completed")]
    status: ExecStatus,
    #[schema(example = 0)]
    exit_code: Option<i32>,
    /// Exactly what was written, up to the server's bound.
    #[schema(example = "hello\n")]
    stdout: String,
    stderr: String,
    #[schema(example = 14)]
    duration_ms: u64,
    signal: Option<i32>,
    /// The bytes, when `stdout` is not UTF-8 and its text therefore not exact.
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr_base64: Option<String>,
    /// All that was written, kept or not.
    #[schema(example = 6)]
    stdout_bytes: u64,
    stderr_bytes: u64,
    /// Whether more was written than is given here.
    truncated: bool,
    usage: UsageBody,
    #[schema(value_type = Vec<Object>)]
    limits_hit: Vec<LimitHit>,
    /// What the box was refused while the command ran, and what could be done about it.
    #[schema(value_type = Vec<DenialFacts>)]
    denials: Vec<Denial>,
    /// What the box's network carried while the command ran; absent without an isolated one.
    #[schema(value_type = Option<CounterFacts>)]
    network: Option<Counters>,
}

impl From<ExecOutcome> for ExecBody {
    fn from(outcome: ExecOutcome) -> Self {
        Self::new(&outcome.session_id, outcome.backend, outcome.collected, outcome.duration)
    }
}

impl ExecBody {
    pub(crate) fn new(session_id: &str, backend: &str, collected: Collected, duration: Duration) -> Self {
        let Collected { stdout, stderr, stdout_bytes, stderr_bytes, exit } = collected;
        let ended = ExitBody::from(&exit);
        let truncated = stdout_bytes > stdout.len() as u64
            || stderr_bytes > stderr.len() as u64
            || exit.dropped_bytes > 0;
        let (stdout, stdout_base64) = text(&stdout);
        let (stderr, stderr_base64) = text(&stderr);
        Self {
            session_id: session_id.to_owned(),
            backend_name: backend.to_owned(),
            status: if exit.timed_out { ExecStatus::TimedOut } else { ExecStatus::Completed },
            exit_code: ended.exit_code,
            stdout,
            stderr,
            duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
            signal: ended.signal,
            stdout_base64,
            stderr_base64,
            stdout_bytes,
            stderr_bytes,
            truncated,
            usage: ended.usage,
            limits_hit: ended.limits_hit,
            denials: ended.denials,
            network: ended.network,
        }
    }
}

/// A followed command.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CommandBody {
    #[schema(example = "1")]
    command_id: String,
    /// Its words, or its text for the shell, cut short.
    #[schema(example = "cat")]
    command: String,
    #[schema(value_type = String, example = "2026-01-31T12:00:00+00:00")]
    started_at: Timestamp,
    running: bool,
    /// Whether it has a terminal.
    pty: bool,
    exit: Option<ExitBody>,
}

impl From<CommandView> for CommandBody {
    fn from(view: CommandView) -> Self {
        let exit = view.exit.as_ref().map(ExitBody::from);
        Self {
            command_id: view.id.0,
            command: view.command,
            started_at: view.started_at,
            running: view.running,
            pty: view.pty,
            exit,
        }
    }
}

/// Text that is lossy where the bytes are not UTF-8, and then the bytes too.
pub(crate) fn text(bytes: &[u8]) -> (String, Option<String>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (text.to_owned(), None),
        Err(_) => (String::from_utf8_lossy(bytes).into_owned(), Some(base64(bytes))),
    }
}

pub(crate) fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

pub(crate) fn from_base64(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}
