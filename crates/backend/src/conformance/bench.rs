//! What the cases are written with: sessions that are always stopped, short ways to run a command, assertions
//! that return what was seen, and polling with a deadline.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use sandcrate_protocol::ErrorKind;
use tokio::time::{Instant, timeout};

use super::live::Live;
use super::{Check, Harness};
use crate::{
    Backend, BackendError, Collected, ExecRequest, ExitStatus, FileReply, FileRequest, SessionId,
    SessionInfo, SessionSpec,
};

/// Returns an error with the message unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $($message:tt)+) => {
        if !$holds {
            return Err(format!($($message)+));
        }
    };
}

/// Returns an error with both values unless they are equal.
macro_rules! ensure_eq {
    ($seen:expr, $expected:expr, $what:expr) => {
        match (&$seen, &$expected) {
            (seen, expected) => ensure!(
                seen == expected,
                "{}: expected {}, saw {}",
                $what,
                $crate::conformance::bench::brief(expected),
                $crate::conformance::bench::brief(seen)
            ),
        }
    };
}

/// The cases of a family: its name, then groups of functions, each with what the group needs.
macro_rules! family {
    ($family:literal { $($needs:tt $($case:ident),+;)+ }) => {
        vec![$($($crate::conformance::Case {
            name: concat!($family, "::", stringify!($case)),
            needs: &$needs,
            run: |harness| Box::pin(async move {
                let bench = $crate::conformance::bench::Bench::new(harness);
                let outcome = bench.bounded($case(&bench)).await;
                bench.finish(outcome).await
            }),
        }),+),+]
    };
}

/// For what takes no time on an idle machine, on a loaded one.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// For a whole case: longer than any of its parts may take.
const CASE_LIMIT: Duration = Duration::from_secs(180);
/// What collected commands keep of each stream: more than any case writes, floods apart.
const KEEP_BYTES: usize = 16 << 20;

/// One case's workplace.
pub(super) struct Bench {
    pub(super) harness: Arc<dyn Harness>,
    pub(super) backend: Arc<dyn Backend>,
    started: Mutex<Vec<SessionId>>,
}

impl Bench {
    pub(super) fn new(harness: Arc<dyn Harness>) -> Self {
        let backend = harness.backend();
        Self { harness, backend, started: Mutex::default() }
    }

    /// A spec with the defaults and a fresh id. Its session is stopped when the case ends.
    pub(super) fn spec(&self) -> Result<SessionSpec, String> {
        Ok(self.spec_named(self.harness.fresh_session()?))
    }

    pub(super) fn spec_named(&self, id: SessionId) -> SessionSpec {
        self.started.lock().unwrap_or_else(PoisonError::into_inner).push(id.clone());
        SessionSpec::new(id)
    }

    /// A box with the defaults.
    pub(super) async fn start(&self) -> Result<TestBox, String> {
        self.start_spec(self.spec()?).await
    }

    pub(super) async fn start_spec(&self, spec: SessionSpec) -> Result<TestBox, String> {
        Self::start_on(&self.backend, spec).await
    }

    /// For tasks, which cannot borrow the bench.
    pub(super) async fn start_on(backend: &Arc<dyn Backend>, spec: SessionSpec) -> Result<TestBox, String> {
        let info = backend.start(spec).await.map_err(|error| format!("start: {}", chain(&error)))?;
        Ok(TestBox { backend: Arc::clone(backend), info })
    }

    pub(super) async fn bounded(&self, case: impl Future<Output = Check>) -> Check {
        let hung = |_| Err(format!("the case did not end within {} s", CASE_LIMIT.as_secs()));
        timeout(CASE_LIMIT, case).await.unwrap_or_else(hung)
    }

    /// Stops what the case started; what is left then is a failure of its own.
    pub(super) async fn finish(&self, outcome: Check) -> Check {
        let started = self.started.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut left = Ok(());
        for id in &started {
            let stopped = timeout(PATIENCE, self.backend.stop(id)).await;
            let stopped = stopped
                .map_err(|_| format!("stop of {id} did not end"))
                .and_then(|stop| stop.map_err(|error| format!("stop of {id}: {}", chain(&error))));
            left = left.and(stopped);
            let gone = || async {
                match self.harness.host_processes_of(id) {
                    None | Some(0) => Ok(Some(())),
                    Some(_) => Ok(None),
                }
            };
            left = left.and(eventually(&format!("no process of {id} is left on the host"), gone).await);
        }
        outcome.and(left)
    }
}

/// A live session.
#[derive(Clone)]
pub(super) struct TestBox {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) info: SessionInfo,
}

impl TestBox {
    /// Runs to the end; a failed start is the same whether it came at once or as an event.
    pub(super) async fn outcome(&self, request: ExecRequest) -> Result<Collected, BackendError> {
        self.backend.exec(&self.info.id, request).await?.collect(KEEP_BYTES).await
    }

    pub(super) async fn run(&self, request: ExecRequest) -> Result<Collected, String> {
        self.outcome(request).await.map_err(|error| format!("exec: {}", chain(&error)))
    }

    pub(super) async fn sh(&self, script: &str) -> Result<Collected, String> {
        self.run(ExecRequest::shell(script)).await
    }

    /// The standard output of a script that must succeed, without the last newline.
    pub(super) async fn text(&self, script: &str) -> Result<String, String> {
        text_of(&self.sh(script).await?)
    }

    pub(super) async fn live(&self, request: ExecRequest) -> Result<Live, String> {
        let execution = self.backend.exec(&self.info.id, request).await;
        let execution = execution.map_err(|error| format!("exec: {}", chain(&error)))?;
        Ok(Live::new(execution))
    }

    pub(super) async fn file(&self, request: FileRequest) -> Result<FileReply, BackendError> {
        match timeout(PATIENCE, self.backend.files(&self.info.id, request)).await {
            Ok(reply) => reply,
            Err(_) => Err(BackendError::Timeout { what: "a file operation".to_owned(), limit: PATIENCE }),
        }
    }

    pub(super) async fn write(&self, path: &str, data: impl Into<Bytes>) -> Check {
        let request = FileRequest::Write { path: path.to_owned(), data: data.into() };
        self.file(request).await.map(drop).map_err(|error| format!("write {path}: {}", chain(&error)))
    }

    /// The whole content, by the file interface.
    pub(super) async fn read(&self, path: &str) -> Result<Bytes, BackendError> {
        let path = path.to_owned();
        match self.file(FileRequest::Read { path, offset: 0, limit: FileRequest::MAX_BYTES }).await? {
            FileReply::Data { data, .. } => Ok(data),
            other => Err(BackendError::invalid("reply to read", format!("is {other:?}"))),
        }
    }

    /// Whether the process lives, as another command of the box sees it; false when the whole box is gone.
    pub(super) async fn is_running(&self, pid: &str) -> Result<bool, String> {
        ensure!(pid.parse::<u32>().is_ok(), "{pid:?} is not a process id");
        let script = format!("if kill -0 {pid} 2> /dev/null; then echo lives; else echo gone; fi");
        match self.outcome(ExecRequest::shell(script)).await {
            Ok(result) => match text_of(&result)?.as_str() {
                "lives" => Ok(true),
                "gone" => Ok(false),
                other => Err(format!("looking for process {pid} gave {other:?}")),
            },
            Err(error) if error.kind() == ErrorKind::SessionNotFound => Ok(false),
            Err(error) => Err(chain(&error)),
        }
    }

    pub(super) async fn until_gone(&self, pid: &str) -> Check {
        let gone = || async { Ok((!self.is_running(pid).await?).then_some(())) };
        eventually(&format!("process {pid} is gone"), gone).await
    }

    pub(super) async fn stop(&self) -> Check {
        self.backend.stop(&self.info.id).await.map_err(|error| format!("stop: {}", chain(&error)))
    }
}

/// Polls until there is a value; an error of the probe ends the wait.
pub(super) async fn eventually<T, F>(what: &str, probe: impl Fn() -> F) -> Result<T, String>
where
    F: Future<Output = Result<Option<T>, String>>,
{
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = probe().await? {
            return Ok(value);
        }
        ensure!(Instant::now() < deadline, "waited {} s in vain until {what}", PATIENCE.as_secs());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Checks that an operation fails with the kind, and with a message that holds `naming`.
pub(super) fn fails<T>(what: &str, result: Result<T, BackendError>, kind: ErrorKind, naming: &str) -> Check {
    let Err(error) = result else {
        return Err(format!("{what}: expected {kind:?}, but it succeeded"));
    };
    ensure!(error.kind() == kind, "{what}: expected {kind:?}, saw {:?}: {}", error.kind(), chain(&error));
    ensure!(error.to_string().contains(naming), "{what}: the message does not name {naming:?}: {error}");
    Ok(())
}

/// The standard output of a command that must have succeeded, without the last newline.
pub(super) fn text_of(result: &Collected) -> Result<String, String> {
    ensure!(
        result.exit.status == ExitStatus::Code(0),
        "the command ended with {:?}; stdout {}, stderr {}",
        result.exit,
        brief(&result.stdout),
        brief(&result.stderr)
    );
    let text = String::from_utf8_lossy(&result.stdout).into_owned();
    Ok(text.strip_suffix('\n').map(str::to_owned).unwrap_or(text))
}

/// An error with its causes.
pub(super) fn chain(error: &BackendError) -> String {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    causes.fold(format!("{error}"), |text, cause| format!("{text}: {cause}"))
}

/// A value as it may stand in a message.
pub(super) fn brief(value: &(impl Debug + ?Sized)) -> String {
    const SHOWN_CHARS: usize = 600;
    let text = format!("{value:?}");
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((cut, _)) => format!("{}… ({} characters)", &text[..cut], text.len()),
        None => text,
    }
}
