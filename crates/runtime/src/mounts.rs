//! Which host directories a request may mount, and how they reach the backend.
//!
//! Every mount of every request goes through [`MountPolicy::admit`]. What is refused whatever the configuration
//! says is refused once more by the backend, on the directory it opened.

use std::path::{Component, Path, PathBuf};

use sandcrate_backend::{DiskLimit, Mount, MountAccess, refused_source};
use sandcrate_protocol::MountMode;
use sandcrate_skills::{Scope, Skills};

use crate::RuntimeError;

#[derive(Debug, Clone, Default)]
pub(crate) struct MountPolicy {
    /// `None`: nobody has set any yet.
    pub(crate) roots: Option<Vec<PathBuf>>,
    pub(crate) own_state: Vec<PathBuf>,
    /// A package of a skill may be mounted wherever the skills are, in our own state too.
    pub(crate) skills: Option<Skills>,
    /// Whose skills may be mounted, beside everybody's.
    pub(crate) scope: Scope,
    /// A directory of ours that this one session may mount from; see `SessionOptions::own_root`.
    pub(crate) own_root: Option<PathBuf>,
}

impl MountPolicy {
    /// The mount a backend is asked for; none when the mode is `none`.
    pub(crate) fn admit(
        &self,
        host_path: &str,
        target: &str,
        mode: MountMode,
        quota: Option<DiskLimit>,
    ) -> Result<Option<Mount>, RuntimeError> {
        let access = match mode {
            MountMode::None => return Ok(None),
            MountMode::Ro => MountAccess::ReadOnly,
            MountMode::Rw => MountAccess::ReadWrite,
        };
        let asked = Path::new(host_path);
        let deny = |rule: String| RuntimeError::MountDenied { path: asked.to_owned(), rule };
        if !asked.is_absolute() || asked.components().any(|part| part == Component::ParentDir) {
            return Err(deny("it must be absolute and without `..`".to_owned()));
        }
        let (resolved, exists) =
            resolve(asked).map_err(|error| deny(format!("it cannot be looked at: {error}")))?;
        let skills_root = self.skills.as_ref().and_then(|skills| skills.root_of(&self.scope, &resolved));
        let own_root = skills_root.or_else(|| self.own_root_of(&resolved));
        let own_state: &[PathBuf] = if own_root.is_some() { &[] } else { &self.own_state };
        if let Some(rule) = refused_source(&resolved, own_state) {
            return Err(deny(rule));
        }
        if self.skills.as_ref().is_some_and(|skills| skills.keeps(&self.scope, &resolved)) {
            return Err(deny("it belongs to the skill store".to_owned()));
        }
        // A skill that is not there is never made by mounting it.
        let made_by_mounting = own_root.is_none() && access == MountAccess::ReadWrite;
        let within = own_root.or_else(|| self.root_of(&resolved)).ok_or_else(|| deny(self.outside()))?;
        if !exists && !made_by_mounting {
            return Err(deny("it does not exist".to_owned()));
        }
        Ok(Some(Mount {
            source: resolved,
            target: target.to_owned(),
            access,
            quota: quota.filter(|_| access == MountAccess::ReadWrite),
            within: Some(within),
            create: !exists,
        }))
    }

    /// Not the root itself, which would show one box the files of another.
    fn own_root_of(&self, resolved: &Path) -> Option<PathBuf> {
        let root = self.own_root.as_ref()?.canonicalize().ok()?;
        let below = resolved.strip_prefix(&root).ok()?;
        (below.components().count() >= 2).then_some(root)
    }

    fn root_of(&self, resolved: &Path) -> Option<PathBuf> {
        let real = self.roots.iter().flatten().filter_map(|root| resolve(root).ok());
        let (mut root, exists) = real.into_iter().find(|(root, _)| resolved.starts_with(root))?;
        if !exists {
            // A host that has just been set up: its root is made with what is below it, in what is there.
            while !root.is_dir() {
                root = root.parent()?.to_owned();
            }
        }
        Some(root)
    }

    fn outside(&self) -> String {
        match &self.roots {
            Some(roots) if !roots.is_empty() => {
                let roots: Vec<_> = roots.iter().map(|root| root.display().to_string()).collect();
                format!("it is outside the allowed mount roots: {}", roots.join(", "))
            }
            _ => "no mount roots are configured; the operator can list them: [mounts] roots = [\"/path\"]"
                .to_owned(),
        }
    }
}

/// The path without links, as far as it exists; and whether all of it does.
pub(crate) fn resolve(path: &Path) -> std::io::Result<(PathBuf, bool)> {
    let mut missing = Vec::new();
    let mut known = path;
    loop {
        match known.canonicalize() {
            Ok(mut resolved) => {
                let exists = missing.is_empty();
                resolved.extend(missing.into_iter().rev());
                return Ok((resolved, exists));
            }
            // A dangling link is there, and leads nowhere.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !known.is_symlink() => {
                match (known.parent(), known.file_name()) {
                    (Some(parent), Some(name)) => {
                        missing.push(name.to_owned());
                        known = parent;
                    }
                    _ => return Err(error),
                }
            }
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(root: &Path) -> MountPolicy {
        MountPolicy { roots: Some(vec![root.to_owned()]), ..MountPolicy::default() }
    }

    fn refusal(policy: &MountPolicy, path: &Path) -> String {
        let admitted = policy.admit(path.to_str().unwrap(), "/workspace", MountMode::Rw, None);
        admitted.expect_err("must be refused").to_string()
    }

    #[test]
    fn a_root_that_is_not_there_yet_is_made_with_what_is_mounted_below_it() {
        let place = tempfile::tempdir().unwrap();
        let real = place.path().canonicalize().unwrap();
        let policy = policy(&place.path().join("data/box"));
        let below = place.path().join("data/box/default/w");
        let mount =
            policy.admit(below.to_str().unwrap(), "/workspace", MountMode::Rw, None).unwrap().unwrap();
        assert_eq!((mount.source, mount.create), (real.join("data/box/default/w"), true));
        assert_eq!(mount.within, Some(real));
        assert!(
            refusal(&policy, &place.path().join("data/other")).contains("outside the allowed mount roots")
        );
        assert!(refusal(&policy, &place.path().join("data")).contains("outside the allowed mount roots"));
        let read_only = policy.admit(below.to_str().unwrap(), "/workspace", MountMode::Ro, None);
        assert!(read_only.unwrap_err().to_string().contains("does not exist"));
    }

    #[test]
    fn a_directory_below_a_root_is_admitted_with_the_root_it_must_stay_in() {
        let root = tempfile::tempdir().unwrap();
        let real = root.path().canonicalize().unwrap();
        std::fs::create_dir(root.path().join("a")).unwrap();
        let path = root.path().join("a");
        let quota = DiskLimit::Accounted(5);
        let mount =
            policy(root.path()).admit(path.to_str().unwrap(), "/workspace", MountMode::Rw, Some(quota));
        let mount = mount.unwrap().unwrap();
        assert_eq!((mount.source, mount.within, mount.create), (real.join("a"), Some(real.clone()), false));
        assert_eq!(mount.quota, Some(quota));
        let fresh = root.path().join("b/c");
        let mount = policy(root.path()).admit(fresh.to_str().unwrap(), "/workspace", MountMode::Rw, None);
        assert!(mount.unwrap().unwrap().create, "a missing directory is made for a writer");
        assert!(
            policy(root.path()).admit(fresh.to_str().unwrap(), "/workspace", MountMode::Ro, None).is_err(),
            "and not for a reader"
        );
    }

    #[test]
    fn a_skill_is_mounted_wherever_the_skills_are_and_only_if_it_is_there() {
        let state = tempfile::tempdir().unwrap();
        let real = state.path().canonicalize().unwrap();
        std::fs::create_dir_all(real.join("skills/one")).unwrap();
        std::fs::create_dir_all(real.join("skills/.sandcrate/unfinished")).unwrap();
        std::fs::create_dir_all(real.join("sessions/x")).unwrap();
        let config = sandcrate_skills::SkillsConfig { root: real.join("skills"), ..Default::default() };
        let policy = MountPolicy {
            own_state: vec![real.clone()],
            skills: Some(Skills::new(config)),
            ..MountPolicy::default()
        };
        let one = real.join("skills/one");
        let mount = policy.admit(one.to_str().unwrap(), "/workspace/.skills/one", MountMode::Rw, None);
        let mount = mount.unwrap().unwrap();
        assert_eq!((mount.source, mount.within, mount.create), (one, Some(real.join("skills")), false));
        for bad in [
            "skills",
            "skills/.sandcrate",
            "skills/.sandcrate/unfinished",
            "sessions/x",
            "skills/../sessions",
        ] {
            let refused = refusal(&policy, &real.join(bad));
            assert!(refused.contains("own state") || refused.contains("`..`"), "{bad}: {refused}");
        }
        // Also where the root lies in a directory that may be mounted.
        let policy = MountPolicy { roots: Some(vec![real.clone()]), own_state: Vec::new(), ..policy };
        std::fs::create_dir_all(real.join("skills/tenants/t/one")).unwrap();
        for bad in ["skills/.sandcrate", "skills/tenants", "skills/tenants/t/one"] {
            assert!(refusal(&policy, &real.join(bad)).contains("belongs to the skill store"), "{bad}");
        }
        assert!(refusal(&policy, &real.join("skills/nope")).contains("does not exist"));
        assert!(!real.join("skills/nope").exists());
    }

    #[test]
    fn s2_s3_everything_outside_the_roots_is_refused_links_and_dots_included() {
        let root = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc", root.path().join("link")).unwrap();
        std::os::unix::fs::symlink("/var/nowhere", root.path().join("dangling")).unwrap();
        let policy = policy(root.path());
        assert!(refusal(&policy, Path::new("/")).contains("the host's root is never shared"));
        assert!(refusal(&policy, Path::new("/etc")).contains("/etc belongs to the host's system"));
        assert!(refusal(&policy, &root.path().join("link")).contains("/etc belongs"));
        assert!(refusal(&policy, &root.path().join("link/ssl")).contains("/etc belongs"));
        assert!(refusal(&policy, &root.path().join("dangling")).contains("cannot be looked at"));
        assert!(refusal(&policy, &root.path().join("../x")).contains("without `..`"));
        assert!(refusal(&policy, Path::new("/var/cache")).contains("outside the allowed mount roots"));
        assert!(refusal(&policy, Path::new("relative")).contains("must be absolute"));
        let none = MountPolicy::default();
        assert!(refusal(&none, Path::new("/srv/x")).contains("[mounts] roots"));
    }

    #[test]
    fn what_was_made_for_mcp_servers_is_for_their_boxes_alone_and_never_as_a_whole() {
        let place = tempfile::tempdir().unwrap();
        let state = place.path().canonicalize().unwrap();
        let cache = state.join("mcp/cache");
        std::fs::create_dir_all(cache.join("environments/key")).unwrap();
        let other = MountPolicy { own_state: vec![state.clone()], ..MountPolicy::default() };
        let theirs = MountPolicy { own_root: Some(cache.clone()), ..other.clone() };
        let admit = |policy: &MountPolicy, path: &str| {
            policy.admit(state.join(path).to_str().unwrap(), "/opt/x", MountMode::Ro, None)
        };
        let mount = admit(&theirs, "mcp/cache/environments/key").unwrap().unwrap();
        assert_eq!(mount.within, Some(cache));
        assert!(admit(&other, "mcp/cache/environments/key").is_err());
        for refused in
            ["mcp", "mcp/cache", "mcp/cache/environments", "mcp/cache/environments/none", "sessions"]
        {
            assert!(admit(&theirs, refused).is_err(), "{refused}");
        }
    }
}
