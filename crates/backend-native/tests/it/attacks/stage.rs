//! Boxes for attacks: the suite's limits, the attack program inside, and a way to say what was seen.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use sandcrate_backend::conformance::Check;
use sandcrate_backend::{
    Backend, BackendError, Collected, DiskLimit, ExecRequest, ExitStatus, FileReply, FileRequest, Mount,
    MountAccess, RootAccess, SessionId, SessionInfo, SessionSpec,
};
use sandcrate_backend_native::NativeBackend;
use tokio::sync::{OnceCell, RwLock};
use tokio::time::{Instant, timeout};

use super::host::{Host, place_probe};

/// Returns an error with the message unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $($message:tt)+) => {
        if !$holds {
            return Err(format!($($message)+));
        }
    };
}
pub(crate) use ensure;

pub(crate) const MEMORY: u64 = 128 << 20;
pub(crate) const PIDS: u32 = 64;
pub(crate) const QUOTA: u64 = 64 << 20;
pub(crate) const PROBE: &str = "/opt/probe/probe";
/// Longer than the probe's own alarm of 20 s.
const ATTACK_LIMIT: Duration = Duration::from_secs(40);
/// For what takes no time on an idle machine, on a loaded one.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// An attack writes a line per attempt; none has more than a few thousand.
const KEEP_BYTES: usize = 4 << 20;

/// What all trials share.
pub(crate) struct Stage {
    pub(crate) backend: Arc<NativeBackend>,
    pub(crate) host: Host,
    /// Held for writing by trials that measure time, for reading by all others.
    pub(crate) quiet: RwLock<()>,
    probe: OnceCell<PathBuf>,
}

impl Stage {
    pub(crate) fn new(backend: Arc<NativeBackend>, host: Host) -> Self {
        Self { backend, host, quiet: RwLock::new(()), probe: OnceCell::new() }
    }

    /// The host's directory with the attack program; made by the first trial that needs it.
    pub(crate) async fn probe(&self) -> Result<PathBuf, String> {
        let scratch = self.host.scratch.clone();
        let place = || async {
            tokio::task::spawn_blocking(move || place_probe(&scratch)).await.map_err(|e| e.to_string())?
        };
        self.probe.get_or_try_init(place).await.cloned()
    }

    /// A session with the suite's limits and the attack program at /opt/probe.
    pub(crate) async fn spec(&self) -> Result<SessionSpec, String> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let id = SessionId::new(format!("attack-{}-{count}", std::process::id()))
            .map_err(|error| error.to_string())?;
        let mut spec = SessionSpec::new(id);
        spec.limits.memory_bytes = MEMORY;
        spec.limits.pids = PIDS;
        spec.limits.cpu_millis = 1000;
        spec.limits.disk = DiskLimit::Hard(QUOTA);
        spec.mounts = vec![Mount::new(self.probe().await?, "/opt/probe", MountAccess::ReadOnly)];
        Ok(spec)
    }

    pub(crate) async fn open(&self, root: RootAccess) -> Result<AttackBox, String> {
        let mut spec = self.spec().await?;
        spec.root = root;
        self.open_spec(spec).await
    }

    pub(crate) async fn open_spec(&self, spec: SessionSpec) -> Result<AttackBox, String> {
        let backend = Arc::clone(&self.backend);
        let info = backend.start(spec).await.map_err(|error| format!("start: {}", chain(&error)))?;
        Ok(AttackBox { backend, info })
    }
}

/// A live session under attack. The trial stops it; one that fails leaves that to the backend's shutdown.
pub(crate) struct AttackBox {
    pub(crate) backend: Arc<NativeBackend>,
    pub(crate) info: SessionInfo,
}

impl AttackBox {
    pub(crate) async fn outcome(&self, request: ExecRequest) -> Result<Collected, BackendError> {
        self.backend.exec(&self.info.id, request).await?.collect(KEEP_BYTES).await
    }

    pub(crate) async fn run(&self, request: ExecRequest) -> Result<Collected, String> {
        self.outcome(request).await.map_err(|error| format!("exec: {}", chain(&error)))
    }

    /// Runs an attack to its verdict.
    pub(crate) async fn attack(&self, name: &str, arguments: &[String]) -> Result<Attacked, String> {
        let argv = [PROBE, name].into_iter().map(str::to_owned).chain(arguments.iter().cloned());
        let result = self.run(ExecRequest::argv(argv).timeout(ATTACK_LIMIT)).await?;
        Ok(Attacked { output: String::from_utf8_lossy(&result.stdout).into_owned(), result })
    }

    /// The standard output of a script that must succeed, without the last newline.
    pub(crate) async fn text(&self, script: &str) -> Result<String, String> {
        let result = self.run(ExecRequest::shell(script).timeout(ATTACK_LIMIT)).await?;
        let (out, err) = (String::from_utf8_lossy(&result.stdout), String::from_utf8_lossy(&result.stderr));
        ensure!(result.exit.status == ExitStatus::Code(0), "{script:?} ended with {:?}: {err}", result.exit);
        Ok(out.trim_end_matches('\n').to_owned())
    }

    pub(crate) async fn file(&self, request: FileRequest) -> Result<FileReply, BackendError> {
        let limit = PATIENCE;
        let late = |_| Err(BackendError::Timeout { what: "a file operation".to_owned(), limit });
        timeout(limit, self.backend.files(&self.info.id, request)).await.unwrap_or_else(late)
    }

    pub(crate) async fn write(&self, path: &str, data: &'static [u8]) -> Result<FileReply, BackendError> {
        self.file(FileRequest::Write { path: path.to_owned(), data: Bytes::from_static(data) }).await
    }

    /// After an attack on limits there may be no room for another command at once.
    pub(crate) async fn is_usable(&self) -> Check {
        let usable = || async {
            match self.outcome(ExecRequest::shell("echo usable")).await {
                Ok(result) if result.stdout == "usable\n" => Ok(Some(())),
                _ => Ok(None),
            }
        };
        eventually("the box is usable after the attack", usable).await
    }

    pub(crate) async fn stop(self) -> Check {
        self.backend.stop(&self.info.id).await.map_err(|error| format!("stop: {}", chain(&error)))
    }
}

/// What an attack said.
pub(crate) struct Attacked {
    pub(crate) output: String,
    pub(crate) result: Collected,
}

impl Attacked {
    /// The last line: `SAFE: …`, `INFO: …` or `UNSAFE: …`.
    pub(crate) fn verdict(&self) -> &str {
        self.output.lines().next_back().unwrap_or_default()
    }

    pub(crate) fn breaches(&self) -> impl Iterator<Item = &str> {
        self.output.lines().filter_map(|line| line.strip_prefix("breach: "))
    }

    /// Everything worth reading when a trial fails.
    pub(crate) fn told(&self) -> String {
        let breaches: Vec<_> = self.breaches().take(12).collect();
        let stderr = String::from_utf8_lossy(&self.result.stderr);
        format!("{} | {:?} | breaches {breaches:#?} | {}", self.verdict(), self.result.exit, stderr.trim())
    }
}

/// Polls until there is a value; an error of the probe ends the wait.
pub(crate) async fn eventually<T, F>(what: &str, probe: impl Fn() -> F) -> Result<T, String>
where
    F: Future<Output = Result<Option<T>, String>>,
{
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = probe().await? {
            return Ok(value);
        }
        ensure!(Instant::now() < deadline, "waited {} s in vain until {what}", PATIENCE.as_secs());
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
}

/// An error with its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
