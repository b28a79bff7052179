//! Files of a package: listed, read and written.

use std::path::Path;

use rustix::fs::FileType;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::Store;
use super::change::check_entry;
use crate::SkillError;
use crate::beneath::{Dir, Links, Miss};
use crate::name::relative;
use crate::package::ENTRY_FILES;

/// Entries that are looked at to find the first ones by name.
const MAX_LISTED: usize = 100_000;

/// Which entries are wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListRequest {
    pub path: String,
    pub include_hidden: bool,
    pub max_entries: usize,
}

impl Default for ListRequest {
    fn default() -> Self {
        Self { path: ".".to_owned(), include_hidden: false, max_entries: 200 }
    }
}

/// A directory of a package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Listing {
    pub base_path: String,
    pub entries: Vec<FileEntry>,
    /// Whether there are more.
    pub truncated: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileEntry {
    pub path: String,
    pub name: String,
    pub is_dir: bool,
    /// Of a file; nothing for a link that leads out of the package.
    pub size: Option<u64>,
}

/// A file that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileContent {
    pub path: String,
    pub bytes: Vec<u8>,
    /// Another content has another tag.
    pub tag: String,
}

/// A file that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    pub path: String,
    pub bytes_written: usize,
    pub tag: String,
    /// Whether there was none before.
    pub created: bool,
}

impl Store {
    pub fn list_files(&self, name: &str, request: &ListRequest) -> Result<Listing, SkillError> {
        let (_, package) = self.package(name)?;
        let base = relative(&request.path)?;
        let shown = if base.is_empty() { "." } else { base.as_str() };
        let missing = || SkillError::NoSkillDirectory { path: shown.to_owned() };
        let dir =
            package.dir(Path::new(&base), Links::Inside).map_err(|miss| miss_in(miss, shown, missing))?;
        let (found, more) = dir.entries(MAX_LISTED).map_err(|miss| miss_in(miss, shown, missing))?;
        let mut listing = Listing { base_path: shown.to_owned(), entries: Vec::new(), truncated: more };
        for entry in found {
            // A name that is no text cannot be asked for either.
            let Some(name) = entry.name.to_str() else { continue };
            if name.starts_with('.') && !request.include_hidden {
                continue;
            }
            if listing.entries.len() == request.max_entries {
                listing.truncated = true;
                break;
            }
            let path = if base.is_empty() { name.to_owned() } else { format!("{base}/{name}") };
            // Links are looked through only as far as they stay in the package.
            let stat = package.stat(Path::new(&path), Links::Inside).ok();
            let kind = stat.as_ref().map(|stat| FileType::from_raw_mode(stat.st_mode));
            let size = stat.filter(|_| kind == Some(FileType::RegularFile));
            listing.entries.push(FileEntry {
                path,
                name: name.to_owned(),
                is_dir: kind == Some(FileType::Directory),
                size: size.and_then(|stat| u64::try_from(stat.st_size).ok()),
            });
        }
        Ok(listing)
    }

    pub fn read_file(&self, name: &str, path: &str) -> Result<FileContent, SkillError> {
        let (_, package) = self.package(name)?;
        let path = relative(path)?;
        let bytes = self.content(&package, &path)?;
        Ok(FileContent { tag: tag(&bytes), path, bytes })
    }

    fn content(&self, package: &Dir, path: &str) -> Result<Vec<u8>, SkillError> {
        let missing = || SkillError::NoFile { path: path.to_owned() };
        match package.read(Path::new(path), Links::Inside, self.limits.file_bytes) {
            Ok((bytes, _)) => Ok(bytes),
            Err(Miss::TooLong) => Err(too_long(path, self.limits.file_bytes)),
            Err(miss) => Err(miss_in(miss, path, missing)),
        }
    }

    /// Puts a file in its place, whole or not at all; with `expected`, only if it still has that tag.
    pub fn write_file(
        &self,
        name: &str,
        path: &str,
        bytes: &[u8],
        expected: Option<&str>,
    ) -> Result<Written, SkillError> {
        let path = relative(path)?;
        let Some(leaf) = Path::new(&path).file_name() else {
            return Err(SkillError::invalid("path", "path must stay within the skill package root"));
        };
        if bytes.len() > self.limits.file_bytes {
            return Err(too_long(&path, self.limits.file_bytes));
        }
        let mut new_name = None;
        let is_entry = ENTRY_FILES.contains(&path.as_str());
        if is_entry {
            let text = std::str::from_utf8(bytes).map_err(|_| SkillError::NotText { path: path.clone() })?;
            new_name = check_entry(text, &path)?;
        }
        let locked = self.lock()?;
        let (skill, package) = self.package(name)?;
        if is_entry {
            let directory = Path::new(&skill.below).file_name().and_then(|name| name.to_str());
            let name = new_name.unwrap_or_else(|| directory.unwrap_or_default().to_owned());
            let index = self.index(&locked.root)?;
            if index.skills().iter().any(|other| other.name == name && other.below != skill.below) {
                return Err(SkillError::Exists { name });
            }
        }
        let there = match package.stat(Path::new(&path), Links::Inside) {
            Ok(stat) => Some(FileType::from_raw_mode(stat.st_mode)),
            Err(Miss::Absent) => None,
            Err(miss) => return Err(miss_in(miss, &path, || SkillError::NoFile { path: path.clone() })),
        };
        match there {
            Some(FileType::Directory) => return Err(SkillError::IsDirectory { path }),
            Some(FileType::RegularFile) | None => {}
            Some(_) => return Err(SkillError::NoFile { path }),
        }
        if let Some(expected) = expected
            && !self.content(&package, &path).is_ok_and(|now| tag(&now) == expected)
        {
            return Err(SkillError::Changed { path });
        }
        let parent = Path::new(&path).parent().unwrap_or(Path::new(""));
        let failed = |miss| miss_in(miss, &path, || SkillError::NoFile { path: path.clone() });
        let parent = package.make_all(parent).map_err(failed)?;
        parent.replace(Path::new(leaf), bytes).map_err(failed)?;
        Ok(Written { bytes_written: bytes.len(), tag: tag(bytes), created: there.is_none(), path })
    }
}

/// Tells two contents apart.
fn tag(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

fn too_long(path: &str, limit: usize) -> SkillError {
    SkillError::limit(format!("the file {path}"), format!("{limit} bytes"))
}

fn miss_in(miss: Miss, path: &str, missing: impl Fn() -> SkillError) -> SkillError {
    match miss {
        Miss::Outside => SkillError::invalid("path", "path must stay within the skill package root"),
        Miss::Failed(error) => SkillError::io(format!("opening {path}"), error),
        _ => missing(),
    }
}
