//! Skills out of an archive: what is in it, and putting it in place.
//!
//! A look reads the directory of the archive and the entry files, and writes nothing. An install unpacks into
//! a private place and moves each package to its own in one step; if one of several cannot be moved, those
//! that were are taken away again.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::Store;
use super::locked::{Locked, Staged};
use crate::SkillError;
use crate::beneath::{Dir, Links};
use crate::limits::{ENTRY_BYTES, MAX_PACKAGES, SCAN_DEPTH};
use crate::name::target_directory;
use crate::package::{self, ENTRY_FILES, Skill, describe, now};
use crate::tree::{self, Budget};
use crate::zip::{ZipArchive, ZipEntry};

/// An archive and where in it to look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Archive {
    pub bytes: Vec<u8>,
    pub filename: String,
    pub source_subdir: String,
    pub target_suffix: String,
}

/// Which of the packages in an archive.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// Empty: the only one.
    pub source_paths: Vec<String>,
}

/// A package in an archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Candidate {
    #[serde(flatten)]
    pub skill: Skill,
    /// Where it is in the archive.
    pub source_path: String,
}

/// A package in an archive, and its place in the root.
struct Found {
    source_path: String,
    /// The path of its files in the archive, with a slash unless it is the top.
    prefix: String,
    entry: &'static str,
    target: String,
}

impl Store {
    /// What an install of this archive would have to choose from.
    pub fn preview(&self, archive: &Archive) -> Result<Vec<Candidate>, SkillError> {
        let zip = ZipArchive::read(&archive.bytes, &self.limits)?;
        let found = find(&zip, archive)?;
        let root = match self.open()? {
            Some(root) => self.real_root(&root)?,
            None => self.root.clone(),
        };
        found
            .into_iter()
            .map(|found| {
                let skill = look(&zip, &found, &root)?;
                Ok(Candidate { skill, source_path: found.source_path })
            })
            .collect()
    }

    pub fn install(&self, archive: &Archive, selection: &Selection) -> Result<Vec<Skill>, SkillError> {
        let zip = ZipArchive::read(&archive.bytes, &self.limits)?;
        let chosen = choose(find(&zip, archive)?, selection)?;
        let locked = self.lock()?;
        self.check_free(&zip, &chosen, &locked)?;
        let mut staged = Vec::new();
        for found in &chosen {
            let place = locked.stage()?;
            unpack(&zip, found, &place.dir, &mut Budget::new(&self.limits))?;
            staged.push(place);
        }
        publish(&locked, staged, &chosen)?;
        chosen.iter().map(|found| self.loaded(&locked, Path::new(&found.target))).collect()
    }

    /// Neither the directories nor the names may be there already.
    fn check_free(&self, zip: &ZipArchive<'_>, chosen: &[Found], locked: &Locked) -> Result<(), SkillError> {
        let mut names: BTreeSet<String> =
            self.index(&locked.root)?.skills().iter().map(|skill| skill.name.clone()).collect();
        if names.len() + chosen.len() > MAX_PACKAGES {
            return Err(SkillError::limit("the number of skills", MAX_PACKAGES.to_string()));
        }
        let mut targets = BTreeSet::new();
        for found in chosen {
            let path = locked.path.join(&found.target);
            if !targets.insert(&found.target) {
                let problem = format!("Duplicate target directory selected: {}", path.display());
                return Err(SkillError::invalid("source_paths", problem));
            }
            let there = locked.root.entry(Path::new(&found.target));
            if there.map_err(|miss| tree::failed("making", &path, miss))?.is_some() {
                return Err(SkillError::DirectoryExists { path });
            }
            let name = look(zip, found, &locked.path)?.name;
            if !names.insert(name.clone()) {
                return Err(SkillError::Exists { name });
            }
        }
        Ok(())
    }
}

fn publish(locked: &Locked, staged: Vec<Staged<'_>>, chosen: &[Found]) -> Result<(), SkillError> {
    for (index, place) in staged.into_iter().enumerate() {
        if let Err(error) = place.publish(Path::new(&chosen[index].target)) {
            for done in &chosen[..index] {
                // The reason is told; a rest would be listed, and can be deleted.
                let _ = locked.discard(&locked.root, Path::new(&done.target));
            }
            return Err(error);
        }
    }
    Ok(())
}

/// The packages of an archive, by their place in it.
fn find(zip: &ZipArchive<'_>, archive: &Archive) -> Result<Vec<Found>, SkillError> {
    let base = base_of(zip, &archive.source_subdir)?;
    let depth = |path: &str| if path.is_empty() { 0 } else { path.split('/').count() };
    let mut places: BTreeMap<&str, &'static str> = BTreeMap::new();
    for entry in zip.entries().iter().filter(|entry| !entry.is_dir) {
        let Some(path) = entry.path.strip_prefix(base.as_str()) else { continue };
        let (directory, leaf) = path.rsplit_once('/').unwrap_or(("", path));
        let Some(name) = ENTRY_FILES.into_iter().find(|name| *name == leaf) else { continue };
        if depth(directory) <= SCAN_DEPTH {
            let place = places.entry(directory).or_insert(name);
            if name == ENTRY_FILES[0] {
                *place = name;
            }
        }
    }
    if places.len() > MAX_PACKAGES {
        return Err(SkillError::limit("the archive", format!("{MAX_PACKAGES} skills")));
    }
    // What is below a package is the package's.
    let outermost = |path: &str| {
        let mut above = path;
        while let Some((outer, _)) = above.rsplit_once('/') {
            if places.contains_key(outer) {
                return false;
            }
            above = outer;
        }
        path.is_empty() || !places.contains_key("")
    };
    let mut found = Vec::new();
    for (source_path, entry) in places.iter().filter(|(path, _)| outermost(path)) {
        let leaf = source_path.rsplit('/').next().unwrap_or_default();
        let slash = if source_path.is_empty() { "" } else { "/" };
        found.push(Found {
            prefix: format!("{base}{source_path}{slash}"),
            source_path: (*source_path).to_owned(),
            entry,
            target: target_directory(&archive.filename, leaf, &archive.target_suffix)?,
        });
    }
    if found.is_empty() {
        return Err(SkillError::NoPackage { path: "the uploaded archive".to_owned(), depth: SCAN_DEPTH });
    }
    Ok(found)
}

/// Where packages are looked for: below the one directory at the top, if there is nothing else, then below
/// `source_subdir`. Ends with a slash, or is empty.
fn base_of(zip: &ZipArchive<'_>, source_subdir: &str) -> Result<String, SkillError> {
    let tops: BTreeSet<&str> = zip
        .entries()
        .iter()
        .map(|entry| match entry.path.split_once('/') {
            Some((top, _)) => top,
            None if entry.is_dir => entry.path.as_str(),
            None => "",
        })
        .collect();
    let mut base = match tops.into_iter().collect::<Vec<_>>().as_slice() {
        [""] | [] => String::new(),
        [only] => format!("{only}/"),
        _ => String::new(),
    };
    let wanted = source_subdir.trim().trim_matches('/');
    if wanted.is_empty() {
        return Ok(base);
    }
    let escape =
        || SkillError::invalid("source_subdir", "source_subdir must stay within the uploaded archive");
    let wanted = crate::name::relative(wanted).map_err(|_| escape())?;
    if wanted.is_empty() {
        return Ok(base);
    }
    base.push_str(&wanted);
    base.push('/');
    let exists = zip.entries().iter().any(|entry| {
        entry.path.starts_with(&base) || (entry.is_dir && entry.path == base.trim_end_matches('/'))
    });
    if !exists {
        let problem = format!("source_subdir does not exist in the uploaded archive: {wanted}");
        return Err(SkillError::invalid("source_subdir", problem));
    }
    Ok(base)
}

fn choose(found: Vec<Found>, selection: &Selection) -> Result<Vec<Found>, SkillError> {
    let available = || {
        let paths: Vec<_> = found.iter().map(|found| found.source_path.as_str()).collect();
        paths.join(", ")
    };
    if selection.source_paths.len() > MAX_PACKAGES {
        return Err(SkillError::limit("source_paths", format!("{MAX_PACKAGES} paths")));
    }
    // Where each stands first.
    let mut wanted: HashMap<&str, usize> = HashMap::new();
    for (position, path) in selection.source_paths.iter().enumerate() {
        let path = path.trim().trim_matches('/');
        if !path.is_empty() {
            wanted.entry(path).or_insert(position);
        }
    }
    if wanted.is_empty() {
        return match found.len() {
            1 => Ok(found),
            _ => {
                let problem =
                    format!("Multiple skills found. Please choose one or more source_paths: {}", available());
                Err(SkillError::invalid("source_paths", problem))
            }
        };
    }
    let known: HashSet<&str> = found.iter().map(|found| found.source_path.as_str()).collect();
    let unknown = wanted.iter().filter(|(path, _)| !known.contains(**path));
    if let Some((unknown, _)) = unknown.min_by_key(|(_, position)| **position) {
        let problem = format!("Invalid source_path \"{unknown}\". Available: {}", available());
        return Err(SkillError::invalid("source_paths", problem));
    }
    let mut found = found;
    found.retain(|found| wanted.contains_key(found.source_path.as_str()));
    found.sort_by_key(|found| wanted.get(found.source_path.as_str()).copied());
    Ok(found)
}

/// A package as it will be once it is installed, its name included.
fn look(zip: &ZipArchive<'_>, found: &Found, root: &Path) -> Result<Skill, SkillError> {
    let path = format!("{}{}", found.prefix, found.entry);
    let entry = zip.entries().iter().find(|entry| entry.path == path);
    let entry = entry.ok_or_else(|| SkillError::NoFile { path: path.clone() })?;
    if entry.size > ENTRY_BYTES as u64 {
        return Err(SkillError::limit(path, format!("{ENTRY_BYTES} bytes")));
    }
    let mut bytes = Vec::new();
    zip.unpack(entry, &mut bytes)?;
    let text = String::from_utf8(bytes).map_err(|_| SkillError::NotText { path })?;
    describe(&text, &found.target, &root.join(&found.target), found.entry, (now(), now()))
}

fn unpack(zip: &ZipArchive<'_>, found: &Found, to: &Dir, budget: &mut Budget) -> Result<(), SkillError> {
    let inside = |entry: &&ZipEntry| entry.path.starts_with(&found.prefix);
    for entry in zip.entries().iter().filter(inside) {
        let below = PathBuf::from(&entry.path[found.prefix.len()..]);
        let failed = |miss| tree::failed("unpacking", &below, miss);
        if entry.is_dir {
            to.make_all(&below).map_err(failed)?;
            continue;
        }
        budget.take(entry.size)?;
        let parent = below.parent().unwrap_or(Path::new(""));
        let name = Path::new(below.file_name().unwrap_or_default());
        let directory = to.make_all(parent).map_err(failed)?;
        let mode = if entry.executable { 0o755 } else { 0o644 };
        let mut file = directory.create(name, mode).map_err(failed)?;
        zip.unpack(entry, &mut file)?;
    }
    // As it was looked at, it has to be there now.
    let (entry, _) = package::entry_file(to).ok_or(SkillError::NoFile { path: found.entry.to_owned() })?;
    let entry = Path::new(entry);
    to.file(entry, Links::Refuse).map(|_| ()).map_err(|miss| tree::failed("unpacking", entry, miss))
}
