//! The skills as one application sees them: what the runtime has, which of it a query may see, what it activated.
//!
//! The runtime is the only source. What is kept here is its last list; every text for a model is rendered from
//! it when it is asked for, so a skill that was installed a moment ago is in the next request.

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use sandcrate_protocol::{BoxSpec, MountMode, python_trim};
use serde_json::{Map, Value, json};

use crate::{Client, HostError, Query, Result};

/// Where packages appear in a box, each under its name.
pub const SKILLS_MOUNT: &str = "/workspace/.skills";
/// The variable of a query that holds what it activated, by name.
const ACTIVATED: &str = "_activated_skills";
/// The variable of a query that names the skills of its pipeline; [`Query::bound_skills`] wins.
const BOUND: &str = "_pipeline_bound_skills";
const NAME_CHARS: usize = 64;

/// Whether paths that the runtime reports can be looked at from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filesystem {
    Shared,
    Separate,
}

/// One skill of the runtime.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Skill {
    pub name: String,
    pub display_name: String,
    pub description: String,
    pub instructions: String,
    /// The package's directory where the runtime is.
    pub package_root: String,
}

impl Skill {
    fn from_json(value: &Value) -> Self {
        let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        Self {
            name: python_trim(&text("name")).to_owned(),
            display_name: text("display_name"),
            description: text("description"),
            instructions: text("instructions"),
            package_root: python_trim(&text("package_root")).to_owned(),
        }
    }

    fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "display_name": self.display_name,
            "description": self.description,
            "instructions": self.instructions,
            "package_root": self.package_root,
        })
    }

    /// Its directory in a box.
    pub fn mount_path(&self) -> String {
        mount_path(&self.name)
    }

    fn line(&self) -> String {
        one_line(&self.description)
    }
}

/// The directory of a skill in a box.
pub fn mount_path(name: &str) -> String {
    format!("{SKILLS_MOUNT}/{name}")
}

/// Whether a name may become a directory in a box: letters, digits, `-` and `_`, at most 64.
///
/// ```
/// use sandcrate_host::skills::is_skill_name;
///
/// assert!(is_skill_name("pdf-tools"));
/// assert!(!is_skill_name("../../etc"));
/// ```
pub fn is_skill_name(name: &str) -> bool {
    let mut letters = name.chars().filter(|c| !matches!(c, '-' | '_')).peekable();
    letters.peek().is_some() && letters.all(char::is_alphanumeric) && name.chars().count() <= NAME_CHARS
}

/// What the query activated, by name, in order of name.
pub fn activated(query: &Query) -> Vec<Skill> {
    let entries = query.variables.get(ACTIVATED).and_then(Value::as_object);
    let entries = entries.into_iter().flatten();
    let mut skills: Vec<_> = entries
        .filter(|(name, _)| is_skill_name(name))
        .map(|(name, skill)| Skill { name: name.clone(), ..Skill::from_json(skill) })
        .collect();
    skills.sort_by(|one, other| one.name.cmp(&other.name));
    skills
}

/// The skill of this name, if the query activated it.
pub fn activated_skill(query: &Query, name: &str) -> Option<Skill> {
    activated(query).into_iter().find(|skill| skill.name == name)
}

/// Makes packages that the query has not activated read-only: whatever a command is made to look like, the mount
/// decides.
pub fn restrict_mounts(spec: &mut BoxSpec, query: &Query) {
    let active: Vec<_> = activated(query).iter().map(Skill::mount_path).collect();
    for mount in &mut spec.extra_mounts {
        let is_skill = Path::new(&mount.mount_path).starts_with(SKILLS_MOUNT);
        if is_skill && mount.mode == MountMode::Rw && !active.contains(&mount.mount_path) {
            mount.mode = MountMode::Ro;
        }
    }
}

/// The last list of the runtime's skills. Clones of the list are cheap; nothing is held while anything waits.
#[derive(Debug)]
pub struct SkillsView {
    filesystem: Filesystem,
    known: RwLock<Arc<[Skill]>>,
}

impl SkillsView {
    /// Without a skill until the first [`reload`](Self::reload).
    pub fn new(filesystem: Filesystem) -> Self {
        Self { filesystem, known: RwLock::new(Arc::new([])) }
    }

    /// All that is known, in the runtime's order.
    pub fn all(&self) -> Arc<[Skill]> {
        Arc::clone(&self.known.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn replace(&self, skills: Vec<Skill>) {
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = skills.into();
    }

    /// Forgets everything, as when the runtime is gone.
    pub fn clear(&self) {
        self.replace(Vec::new());
    }

    /// Asks the runtime anew. When it does not answer, nothing is known.
    pub async fn reload(&self, client: &dyn Client) {
        let listed = match client.skill("box_list_skills", json!({})).await {
            Ok(data) => data,
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "skills cannot be listed");
                return self.clear();
            }
        };
        let entries = listed.get("skills").unwrap_or(&listed).as_array().cloned().unwrap_or_default();
        let shared = self.filesystem == Filesystem::Shared;
        let skills: Vec<_> = entries.iter().map(Skill::from_json).collect();
        // Looking at directories may block.
        let kept = tokio::task::spawn_blocking(move || {
            skills.into_iter().filter(|skill| is_usable(skill, shared)).collect()
        });
        self.replace(kept.await.unwrap_or_default());
    }

    /// The skills that a query may see.
    pub fn visible(&self, query: &Query) -> Vec<Skill> {
        let bound = bound_names(query);
        let sees = |skill: &&Skill| bound.as_ref().is_none_or(|names| names.contains(&skill.name));
        self.all().iter().filter(sees).cloned().collect()
    }

    /// The skill of this name, if the query may see it.
    pub fn visible_skill(&self, query: &Query, name: &str) -> Option<Skill> {
        self.visible(query).into_iter().find(|skill| skill.name == name)
    }

    /// Activates a skill for this query and tells the model how to use it. The first activation counts.
    pub fn activate(&self, query: &mut Query, name: &str) -> Result<Value> {
        let name = python_trim(name);
        if name.is_empty() {
            return Err(HostError::invalid("skill_name is required"));
        }
        let Some(skill) = self.visible_skill(query, name) else {
            let names = sorted_names(&self.visible(query));
            let message = format!("Skill \"{name}\" not found. Available skills: {names}");
            return Err(HostError::invalid(message));
        };
        let entries =
            query.variables.entry(ACTIVATED.to_owned()).or_insert_with(|| Value::Object(Map::new()));
        if !entries.is_object() {
            *entries = Value::Object(Map::new());
        }
        if let Some(entries) = entries.as_object_mut() {
            entries.entry(name).or_insert_with(|| skill.to_json());
        }
        let content = activation_text(&skill);
        Ok(json!({
            "activated": true, "skill_name": name, "mount_path": skill.mount_path(), "content": content,
        }))
    }

    /// What the tool `activate` says of itself in this request.
    pub fn activate_description(&self, query: &Query) -> String {
        let visible = self.visible(query);
        let mut text =
            "Load a skill: its instructions are returned and its files may be run and changed under \
                        /workspace/.skills/<skill-name>. Call it before doing a task that a skill covers.\n"
                .to_owned();
        if visible.is_empty() {
            text.push_str("No skills are currently available.");
            return text;
        }
        text.push_str("<available_skills>\n");
        for skill in &visible {
            text.push_str(&format!("- {}: {}\n", skill.name, skill.line()));
        }
        text.push_str("</available_skills>");
        text
    }

    /// What a system message says of the skills; nothing when none is visible.
    pub fn prompt(&self, query: &Query) -> Option<String> {
        let visible = self.visible(query);
        if visible.is_empty() {
            return None;
        }
        let mut text = "Available Skills:\n".to_owned();
        for skill in &visible {
            let shown = if skill.display_name.is_empty() { &skill.name } else { &skill.display_name };
            text.push_str(&format!("- {} ({}): {}\n", skill.name, one_line(shown), skill.line()));
        }
        text.push_str(
            "\nWhen one of these fits the task, call `activate` with its name first and follow the instructions \
             that come back. A skill that was not activated can be read, not run or changed.",
        );
        Some(text)
    }
}

fn bound_names(query: &Query) -> Option<Vec<String>> {
    if query.bound_skills.is_some() {
        return query.bound_skills.clone();
    }
    let names = query.variables.get(BOUND)?.as_array()?;
    Some(names.iter().filter_map(Value::as_str).map(str::to_owned).collect())
}

fn is_usable(skill: &Skill, shared: bool) -> bool {
    if skill.name.is_empty() {
        return false;
    }
    if !is_skill_name(&skill.name) {
        tracing::warn!(skill = ?skill.name, "skill left out: its name cannot be a directory in a box");
        return false;
    }
    if shared && !skill.package_root.is_empty() && !Path::new(&skill.package_root).is_dir() {
        tracing::warn!(skill = skill.name, "skill left out: package_root missing");
        return false;
    }
    true
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Names for a message, in order; `none` if there are none.
pub(crate) fn sorted_names(skills: &[Skill]) -> String {
    let mut names: Vec<_> = skills.iter().map(|skill| skill.name.as_str()).collect();
    names.sort_unstable();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn activation_text(skill: &Skill) -> String {
    let Skill { name, instructions, package_root, .. } = skill;
    let mount = skill.mount_path();
    format!(
        "<command-message>Skill \"{name}\" is active.</command-message>\n\
         <skill-activation>\n\
         <skill-name>{name}</skill-name>\n\
         <mount-path>{mount}</mount-path>\n\
         <package-root>{package_root}</package-root>\n\n\
         ## Instructions\n\n{instructions}\n\n\
         ## Runtime Context\n\n\
         - The files of this skill are under {mount}.\n\
         - `read`, `glob` and `grep` look at them; `write` and `edit` change them.\n\
         - To run one of its programs, call `exec` with workdir {mount} or with paths below it.\n\
         - A call of `exec` works with one skill at a time.\n\
         </skill-activation>"
    )
}

#[cfg(test)]
#[path = "skills_tests.rs"]
mod tests;
