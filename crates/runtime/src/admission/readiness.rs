//! Whether this machine holds what workspaces with grants are promised: fourteen checks, each looked at.
//!
//! A box is made as theirs are and attacked from inside ([`Backend::examine`]); what is not found to hold counts as
//! not held. The answer is kept for as long as the policy says.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sandcrate_backend::{
    Backend, DiskLimit, Examination, Examined, Limits, Mount, Promise, SessionId, SessionSpec,
};
use sandcrate_protocol::{AdmissionPolicy, DEFAULT_IMAGE, DEFAULT_WORKDIR, MountMode};
use serde::ser::{Serialize, SerializeMap, Serializer};
use tokio::time::Instant;

use super::Rule;
use crate::life::{cpu_millis, root_access};
use crate::runtime::{Inner, Runtime};

/// The shortest time that an answer counts: everybody may ask, and each look makes a box.
const LEAST_CACHE: Duration = Duration::from_secs(1);
const WORKSPACE_BYTES: u64 = 1 << 20;
/// What goes with a quota of that size.
const WORKSPACE_INODES: u64 = 256;
const EPHEMERAL_BYTES: u64 = 2 << 20;
const PLACE: &str = ".sandcrate-probe-";
/// One that is older was left by a runtime that was killed.
const LEFT_AFTER: Duration = Duration::from_secs(600);

/// Whether sessions can be had. Fields in the order of the wire.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Readiness {
    pub ready: bool,
    pub mode: &'static str,
    pub backend: ReadyBackend,
    pub checks: Checks,
    /// Nothing here takes a soft bound for a hard one.
    pub unsafe_soft_storage_limits: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ReadyBackend {
    pub name: Option<String>,
    pub available: bool,
    /// Why a check that was looked at does not hold.
    pub details: BTreeMap<&'static str, String>,
}

/// By name, in the order of the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checks(Vec<(&'static str, bool)>);

impl Serialize for Checks {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, holds) in &self.0 {
            map.serialize_entry(name, holds)?;
        }
        map.end()
    }
}

impl Readiness {
    /// What a call is told that came too early, if it did.
    pub fn refusal(&self) -> Option<String> {
        let failed: Vec<&str> =
            self.checks.0.iter().filter(|(_, holds)| !holds).map(|(name, _)| *name).collect();
        (!self.ready)
            .then(|| format!("Managed sandbox isolation is not ready (failed checks: {})", failed.join(", ")))
    }

    /// Where nothing is required but a backend.
    fn standard(name: Option<String>, available: bool) -> Self {
        Self {
            ready: available,
            mode: "standard",
            backend: ReadyBackend { name, available, details: BTreeMap::new() },
            checks: Checks(vec![("backend_available", available)]),
            unsafe_soft_storage_limits: false,
            error: (!available).then(|| "no backend is available".to_owned()),
        }
    }
}

/// Names of the checks that a look from inside answers.
const EXAMINED: [(&str, Promise); 8] = [
    ("cgroup_v2", Promise::CgroupV2),
    ("namespace_isolation", Promise::Namespaces),
    ("mount_isolation", Promise::Mounts),
    ("network_isolation", Promise::Network),
    ("hard_workspace_quota", Promise::WorkspaceQuota),
    ("hard_read_only_mount_quota", Promise::ReadOnlyMounts),
    ("bounded_ephemeral_storage", Promise::EphemeralStorage),
    ("inode_quota", Promise::InodeQuota),
];

impl Runtime {
    /// Whether sessions of workspaces can be had now, and why not.
    pub async fn readiness(&self) -> Arc<Readiness> {
        let admission = &self.inner.admission;
        let Some(policy) = admission.policy() else {
            let status = self.backend_status().await;
            let name = self.inner.reported(status.name);
            return Arc::new(Readiness::standard(name, status.available));
        };
        let version = admission.version.load(Ordering::Acquire);
        let mut looked = admission.looked.lock().await;
        let lasts = policy.readiness_cache.max(LEAST_CACHE);
        if let Some(known) = &*looked
            && known.version == version
            && known.when.elapsed() < lasts
        {
            return Arc::clone(&known.found);
        }
        let inner = Arc::clone(&self.inner);
        // Of its own: a box that was made for it is ended, whether or not somebody still waits.
        let look = self.inner.tasks.spawn(async move { Arc::new(inner.look().await) });
        let found = look.await.unwrap_or_else(|error| {
            let mut failed = Readiness::standard(None, false);
            failed.error = Some(format!("looking at the machine failed: {error}"));
            Arc::new(failed)
        });
        *looked = Some(Looked { version, when: Instant::now(), found: Arc::clone(&found) });
        found
    }
}

/// An answer, and of which configuration.
#[derive(Debug)]
pub(super) struct Looked {
    version: u64,
    when: Instant,
    found: Arc<Readiness>,
}

impl Inner {
    async fn look(&self) -> Readiness {
        let status = self.backends.status(&self.choice()).await;
        let name = self.reported(status.name.clone());
        let Rule::Enforced { policy, fault } = self.admission.rule() else {
            return Readiness::standard(name, status.available);
        };
        let required = name.as_ref() == Some(&policy.required_backend);
        let workspace = self.workspace_root().await;
        let mut details = BTreeMap::new();
        let examined = match (&workspace, status.available && required) {
            // What is asked for has another name: nothing of it is to be had.
            (_, false) => None,
            (Err(_), true) => Some(Examined::nothing("there is no workspace to look at")),
            (Ok(root), true) => Some(self.examine(&policy, root).await),
        };
        let found = |promise| examined.as_ref().map(|examined| examined.broken(promise));
        let mut checks = vec![
            ("configuration", fault.is_none()),
            ("required_backend", required),
            ("workspace_mount", workspace.is_ok()),
            ("backend_available", required && status.available),
        ];
        for (name, promise) in EXAMINED {
            checks.push((name, found(promise) == Some(None)));
            if let Some(Some(why)) = found(promise) {
                details.insert(name, why.to_owned());
            }
        }
        checks.push(("session_cap", policy.max_sessions <= 1));
        checks.push(("managed_process_cap", policy.max_managed_processes == 0));
        let other_backend = || {
            let name = name.as_deref().unwrap_or("none");
            format!(
                "the host requires the backend {} and this is {name}; see langbot.report_backend_as",
                policy.required_backend
            )
        };
        let error = fault
            .or(workspace.err())
            .or_else(|| (!required).then(other_backend))
            .or_else(|| details.iter().next().map(|(check, why)| format!("{check}: {why}")));
        Readiness {
            ready: checks.iter().all(|(_, holds)| *holds),
            mode: "grant_enforced",
            backend: ReadyBackend { name, available: required && status.available, details },
            checks: Checks(checks),
            unsafe_soft_storage_limits: false,
            error,
        }
    }

    /// The directory of the workspaces, made when it is missing; or why they can have none.
    async fn workspace_root(&self) -> Result<PathBuf, String> {
        let root = crate::session::locked(&self.langbot).default_workspace.clone();
        let root = root.ok_or("Managed sandbox admission requires box.local.default_workspace")?;
        let policy = self.mount_policy("");
        let made = tokio::task::spawn_blocking(move || -> Result<PathBuf, String> {
            let text = root.to_str().ok_or("the default workspace is not UTF-8")?;
            let mount = policy.admit(text, DEFAULT_WORKDIR, MountMode::Rw, None);
            let mount = mount.map_err(|error| error.to_string())?.ok_or("it is not mounted")?;
            let cannot = |error: std::io::Error| {
                format!("Managed sandbox workspace {} cannot be used: {error}", mount.source.display())
            };
            make_directory(&mount.source).map_err(cannot)?;
            Ok(mount.source)
        });
        made.await.unwrap_or_else(|error| Err(format!("looking at the workspace failed: {error}")))
    }

    /// Makes a box like theirs on a directory beside theirs.
    async fn examine(&self, policy: &AdmissionPolicy, root: &Path) -> Examined {
        let place = {
            let root = root.to_owned();
            tokio::task::spawn_blocking(move || Place::make(&root)).await
        };
        let place = match place.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
            Ok(place) => place,
            Err(error) => return Examined::nothing(&format!("no directory can be made for it: {error}")),
        };
        let looked = match self.backends.choose(&self.choice()).await {
            Ok(backend) => self.examine_on(backend.as_ref(), policy, root, &place).await,
            Err(error) => Err(error.to_string()),
        };
        let mut examined = looked.unwrap_or_else(|why| Examined::nothing(&why));
        let unchanged = tokio::task::spawn_blocking(move || place.is_unchanged()).await;
        if !unchanged.unwrap_or(false) {
            examined.set(Promise::ReadOnlyMounts, Err("what is mounted read-only was changed".to_owned()));
        }
        if policy.workspace_quota_mb == 0 {
            let why = "box.admission.workspace_quota_mb is 0, so there is no quota to hold";
            examined.set(Promise::WorkspaceQuota, Err(why.to_owned()));
            examined.set(Promise::InodeQuota, Err(why.to_owned()));
        }
        examined
    }

    async fn examine_on(
        &self,
        backend: &dyn Backend,
        policy: &AdmissionPolicy,
        root: &Path,
        place: &Place,
    ) -> Result<Examined, String> {
        let id = place.name().to_owned();
        let mut spec = SessionSpec::new(SessionId::new(id.clone()).map_err(|error| error.to_string())?);
        let read_only = format!("{DEFAULT_WORKDIR}/.sandcrate-read-only");
        spec.image = Some(DEFAULT_IMAGE.to_owned());
        spec.root = root_access(policy.read_only_rootfs);
        spec.limits = Limits {
            // So little that what lies in memory, /dev/shm with an eighth of it, is bounded as the rest is here.
            memory_bytes: EPHEMERAL_BYTES * 8,
            cpu_millis: cpu_millis(policy.cpus),
            pids: u32::try_from(policy.pids_limit).unwrap_or(u32::MAX),
            tmp_bytes: EPHEMERAL_BYTES / 2,
            disk: DiskLimit::Hard(EPHEMERAL_BYTES),
            ..Limits::default()
        };
        let quota = Some(DiskLimit::Hard(WORKSPACE_BYTES));
        spec.mounts = self.admit_place(place, &read_only, quota).await?;
        let storage = self.records.files(&id);
        spec.storage = Some(storage.clone());
        let hidden = vec![root.to_owned(), self.config.state_dir.clone()];
        let examined = backend
            .examine(Examination {
                spec,
                workspace_bytes: WORKSPACE_BYTES,
                workspace_inodes: WORKSPACE_INODES,
                read_only,
                ephemeral_bytes: EPHEMERAL_BYTES,
                hidden,
            })
            .await;
        let removed = backend.remove_storage(&storage).await;
        // Its place in the records goes at the next start, if not now.
        let _ = self.records.remove(&id);
        removed.map_err(|error| error.to_string())?;
        examined.map_err(|error| error.to_string())
    }

    /// By the same rules as mounts of sessions.
    async fn admit_place(
        &self,
        place: &Place,
        read_only: &str,
        quota: Option<DiskLimit>,
    ) -> Result<Vec<Mount>, String> {
        let policy = self.mount_policy("");
        let wanted = [
            (place.directory.join(WORKSPACE), DEFAULT_WORKDIR.to_owned(), MountMode::Rw, quota),
            (place.directory.join(READ_ONLY), read_only.to_owned(), MountMode::Ro, None),
        ];
        let admitted = tokio::task::spawn_blocking(move || -> Result<Vec<Mount>, String> {
            let mut mounts = Vec::new();
            for (path, target, mode, quota) in wanted {
                let path = path.to_str().ok_or("the default workspace is not UTF-8")?;
                mounts.extend(policy.admit(path, &target, mode, quota).map_err(|error| error.to_string())?);
            }
            Ok(mounts)
        });
        admitted.await.unwrap_or_else(|error| Err(format!("checking mounts failed: {error}")))
    }
}

const WORKSPACE: &str = "workspace";
const READ_ONLY: &str = "read-only";
const KEPT: &[u8] = b"as it was\n";

/// Directories for one examination, gone with it.
#[derive(Debug)]
struct Place {
    directory: PathBuf,
}

impl Place {
    /// Blocks.
    fn make(root: &Path) -> std::io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        remove_left(root);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PLACE}{}-{number}", std::process::id());
        let place = Self { directory: root.join(name) };
        // One of an earlier process of that number.
        let _ = std::fs::remove_dir_all(&place.directory);
        for directory in ["", WORKSPACE, READ_ONLY] {
            DirBuilder::new().mode(0o755).create(place.directory.join(directory))?;
        }
        std::fs::write(place.directory.join(READ_ONLY).join(Examination::KEPT), KEPT)?;
        Ok(place)
    }

    fn name(&self) -> &str {
        self.directory.file_name().and_then(|name| name.to_str()).unwrap_or(PLACE)
    }

    fn is_unchanged(&self) -> bool {
        let directory = self.directory.join(READ_ONLY);
        let entries = std::fs::read_dir(&directory).map_or(0, Iterator::count);
        entries == 1 && std::fs::read(directory.join(Examination::KEPT)).is_ok_and(|kept| kept == KEPT)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What is left of it goes with a later one.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn remove_left(root: &Path) {
    for entry in std::fs::read_dir(root).into_iter().flatten().flatten() {
        let ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PLACE));
        let age = entry.metadata().and_then(|facts| facts.modified()).map(|when| when.elapsed());
        if ours && matches!(age, Ok(Ok(age)) if age > LEFT_AFTER) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// With the owner of the directory it is made in.
fn make_directory(path: &Path) -> std::io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        make_directory(parent)?;
        DirBuilder::new().mode(0o755).create(path)?;
        let owner = std::fs::metadata(parent)?;
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::lchown(path, Some(owner.uid()), Some(owner.gid()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_there_for_as_long_as_it_is_used() {
        let root = tempfile::tempdir().unwrap();
        let place = Place::make(root.path()).unwrap();
        assert!(place.is_unchanged());
        std::fs::write(place.directory.join(READ_ONLY).join("new"), "").unwrap();
        assert!(!place.is_unchanged());
        assert!(place.name().starts_with(PLACE));
        drop(place);
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_refusal_names_the_checks_that_fail() {
        let mut readiness = Readiness::standard(Some("x".to_owned()), true);
        assert_eq!(readiness.refusal(), None);
        readiness.checks = Checks(vec![("a", true), ("b", false), ("c", false)]);
        readiness.ready = false;
        let said = "Managed sandbox isolation is not ready (failed checks: b, c)";
        assert_eq!(readiness.refusal().as_deref(), Some(said));
        assert_eq!(serde_json::to_string(&readiness.checks).unwrap(), r#"{"a":true,"b":false,"c":false}"#);
    }
}
