//! Keeps one server alive: attempts, waits, looks at its health, and cleans up after each attempt exactly once.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::cleaner::Cleaner;
use super::connection::Connection;
use super::machine::Next;
use super::server::Server;
use crate::{Life, Phase, PhaseError, Progress as _, Start};

/// Between two looks at a server's process.
const LOOK: Duration = Duration::from_secs(5);
/// Looks in a row that may fail.
const MOST_BLIND_LOOKS: u32 = 3;
/// Between two questions whether boxes can be made.
const POLL: Duration = Duration::from_secs(1);
/// The same for a server that was refused: nobody waits for it.
const REFUSED_POLL: Duration = Duration::from_secs(5);
/// For the last words of a server that failed.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// What an error repeats of them.
const LAST_LINE_CHARS: usize = 500;
/// Boxes that are switched off do not come back by waiting.
pub(crate) const DISABLED: &str = "box_disabled_in_config";
const EXITED: &str = "Box managed process exited unexpectedly";

/// What the task of a server works with.
#[derive(Debug, Clone)]
pub(crate) struct Keeper {
    pub(crate) start: Arc<dyn Start>,
    pub(crate) cleaner: Arc<Cleaner>,
    pub(crate) server: Arc<Server>,
}

/// How an attempt ended, and how long it had been well before.
type Ended = (PhaseError, Option<Duration>);

impl Keeper {
    /// Runs until it is told to stop or nothing more is worth trying.
    pub(crate) async fn run(self, stop: CancellationToken) {
        loop {
            let ended = tokio::select! {
                biased;
                () = stop.cancelled() => None,
                ended = self.attempt() => Some(ended),
            };
            self.server.disconnect();
            if ended.is_some() {
                self.keep_last_words().await;
            }
            self.cleaner.clean(&self.server.identity).await;
            let Some((error, well_for)) = ended else { return };
            let (server, phase, text) = (self.server.name(), error.phase, error.message.clone());
            match self.server.failed(error, well_for) {
                Next::RetryAfter(delay) => {
                    tracing::info!(server, %phase, error = text, ?delay, "MCP server failed; another attempt follows");
                    // A failure in between is not shown as an error; a person who looks wants to know all the same.
                    self.server
                        .say(&format!("waiting for another attempt; the last failed ({phase}): {text}"));
                    tokio::select! {
                        () = stop.cancelled() => return,
                        () = tokio::time::sleep(delay) => {}
                    }
                }
                Next::GiveUp => {
                    tracing::warn!(server, %phase, error = text, "MCP server failed, and is not tried again");
                    return;
                }
                Next::Refuse => {
                    tracing::warn!(server, %phase, error = text, "MCP server is refused: no box can be made for it");
                    tokio::select! {
                        () = stop.cancelled() => return,
                        () = self.boxes_are_back() => {}
                    }
                    self.server.begin();
                }
            }
        }
    }

    async fn attempt(&self) -> Ended {
        let connection = match self.connect().await {
            Ok(connection) => connection,
            Err(error) => return (error, None),
        };
        let since = Instant::now();
        let error = self.watch(connection).await;
        (error, Some(since.elapsed()))
    }

    async fn connect(&self) -> Result<Connection, PhaseError> {
        let server = &*self.server;
        self.wait_for_boxes().await?;
        let started = self.start.start(&server.config, &server.identity, server).await?;
        let limit = server.startup_limit();
        let opened = async {
            let connection = Connection::open(started, limit).await?;
            let tools = connection.live.list_tools(limit).await?;
            Ok((connection, tools))
        };
        let (connection, tools) = match opened.await {
            Ok(opened) => opened,
            Err(error) => return Err(self.why_mute(error).await),
        };
        server.connected(Arc::clone(&connection.live), tools);
        Ok(connection)
    }

    /// Boxes that are switched on but not there yet are waited for; never is anything started on the host instead.
    async fn wait_for_boxes(&self) -> Result<(), PhaseError> {
        let limit = self.server.startup_limit();
        let deadline = Instant::now() + limit;
        let mut said = false;
        loop {
            match self.start.availability().await {
                Ok(()) => return Ok(()),
                Err(error) if error.message == DISABLED => {
                    return Err(PhaseError::new(Phase::BoxUnavailable, error.message));
                }
                Err(error) => {
                    if Instant::now() >= deadline {
                        let message =
                            format!("Box runtime is not available after {} seconds", limit.as_secs());
                        return Err(PhaseError::new(Phase::BoxUnavailable, message));
                    }
                    if !said {
                        tracing::warn!(server = self.server.name(), %error, "MCP server waits for boxes");
                        said = true;
                    }
                }
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn boxes_are_back(&self) {
        while self.start.availability().await.is_err() {
            tokio::time::sleep(REFUSED_POLL).await;
        }
    }

    /// Returns when the server is no longer what it should be.
    async fn watch(&self, connection: Connection) -> PhaseError {
        let Connection { service, tools_changed, library, live } = connection;
        let mut closed = pin!(service.waiting());
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut blind = 0;
        loop {
            tokio::select! {
                _ = closed.as_mut() => return self.why_closed().await,
                () = tools_changed.notified() => match live.list_tools(self.server.startup_limit()).await {
                    Ok(tools) => self.server.set_tools(tools),
                    Err(error) => {
                        tracing::warn!(server = self.server.name(), %error, "the changed tools cannot be listed");
                    }
                },
                () = library.changed.notified() => self.server.changed(),
                _ = looks.tick() => match self.look().await {
                    Ok(Life::Running) => blind = 0,
                    Ok(Life::Exited { .. }) => return PhaseError::new(Phase::Runtime, EXITED),
                    Err(error) => {
                        blind += 1;
                        tracing::debug!(server = self.server.name(), %error, blind, "MCP server cannot be looked at");
                        if blind >= MOST_BLIND_LOOKS {
                            return PhaseError::new(Phase::Runtime, EXITED);
                        }
                    }
                },
            }
        }
    }

    async fn look(&self) -> Result<Life, PhaseError> {
        let late = || PhaseError::new(Phase::Runtime, "the look at the process took too long");
        tokio::time::timeout(LOOK, self.start.look(&self.server.identity))
            .await
            .unwrap_or_else(|_| Err(late()))
    }

    /// A server that ended before it answered says more by its end than by its silence.
    async fn why_mute(&self, error: PhaseError) -> PhaseError {
        let Ok(Life::Exited { code }) = self.look().await else { return error };
        let log = tokio::time::timeout(LAST_WORDS, self.start.log(&self.server.identity)).await;
        let log = log.ok().and_then(Result::ok).unwrap_or_default();
        let last = log.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        let last: String = last.chars().take(LAST_LINE_CHARS).collect();
        // As a shell has it: the program is not there, or is none.
        let phase = if matches!(code, Some(126 | 127)) { Phase::ProcessStart } else { error.phase };
        let code = code.map_or("unknown".to_owned(), |code| code.to_string());
        PhaseError::new(phase, format!("the server ended before it answered (exit code {code}): {last}"))
    }

    async fn why_closed(&self) -> PhaseError {
        let lost = "the connection to the server was lost while its process runs";
        match self.look().await {
            Ok(Life::Running) => PhaseError::new(Phase::Runtime, lost),
            Ok(Life::Exited { .. }) | Err(_) => PhaseError::new(Phase::Runtime, EXITED),
        }
    }

    async fn keep_last_words(&self) {
        let log = tokio::time::timeout(LAST_WORDS, self.start.log(&self.server.identity)).await;
        if let Ok(Ok(log)) = log
            && !log.is_empty()
        {
            self.server.keep_log(log);
        }
    }
}
