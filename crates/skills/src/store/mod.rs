//! One directory of packages, and what can be done with them. Everything here blocks.

mod change;
mod files;
mod install;
mod locked;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

pub use change::{NewSkill, SkillChange};
pub use files::{FileContent, FileEntry, ListRequest, Listing, Written};
pub use install::{Archive, Candidate, Selection};

use crate::beneath::{Dir, Links, Miss};
use crate::index::{Budget, Index, search};
use crate::limits::{MAX_DIRECTORIES, MAX_PACKAGES, SCAN_DEPTH};
use crate::name::is_private;
use crate::package::{self, Skill};
use crate::{Limits, SkillError, tree};

/// A store. Its index is shared by all callers; changes are kept apart by a lock on disk.
#[derive(Debug)]
pub struct Store {
    root: PathBuf,
    /// The root of all scopes, this one's or one above it.
    shared: PathBuf,
    limits: Limits,
    index: Mutex<Option<Arc<Index>>>,
}

impl Store {
    /// The store in a directory, which need not exist before something is put there.
    pub fn new(root: impl Into<PathBuf>, limits: Limits) -> Self {
        let root = root.into();
        Self { shared: root.clone(), root, limits, index: Mutex::new(None) }
    }

    /// The store of a scope, in a directory below the root of all.
    pub(crate) fn scoped(root: PathBuf, shared: PathBuf, limits: Limits) -> Self {
        Self { root, shared, limits, index: Mutex::new(None) }
    }

    /// All skills, the last changed first.
    pub fn list(&self) -> Result<Vec<Skill>, SkillError> {
        Ok(match self.open()? {
            Some(root) => self.index(&root)?.skills().iter().map(|skill| Skill::clone(skill)).collect(),
            None => Vec::new(),
        })
    }

    /// The skill of that name.
    pub fn get(&self, name: &str) -> Result<Option<Skill>, SkillError> {
        Ok(match self.open()? {
            Some(root) => self
                .index(&root)?
                .skills()
                .iter()
                .find(|skill| skill.name == name)
                .map(|skill| Skill::clone(skill)),
            None => None,
        })
    }

    /// The one package in a directory, or in those just below it.
    pub fn scan(&self, path: &str, import_roots: &[PathBuf]) -> Result<Skill, SkillError> {
        let Admitted { path, dir: top } = self.admit(path, import_roots)?;
        let missed = |miss| tree::failed("searching", &path, miss);
        let budget = Budget { directories: MAX_DIRECTORIES, entries: usize::MAX, packages: MAX_PACKAGES };
        let mut found = search(&top, Path::new(""), SCAN_DEPTH, budget, |_, _| {}).map_err(missed)?;
        found.retain(|found| self.may_take(&path.join(&found.below)));
        match found.len() {
            0 => Err(SkillError::NoPackage { path: path.display().to_string(), depth: SCAN_DEPTH }),
            1 => {
                let found = found.remove(0);
                let dir = top.dir(&found.below, Links::Refuse).map_err(missed)?;
                let at = if found.below.as_os_str().is_empty() { path } else { path.join(&found.below) };
                Ok(package::load(&dir, &at, found.entry)?.0)
            }
            _ => {
                found.sort_by(|a, b| a.below.cmp(&b.below));
                let found = found.iter().map(|found| path.join(&found.below).display().to_string());
                let found = found.collect();
                Err(SkillError::SeveralPackages { path, found })
            }
        }
    }

    /// A zip of a package.
    pub fn export(&self, name: &str) -> Result<Vec<u8>, SkillError> {
        let (_, dir) = self.package(name)?;
        tree::pack(&dir, &self.limits)
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The root, if it exists.
    fn open(&self) -> Result<Option<Dir>, SkillError> {
        match Dir::open(&self.root) {
            Ok(dir) => Ok(Some(dir)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(SkillError::io(format!("opening {}", self.root.display()), error)),
        }
    }

    fn index(&self, root: &Dir) -> Result<Arc<Index>, SkillError> {
        let kept = self.index.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(kept) = &kept
            && kept.holds(root)
        {
            return Ok(Arc::clone(kept));
        }
        let path = self.real_root(root)?;
        let index = Index::take(root, &path, kept.as_deref());
        let index = Arc::new(index.map_err(|miss| tree::failed("searching", &self.root, miss))?);
        *self.index.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&index));
        Ok(index)
    }

    fn real_root(&self, root: &Dir) -> Result<PathBuf, SkillError> {
        root.path().map_err(|error| SkillError::io(format!("resolving {}", self.root.display()), error))
    }

    /// The skill of that name and its open directory.
    fn package(&self, name: &str) -> Result<(Skill, Dir), SkillError> {
        let not_found = || SkillError::NotFound { name: name.to_owned() };
        let root = self.open()?.ok_or_else(not_found)?;
        let skill = self.index(&root)?.skills().iter().find(|skill| skill.name == name).cloned();
        let skill = Skill::clone(skill.ok_or_else(not_found)?.as_ref());
        match root.dir(Path::new(&skill.below), Links::Refuse) {
            Ok(dir) => Ok((skill, dir)),
            Err(Miss::Failed(error)) => Err(SkillError::io(format!("opening the skill {name}"), error)),
            Err(_) => Err(not_found()),
        }
    }

    /// A directory of a caller, resolved and opened: below the root or one of those that may be imported from.
    ///
    /// What lies elsewhere is refused alike whether it exists or not. It is opened beneath the root that allows
    /// it, with no link on the way: a box that puts one there meanwhile gains nothing.
    fn admit(&self, path: &str, import_roots: &[PathBuf]) -> Result<Admitted, SkillError> {
        let asked = Path::new(path.trim());
        if !asked.is_absolute() {
            return Err(SkillError::invalid("path", "the path of a directory must be absolute"));
        }
        let roots: Vec<&Path> =
            std::iter::once(self.root.as_path()).chain(import_roots.iter().map(PathBuf::as_path)).collect();
        let real_roots: Vec<PathBuf> = roots.iter().filter_map(|root| root.canonicalize().ok()).collect();
        let outside = || SkillError::OutsideRoots {
            path: asked.to_owned(),
            roots: roots.iter().map(|root| root.display().to_string()).collect(),
        };
        let path = match asked.canonicalize() {
            Ok(path) => path,
            Err(_) if plainly_below(asked, &roots) || plainly_below(asked, &real_roots) => {
                return Err(SkillError::NoDirectory { path: asked.to_owned() });
            }
            Err(_) => return Err(outside()),
        };
        let root = real_roots.iter().find(|root| path.starts_with(root)).ok_or_else(outside)?;
        if !self.may_take(&path) {
            return Err(outside());
        }
        let dir = open_below(root, &path)?;
        Ok(Admitted { path, dir })
    }

    /// Whether a real path is none of another scope's, wherever else it may lie, and not ours.
    fn may_take(&self, path: &Path) -> bool {
        let Ok(shared) = self.shared.canonicalize() else { return true };
        if !path.starts_with(&shared) {
            return true;
        }
        let own = self.root.canonicalize();
        own.is_ok_and(|own| path.strip_prefix(&own).is_ok_and(|below| !is_private(below)))
    }
}

/// A directory that packages may be taken from.
#[derive(Debug)]
struct Admitted {
    /// Where it really is.
    path: PathBuf,
    dir: Dir,
}

fn plainly_below(path: &Path, roots: &[impl AsRef<Path>]) -> bool {
    let climbs = path.components().any(|part| part == std::path::Component::ParentDir);
    !climbs && roots.iter().any(|root| path.starts_with(root))
}

/// A real path beneath a real root of the operator.
fn open_below(root: &Path, path: &Path) -> Result<Dir, SkillError> {
    let missing = || SkillError::NoDirectory { path: path.to_owned() };
    let top = Dir::open(root).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => missing(),
        _ => SkillError::io(format!("opening {}", root.display()), error),
    })?;
    let below = path.strip_prefix(root).map_err(|_| missing())?;
    top.dir(below, Links::Refuse).map_err(|miss| match miss {
        Miss::Failed(error) => SkillError::io(format!("opening {}", path.display()), error),
        _ => missing(),
    })
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
