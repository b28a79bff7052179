//! Our own side of a copy out of a box.
//!
//! What is in the box is a stranger's. Nothing it is called or linked to may make us write outside of the
//! directory that we were given: names are single segments, directories are real ones, files take their place
//! by a rename, and links come last and stay inside.

use std::fs::Permissions;
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use anyhow::Context;
use tempfile::NamedTempFile;

use crate::failure::Failure;

/// The last name of a path of ours.
pub(super) fn name(path: &Path) -> anyhow::Result<String> {
    let whole;
    let name = match path.file_name() {
        Some(name) => name,
        None => {
            whole = path.canonicalize().with_context(|| path.display().to_string())?;
            whole.file_name().unwrap_or_default()
        }
    };
    let problem = || Failure::invalid(format!("{}: the name must be UTF-8", path.display()));
    Ok(name.to_str().ok_or_else(problem)?.to_owned())
}

/// A name that a box gave to something, when it is one.
pub(super) fn checked(name: &str) -> anyhow::Result<&str> {
    let single = !name.is_empty() && !matches!(name, "." | "..") && !name.contains(['/', '\0']);
    anyhow::ensure!(single, "the box has a file with the name {name:?}, which is none");
    Ok(name)
}

/// Makes a directory, or takes the one that is there; a link to one is none.
pub(super) fn make_dir(path: &Path) -> anyhow::Result<()> {
    match std::fs::create_dir(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let kind = path.symlink_metadata().with_context(|| path.display().to_string())?.file_type();
            if kind.is_dir() {
                return Ok(());
            }
            Err(Failure::invalid(format!("{} is there and is not a directory", path.display())).into())
        }
        Err(error) => Err(anyhow::Error::new(error).context(path.display().to_string())),
    }
}

/// A file of ours that is being written.
#[derive(Debug)]
pub(super) enum Output {
    /// Takes the place of the target when it is whole.
    Beside { file: NamedTempFile, target: PathBuf },
    /// A device or pipe, which nothing can take the place of.
    Direct(std::fs::File),
}

impl Output {
    /// `target` as the caller named it: a link of the caller's is followed.
    pub(super) fn named(target: &Path) -> io::Result<Self> {
        let real = match target.canonicalize() {
            Ok(real) => real,
            Err(error) if error.kind() == io::ErrorKind::NotFound => target.to_owned(),
            Err(error) => return Err(error),
        };
        let special =
            |kind: std::fs::FileType| kind.is_char_device() || kind.is_fifo() || kind.is_block_device();
        if real.metadata().is_ok_and(|metadata| special(metadata.file_type())) {
            return Ok(Self::Direct(std::fs::OpenOptions::new().write(true).open(real)?));
        }
        Self::beside(&real)
    }

    /// A file in a directory that we made or checked.
    pub(super) fn beside(target: &Path) -> io::Result<Self> {
        let parent =
            target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let file = tempfile::Builder::new().prefix(".sandcrate-cp-").tempfile_in(parent)?;
        Ok(Self::Beside { file, target: target.to_owned() })
    }

    pub(super) fn write(&mut self, data: &[u8]) -> io::Result<()> {
        match self {
            Self::Beside { file, .. } => file.write_all(data),
            Self::Direct(file) => file.write_all(data),
        }
    }

    /// Everything is there. Set-id bits, and others' right to write, do not come out of a box.
    pub(super) fn finish(self, mode: u32) -> io::Result<()> {
        match self {
            Self::Beside { file, target } => {
                file.as_file().set_permissions(Permissions::from_mode(mode & 0o755 | 0o200))?;
                file.persist(target).map(drop).map_err(|error| error.error)
            }
            Self::Direct(mut file) => file.flush(),
        }
    }
}

/// Whether a link in a directory `depth` below the copied one stays inside it.
///
/// Only `..` at the front counts up from a real directory; one after a name could count up from where another
/// link leads.
pub(super) fn stays_inside(target: &str, depth: usize) -> bool {
    let mut ups = 0;
    let mut names = false;
    for part in Path::new(target).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if names => return false,
            Component::ParentDir => ups += 1,
            Component::Normal(_) => names = true,
            Component::RootDir | Component::Prefix(_) => return false,
        }
    }
    ups <= depth
}

/// Makes a link; one that is there is replaced, anything else is not.
pub(super) fn make_link(leads_to: &str, path: &Path) -> anyhow::Result<()> {
    if path.symlink_metadata().is_ok_and(|metadata| metadata.is_symlink()) {
        std::fs::remove_file(path).with_context(|| path.display().to_string())?;
    }
    std::os::unix::fs::symlink(leads_to, path).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_box_are_single_segments() {
        for name in ["a", "..a", "a b", "-"] {
            assert!(checked(name).is_ok(), "{name}");
        }
        for name in ["", ".", "..", "a/b", "/etc", "../x", "a\0b"] {
            assert!(checked(name).is_err(), "{name}");
        }
    }

    #[test]
    fn links_stay_inside() {
        for (target, depth, inside) in [
            ("a", 0, true),
            ("./a/b", 0, true),
            ("../a", 1, true),
            ("../a", 0, false),
            ("../../a", 1, false),
            ("/etc", 5, false),
            ("a/../b", 0, false),
            ("", 0, true),
        ] {
            assert_eq!(stays_inside(target, depth), inside, "{target} at {depth}");
        }
    }

    /// The way out of `kubectl cp`, twice: a link from an earlier copy is a directory in the next one.
    #[test]
    fn a_link_is_no_directory_and_no_file_to_write_to() {
        let dir = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("f"), "old").unwrap();
        std::os::unix::fs::symlink(outside.path(), dir.path().join("d")).unwrap();
        assert!(make_dir(&dir.path().join("d")).is_err());
        std::os::unix::fs::symlink(outside.path().join("f"), dir.path().join("f")).unwrap();
        let mut output = Output::beside(&dir.path().join("f")).unwrap();
        output.write(b"new").unwrap();
        output.finish(0o6777).unwrap();
        assert_eq!(std::fs::read(outside.path().join("f")).unwrap(), b"old");
        let written = dir.path().join("f").symlink_metadata().unwrap();
        assert!(written.is_file());
        assert_eq!(written.permissions().mode() & 0o7777, 0o755);
    }

    #[test]
    fn a_file_that_breaks_off_leaves_the_old_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, "old").unwrap();
        let mut output = Output::named(&path).unwrap();
        output.write(b"half").unwrap();
        drop(output);
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(matches!(Output::named(Path::new("/dev/null")).unwrap(), Output::Direct(_)));
    }
}
