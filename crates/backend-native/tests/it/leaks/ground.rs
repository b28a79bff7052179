//! The ground of a case: one backend, boxes on it several at a time, and the kinds of boxes there are.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sandcrate_backend::conformance::Check;
use sandcrate_backend::{
    Backend, DiskLimit, ExecRequest, ExitStatus, Mount, MountAccess, RootAccess, SessionId, SessionSpec,
};
use sandcrate_backend_native::NativeBackend;
use tokio::task::JoinSet;

use super::census::{Census, back_to, settled};
use crate::attacks::stage::{chain, ensure};

pub(super) const POOL: usize = 2;
/// Enough to overlap starts, commands and stops on two processors.
const AT_A_TIME: usize = 6;

/// One backend in a process of its own.
pub(super) struct Ground {
    pub(super) backend: Arc<NativeBackend>,
    pub(super) scratch: PathBuf,
}

pub(super) fn fresh_spec() -> Result<SessionSpec, String> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let id = SessionId::new(format!("leak-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
    id.map(SessionSpec::new).map_err(|error| error.to_string())
}

/// Start, one command, stop.
pub(super) async fn live_and_die(backend: &NativeBackend, spec: SessionSpec) -> Check {
    let id = spec.id.clone();
    backend.start(spec).await.map_err(|error| format!("start: {}", chain(&error)))?;
    let exec = backend
        .exec(&id, ExecRequest::argv(["true"]))
        .await
        .map_err(|error| format!("exec: {}", chain(&error)))?;
    let result = exec.collect(4096).await.map_err(|error| format!("exec: {}", chain(&error)))?;
    ensure!(result.exit.status == ExitStatus::Code(0), "true ended with {:?}", result.exit);
    backend.stop(&id).await.map_err(|error| format!("stop: {}", chain(&error)))
}

impl Ground {
    /// `count` boxes, several at a time.
    pub(super) async fn boxes(
        &self,
        count: usize,
        furnish: impl Fn(&Ground, &mut SessionSpec) -> Check,
    ) -> Check {
        let mut running = JoinSet::new();
        for _ in 0..count {
            if running.len() >= AT_A_TIME {
                joined(running.join_next().await)?;
            }
            let mut spec = fresh_spec()?;
            furnish(self, &mut spec)?;
            let backend = Arc::clone(&self.backend);
            running.spawn(async move { live_and_die(&backend, spec).await });
        }
        while !running.is_empty() {
            joined(running.join_next().await)?;
        }
        Ok(())
    }

    pub(super) async fn settled(&self) -> Result<Census, String> {
        settled(&self.scratch, POOL).await
    }

    pub(super) async fn back_to(&self, before: &Census) -> Check {
        back_to(before, &self.scratch).await
    }
}

fn joined(task: Option<Result<Check, tokio::task::JoinError>>) -> Check {
    task.unwrap_or(Ok(Ok(()))).map_err(|error| error.to_string())?
}

pub(super) fn plain(_ground: &Ground, _spec: &mut SessionSpec) -> Check {
    Ok(())
}

pub(super) fn hard_quota(_ground: &Ground, spec: &mut SessionSpec) -> Check {
    spec.limits.disk = DiskLimit::Hard(16 << 20);
    Ok(())
}

pub(super) fn writable_root(_ground: &Ground, spec: &mut SessionSpec) -> Check {
    spec.root = RootAccess::Writable;
    Ok(())
}

pub(super) fn mounted(ground: &Ground, spec: &mut SessionSpec) -> Check {
    for (name, target, access) in [
        ("one", "/workspace", MountAccess::ReadWrite),
        ("two", "/mnt/two", MountAccess::ReadOnly),
        ("one", "/mnt/one/deep", MountAccess::ReadOnly),
    ] {
        let source = ground.scratch.join(name);
        std::fs::create_dir_all(&source).map_err(|error| error.to_string())?;
        spec.mounts.push(Mount::new(source, target, access));
    }
    Ok(())
}
