//! One package: a directory with a `SKILL.md`, and what is said of it.

use std::path::Path;

use jiff::Timestamp;
use rustix::fs::Stat;
use serde::Serialize;

use crate::SkillError;
use crate::beneath::{Dir, Links, Miss};
use crate::front_matter::{DESCRIPTION, DISPLAY_NAME, FrontMatter, NAME};
use crate::limits::ENTRY_BYTES;
use crate::name::is_component;

/// Names of the entry file; the first that is there counts.
pub(crate) const ENTRY_FILES: [&str; 2] = ["SKILL.md", "skill.md"];

/// A skill as callers have it, in the key order of the wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Skill {
    pub name: String,
    pub display_name: String,
    pub description: String,
    pub instructions: String,
    /// The package's directory on the host.
    pub package_root: String,
    pub entry_file: String,
    pub created_at: String,
    pub updated_at: String,
    /// The package's directory below the root.
    #[serde(skip)]
    pub(crate) below: String,
}

impl Skill {
    /// What its texts hold in memory.
    pub(crate) fn text_bytes(&self) -> usize {
        self.name.len() + self.display_name.len() + self.description.len() + self.instructions.len()
    }
}

/// When a file was what it is: equal stamps, equal file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    size: i64,
    modified: (i64, i64),
    pub(crate) changed: (i64, i64),
}

impl From<&Stat> for Stamp {
    #[expect(clippy::unnecessary_cast, reason = "the types of these fields vary with the architecture")]
    fn from(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev as u64,
            inode: stat.st_ino as u64,
            size: stat.st_size as i64,
            modified: (stat.st_mtime as i64, stat.st_mtime_nsec as i64),
            changed: (stat.st_ctime as i64, stat.st_ctime_nsec as i64),
        }
    }
}

/// The entry file of a directory, if it has one.
pub(crate) fn entry_file(dir: &Dir) -> Option<(&'static str, Stat)> {
    ENTRY_FILES.into_iter().find_map(|name| {
        let (_, stat) = dir.file(Path::new(name), Links::Inside).ok()?;
        Some((name, stat))
    })
}

/// The text of an entry file.
pub(crate) fn read_entry(dir: &Dir, name: &str) -> Result<(String, Stat), SkillError> {
    let (bytes, stat) = dir.read(Path::new(name), Links::Inside, ENTRY_BYTES).map_err(|miss| match miss {
        Miss::TooLong => SkillError::limit(name, format!("{ENTRY_BYTES} bytes")),
        Miss::Failed(error) => SkillError::io(format!("reading {name}"), error),
        _ => SkillError::NoFile { path: name.to_owned() },
    })?;
    let text = String::from_utf8(bytes).map_err(|_| SkillError::NotText { path: name.to_owned() })?;
    Ok((text, stat))
}

/// What a package says of itself. `directory` is the name that stands in for one.
pub(crate) fn describe(
    text: &str,
    directory: &str,
    package_root: &Path,
    entry_file: &str,
    times: (String, String),
) -> Result<Skill, SkillError> {
    let read = FrontMatter::parse(text)?;
    let name = read.field(NAME).unwrap_or_else(|| directory.to_owned());
    if !is_component(&name) {
        let problem = format!("the name in {entry_file} cannot be that of a directory: {}", shown(&name));
        return Err(SkillError::invalid("name", problem));
    }
    let Some(package_root) = package_root.to_str() else {
        return Err(SkillError::invalid("package_root", "the path of the package is not UTF-8"));
    };
    Ok(Skill {
        display_name: read.field(DISPLAY_NAME).unwrap_or_else(|| name.clone()),
        name,
        description: read.field(DESCRIPTION).unwrap_or_default(),
        instructions: read.body().to_owned(),
        package_root: package_root.to_owned(),
        entry_file: entry_file.to_owned(),
        created_at: times.0,
        updated_at: times.1,
        below: String::new(),
    })
}

/// The package in an open directory.
pub(crate) fn load(dir: &Dir, package_root: &Path, entry: &str) -> Result<(Skill, Stamp), SkillError> {
    let (text, stat) = read_entry(dir, entry)?;
    let stamp = Stamp::from(&stat);
    let times = (time(stamp.changed), time(stamp.modified));
    let directory = package_root.file_name().and_then(|name| name.to_str()).unwrap_or("skill");
    Ok((describe(&text, directory, package_root, entry, times)?, stamp))
}

/// As Python prints a time in UTC.
pub(crate) fn time((seconds, nanoseconds): (i64, i64)) -> String {
    let nanoseconds = i32::try_from(nanoseconds).unwrap_or(0);
    let time = Timestamp::new(seconds, nanoseconds).unwrap_or(Timestamp::UNIX_EPOCH);
    time.strftime("%Y-%m-%dT%H:%M:%S%.6f+00:00").to_string()
}

pub(crate) fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6f+00:00").to_string()
}

/// For messages: no line of them is somebody else's.
fn shown(text: &str) -> String {
    text.chars().take(80).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_python() {
        assert_eq!(time((1_731_652_516, 634_978_000)), "2024-11-15T06:35:16.634978+00:00");
        assert_eq!(time((0, 0)), "1970-01-01T00:00:00.000000+00:00");
    }

    /// A name becomes the place of a mount, and the reference lets `../../etc` through.
    #[test]
    fn a_name_that_is_no_directory_name_is_refused() {
        let times = || (String::new(), String::new());
        for bad in ["../../etc", "a/b", "..", "a\\tb\\0"] {
            let text = format!("---\nname: \"{bad}\"\n---\n");
            assert!(describe(&text, "d", Path::new("/r/d"), "SKILL.md", times()).is_err(), "{bad}");
        }
        assert_eq!(describe("x", "d", Path::new("/r/d"), "SKILL.md", times()).unwrap().name, "d");
    }
}
