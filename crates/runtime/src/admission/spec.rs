//! What a workspace with a grant may ask for: its own directory, read-only mounts, a command. The rest is the
//! policy's.

use std::collections::HashSet;
use std::path::Path;

use sandcrate_protocol::{AdmissionPolicy, BoxSpec, DEFAULT_IMAGE, DEFAULT_WORKDIR, MountMode, NetworkMode};

use crate::error::RuntimeError;
use crate::mounts::{MountPolicy, resolve};
use crate::runtime::Runtime;
use crate::tenant::Placement;

/// Read-only mounts of one request.
const MAX_MOUNTS: usize = 256;

impl Runtime {
    /// The request as its workspace may have it, its session named as in the table.
    pub async fn admitted_spec(&self, placement: &Placement, spec: BoxSpec) -> Result<BoxSpec, RuntimeError> {
        let policy = self.inner.admission.sound_policy()?;
        let id = placement.physical(&policy.logical_session_id)?;
        let root = self.default_workspace().ok_or_else(|| RuntimeError::NotReady {
            why: "Managed sandbox admission requires box.local.default_workspace".to_owned(),
        })?;
        let workspace = root.join("tenants").join(placement.workspace());
        let mounts = self.inner.mount_policy(&id);
        // Off the async threads: paths are resolved.
        let admitted =
            tokio::task::spawn_blocking(move || admit(spec, id, &policy, &workspace, &mounts)).await;
        admitted.map_err(|error| RuntimeError::failed("checking a request", std::io::Error::other(error)))?
    }

    /// The id in the table of the one session that a workspace has; another is refused.
    pub fn admitted_session(&self, placement: &Placement, logical: &str) -> Result<String, RuntimeError> {
        match self.inner.admission.policy() {
            Some(policy) if policy.logical_session_id != logical => {
                Err(RuntimeError::admission("Managed sandbox session_id is runtime-owned"))
            }
            _ => placement.physical(logical),
        }
    }
}

fn admit(
    spec: BoxSpec,
    session_id: String,
    policy: &AdmissionPolicy,
    workspace: &Path,
    mounts: &MountPolicy,
) -> Result<BoxSpec, RuntimeError> {
    if spec.network != NetworkMode::Off {
        return refused("Managed sandbox network access is disabled");
    }
    if spec.mount_path != DEFAULT_WORKDIR {
        return refused("Managed sandbox mount_path is runtime-owned");
    }
    if !is_below(&spec.workdir, DEFAULT_WORKDIR) {
        return refused("Managed sandbox workdir must stay under /workspace");
    }
    let resolved = |path: &Path| resolve(path).ok().map(|(path, _)| path);
    let workspace = resolved(workspace)
        .ok_or_else(|| RuntimeError::admission("Managed sandbox Workspace path cannot be resolved"))?;
    if let Some(host_path) = &spec.host_path
        && resolved(Path::new(host_path)).as_ref() != Some(&workspace)
    {
        return refused("Managed sandbox host_path is runtime-owned");
    }
    check_mounts(&spec, mounts)?;
    Ok(BoxSpec {
        session_id,
        network: NetworkMode::Off,
        image: DEFAULT_IMAGE.to_owned(),
        host_path: Some(workspace.display().to_string()),
        host_path_mode: MountMode::Rw,
        mount_path: DEFAULT_WORKDIR.to_owned(),
        persistent: true,
        timeout_sec: spec.timeout_sec.min(policy.max_timeout_sec),
        cpus: policy.cpus,
        memory_mb: policy.memory_mb,
        pids_limit: policy.pids_limit,
        read_only_rootfs: policy.read_only_rootfs,
        workspace_quota_mb: policy.workspace_quota_mb,
        ..spec
    })
}

fn check_mounts(spec: &BoxSpec, policy: &MountPolicy) -> Result<(), RuntimeError> {
    if spec.extra_mounts.len() > MAX_MOUNTS {
        let why = format!("Managed sandbox accepts at most {MAX_MOUNTS} read-only mounts");
        return Err(RuntimeError::Admission { why });
    }
    let mut targets = HashSet::new();
    for mount in &spec.extra_mounts {
        if mount.mode != MountMode::Ro {
            return refused("Managed sandbox additional mounts must be read-only");
        }
        let admitted = policy.admit(&mount.host_path, &mount.mount_path, mount.mode, None);
        let admitted = admitted.map_err(|error| RuntimeError::Admission {
            why: format!("Managed sandbox read-only mount source is refused: {error}"),
        })?;
        if !admitted.is_some_and(|mount| mount.source.is_dir()) {
            return refused("Managed sandbox read-only mount source is unavailable");
        }
        if !mount.is_artifact()
            && (mount.mount_path == DEFAULT_WORKDIR || !is_below(&mount.mount_path, DEFAULT_WORKDIR))
        {
            return refused("Managed sandbox additional mount targets must stay under /workspace");
        }
        if !targets.insert(&mount.mount_path) {
            return refused("Managed sandbox additional mount targets must be unique");
        }
    }
    Ok(())
}

/// Textual, but never by way of `..`.
fn is_below(path: &str, root: &str) -> bool {
    let rest = path.strip_prefix(root);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        && !path.split('/').any(|part| part == "..")
}

fn refused<T>(why: &'static str) -> Result<T, RuntimeError> {
    Err(RuntimeError::admission(why))
}

#[cfg(test)]
mod tests {
    use sandcrate_protocol::MountSpec;

    use super::*;

    struct Case {
        root: tempfile::TempDir,
    }

    impl Case {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            std::fs::create_dir_all(root.path().join("skill")).unwrap();
            std::fs::write(root.path().join("file"), "").unwrap();
            Self { root }
        }

        fn path(&self, name: &str) -> String {
            self.root.path().canonicalize().unwrap().join(name).display().to_string()
        }

        fn admit(&self, change: impl FnOnce(&mut BoxSpec)) -> Result<BoxSpec, String> {
            let mut spec = BoxSpec::new("whatever");
            spec.host_path = Some(self.path("default/tenants/ws-1"));
            change(&mut spec);
            let policy = AdmissionPolicy { workspace_quota_mb: 64, ..AdmissionPolicy::default() };
            let roots = Some(vec![self.root.path().to_owned()]);
            let mounts = MountPolicy { roots, ..MountPolicy::default() };
            let workspace = self.root.path().join("default/tenants/ws-1");
            admit(spec, "ws-1-g1-global".to_owned(), &policy, &workspace, &mounts)
                .map_err(|error| error.to_string())
        }
    }

    #[test]
    fn limits_are_those_of_the_policy_whatever_is_asked_for() {
        let case = Case::new();
        let admitted = case.admit(|spec| {
            spec.memory_mb = 9999;
            spec.cpus = 16.0;
            spec.pids_limit = 9999;
            spec.timeout_sec = 9999;
            spec.read_only_rootfs = false;
            spec.image = "other".to_owned();
            spec.cmd = "true".to_owned();
        });
        let admitted = admitted.unwrap();
        assert_eq!((admitted.memory_mb, admitted.pids_limit, admitted.timeout_sec), (512, 128, 120));
        assert_eq!((admitted.cpus, admitted.workspace_quota_mb, admitted.persistent), (1.0, 64, true));
        assert_eq!((admitted.session_id.as_str(), admitted.cmd.as_str()), ("ws-1-g1-global", "true"));
        assert!(admitted.read_only_rootfs && admitted.image == DEFAULT_IMAGE);
        let shorter = case.admit(|spec| (spec.timeout_sec, spec.host_path) = (5, None)).unwrap();
        assert_eq!(shorter.timeout_sec, 5);
        assert_eq!(shorter.host_path, Some(case.path("default/tenants/ws-1")));
    }

    #[test]
    fn what_is_not_the_callers_to_choose_is_refused_and_named() {
        let case = Case::new();
        let (skill, file) = (case.path("skill"), case.path("file"));
        let mount = |from: &str, to: &str, mode| MountSpec::new(from, to, mode);
        type Change = Box<dyn FnOnce(&mut BoxSpec)>;
        let cases: Vec<(Change, &str)> = vec![
            (Box::new(|spec| spec.network = NetworkMode::On), "network access is disabled"),
            (Box::new(|spec| spec.mount_path = "/x".to_owned()), "mount_path is runtime-owned"),
            (Box::new(|spec| spec.workdir = "/tmp".to_owned()), "workdir must stay under"),
            (Box::new(|spec| spec.workdir = "/workspace/../tmp".to_owned()), "workdir must stay under"),
            (Box::new(|spec| spec.host_path = Some("/tmp".to_owned())), "host_path is runtime-owned"),
        ];
        for (change, why) in cases {
            let refused = case.admit(change).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
        for (mounts, why) in [
            (vec![mount(&skill, "/workspace/s", MountMode::Rw)], "must be read-only"),
            (vec![mount("/etc", "/workspace/s", MountMode::Ro)], "source is refused"),
            (vec![mount(&file, "/workspace/s", MountMode::Ro)], "source is unavailable"),
            (vec![mount(&skill, "/opt/s", MountMode::Ro)], "targets must stay under"),
            (vec![mount(&skill, "/workspace", MountMode::Ro)], "targets must stay under"),
            (vec![mount(&skill, "/workspace/s", MountMode::Ro); 2], "targets must be unique"),
            (vec![mount(&skill, "/workspace/s", MountMode::Ro); 257], "at most 256"),
        ] {
            let refused = case.admit(|spec| spec.extra_mounts = mounts).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
        case.admit(|spec| spec.extra_mounts = vec![mount(&skill, "/workspace/s", MountMode::Ro)]).unwrap();
    }
}
