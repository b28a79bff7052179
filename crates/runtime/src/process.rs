//! One managed process: what is known of it, its output, and its end.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use sandcrate_backend::{ExecControl, ExecEvent, ExecRequest, Execution, Stream};
use sandcrate_protocol::{ProcessInfo, ProcessSpec, ProcessStatus, Timestamp};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::Instant;

use crate::RuntimeError;
use crate::output_log::{LogEnd, OutputLog, Pace, Subscription};
use crate::relay::{self, Attachment, RelayState};
use crate::session::{Clock, locked};

/// From SIGTERM to SIGKILL when a process is stopped.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// Characters of stderr shown with a process, newlines included.
const PREVIEW_CHARS: usize = 4000;
/// An unfinished line of stderr; of a longer one the end is kept.
const MAX_STDERR_LINE: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct Process {
    session: String,
    spec: ProcessSpec,
    started_at: Timestamp,
    /// Stdout alone, for the relay: noise on stderr must not push answers out.
    stdout: Arc<OutputLog>,
    /// Both streams, for people.
    both: Arc<OutputLog>,
    preview: Mutex<Preview>,
    ended: watch::Sender<Option<Ended>>,
    control: mpsc::Sender<ExecControl>,
    stdin: Mutex<Option<mpsc::Sender<Bytes>>>,
    /// One is attached at a time.
    lease: Arc<Semaphore>,
    relay: Arc<tokio::sync::Mutex<RelayState>>,
    clock: Arc<Clock>,
}

#[derive(Debug, Clone)]
struct Ended {
    at: Timestamp,
    /// The same by a clock that nobody sets.
    since: Instant,
    exit_code: Option<i32>,
}

/// What the backend is asked for a managed process: its own program, no shell, no deadline.
pub(crate) fn request(spec: &ProcessSpec) -> ExecRequest {
    let argv = std::iter::once(&spec.command).chain(&spec.args).cloned();
    let mut request = ExecRequest::argv(argv).cwd(spec.cwd.clone()).piped();
    request.memory_bytes = (spec.memory_mb > 0).then_some(spec.memory_mb << 20);
    request.env = spec.env.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    request
}

impl Process {
    /// The record of a started process and the task that keeps it.
    pub(crate) fn new(
        session: String,
        spec: ProcessSpec,
        mut execution: Execution,
        log_bytes: usize,
        clock: Arc<Clock>,
    ) -> (Arc<Self>, impl Future<Output = ()> + use<>) {
        let stdin = execution.take_stdin();
        let process = Arc::new(Self {
            session,
            spec,
            started_at: Timestamp::now(),
            stdout: OutputLog::new(log_bytes),
            both: OutputLog::new(log_bytes),
            preview: Mutex::default(),
            ended: watch::Sender::new(None),
            control: execution.controller(),
            stdin: Mutex::new(stdin),
            lease: Arc::new(Semaphore::new(1)),
            relay: Arc::default(),
            clock,
        });
        let driver = Arc::clone(&process).drive(execution);
        (process, driver)
    }

    async fn drive(self: Arc<Self>, mut execution: Execution) {
        let end = loop {
            match execution.next().await {
                Some(ExecEvent::Output(Stream::Stdout, data)) => {
                    self.both.append_now(Stream::Stdout, data.clone());
                    self.stdout.append(Stream::Stdout, data).await;
                }
                Some(ExecEvent::Output(Stream::Stderr, data)) => {
                    locked(&self.preview).push(&data);
                    self.both.append_now(Stream::Stderr, data);
                }
                Some(ExecEvent::Denied(denial)) => self.both.deny(denial),
                Some(ExecEvent::Exit(exit)) => break LogEnd::Exit(exit),
                Some(ExecEvent::Failed(error)) => break LogEnd::Failed(error.into()),
                Some(_) => {}
                None => {
                    let gone = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
                    break LogEnd::Failed(RuntimeError::failed("waiting for the process", gone));
                }
            }
        };
        if let LogEnd::Failed(error) = &end {
            // A program that cannot be executed shows as one that ended, with the reason where people look.
            locked(&self.preview).push(format!("{error}\n").as_bytes());
        }
        locked(&self.preview).finish();
        locked(&self.stdin).take();
        self.clock.touch();
        // The code before the status: nobody sees one without the other.
        let exit_code = relay::exit_code(&end).or_else(|| failed_code(&end));
        self.ended.send_replace(Some(Ended { at: Timestamp::now(), since: Instant::now(), exit_code }));
        self.both.finish(end.clone());
        self.stdout.finish(end);
    }

    pub(crate) fn is_running(&self) -> bool {
        self.ended.borrow().is_none()
    }

    pub(crate) fn exit_code(&self) -> Option<i32> {
        self.ended.borrow().as_ref().and_then(|ended| ended.exit_code)
    }

    /// When it ended.
    pub(crate) fn ended_since(&self) -> Option<Instant> {
        self.ended.borrow().as_ref().map(|ended| ended.since)
    }

    pub(crate) fn info(&self) -> ProcessInfo {
        let ended = self.ended.borrow().clone();
        ProcessInfo {
            session_id: self.session.clone(),
            process_id: self.spec.process_id.clone(),
            status: if ended.is_some() { ProcessStatus::Exited } else { ProcessStatus::Running },
            command: self.spec.command.clone(),
            args: self.spec.args.clone(),
            cwd: self.spec.cwd.clone(),
            env_keys: self.spec.env.keys().cloned().collect(),
            attached: self.lease.available_permits() == 0,
            started_at: self.started_at,
            exited_at: ended.as_ref().map(|ended| ended.at),
            exit_code: ended.and_then(|ended| ended.exit_code),
            stderr_preview: locked(&self.preview).text(),
        }
    }

    /// Ends the program and its children, and waits until they are gone.
    pub(crate) async fn stop(&self) {
        self.close_stdin();
        self.stdout.hurry();
        if self.control.send(ExecControl::Terminate { grace: STOP_GRACE }).await.is_ok() {
            let _ = self.ended.subscribe().wait_for(Option::is_some).await;
        }
    }

    pub(crate) async fn signal(&self, signal: i32) -> Result<(), RuntimeError> {
        let sent = self.is_running() && self.control.send(ExecControl::Signal(signal)).await.is_ok();
        if sent { Ok(()) } else { Err(self.not_running()) }
    }

    /// Fails when an attachment would get nothing: the process has ended and its lines were taken.
    pub(crate) fn check_attachable(&self) -> Result<(), RuntimeError> {
        // Whoever holds the lease is at the lines.
        let drained = self.relay.try_lock().is_ok_and(|state| state.is_drained(&self.stdout));
        if !self.is_running() && drained { Err(self.not_running()) } else { Ok(()) }
    }

    pub(crate) fn log(&self) -> Subscription {
        self.both.reader(None, Pace::Lossy)
    }

    /// The exclusive line to the process. One that has ended can be attached for what it said last, once.
    pub(crate) async fn attach(self: &Arc<Self>, wait: bool) -> Result<Attachment, RuntimeError> {
        let lease = Arc::clone(&self.lease);
        let lease = if wait { lease.acquire_owned().await.ok() } else { lease.try_acquire_owned().ok() };
        let lease = lease.ok_or_else(|| RuntimeError::ProcessAttached {
            session: self.session.clone(),
            process: self.spec.process_id.clone(),
        })?;
        // Whoever has the lease waits for nobody but a glance.
        let state = Arc::clone(&self.relay).lock_owned().await;
        if !self.is_running() && state.is_drained(&self.stdout) {
            return Err(self.not_running());
        }
        self.clock.touch();
        Ok(Attachment::new(Arc::clone(self), lease, state, &self.stdout))
    }

    pub(crate) fn not_running(&self) -> RuntimeError {
        RuntimeError::ProcessNotRunning {
            session: self.session.clone(),
            process: self.spec.process_id.clone(),
        }
    }

    pub(crate) fn stdin(&self) -> Option<mpsc::Sender<Bytes>> {
        locked(&self.stdin).clone()
    }

    /// The program reads end of file once it has read what is on its way.
    pub(crate) fn close_stdin(&self) {
        locked(&self.stdin).take();
    }

    pub(crate) fn touch(&self) {
        self.clock.touch();
    }
}

/// As the shell has it, for a program that never ran.
fn failed_code(end: &LogEnd) -> Option<i32> {
    match end {
        LogEnd::Failed(error) => {
            let code = error.kind().appearance().exit_code;
            matches!(code, 126 | 127).then_some(i32::from(code))
        }
        LogEnd::Exit(_) => None,
    }
}

/// The newest lines of stderr.
#[derive(Debug, Default)]
struct Preview {
    lines: VecDeque<String>,
    chars: usize,
    partial: Vec<u8>,
}

impl Preview {
    fn push(&mut self, mut data: &[u8]) {
        while let Some(end) = memchr::memchr(b'\n', data) {
            self.partial.extend_from_slice(&data[..end]);
            self.line();
            data = &data[end + 1..];
        }
        self.partial.extend_from_slice(data);
        if self.partial.len() > MAX_STDERR_LINE {
            self.partial.drain(..self.partial.len() - MAX_STDERR_LINE / 2);
        }
    }

    fn finish(&mut self) {
        self.line();
    }

    fn line(&mut self) {
        let text = String::from_utf8_lossy(&self.partial);
        let text = text.trim_end();
        if !text.is_empty() {
            let long = text.chars().count();
            // The end of a long line says more than nothing.
            let kept: String = text.chars().skip(long.saturating_sub(PREVIEW_CHARS - 1)).collect();
            self.chars += long.min(PREVIEW_CHARS - 1) + 1;
            self.lines.push_back(kept);
            while self.chars > PREVIEW_CHARS {
                let oldest = self.lines.pop_front().unwrap_or_default();
                self.chars -= oldest.chars().count() + 1;
            }
        }
        self.partial.clear();
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for line in &self.lines {
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(line);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_preview_keeps_the_newest_lines_within_its_bound() {
        let mut preview = Preview::default();
        preview.push(b"first  \n\n   \nsecond\r\nthi");
        assert_eq!(preview.text(), "first\nsecond", "an unfinished line waits");
        preview.push(b"rd\n");
        assert_eq!(preview.text(), "first\nsecond\nthird");
        for number in 0..2000 {
            preview.push(format!("line {number}\n").as_bytes());
        }
        let text = preview.text();
        assert!(text.len() < PREVIEW_CHARS && text.ends_with("line 1999"), "{}", text.len());
    }

    #[test]
    fn a_line_of_any_length_neither_stops_the_preview_nor_fills_memory() {
        let mut preview = Preview::default();
        for _ in 0..1000 {
            preview.push(&[b'x'; 4096]);
        }
        assert!(preview.partial.len() <= MAX_STDERR_LINE);
        preview.push(b"END\nnext\n");
        assert!(preview.text().ends_with("next"));
        assert!(preview.text().len() < PREVIEW_CHARS);
    }
}
