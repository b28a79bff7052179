//! What a program does, as a stream of Connect: its number, what it writes, signs of life, its end.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use sandcrate_backend::{ExecExit, ExitStatus, LimitHit as Hit, MemoryScope, Stream as Source};
use sandcrate_e2b_wire::connect::{self, CallError, Code};
use sandcrate_e2b_wire::header::COUNT_LOST;
use sandcrate_e2b_wire::process::{
    Details, Empty, Ended, EventResponse, LimitHit, Output, ProcessEvent, Started, status_of_code,
    status_of_signal,
};
use sandcrate_runtime::{LogEvent, Subscription};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::super::error::Failed;
use super::call;
use crate::App;

/// While nobody says how long a stream may take.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3600);

#[derive(Debug)]
pub(super) struct Stream {
    pid: u32,
    pty: bool,
    log: Subscription,
    keepalive: Duration,
    deadline: Instant,
    abort: CancellationToken,
    told: Told,
    lost: Lost,
}

/// What becomes of a stream whose reader was too slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lost {
    /// It ends with an error: SDKs have no other way to tell.
    Ends,
    /// It goes on; so many bytes are told at the end.
    Counted(u64),
}

/// How much of it was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Nothing,
    Start,
    /// Its end; what is left is the stream's own.
    Exit,
    All,
}

impl Stream {
    pub(super) fn new(app: &App, pid: u32, pty: bool, log: Subscription) -> Self {
        let (keepalive, deadline) = (FOR_EVER, Instant::now() + FOR_EVER);
        Self {
            pid,
            pty,
            log,
            keepalive,
            deadline,
            abort: app.abort.clone(),
            told: Told::Nothing,
            lost: Lost::Ends,
        }
    }

    /// With the signs of life that a client wants, and what it makes of lost output.
    pub(super) fn on_terms_of(self, headers: &HeaderMap) -> Self {
        let lost = if headers.contains_key(COUNT_LOST) { Lost::Counted(0) } else { Lost::Ends };
        Self { keepalive: call::keepalive(headers), lost, ..self }
    }

    /// For the stream alone: the program goes on.
    pub(super) fn deadline(self, limit: Option<Duration>) -> Self {
        Self { deadline: Instant::now() + limit.unwrap_or(FOR_EVER), ..self }
    }

    pub(super) fn into_response(self) -> Response {
        let frames = futures_util::stream::unfold(self, |mut stream| async move {
            let frame = stream.next().await?;
            Some((Ok::<_, Infallible>(frame), stream))
        });
        ([(header::CONTENT_TYPE, connect::STREAM)], Body::from_stream(frames)).into_response()
    }

    async fn next(&mut self) -> Option<Bytes> {
        match self.told {
            Told::Nothing => {
                self.told = Told::Start;
                Some(self.event(ProcessEvent::Start(Started { pid: self.pid })))
            }
            Told::Start => Some(self.follow().await),
            Told::Exit => Some(self.end(None)),
            Told::All => None,
        }
    }

    async fn follow(&mut self) -> Bytes {
        loop {
            let event = tokio::select! {
                event = self.log.next() => event,
                () = tokio::time::sleep(self.keepalive) => return self.event(ProcessEvent::Keepalive(Empty {})),
                () = tokio::time::sleep_until(self.deadline) => {
                    let message = "the time for this stream is over; the process goes on";
                    return self.end(Some(CallError::new(Code::DeadlineExceeded, message)));
                }
                () = self.abort.cancelled() => {
                    return self.end(Some(CallError::new(Code::Unavailable, "the server is stopping")));
                }
            };
            match event {
                Some(LogEvent::Output { stream, data, .. }) => {
                    let output = match stream {
                        _ if self.pty => Output::Pty(data.into()),
                        Source::Stdout => Output::Stdout(data.into()),
                        Source::Stderr => Output::Stderr(data.into()),
                    };
                    return self.event(ProcessEvent::Data(output));
                }
                Some(LogEvent::Gap { bytes }) => {
                    if let Lost::Counted(lost) = &mut self.lost {
                        *lost += bytes;
                        continue;
                    }
                    let message = format!("{bytes} bytes of output are lost: they were not read in time");
                    return self.end(Some(CallError::new(Code::DataLoss, message)));
                }
                // Not told on this wire; the session's record has it.
                Some(LogEvent::Denied { .. }) => {}
                Some(LogEvent::Exit { exit, .. }) if exit.timed_out => {
                    let message = "the process was ended: its time (Connect-Timeout-Ms) was over";
                    return self.end(Some(CallError::new(Code::DeadlineExceeded, message)));
                }
                Some(LogEvent::Exit { exit, .. }) => {
                    self.told = Told::Exit;
                    return self.event(ProcessEvent::End(self.ended(&exit)));
                }
                Some(LogEvent::Failed { error, .. }) => return self.end(Some(Failed::from(error).0)),
                None => return self.end(None),
            }
        }
    }

    fn ended(&self, exit: &ExecExit) -> Ended {
        let mut ended = ended(exit);
        if let (Lost::Counted(lost), Some(details)) = (self.lost, &mut ended.sandcrate) {
            details.dropped_bytes += lost;
        }
        ended
    }

    fn event(&mut self, event: ProcessEvent) -> Bytes {
        match connect::message(&EventResponse { event }) {
            Ok(frame) => frame,
            Err(error) => self.end(Some(CallError::new(Code::Internal, error.to_string()))),
        }
    }

    fn end(&mut self, error: Option<CallError>) -> Bytes {
        self.told = Told::All;
        connect::end(error)
    }
}

/// As `envd` tells it, with what our own client asks for besides.
fn ended(exit: &ExecExit) -> Ended {
    let (exit_code, exited, status) = match exit.status {
        ExitStatus::Code(code) => (code, true, status_of_code(code)),
        ExitStatus::Signal(signal) => (-1, false, status_of_signal(signal)),
    };
    let error = (exit_code != 0).then(|| status.clone());
    Ended { exit_code, exited, status, error, sandcrate: Some(Box::new(details(exit))) }
}

fn details(exit: &ExecExit) -> Details {
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let peak = exit.usage.peak_memory;
    Details {
        user_micros: micros(exit.usage.user),
        system_micros: micros(exit.usage.system),
        peak_memory_bytes: peak.map(|(bytes, _)| bytes),
        peak_of_process: peak.is_some_and(|(_, scope)| scope == MemoryScope::Process),
        dropped_bytes: exit.dropped_bytes,
        limits_hit: exit.limits_hit.iter().filter_map(limit_hit).collect(),
    }
}

fn limit_hit(hit: &Hit) -> Option<LimitHit> {
    Some(match *hit {
        Hit::Memory { oom_kills, limit_bytes, tmpfs_bytes } => {
            LimitHit::Memory { oom_kills, limit_bytes, tmpfs_bytes }
        }
        Hit::Pids { refused, limit } => LimitHit::Pids { refused, limit },
        Hit::Disk { used_bytes, limit_bytes } => LimitHit::Disk { used_bytes, limit_bytes },
        // One that this wire has no word for yet.
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_told_in_envds_words() {
        let of = |status| ended(&ExecExit::new(status, false));
        let fine = of(ExitStatus::Code(0));
        assert_eq!((fine.exit_code, fine.exited, fine.error), (0, true, None));
        let failed = of(ExitStatus::Code(9));
        assert_eq!((failed.exit_code, failed.error.as_deref()), (9, Some("exit status 9")));
        let killed = of(ExitStatus::Signal(9));
        assert_eq!((killed.exit_code, killed.exited, killed.status.as_str()), (-1, false, "signal: killed"));
    }
}
