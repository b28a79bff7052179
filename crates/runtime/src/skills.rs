//! Where the skills of a runtime are: the operator's word, then LangBot's, then the state directory.

use std::path::{Path, PathBuf};

use sandcrate_backend::refused_source;
use sandcrate_skills::{Skills, SkillsConfig};

use crate::config::{LangbotConfig, RuntimeConfig};
use crate::error::RuntimeError;
use crate::runtime::Inner;

/// In the state directory, while nobody names another place.
const DIRECTORY: &str = "skills";

pub(crate) fn open(config: &RuntimeConfig) -> Skills {
    let (root, import_roots) = places(config, &LangbotConfig::default());
    Skills::new(SkillsConfig { root, import_roots, limits: config.skill_limits.clone() })
}

/// The root, and the directories from which packages may be taken: those that may be mounted.
fn places(config: &RuntimeConfig, langbot: &LangbotConfig) -> (PathBuf, Vec<PathBuf>) {
    let root = config.skills_root.clone().or_else(|| langbot.skills_root.clone());
    let root = root.unwrap_or_else(|| config.state_dir.join(DIRECTORY));
    let import_roots = config.mount_roots.clone().unwrap_or_else(|| langbot.mount_roots.clone());
    (root, import_roots)
}

impl Inner {
    pub(crate) fn place_skills(&self, langbot: &LangbotConfig) {
        let (root, import_roots) = places(&self.config, langbot);
        self.skills.place(root, import_roots);
    }

    /// The root that a client's skills may have: not in the system or our own state, and where the operator has
    /// said what may be mounted, only there: what lies in the root can be mounted.
    pub(crate) fn admitted_skills_root(&self, root: PathBuf) -> Result<Option<PathBuf>, RuntimeError> {
        if self.config.skills_root.is_some() {
            // The operator's counts, whatever is asked for.
            return Ok(None);
        }
        let resolved = as_far_as_known(&root);
        let own_state: Vec<PathBuf> = self.config.state_dir.canonicalize().into_iter().collect();
        if let Some(rule) = refused_source(&resolved, &own_state) {
            let problem = format!("must not be {}: {rule}", root.display());
            return Err(RuntimeError::invalid("local.skills_root", problem));
        }
        if let Some(roots) = &self.config.mount_roots
            && !roots.iter().any(|allowed| resolved.starts_with(as_far_as_known(allowed)))
        {
            tracing::warn!(
                skills_root = ?root,
                "the skills root of a client is outside the mount roots and ignored; set skills.root, or list it \
                 in [mounts] roots"
            );
            return Ok(None);
        }
        Ok(Some(root))
    }
}

/// Without links, as far as it exists.
fn as_far_as_known(path: &Path) -> PathBuf {
    let known = path.ancestors().find_map(|known| {
        let below = path.strip_prefix(known).ok()?;
        let known = known.canonicalize().ok()?;
        // A path that is joined with nothing would end in a slash.
        Some(if below.as_os_str().is_empty() { known } else { known.join(below) })
    });
    known.unwrap_or_else(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use serde_json::json;

    use crate::{InitSource, Runtime, RuntimeConfig};

    async fn runtime(state: &Path, mount_roots: Option<Vec<PathBuf>>) -> Runtime {
        let config = RuntimeConfig { mount_roots, ..RuntimeConfig::new(state.join("state")) };
        Runtime::open(config, Vec::new()).await.unwrap()
    }

    fn init(runtime: &Runtime, base: &Path, skills_root: &str) -> Result<(), String> {
        let source = InitSource { known: true, base_dir: base.to_owned() };
        let section = json!({"local": {"host_root": "./data/box", "skills_root": skills_root}});
        runtime.init(&section, &source).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn a_client_s_skills_root_does_not_widen_the_operator_s_mount_roots() {
        let place = tempfile::tempdir().unwrap();
        let base = place.path().canonicalize().unwrap();
        std::fs::create_dir_all(base.join("allowed")).unwrap();
        std::fs::create_dir_all(base.join("secret")).unwrap();
        std::os::unix::fs::symlink(base.join("secret"), base.join("allowed/link")).unwrap();
        let runtime = runtime(&base, Some(vec![base.join("allowed")])).await;
        let own = runtime.skills().root();
        let (elsewhere, link) = (base.join("secret"), base.join("allowed/link/s"));
        for outside in ["skills", elsewhere.to_str().unwrap(), link.to_str().unwrap()] {
            init(&runtime, &base, outside).unwrap();
            assert_eq!(runtime.skills().root(), own, "{outside}");
        }
        let inside = base.join("allowed/skills");
        init(&runtime, &base, inside.to_str().unwrap()).unwrap();
        assert_eq!(runtime.skills().root(), inside);
    }

    #[tokio::test]
    async fn without_mount_roots_of_the_operator_langbot_s_root_counts() {
        let place = tempfile::tempdir().unwrap();
        let base = place.path().canonicalize().unwrap();
        let runtime = runtime(&base, None).await;
        init(&runtime, &base, "skills").unwrap();
        assert_eq!(runtime.skills().root(), base.join("data/box/skills"));
        let above = base.to_str().unwrap();
        for bad in ["/", "/srv", "/var/lib", "/etc/x", above] {
            assert!(init(&runtime, &base, bad).unwrap_err().contains("must not be"), "{bad}");
        }
        assert_eq!(runtime.skills().root(), base.join("data/box/skills"));
    }
}
