//! Making, changing and deleting skills.

use std::path::{Path, PathBuf};

use sandcrate_protocol::python_trim;

use super::locked::Locked;
use super::{Admitted, Store};
use crate::SkillError;
use crate::beneath::{Dir, Links, Miss};
use crate::front_matter::{DESCRIPTION, DISPLAY_NAME, FrontMatter, NAME, compose};
use crate::limits::{ENTRY_BYTES, MAX_PACKAGES};
use crate::name::{check_new, is_component, is_private};
use crate::package::{self, ENTRY_FILES, Skill};
use crate::tree;

/// A skill to be made. Blank texts count as not given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewSkill {
    pub name: String,
    pub display_name: String,
    pub description: String,
    pub instructions: String,
    /// A directory of this host to be taken in: one below the root stays where it is, another is copied.
    pub package_root: String,
}

/// What to change of a skill; `None` leaves as it is, blank removes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SkillChange {
    pub name: Option<String>,
    pub display_name: Option<String>,
    pub description: Option<String>,
    pub instructions: Option<String>,
    pub package_root: Option<String>,
}

impl Store {
    pub fn create(&self, new: &NewSkill, import_roots: &[PathBuf]) -> Result<Skill, SkillError> {
        let name = check_new(&new.name)?;
        let source = python_trim(&new.package_root);
        // Refused before the root is made: a request that cannot be served leaves nothing behind.
        let source = match source {
            "" => None,
            source => Some(self.admit(source, import_roots)?),
        };
        if let Some(source) = &source
            && self
                .shared
                .canonicalize()
                .is_ok_and(|shared| shared != source.path && shared.starts_with(&source.path))
        {
            let problem = "the directory has the skills of everybody in it; name the package itself";
            return Err(SkillError::invalid("package_root", problem));
        }
        let locked = self.lock()?;
        let index = self.index(&locked.root)?;
        if index.skills().iter().any(|skill| skill.name == name) {
            return Err(SkillError::Exists { name });
        }
        if index.skills().len() >= MAX_PACKAGES {
            return Err(SkillError::limit("the number of skills", MAX_PACKAGES.to_string()));
        }
        let below = match &source {
            Some(source) if source.path.starts_with(&locked.path) => {
                self.adopt(&locked, new, &name, &source.path)?
            }
            Some(source) => self.import(&locked, new, &name, source)?,
            None => {
                let (display_name, description) =
                    (python_trim(&new.display_name), python_trim(&new.description));
                let text = compose(&name, display_name, description, &new.instructions);
                check_entry(&text, ENTRY_FILES[0])?;
                let staged = locked.stage()?;
                replace(&staged.dir, ENTRY_FILES[0], &text)?;
                staged.publish(Path::new(&name))?;
                PathBuf::from(&name)
            }
        };
        self.loaded(&locked, &below)
    }

    /// A package that is below the root already, under its new name.
    fn adopt(&self, locked: &Locked, new: &NewSkill, name: &str, at: &Path) -> Result<PathBuf, SkillError> {
        let below = at.strip_prefix(&locked.path).unwrap_or(Path::new("")).to_owned();
        if below.as_os_str().is_empty() || is_private(&below) {
            return Err(SkillError::NoEntryFile { path: at.display().to_string() });
        }
        let dir = match locked.root.dir(&below, Links::Refuse) {
            Ok(dir) => dir,
            Err(_) => return Err(SkillError::NoDirectory { path: at.to_owned() }),
        };
        let entry = entry_of(&dir, at)?;
        retitle(&dir, entry, at, new, name)?;
        Ok(below)
    }

    /// A copy of a directory from elsewhere, whole or not at all.
    fn import(
        &self,
        locked: &Locked,
        new: &NewSkill,
        name: &str,
        from: &Admitted,
    ) -> Result<PathBuf, SkillError> {
        let target = locked.path.join(name);
        if locked.root.entry(Path::new(name)).map_err(|miss| tree::failed("making", &target, miss))?.is_some()
        {
            return Err(SkillError::DirectoryExists { path: target });
        }
        // Looked for before anything is copied, and named by where it would have been, as the reference does.
        let entry = entry_of(&from.dir, &target)?;
        let staged = locked.stage()?;
        tree::copy(&from.dir, &staged.dir, &self.limits)?;
        retitle(&staged.dir, entry, &from.path, new, name)?;
        staged.publish(Path::new(name))?;
        Ok(PathBuf::from(name))
    }

    pub fn update(&self, name: &str, change: &SkillChange) -> Result<Skill, SkillError> {
        let locked = self.lock()?;
        let (skill, dir) = self.package(name)?;
        let renamed =
            change.name.as_deref().map(python_trim).is_some_and(|new| !new.is_empty() && new != name);
        if renamed {
            return Err(SkillError::invalid("name", "Renaming skills is not supported"));
        }
        let moved = change.package_root.as_deref().map(python_trim).filter(|root| !root.is_empty());
        if moved.is_some_and(|root| Path::new(root) != Path::new(&skill.package_root)) {
            let problem =
                "Updating package_root is not supported; recreate the skill to import a different package";
            return Err(SkillError::invalid("package_root", problem));
        }
        let (text, _) = package::read_entry(&dir, &skill.entry_file)?;
        let mut changes = vec![(NAME, name)];
        for (key, value) in [(DISPLAY_NAME, &change.display_name), (DESCRIPTION, &change.description)] {
            if let Some(value) = value {
                changes.push((key, python_trim(value)));
            }
        }
        let edited = FrontMatter::parse(&text)?.edit(&changes, change.instructions.as_deref());
        check_entry(&edited, &skill.entry_file)?;
        replace(&dir, &skill.entry_file, &edited)?;
        self.loaded(&locked, Path::new(&skill.below))
    }

    /// Removes one package, and the directories around it that are empty then.
    pub fn delete(&self, name: &str) -> Result<(), SkillError> {
        let locked = self.lock()?;
        let skill = match self.package(name) {
            // A directory that is too large to be searched has no skills, and goes as a whole.
            Err(SkillError::NotFound { .. }) if self.index(&locked.root)?.is_oversized(name) => {
                let failed = |miss| tree::failed("deleting", &locked.path.join(name), miss);
                return locked.discard(&locked.root, Path::new(name)).map_err(failed);
            }
            found => found?.0,
        };
        let below = Path::new(&skill.below);
        let (Some(parent), Some(leaf)) = (below.parent(), below.file_name()) else {
            return Err(SkillError::NotManaged);
        };
        let failed = |miss| tree::failed("deleting", Path::new(&skill.package_root), miss);
        let holder = locked.root.dir(parent, Links::Refuse).map_err(failed)?;
        locked.discard(&holder, Path::new(leaf)).map_err(failed)?;
        for around in parent.ancestors().filter(|around| !around.as_os_str().is_empty()) {
            let (Some(above), Some(leaf)) = (around.parent(), around.file_name()) else { break };
            let Ok(holder) = locked.root.dir(above, Links::Refuse) else { break };
            // Not empty: others live there.
            if holder.remove_dir(Path::new(leaf)).is_err() {
                break;
            }
        }
        Ok(())
    }

    /// A package as it is after a change.
    pub(super) fn loaded(&self, locked: &Locked, below: &Path) -> Result<Skill, SkillError> {
        let path = locked.path.join(below);
        let dir =
            locked.root.dir(below, Links::Refuse).map_err(|miss| tree::failed("reading", &path, miss))?;
        let entry = entry_of(&dir, &path)?;
        Ok(package::load(&dir, &path, entry)?.0)
    }
}

/// Gives a package that came from elsewhere its name, and the texts that were given with it.
fn retitle(dir: &Dir, entry: &str, from: &Path, new: &NewSkill, name: &str) -> Result<(), SkillError> {
    let (text, _) = package::read_entry(dir, entry)?;
    let read = FrontMatter::parse(&text)?;
    let mut changes = vec![(NAME, name)];
    // What people knew it by stays: its title, or what stood in for one.
    let title = match python_trim(&new.display_name) {
        "" => read
            .field(DISPLAY_NAME)
            .or_else(|| read.field(NAME))
            .or_else(|| from.file_name().and_then(|name| name.to_str()).map(str::to_owned)),
        given => Some(given.to_owned()),
    };
    let title = title.filter(|title| title != name || read.field(DISPLAY_NAME).is_some()).unwrap_or_default();
    if !title.is_empty() {
        changes.push((DISPLAY_NAME, &title));
    }
    let description = python_trim(&new.description);
    if !description.is_empty() {
        changes.push((DESCRIPTION, description));
    }
    let body = Some(new.instructions.as_str()).filter(|body| !python_trim(body).is_empty());
    let edited = read.edit(&changes, body);
    check_entry(&edited, entry)?;
    replace(dir, entry, &edited)
}

fn entry_of(dir: &Dir, path: &Path) -> Result<&'static str, SkillError> {
    package::entry_file(dir)
        .map(|(name, _)| name)
        .ok_or_else(|| SkillError::NoEntryFile { path: path.display().to_string() })
}

/// An entry file that could not be read again would take its skill out of everybody's reach. Tells the name in it.
pub(super) fn check_entry(text: &str, entry: &str) -> Result<Option<String>, SkillError> {
    if text.len() > ENTRY_BYTES {
        return Err(SkillError::limit(entry, format!("{ENTRY_BYTES} bytes")));
    }
    match FrontMatter::parse(text)?.field(NAME) {
        Some(name) if !is_component(&name) => {
            Err(SkillError::invalid("name", format!("the name in {entry} cannot be that of a directory")))
        }
        name => Ok(name),
    }
}

fn replace(dir: &Dir, name: &str, text: &str) -> Result<(), SkillError> {
    dir.replace(Path::new(name), text.as_bytes()).map_err(|miss| match miss {
        Miss::Failed(error) => SkillError::io(format!("writing {name}"), error),
        miss => tree::failed("writing", Path::new(name), miss),
    })
}
