//! A directory of the host as an image.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};
use sha2::{Digest, Sha256};

use crate::error::{ImageError, Step, shown};
use crate::layer::{Hashing, device, digest};
use crate::root::{Facts, Root};

/// Deeper than any real tree, and far from what open files would bound.
const MAX_DEPTH: usize = 128;

/// Copies the tree; the digest of all that was read.
pub(crate) fn copy(root: &mut Root<'_>, source: &std::path::Path) -> Result<String, ImageError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = openat(CWD, source, flags, Mode::empty()).step(|| format!("opening {}", source.display()))?;
    let mut walk = Walk { hash: Sha256::new(), links: HashMap::new() };
    walk.directory(root, &top, b"", 0)?;
    Ok(digest(walk.hash))
}

struct Walk {
    hash: Sha256,
    /// First names of files that have several, by device and inode.
    links: HashMap<(u64, u64), Vec<u8>>,
}

impl Walk {
    fn directory(
        &mut self,
        root: &mut Root<'_>,
        at: &OwnedFd,
        path: &[u8],
        depth: usize,
    ) -> Result<(), ImageError> {
        if depth > MAX_DEPTH {
            return Err(ImageError::refused(path, "it is more than 128 directories deep"));
        }
        let reading = || format!("reading {}", shown(path));
        let mut names = Vec::new();
        for entry in Dir::read_from(at).step(reading)? {
            let name = entry.step(reading)?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                // Counted before they are kept: a directory may have any number.
                root.count()?;
                names.push(name);
            }
        }
        // So that the same tree has the same digest.
        names.sort_unstable();
        for name in names {
            let child = if path.is_empty() { name.clone() } else { [path, b"/", &name].concat() };
            self.entry(root, at, &name, &child, depth)?;
        }
        Ok(())
    }

    fn entry(
        &mut self,
        root: &mut Root<'_>,
        at: &OwnedFd,
        name: &[u8],
        path: &[u8],
        depth: usize,
    ) -> Result<(), ImageError> {
        let reading = || format!("reading {}", shown(path));
        let found = statat(at, name, AtFlags::SYMLINK_NOFOLLOW).step(reading)?;
        let kind = FileType::from_raw_mode(found.st_mode);
        self.note(path, &found);
        match kind {
            FileType::Directory => {
                root.directory(path, facts(&found))?;
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let inner = openat(at, name, flags, Mode::empty()).step(reading)?;
                self.directory(root, &inner, path, depth + 1)
            }
            FileType::Symlink => {
                let target = readlinkat(at, name, Vec::new()).step(reading)?;
                self.text(target.as_bytes());
                root.symlink(path, target.as_bytes(), facts(&found))
            }
            FileType::RegularFile => self.file(root, at, name, path),
            FileType::CharacterDevice | FileType::BlockDevice => device(root, path),
            _ => {
                root.left_out += 1;
                Ok(())
            }
        }
    }

    fn file(
        &mut self,
        root: &mut Root<'_>,
        at: &OwnedFd,
        name: &[u8],
        path: &[u8],
    ) -> Result<(), ImageError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(at, name, flags, Mode::empty()).step(|| format!("reading {}", shown(path)))?;
        // What was opened counts, not what was there before.
        let found = fstat(&file).step(|| format!("reading {}", shown(path)))?;
        if !FileType::from_raw_mode(found.st_mode).is_file() {
            return Err(ImageError::refused(path, "it changed while it was read"));
        }
        if found.st_nlink > 1 {
            if let Some(first) = self.links.get(&(found.st_dev, found.st_ino)) {
                let first = first.clone();
                self.text(&first);
                return root.hardlink(path, &first);
            }
            self.links.insert((found.st_dev, found.st_ino), path.to_vec());
        }
        let mut data = Hashing { input: File::from(file), hash: Sha256::new() };
        root.file(path, facts(&found), u64::try_from(found.st_size).unwrap_or(0), &mut data)?;
        self.hash.update(data.hash.finalize());
        Ok(())
    }

    /// Without a NUL in it, and with one behind.
    fn text(&mut self, text: &[u8]) {
        self.hash.update(text);
        self.hash.update([0]);
    }

    /// Fields of fixed size behind a name that ends visibly: no two trees read alike.
    fn note(&mut self, path: &[u8], found: &Stat) {
        self.text(path);
        for number in [found.st_mode, found.st_uid, found.st_gid] {
            self.hash.update(number.to_le_bytes());
        }
    }
}

fn facts(found: &Stat) -> Facts {
    Facts {
        mode: found.st_mode & 0o7777,
        uid: found.st_uid.into(),
        gid: found.st_gid.into(),
        mtime: found.st_mtime,
    }
}

/// Whether a directory is an OCI layout and not a root.
pub(crate) fn is_oci_layout(directory: &std::path::Path) -> bool {
    directory.join("oci-layout").is_file() && directory.join("index.json").is_file()
}
