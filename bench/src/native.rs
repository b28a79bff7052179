//! Our side: the native backend through the trait that servers use, called from tasks as a server calls it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use sandcrate_backend::{Backend, ExecRequest, ExitStatus, SessionId, SessionSpec};
use sandcrate_backend_native::{NativeBackend, NativeConfig};
use tokio::runtime::{Handle, Runtime};

/// One instance of the backend with a state directory of its own.
pub(crate) struct Native {
    pub(crate) runtime: Handle,
    pub(crate) backend: Arc<NativeBackend>,
    next: Arc<AtomicU64>,
    /// Removed last.
    _state: tempfile::TempDir,
}

impl Native {
    pub(crate) fn open(runtime: &Runtime, pool: usize) -> anyhow::Result<Self> {
        let state = tempfile::Builder::new().prefix("sandcrate-bench-").tempdir_in("/var/tmp")?;
        let config =
            NativeConfig { state_dir: state.path().to_owned(), pool, ..NativeConfig::for_this_user() };
        let backend = runtime.block_on(async {
            let backend = NativeBackend::open(config).await?;
            backend.probe().await.map(|()| backend)
        });
        let backend = Arc::new(backend.context("opening the native backend")?);
        Ok(Self { runtime: runtime.handle().clone(), backend, next: Arc::default(), _state: state })
    }

    /// Runs `work` as a task, where a server's request handlers run too.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = anyhow::Result<T>> + Send + 'static,
    ) -> anyhow::Result<T> {
        let task = self.runtime.spawn(work);
        self.runtime.block_on(task)?
    }

    pub(crate) fn next_id(&self) -> anyhow::Result<SessionId> {
        Ok(SessionId::new(format!("bench-{}", self.next.fetch_add(1, Ordering::Relaxed)))?)
    }

    /// A live session.
    pub(crate) fn session(&self) -> anyhow::Result<SessionId> {
        let (backend, id) = (Arc::clone(&self.backend), self.next_id()?);
        self.run(async move {
            backend.start(SessionSpec::new(id.clone())).await?;
            Ok(id)
        })
    }

    /// One command in a live session.
    pub(crate) fn exec(&self, session: &SessionId, request: &ExecRequest) -> anyhow::Result<Duration> {
        let (backend, session, request) = (Arc::clone(&self.backend), session.clone(), request.clone());
        self.run(async move {
            let started = Instant::now();
            exec(&*backend, &session, request).await?;
            Ok(started.elapsed())
        })
    }

    /// A session from nothing to its first result, and its end.
    pub(crate) fn life(&self) -> anyhow::Result<Life> {
        let (backend, id) = (Arc::clone(&self.backend), self.next_id()?);
        self.run(async move {
            let started = Instant::now();
            backend.start(SessionSpec::new(id.clone())).await?;
            let create = started.elapsed();
            exec(&*backend, &id, ExecRequest::argv(["true"])).await?;
            let first_exec = started.elapsed();
            let stopping = Instant::now();
            backend.stop(&id).await?;
            Ok(Life { create, first_exec, stop: stopping.elapsed() })
        })
    }

    pub(crate) fn close(self) {
        self.runtime.block_on(self.backend.shutdown());
    }
}

/// The times of one session.
pub(crate) struct Life {
    pub(crate) create: Duration,
    /// From the start of the creation.
    pub(crate) first_exec: Duration,
    pub(crate) stop: Duration,
}

/// Runs a command to its end; one that fails is no measurement.
pub(crate) async fn exec(
    backend: &dyn Backend,
    session: &SessionId,
    request: ExecRequest,
) -> anyhow::Result<()> {
    let collected = backend.exec(session, request).await?.collect(4096).await?;
    ensure!(
        collected.exit.status == ExitStatus::Code(0),
        "a measured command ended with {:?}",
        collected.exit.status
    );
    Ok(())
}
