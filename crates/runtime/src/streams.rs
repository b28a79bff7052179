//! Commands whose output is followed: streams and terminals.
//!
//! The runtime owns the command, not the client: a client that goes away finds its output again for a while.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use sandcrate_backend::{Command, ExecControl, ExecEvent, ExecExit, ExecRequest, Execution};
use sandcrate_protocol::{Timestamp, shell_word};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::RuntimeError;
use crate::output_log::{LogEnd, OutputLog, Pace, Subscription};
use crate::session::locked;

/// How long an ended command can still be followed.
const KEPT: Duration = Duration::from_secs(300);
/// Characters of a command that are shown with it: enough to know it again, and not a whole script for each.
const SHOWN_CHARS: usize = 200;

/// The name of a followed command, unique in its session.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct CommandId(pub String);

impl std::fmt::Display for CommandId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is known of a followed command.
#[derive(Debug, Clone)]
pub struct CommandView {
    pub id: CommandId,
    /// Its words, or its text for the shell, cut short. Never its environment.
    pub command: String,
    pub started_at: Timestamp,
    pub running: bool,
    pub pty: bool,
    pub exit: Option<ExecExit>,
    /// The id of the newest event there can be.
    pub newest_event: u64,
}

/// What is kept of the request that started a command.
#[derive(Debug)]
pub(crate) struct Started {
    command: String,
    pty: bool,
}

impl Started {
    pub(crate) fn of(request: &ExecRequest) -> Self {
        let mut command = match &request.command {
            Command::Shell(script) => script.chars().take(SHOWN_CHARS + 1).collect(),
            Command::Argv(words) => shown(words),
        };
        if let Some((cut, _)) = command.char_indices().nth(SHOWN_CHARS) {
            command.truncate(cut);
            command.push('…');
        }
        Self { command, pty: request.pty.is_some() }
    }
}

/// Words as a shell would take them.
fn shown(words: &[OsString]) -> String {
    let mut shown = String::new();
    for word in words {
        // More is cut off anyway.
        if shown.len() > 4 * SHOWN_CHARS {
            break;
        }
        if !shown.is_empty() {
            shown.push(' ');
        }
        shown.push_str(&shell_word(&word.to_string_lossy()));
    }
    shown
}

#[derive(Debug)]
pub(crate) struct Followed {
    id: CommandId,
    command: String,
    started_at: Timestamp,
    pty: bool,
    log: Arc<OutputLog>,
    control: mpsc::Sender<ExecControl>,
    stdin: Mutex<Option<mpsc::Sender<Bytes>>>,
    end: Mutex<Option<(Instant, LogEnd)>>,
}

impl Followed {
    fn new(id: CommandId, started: Started, execution: &mut Execution, log_bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            id,
            command: started.command,
            started_at: Timestamp::now(),
            pty: started.pty,
            log: OutputLog::new(log_bytes),
            control: execution.controller(),
            stdin: Mutex::new(execution.take_stdin()),
            end: Mutex::default(),
        })
    }

    /// To the end; how it ended, and what it wrote.
    async fn drive(self: Arc<Self>, mut execution: Execution) -> (LogEnd, u64) {
        let end = loop {
            match execution.next().await {
                Some(ExecEvent::Output(stream, data)) => self.log.append(stream, data).await,
                Some(ExecEvent::Denied(denial)) => self.log.deny(denial),
                Some(ExecEvent::Exit(exit)) => break LogEnd::Exit(exit),
                Some(ExecEvent::Failed(error)) => break LogEnd::Failed(error.into()),
                Some(_) => {}
                None => {
                    let gone = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
                    break LogEnd::Failed(RuntimeError::failed("waiting for the command", gone));
                }
            }
        };
        locked(&self.stdin).take();
        *locked(&self.end) = Some((Instant::now(), end.clone()));
        self.log.finish(end.clone());
        (end, self.log.written())
    }

    pub(crate) fn is_running(&self) -> bool {
        locked(&self.end).is_none()
    }

    pub(crate) fn view(&self) -> CommandView {
        let end = locked(&self.end);
        let exit = match &*end {
            Some((_, LogEnd::Exit(exit))) => Some(exit.clone()),
            _ => None,
        };
        CommandView {
            id: self.id.clone(),
            command: self.command.clone(),
            started_at: self.started_at,
            running: end.is_none(),
            pty: self.pty,
            exit,
            newest_event: self.log.written() + u64::from(end.is_some()),
        }
    }

    pub(crate) fn follow(&self, after: Option<u64>) -> Subscription {
        self.log.reader(after, Pace::Waited)
    }

    pub(crate) async fn write(&self, data: Bytes) -> bool {
        let stdin = locked(&self.stdin).clone();
        match stdin {
            Some(stdin) => stdin.send(data).await.is_ok(),
            None => false,
        }
    }

    pub(crate) fn close_stdin(&self) {
        locked(&self.stdin).take();
    }

    pub(crate) async fn control(&self, control: ExecControl) -> bool {
        if matches!(control, ExecControl::Kill | ExecControl::Terminate { .. }) {
            self.log.hurry();
        }
        self.control.send(control).await.is_ok()
    }
}

/// The followed commands of one session.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    commands: Mutex<Commands>,
}

#[derive(Debug, Default)]
struct Commands {
    by_id: BTreeMap<u64, Arc<Followed>>,
    next: u64,
}

impl Streams {
    /// Fails when as many run, or are kept, as may.
    pub(crate) fn check_room(&self, limit: usize) -> Result<(), RuntimeError> {
        let mut commands = locked(&self.commands);
        commands.forget_old(limit);
        let running = commands.by_id.values().filter(|command| command.is_running()).count();
        if running >= limit {
            return Err(RuntimeError::LimitExceeded {
                what: "another streamed command in this session".to_owned(),
                limit: format!("{limit} (limits.commands)"),
            });
        }
        Ok(())
    }

    /// Takes a started command over; the task keeps it until its end.
    pub(crate) fn add(
        &self,
        started: Started,
        mut execution: Execution,
        log_bytes: usize,
    ) -> (CommandId, impl Future<Output = (LogEnd, u64)> + use<>) {
        let mut commands = locked(&self.commands);
        commands.next += 1;
        let number = commands.next;
        let id = CommandId(number.to_string());
        let followed = Followed::new(id.clone(), started, &mut execution, log_bytes);
        commands.by_id.insert(number, Arc::clone(&followed));
        (id, followed.drive(execution))
    }

    pub(crate) fn get(&self, id: &CommandId) -> Option<Arc<Followed>> {
        let number: u64 = id.0.parse().ok()?;
        locked(&self.commands).by_id.get(&number).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Followed>> {
        locked(&self.commands).by_id.values().cloned().collect()
    }

    pub(crate) fn any_running(&self) -> bool {
        locked(&self.commands).by_id.values().any(|command| command.is_running())
    }

    /// Forgets ended commands that nobody came back for.
    pub(crate) fn forget_old(&self, limit: usize) {
        locked(&self.commands).forget_old(limit);
    }
}

impl Commands {
    fn forget_old(&mut self, limit: usize) {
        self.by_id.retain(|_, command| match &*locked(&command.end) {
            Some((at, _)) => at.elapsed() < KEPT,
            None => true,
        });
        // Oldest first: the map is in order of their start.
        let ended: Vec<u64> = self
            .by_id
            .iter()
            .filter(|(_, command)| !command.is_running())
            .map(|(number, _)| *number)
            .collect();
        for number in ended.iter().take(ended.len().saturating_sub(limit)) {
            self.by_id.remove(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_a_shell_takes_it_and_cut_short() {
        let argv = ExecRequest::argv(["sh", "-c", "echo it's"]);
        assert_eq!(Started::of(&argv).command, r"sh -c 'echo it'\''s'");
        assert_eq!(Started::of(&ExecRequest::shell("make all")).command, "make all");
        let long = Started::of(&ExecRequest::shell("ä".repeat(5000))).command;
        assert_eq!(long, format!("{}…", "ä".repeat(SHOWN_CHARS)));
        let many = Started::of(&ExecRequest::argv(vec!["x"; 100_000])).command;
        assert_eq!(many.chars().count(), SHOWN_CHARS + 1);
    }
}
