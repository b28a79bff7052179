//! One tar archive onto a root: a whole root by itself, or a layer over those before it.

use std::io::{self, Read};

use sha2::{Digest, Sha256};

use crate::error::{ImageError, Step};
use crate::root::{Facts, Root, split};
use crate::tar::{Entry, Kind, Tar};

/// How layers say that something of a lower one is gone.
const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// What aufs kept for itself.
const AUFS: &[u8] = b".wh..wh.";

/// Whether names of whiteouts mean something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// A root by itself: every name is a name.
    Whole,
    Layer,
}

/// Removes what a layer hides of those below it. Before its own entries come: a layer hides nothing of itself.
pub(crate) fn apply_whiteouts(root: &mut Root<'_>, layer: impl Read) -> Result<(), ImageError> {
    let mut tar = Tar::new(layer);
    while let Some(entry) = tar.next()? {
        let Some((directory, name)) = split(&entry.path)? else { continue };
        if name == OPAQUE {
            root.make_opaque(&directory)?;
        } else if let Some(hidden) = hidden_name(&entry, &name)? {
            let mut path = directory;
            path.push(b'/');
            path.extend_from_slice(hidden);
            root.white_out(&path)?;
        }
    }
    Ok(())
}

fn hidden_name<'a>(entry: &Entry, name: &'a [u8]) -> Result<Option<&'a [u8]>, ImageError> {
    let Some(hidden) = name.strip_prefix(WHITEOUT).filter(|_| !name.starts_with(AUFS)) else {
        return Ok(None);
    };
    if matches!(hidden, b"" | b"." | b"..") {
        return Err(ImageError::refused(&entry.path, "it is a whiteout of no possible name"));
    }
    Ok(Some(hidden))
}

/// Adds all entries of an archive; the digest of the whole stream.
pub(crate) fn apply(root: &mut Root<'_>, archive: impl Read, role: Role) -> Result<String, ImageError> {
    let mut tar = Tar::new(Hashing { input: archive, hash: Sha256::new() });
    while let Some(entry) = tar.next()? {
        root.count()?;
        let is_whiteout = split(&entry.path)?.is_some_and(|(_, name)| name.starts_with(WHITEOUT));
        if role == Role::Layer && is_whiteout {
            continue;
        }
        add(root, &entry, &mut tar)?;
    }
    // Behind the end mark there is padding, which is part of the digest.
    let mut rest = tar.into_inner();
    io::copy(&mut rest, &mut io::sink()).step(|| "reading the archive")?;
    Ok(digest(rest.hash))
}

fn add(root: &mut Root<'_>, entry: &Entry, data: &mut impl Read) -> Result<(), ImageError> {
    let Entry { path, kind, mode, uid, gid, mtime, size, link } = entry;
    let facts = Facts { mode: *mode, uid: *uid, gid: *gid, mtime: *mtime };
    match kind {
        Kind::Directory => root.directory(path, facts),
        Kind::File => root.file(path, facts, *size, data),
        Kind::Symlink => root.symlink(path, link, facts),
        Kind::Hardlink => root.hardlink(path, link),
        Kind::Device => device(root, path),
        Kind::Fifo => {
            split(path)?;
            root.left_out += 1;
            Ok(())
        }
    }
}

/// A box has a /dev of its own. Anywhere else a device has no business.
pub(crate) fn device(root: &mut Root<'_>, path: &[u8]) -> Result<(), ImageError> {
    let below_dev =
        split(path)?.is_some_and(|(directory, _)| directory == b"dev" || directory.starts_with(b"dev/"));
    if !below_dev {
        return Err(ImageError::refused(
            path,
            "it is a device node; only those below /dev are left out, remove it",
        ));
    }
    root.left_out += 1;
    Ok(())
}

pub(crate) fn digest(hash: Sha256) -> String {
    let mut text = "sha256:".to_owned();
    for byte in hash.finalize() {
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// Hashes what is read through it.
#[derive(Debug)]
pub(crate) struct Hashing<R> {
    pub(crate) input: R,
    pub(crate) hash: Sha256,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        self.hash.update(&buffer[..count]);
        Ok(count)
    }
}

#[cfg(test)]
#[path = "layer_tests.rs"]
mod tests;
