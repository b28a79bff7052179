//! A configuration file that is not ours: changed as a whole or not at all, with what it was beside it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::edit::EditError;
use crate::failure::Failure;

/// A configuration is small; a file that is not is something else.
const LARGEST: u64 = 16 << 20;
/// Backups of one file; a person who has so many wants none of them.
const MOST_BACKUPS: u32 = 1000;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Written {
    Unchanged,
    Made,
    Changed { backup: PathBuf },
}

/// Puts what `edit` makes of the file's text in its place.
pub(super) fn write(
    path: &Path,
    edit: impl FnOnce(&str) -> Result<String, EditError>,
) -> anyhow::Result<Written> {
    let shown = path.display();
    // A link stays one: what it leads to is changed.
    let real = path.canonicalize();
    let path = real.as_deref().unwrap_or(path);
    let had = read(path).with_context(|| format!("reading {shown}"))?;
    let refuse = |problem: String| {
        Failure::invalid(format!("{shown} was left alone: {problem}"))
            .hint("mend the file, or print the entry and paste it: leave out --write")
    };
    let text = match &had {
        Some(bytes) => std::str::from_utf8(bytes).map_err(|error| {
            let line = bytes[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count() + 1;
            refuse(format!("line {line}: not UTF-8"))
        })?,
        None => "",
    };
    let edited = edit(text).map_err(|error| refuse(error.to_string()))?;
    if had.is_some() && edited == text {
        return Ok(Written::Unchanged);
    }
    let backup = match &had {
        Some(bytes) => Some(keep(path, bytes).with_context(|| format!("keeping {shown} as it was"))?),
        None => None,
    };
    replace(path, edited.as_bytes()).with_context(|| format!("writing {shown}"))?;
    Ok(backup.map_or(Written::Made, |backup| Written::Changed { backup }))
}

fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::metadata(path) {
        Ok(meta) if !meta.is_file() => Err(io::Error::other("it is not a regular file")),
        Ok(meta) if meta.len() > LARGEST => Err(io::Error::other("it is too large for a configuration")),
        Ok(_) => fs::read(path).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// A copy beside the file, under the first free name; no earlier one is written over.
fn keep(path: &Path, bytes: &[u8]) -> io::Result<PathBuf> {
    let mode = fs::metadata(path)?.permissions().mode() & 0o777;
    for number in 1..=MOST_BACKUPS {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".bak-{number}"));
        match OpenOptions::new().write(true).create_new(true).mode(mode).open(&name) {
            Ok(mut file) => {
                file.write_all(bytes)?;
                file.sync_all()?;
                return Ok(name.into());
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other(format!("there are {MOST_BACKUPS} backups already")))
}

/// Whoever reads meanwhile sees the old file or the new one, never a part.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(directory)?;
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    file.write_all(bytes)?;
    // Readable for its owner alone when it is new: entries may hold keys.
    if let Ok(meta) = fs::metadata(path) {
        file.as_file().set_permissions(meta.permissions())?;
    }
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(text: &str) -> impl FnOnce(&str) -> Result<String, EditError> {
        let text = text.to_owned();
        move |_| Ok(text)
    }

    #[test]
    fn what_was_there_is_kept_with_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/er/mcp.json");
        assert_eq!(write(&path, put("{}")).unwrap(), Written::Made);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let first = path.with_file_name("mcp.json.bak-1");
        assert_eq!(write(&path, put("{\"a\":1}")).unwrap(), Written::Changed { backup: first.clone() });
        assert_eq!(write(&path, put("{\"a\":1}")).unwrap(), Written::Unchanged);
        let second = path.with_file_name("mcp.json.bak-2");
        assert_eq!(write(&path, put("[]")).unwrap(), Written::Changed { backup: second.clone() });
        let texts = [&first, &second, &path].map(|path| fs::read_to_string(path).unwrap());
        assert_eq!(texts, ["{}", "{\"a\":1}", "[]"]);
        for path in [&first, &second, &path] {
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o640);
        }
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 3, "no temporary file is left");
    }

    #[test]
    fn a_link_stays_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real.json"), dir.path().join("link.json"));
        fs::write(&real, "{}").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        write(&link, put("[]")).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&real).unwrap(), "[]");
    }

    #[test]
    fn a_file_that_is_refused_is_not_touched() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        fs::write(&path, b"{\n\xff}").unwrap();
        let error = write(&path, put("{}")).unwrap_err();
        assert!(format!("{error:#}").contains("line 2: not UTF-8"), "{error:#}");
        assert!(write(dir.path(), put("{}")).is_err(), "a directory");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
