//! Collected commands: one after the other in a session, folded into one result.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use sandcrate_backend::{BackendError, Collected, ExecRequest};
use sandcrate_protocol::{BoxSpec, ErrorKind, MountSpec};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::RuntimeError;
use crate::runtime::{Inner, Lost};
use crate::session::Session;

/// A box that dies between two looks is made again, but not for ever.
const ATTEMPTS: u32 = 5;

/// What becomes of the session when its command times out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnTimeout {
    /// LangBot's contract; a persistent session keeps its files.
    EndSession,
    EndCommand,
}

/// A collected command's outcome, its output byte for byte up to the limit.
#[derive(Debug, Clone)]
pub struct ExecOutcome {
    pub session_id: String,
    pub backend: &'static str,
    pub collected: Collected,
    pub duration: Duration,
}

/// What to run, and where.
pub(crate) enum Target<'a> {
    /// In the session of this specification, made when it is not there.
    Spec(&'a BoxSpec),
    /// In a session that is there.
    Existing(&'a str),
}

impl Inner {
    pub(crate) async fn exec(
        self: &Arc<Self>,
        target: Target<'_>,
        request: &ExecRequest,
        input: &Bytes,
        on_timeout: OnTimeout,
    ) -> Result<ExecOutcome, RuntimeError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let (session, mounts) = match &target {
                Target::Spec(spec) => {
                    (self.session_for(spec, &Default::default()).await?, Some(spec.extra_mounts.as_slice()))
                }
                Target::Existing(id) => (self.existing(id)?, None),
            };
            match self.exec_in_turn(&session, mounts, request, input, on_timeout).await {
                Ok(outcome) => return Ok(outcome),
                Err(Lost::Failed(error)) => {
                    self.metrics.exec_failed();
                    return Err(error);
                }
                Err(Lost::SessionGone) if tries < ATTEMPTS => {}
                Err(Lost::SessionGone) => {
                    self.metrics.exec_failed();
                    return Err(RuntimeError::SessionEnded {
                        session: session.id.to_string(),
                        why: "its box ended again and again".to_owned(),
                    });
                }
            }
        }
    }

    async fn exec_in_turn(
        self: &Arc<Self>,
        session: &Arc<Session>,
        mounts: Option<&[MountSpec]>,
        request: &ExecRequest,
        input: &Bytes,
        on_timeout: OnTimeout,
    ) -> Result<ExecOutcome, Lost> {
        let turn = self.turn(session).await?;
        let _busy = session.use_now();
        let live = self.ensure_live(session, mounts).await?;
        self.place_artifacts(session, mounts.unwrap_or_default()).await?;
        let began = Instant::now();
        let started = live.backend.exec(&session.id, session.with_env(request.clone())).await;
        let result = match started {
            Ok(execution) => execution.collect_with(input.clone(), self.config.limits.output_bytes).await,
            // It died before the command: nothing has happened yet, so another box may try.
            Err(error) if is_gone(&error) => return Err(Lost::SessionGone),
            Err(error) => Err(error),
        };
        let collected = match result {
            Ok(collected) => collected,
            Err(error) if is_gone(&error) => return Err(Lost::Failed(self.ended(session, &error))),
            Err(error) => return Err(Lost::Failed(error.into())),
        };
        let duration = began.elapsed();
        let exit = &collected.exit;
        self.metrics.command_ended(exit, duration, collected.stdout_bytes + collected.stderr_bytes);
        if exit.timed_out && on_timeout == OnTimeout::EndSession {
            // While it is still our turn: whoever waits next finds the session gone, and makes another.
            self.end_after_timeout(session).await;
        }
        drop(turn);
        Ok(ExecOutcome {
            session_id: session.id.to_string(),
            backend: live.info.backend,
            collected,
            duration,
        })
    }

    /// Waits for its turn among the session's collected commands.
    async fn turn(&self, session: &Arc<Session>) -> Result<OwnedSemaphorePermit, Lost> {
        let queue = Arc::clone(&session.turn);
        if let Ok(turn) = Arc::clone(&queue).try_acquire_owned() {
            return if session.is_open() { Ok(turn) } else { Err(session.lost()) };
        }
        let limit = self.config.limits.queued_commands;
        let place = Waiting::take(session, limit).ok_or_else(|| RuntimeError::LimitExceeded {
            what: format!("another command waiting in session {}", session.id),
            limit: format!("{limit} (limits.queued_commands)"),
        })?;
        let turn = tokio::select! {
            // The queue is never closed.
            turn = queue.acquire_owned() => turn.map_err(|_| Lost::SessionGone)?,
            () = session.closing() => return Err(session.lost()),
        };
        drop(place);
        if session.is_open() { Ok(turn) } else { Err(session.lost()) }
    }

    /// The story of a command whose box ended under it.
    pub(crate) fn ended(&self, session: &Session, error: &BackendError) -> RuntimeError {
        let why = if session.is_open() { error.to_string() } else { "it was deleted".to_owned() };
        RuntimeError::SessionEnded { session: session.id.to_string(), why }
    }
}

pub(crate) fn is_gone(error: &BackendError) -> bool {
    error.kind() == ErrorKind::SessionNotFound
}

/// A place in a session's queue.
struct Waiting<'a>(&'a Session);

impl<'a> Waiting<'a> {
    fn take(session: &'a Session, limit: usize) -> Option<Self> {
        let before = session.waiting.fetch_add(1, Ordering::Relaxed);
        let place = Self(session);
        (before < limit).then_some(place)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
