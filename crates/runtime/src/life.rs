//! Boxes of sessions: made when they are needed, made anew when they died, ended with their session.
//!
//! Everything here happens at the session's gate, one at a time, and outside the table's lock.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sandcrate_backend::{
    Backend, BackendError, DiskLimit, ExecRequest, Execution, Limits, Mount, RootAccess, SessionId,
    SessionSpec, StartNotices, Strictness,
};
use sandcrate_protocol::{Control, MountMode, MountSpec};
use sandcrate_skills::Scope;
use tokio::time::Instant;

use crate::RuntimeError;
use crate::exec::is_gone;
use crate::mounts::MountPolicy;
use crate::records::{Durability, Record};
use crate::runtime::{Inner, Lost};
use crate::session::{LiveBox, Phase, Session, locked};
use crate::tenant::owner;

/// A box that dies between two looks is made again, but not for ever.
const ATTEMPTS: u32 = 3;

/// What boxes of workspaces with grants must have.
const ADMITTED: [Control; 8] = [
    Control::Namespaces,
    Control::Filesystem,
    Control::Network,
    Control::Memory,
    Control::Pids,
    Control::Cpu,
    Control::Disk,
    Control::Tmpfs,
];

impl Inner {
    /// The session's box, with these extra mounts if they are given: the one it has, or another.
    pub(crate) async fn ensure_live(
        self: &Arc<Self>,
        session: &Arc<Session>,
        mounts: Option<&[MountSpec]>,
    ) -> Result<Arc<LiveBox>, Lost> {
        let came = session.attempts.load(Ordering::Acquire);
        let mut gate = tokio::select! {
            gate = session.gate.lock() => gate,
            () = session.closing() => return Err(session.lost()),
        };
        if !session.is_open() {
            return Err(session.lost());
        }
        let live = session.live();
        if let Some(live) = &live
            && live.backend.is_alive(&session.id).await
        {
            match mounts {
                Some(wanted) if !same_mounts(wanted, &live.mounts) => {
                    // With a grant there is one session for everything; it is made anew.
                    let id = session.id.as_str();
                    if owner(id).is_some() && self.admission_of(id).is_none() {
                        return Err(Lost::Failed(RuntimeError::MountsDiffer));
                    }
                }
                _ => return Ok(Arc::clone(live)),
            }
        }
        if let Some((attempt, error)) = &gate.failure
            && *attempt > came
        {
            // Made while we waited, and failed: it would fail for us as well.
            return Err(Lost::Failed(error.clone()));
        }
        let attempt = session.attempts.fetch_add(1, Ordering::AcqRel) + 1;
        let made = tokio::select! {
            made = self.make_box(session, live, mounts) => made,
            // Dropping the attempt leaves nothing behind: the backend's contract.
            () = session.closing() => return Err(Lost::SessionGone),
        };
        match made {
            Ok(live) => {
                gate.failure = None;
                Ok(live)
            }
            Err(error) => {
                gate.failure = Some((attempt, error.clone()));
                self.metrics.session_start_failed();
                if !session.established.load(Ordering::Acquire) {
                    // It never was: the next request begins from nothing.
                    let _ = session.stillborn.set(error.clone());
                    session.phase.send_replace(Phase::Closed);
                    self.table.remove(session);
                }
                Err(Lost::Failed(error))
            }
        }
    }

    async fn make_box(
        &self,
        session: &Arc<Session>,
        live: Option<Arc<LiveBox>>,
        mounts: Option<&[MountSpec]>,
    ) -> Result<Arc<LiveBox>, RuntimeError> {
        let wanted = match (mounts, &live) {
            (Some(mounts), _) => mounts.iter().filter(|mount| !mount.is_artifact()).cloned().collect(),
            (None, Some(live)) => live.mounts.clone(),
            (None, None) => session.spec.extra_mounts.clone(),
        };
        let began = Instant::now();
        let alive = match live {
            Some(live) if live.backend.is_alive(&session.id).await => Some(live),
            Some(dead) => {
                tracing::info!(session.id = session.id.as_str(), "box died; making another");
                session.set_live(None);
                session.processes.clear();
                dead.backend.stop(&session.id).await?;
                None
            }
            None => None,
        };
        let backend = match (&alive, session.home.get()) {
            (Some(live), _) => Arc::clone(&live.backend),
            (None, Some(home)) => self.backends.named(home).await?,
            (None, None) => match &session.options.backend {
                Some(name) => self.backends.named(name).await?,
                None => self.backends.choose(&self.choice()).await?,
            },
        };
        let spec = self.box_spec(session, &wanted, backend.as_ref()).await?;
        let network = spec.network.clone();
        let info = match alive {
            Some(live) => {
                if session.processes.any_running() || session.streams.any_running() {
                    return Err(RuntimeError::SessionConflict {
                        session: session.id.to_string(),
                        field: "extra_mounts",
                        existing: describe(&live.mounts),
                    });
                }
                Self::check_network(backend.as_ref(), &network)?;
                self.account_last(session).await;
                session.set_live(None);
                match backend.restart(spec).await {
                    Ok(info) => info,
                    Err(error) => {
                        // Refused before the box was touched: it goes on as it was.
                        if backend.is_alive(&session.id).await {
                            session.set_live(Some(live));
                        }
                        return Err(error.into());
                    }
                }
            }
            None => {
                Self::check_network(backend.as_ref(), &network)?;
                self.start_on(&backend, spec).await?
            }
        };
        self.metrics.session_started(began.elapsed());
        let live = Arc::new(LiveBox { backend, info, mounts: wanted, network });
        session.set_live(Some(Arc::clone(&live)));
        if session.spec.persistent {
            self.save(session)?;
        }
        Ok(live)
    }

    /// Another box for a session whose kind of network changed; nothing runs in it.
    pub(crate) async fn remake(
        &self,
        session: &Arc<Session>,
        live: Arc<LiveBox>,
    ) -> Result<(), RuntimeError> {
        self.make_box(session, Some(live), None).await.map(drop)
    }

    async fn start_on(
        &self,
        backend: &Arc<dyn Backend>,
        spec: SessionSpec,
    ) -> Result<sandcrate_backend::SessionInfo, RuntimeError> {
        match backend.start(spec).await {
            Err(error @ BackendError::Unavailable { .. }) => {
                // Seen to be gone: the next request chooses again.
                self.backends.forget();
                self.metrics.set_backend(backend.name(), false);
                Err(error.into())
            }
            other => Ok(other?),
        }
    }

    /// What the backend is asked for.
    async fn box_spec(
        &self,
        session: &Session,
        extra_mounts: &[MountSpec],
        backend: &dyn Backend,
    ) -> Result<SessionSpec, RuntimeError> {
        let wanted = &session.spec;
        let quota_bytes = Some(wanted.workspace_quota_mb << 20).filter(|bytes| *bytes > 0);
        let admission = self.admission_of(session.id.as_str());
        let quota = match admission {
            Some(_) => quota_bytes.map(DiskLimit::Hard),
            None => quota_bytes.map(DiskLimit::Accounted),
        };
        let mut mounts = self.admit_mounts(session, extra_mounts, quota).await?;
        mounts.extend(self.artifact_mount(session).await?);
        let shared = wanted.host_path.is_some() && wanted.host_path_mode != MountMode::None;
        let mut spec = SessionSpec::new(session.id.clone());
        spec.network = self.network(&session.network(), session.publishes())?;
        spec.image = Some(wanted.image.clone());
        spec.root = root_access(wanted.read_only_rootfs);
        spec.limits = Limits {
            memory_bytes: wanted.memory_mb << 20,
            cpu_millis: cpu_millis(wanted.cpus),
            pids: u32::try_from(wanted.pids_limit).unwrap_or(u32::MAX),
            ..Limits::default()
        };
        if let Some(bytes) = quota_bytes
            && !shared
        {
            spec.limits.disk = match backend.capabilities().hard_disk_quota {
                true => DiskLimit::Hard(bytes),
                // The session's record says that it is counted.
                false => DiskLimit::Accounted(bytes),
            };
        }
        if admission.is_some() {
            // Nothing is let run that is weaker than what its host was told.
            spec.strictness = Strictness::Require(ADMITTED.to_vec());
            spec.limits.disk = DiskLimit::Hard(spec.limits.disk.bytes());
        }
        spec.mounts = mounts;
        let (notices, id) = (self.notices.clone(), session.id.to_string());
        // Nobody may listen.
        spec.notices = StartNotices::new(move |notice| drop(notices.send((id.clone(), notice))));
        // /tmp is private without a mount.
        if !shared && wanted.mount_path != "/tmp" {
            spec.workspace.clone_from(&wanted.mount_path);
        }
        spec.workdir.clone_from(&wanted.workdir);
        if wanted.persistent {
            spec.storage = Some(self.records.files(session.id.as_str()));
        }
        Ok(spec)
    }

    /// The host's directories that the session asks for, as far as it may have them.
    async fn admit_mounts(
        &self,
        session: &Session,
        extra_mounts: &[MountSpec],
        quota: Option<DiskLimit>,
    ) -> Result<Vec<Mount>, RuntimeError> {
        let wanted = &session.spec;
        // The usual session asks for none, and need not wait for another thread.
        if wanted.host_path.is_none() && extra_mounts.is_empty() {
            return Ok(Vec::new());
        }
        let policy = self.mount_policy(session.id.as_str());
        let own = MountPolicy { own_root: session.options.own_root.clone(), ..policy.clone() };
        let (host_path, mode, target) =
            (wanted.host_path.clone(), wanted.host_path_mode, wanted.mount_path.clone());
        // Whoever made the session may mount from its own directory. A later request is anybody's.
        let extra: Vec<_> =
            extra_mounts.iter().map(|mount| (mount.clone(), wanted.extra_mounts.contains(mount))).collect();
        // Off the async threads: the policy looks at the disk.
        let admitted = tokio::task::spawn_blocking(move || -> Result<Vec<Mount>, RuntimeError> {
            let mut mounts = Vec::new();
            if let Some(host_path) = &host_path {
                mounts.extend(policy.admit(host_path, &target, mode, quota)?);
            }
            for (mount, first_asked) in &extra {
                let policy = if *first_asked { &own } else { &policy };
                mounts.extend(policy.admit(&mount.host_path, &mount.mount_path, mount.mode, None)?);
            }
            Ok(mounts)
        });
        admitted
            .await
            .map_err(|error| RuntimeError::failed("checking mounts", std::io::Error::other(error)))?
    }

    pub(crate) fn mount_policy(&self, session: &str) -> MountPolicy {
        let roots = match &self.config.mount_roots {
            Some(roots) => Some(roots.clone()),
            None => Some(locked(&self.langbot).mount_roots.clone()).filter(|roots| !roots.is_empty()),
        };
        let own_state = self.config.state_dir.canonicalize().into_iter().collect();
        let scope =
            owner(session).map_or(Scope::Shared, |(workspace, _)| Scope::Tenant(workspace.to_owned()));
        MountPolicy { roots, own_state, skills: Some(self.skills.clone()), scope, own_root: None }
    }

    /// The box of a session that is there; for work that needs no other mounts.
    pub(crate) async fn live_or_gone(
        self: &Arc<Self>,
        session: &Arc<Session>,
    ) -> Result<Arc<LiveBox>, RuntimeError> {
        match self.ensure_live(session, None).await {
            Ok(live) => Ok(live),
            Err(Lost::Failed(error)) => Err(error),
            Err(Lost::SessionGone) => Err(RuntimeError::SessionNotFound { session: session.id.to_string() }),
        }
    }

    /// Starts a command outside the queue.
    pub(crate) async fn start_in(
        self: &Arc<Self>,
        session: &Arc<Session>,
        request: ExecRequest,
    ) -> Result<Execution, RuntimeError> {
        let request = session.with_env(request);
        let mut tries = 0;
        loop {
            tries += 1;
            let live = self.live_or_gone(session).await?;
            match live.backend.exec(&session.id, request.clone()).await {
                Err(error) if is_gone(&error) && tries < ATTEMPTS => {}
                Err(error) if is_gone(&error) => return Err(self.ended(session, &error)),
                other => return Ok(other?),
            }
        }
    }

    /// Ends a session for good, and waits until it is gone. Whoever comes second waits for the first.
    pub(crate) async fn close(self: &Arc<Self>, session: Arc<Session>) {
        self.close_in_background(Arc::clone(&session));
        session.closed().await;
    }

    pub(crate) fn close_in_background(self: &Arc<Self>, session: Arc<Session>) {
        let first = session.phase.send_if_modified(|phase| {
            let open = *phase == Phase::Open;
            if open {
                *phase = Phase::Closing;
            }
            open
        });
        if first {
            let runtime = Arc::clone(self);
            // Of its own: whoever asked may not wait for the end.
            self.tasks.spawn(async move {
                session.ports.end().await;
                runtime.stop_box(&session).await;
                runtime.forget_artifacts(&session).await;
                if session.spec.persistent {
                    runtime.forget(&session).await;
                }
                runtime.table.remove(&session);
                session.phase.send_replace(Phase::Closed);
            });
        }
    }

    async fn stop_box(&self, session: &Arc<Session>) {
        let _gate = session.gate.lock().await;
        let backend = match session.live() {
            Some(live) => {
                self.account_last(session).await;
                Some(Arc::clone(&live.backend))
            }
            // A box that could not be made anew has left its files.
            None => session.home.get().and_then(|home| self.backends.find(home)),
        };
        if let Some(backend) = backend {
            if let Err(error) = backend.stop(&session.id).await {
                tracing::warn!(
                    session.id = session.id.as_str(),
                    error = &error as &dyn std::error::Error,
                    "a session did not end cleanly"
                );
            }
            session.set_live(None);
        }
        session.tasks.close();
        session.tasks.wait().await;
        session.tasks.reopen();
        session.processes.clear();
    }

    /// A command that timed out takes its box along; a persistent session keeps its files and sleeps.
    pub(crate) async fn end_after_timeout(self: &Arc<Self>, session: &Arc<Session>) {
        if session.spec.persistent {
            self.stop_box(session).await;
        } else {
            self.close(Arc::clone(session)).await;
        }
    }

    /// At the end of the runtime: persistent sessions sleep, the others go.
    pub(crate) async fn put_away(self: &Arc<Self>, session: Arc<Session>) {
        if session.spec.persistent {
            session.ports.end().await;
            self.stop_box(&session).await;
            if let Err(error) = self.write(&session, Durability::Machine) {
                tracing::warn!(session.id = session.id.as_str(), %error, "a session's record is not up to date");
            }
        } else {
            self.close(session).await;
        }
    }

    /// A session that got a box, or other rules.
    pub(crate) fn save(&self, session: &Session) -> Result<(), RuntimeError> {
        let durability =
            if session.options.ends_with_server { Durability::Server } else { Durability::Machine };
        self.write(session, durability)
    }

    fn write(&self, session: &Session, durability: Durability) -> Result<(), RuntimeError> {
        let home = session.home.get().map_or("", String::as_str);
        let used = session.clock.last_used_at();
        let record = Record::new(session, home, used);
        // A small file, written rarely: when a persistent session gets a box.
        self.records
            .save(session.id.as_str(), &record, durability)
            .map_err(|error| RuntimeError::failed("recording a persistent session", error))
    }

    /// Its files by the backend, which knows what is in them; then its record.
    async fn forget(self: &Arc<Self>, session: &Session) {
        let id = session.id.as_str();
        if let Some(backend) = session.home.get().and_then(|home| self.backends.find(home))
            && let Err(error) = backend.remove_storage(&self.records.files(id)).await
        {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(session.id = id, error, "a session's files cannot be removed");
        }
        let (runtime, name) = (Arc::clone(self), id.to_owned());
        let removed = tokio::task::spawn_blocking(move || runtime.records.remove(&name)).await;
        if let Ok(Err(error)) = removed {
            tracing::warn!(session.id = id, %error, "a session's record cannot be removed");
        }
    }

    /// Brings a recorded session back to mind; its box is made when it is used.
    pub(crate) fn restore(&self, record: &Record) {
        let Ok(id) = SessionId::new(record.spec.session_id.clone()) else { return };
        self.table.restore(|number| {
            let mut session = Session::new(id, number, &record.spec, record.options());
            session.swap_network(record.network());
            session.created_at = record.created_at;
            session.clock = Arc::new(crate::session::Clock::new(record.last_used_at));
            session.established.store(true, Ordering::Release);
            let _ = session.home.set(record.backend.clone());
            session
        });
    }
}

/// A thousandth of a CPU is the least a box can have.
pub(crate) fn cpu_millis(cpus: f64) -> u32 {
    // Saturates: a cast of a float does not wrap.
    ((cpus * 1000.0).round() as u32).max(1)
}

pub(crate) fn root_access(read_only: bool) -> RootAccess {
    if read_only { RootAccess::ReadOnly } else { RootAccess::Writable }
}

/// The same mounts, in whatever order. Those named by their content are not what a box is made of.
fn same_mounts(wanted: &[MountSpec], had: &[MountSpec]) -> bool {
    let compared = |mounts: &'_ [MountSpec]| mounts.iter().filter(|mount| !mount.is_artifact()).count();
    compared(wanted) == compared(had)
        && wanted.iter().filter(|mount| !mount.is_artifact()).all(|mount| had.contains(mount))
}

fn describe(mounts: &[MountSpec]) -> String {
    let shown: Vec<_> =
        mounts.iter().map(|mount| format!("{}:{}", mount.mount_path, mount.mode.as_str())).collect();
    format!("[{}] while processes run in it", shown.join(", "))
}
