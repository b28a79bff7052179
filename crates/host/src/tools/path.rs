//! Paths that a model names: which part of the box they mean, and whether this query may go there.
//!
//! The rules are about components, never about prefixes of text. Links are not followed: where one leads cannot
//! be known without a race, and a command can go there anyway with the rights of the box.

use sandcrate_protocol::{ErrorKind, python_trim};

use super::files::BoxFiles;
use crate::skills::{self, SKILLS_MOUNT, SkillsView, mount_path, sorted_names};
use crate::{FileKind, FileMeta, HostError, Query, Result};

pub(crate) const WORKSPACE: &str = "/workspace";
const SKILLS_DIR: &str = ".skills";

/// What a tool means to do at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Skills that are visible will do.
    Look,
    /// Skills must be activated.
    Change,
}

/// A path in the box that obeys the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// Absolute, without `.`, `..` and doubled slashes.
    pub(crate) path: String,
    /// The skill it belongs to.
    pub(crate) skill: Option<String>,
}

/// The components below `/workspace`; nothing else is a place for the file tools.
pub(crate) fn below_workspace(given: &str) -> Result<Vec<&str>> {
    let mut parts = given.split('/').filter(|part| !matches!(*part, "" | "."));
    if !given.starts_with('/') || parts.next() != Some("workspace") {
        return Err(HostError::invalid("Path must be under /workspace."));
    }
    let parts: Vec<&str> = parts.collect();
    if given.contains('\0') {
        return Err(HostError::invalid("Path must not contain a NUL."));
    }
    let mut depth = 0_usize;
    for part in &parts {
        let Some(next) = (if *part == ".." { depth.checked_sub(1) } else { Some(depth + 1) }) else {
            return Err(HostError::invalid("Path escapes the workspace boundary."));
        };
        depth = next;
    }
    if parts.contains(&"..") {
        return Err(HostError::invalid("Path must not contain \"..\"."));
    }
    Ok(parts)
}

/// The name of the skill that a path is in, if it is in one.
pub(crate) fn skill_of<'a>(parts: &[&'a str]) -> Result<Option<&'a str>> {
    match parts {
        [SKILLS_DIR] => {
            Err(HostError::invalid("Path must include a skill name under /workspace/.skills/<skill-name>."))
        }
        [SKILLS_DIR, name, ..] => Ok(Some(name)),
        _ => Ok(None),
    }
}

pub(crate) fn not_available(skills: &SkillsView, query: &Query, name: &str) -> HostError {
    let activated = sorted_names(&skills::activated(query));
    let visible = sorted_names(&skills.visible(query));
    HostError::invalid(format!(
        "Skill \"{name}\" is not available at this path. Activated skills: {activated}. Visible skills: {visible}."
    ))
}

/// Reads a path of a model: which place it is, as far as the text alone tells.
pub(crate) fn resolve(given: &str, access: Access, skills: &SkillsView, query: &Query) -> Result<Place> {
    let given = python_trim(given);
    let parts = below_workspace(if given.is_empty() { WORKSPACE } else { given })?;
    let skill = skill_of(&parts)?;
    if let Some(name) = skill {
        let known = skills::activated_skill(query, name).is_some()
            || (access == Access::Look && skills.visible_skill(query, name).is_some());
        if !known {
            return Err(not_available(skills, query, name));
        }
    }
    let mut path = WORKSPACE.to_owned();
    for part in parts {
        path.push('/');
        path.push_str(part);
    }
    Ok(Place { path, skill: skill.map(str::to_owned) })
}

impl Place {
    /// Looks at each step of the way and at what is there, if anything.
    pub(crate) async fn look(&self, files: &BoxFiles) -> Result<Option<FileMeta>> {
        let mut start = WORKSPACE.len();
        if let Some(skill) = &self.skill {
            let root = mount_path(skill);
            is_mounted(files, skill, &root).await?;
            start = root.len();
        }
        let ends: Vec<usize> = self.path[start..].match_indices('/').map(|(at, _)| start + at).collect();
        let steps = ends.iter().skip(1).map(|&end| &self.path[..end]);
        // The workspace or the package itself is where the service put it; only what is below is the agent's.
        for step in steps {
            match files.stat(step).await? {
                Some(meta) if meta.kind == FileKind::Directory => {}
                Some(meta) if meta.kind == FileKind::Symlink => return Err(through_link(step)),
                Some(_) | None => return Ok(None),
            }
        }
        let found = files.stat(&self.path).await?;
        match found {
            Some(meta) if meta.kind == FileKind::Symlink && self.path.len() > start => {
                Err(through_link(&self.path))
            }
            found => Ok(found),
        }
    }
}

fn through_link(path: &str) -> HostError {
    HostError::invalid(format!(
        "Path escapes the workspace boundary. `{path}` is a symbolic link, which the file tools do not follow; use \
         exec."
    ))
}

/// A runtime may keep the mounts a session began with. A skill that was installed later has no package in it then,
/// and a file written there would end up in the workspace instead.
async fn is_mounted(files: &BoxFiles, skill: &str, root: &str) -> Result<()> {
    if files.stat(root).await?.is_some_and(|meta| meta.kind == FileKind::Directory) {
        return Ok(());
    }
    Err(HostError::new(
        ErrorKind::SkillNotFound,
        format!(
            "Skill \"{skill}\" has no package at {SKILLS_MOUNT}/{skill} in this session, which began before it was \
             installed. It is there in a new session."
        ),
    ))
}
