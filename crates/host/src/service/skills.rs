//! The skills that boxes are given: a directory each, below `/workspace/.skills`.

use std::path::Path;
use std::sync::PoisonError;

use sandcrate_protocol::{BoxSpec, MountMode, MountSpec, python_trim};

use super::Service;
use crate::Query;
use crate::skills::{Skill, mount_path};

/// A skill, as far as mounting it goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkillPackage {
    pub name: String,
    /// The directory, as the runtime sees it.
    pub package_root: String,
}

impl From<&Skill> for SkillPackage {
    fn from(skill: &Skill) -> Self {
        Self { name: skill.name.clone(), package_root: skill.package_root.clone() }
    }
}

impl Service {
    /// The skills there are, in their order; nothing when the application has none to manage.
    pub fn set_skills(&self, skills: Option<Vec<SkillPackage>>) {
        *self.inner.skills.write().unwrap_or_else(PoisonError::into_inner) = skills;
    }

    /// Gives the box the skills of the query, as writable as the policy has it: for commands and files alike, or
    /// each would remake the other's box.
    pub(crate) fn mount_skills(&self, spec: &mut BoxSpec, query: &Query) {
        spec.extra_mounts = self.skill_mounts(query);
        self.inner.skill_policy.apply(spec, query);
    }

    /// One mount for each skill that the query may see, whether it is activated or not: a session's mounts are
    /// settled by its first command.
    pub fn skill_mounts(&self, query: &Query) -> Vec<MountSpec> {
        let skills = self.inner.skills.read().unwrap_or_else(PoisonError::into_inner);
        let visible = |skill: &&SkillPackage| {
            query.bound_skills.as_ref().is_none_or(|bound| bound.contains(&skill.name))
        };
        let shared = self.shares_filesystem();
        let visible = skills.iter().flatten().filter(visible);
        visible.filter_map(|skill| mount(skill, shared)).collect()
    }
}

fn mount(skill: &SkillPackage, shared: bool) -> Option<MountSpec> {
    let SkillPackage { name, package_root } = skill;
    let package_root = python_trim(package_root);
    if package_root.is_empty() {
        return None;
    }
    // A name is one component of a path in the box, and nothing else.
    if name.is_empty() || matches!(name.as_str(), "." | "..") || name.contains(['/', '\0']) {
        tracing::warn!(skill = name, "skill \"{name}\" is skipped: its name cannot be a directory");
        return None;
    }
    if shared && !Path::new(package_root).is_dir() {
        tracing::warn!(skill = name, "skill \"{name}\" is skipped: package_root missing: {package_root}");
        return None;
    }
    Some(MountSpec::new(package_root, mount_path(name), MountMode::Rw))
}
