//! read, write and edit, and the box's files as all tools reach them.
//!
//! Everything goes through the [`Client`], so nothing here can touch a file of the host, and the runtime resolves
//! every path where the box is.

use std::sync::Arc;

use bytes::Bytes;
use sandcrate_protocol::{BoxSpec, ErrorKind};
use serde_json::{Value, json};

use super::path::Place;
use crate::service::quota;
use crate::{Client, FileKind, FileMeta, HostError, Result};

/// As much as a file may have to be read or edited whole: more is no use in a conversation.
pub(crate) const READ_BYTES: u64 = 1 << 20;
/// Names shown of one directory.
const LISTED_NAMES: usize = 10_000;

/// The files of one session.
#[derive(Debug, Clone)]
pub(crate) struct BoxFiles {
    pub(crate) client: Arc<dyn Client>,
    pub(crate) spec: BoxSpec,
}

impl BoxFiles {
    /// What is at a path, not followed.
    pub(crate) async fn stat(&self, path: &str) -> Result<Option<FileMeta>> {
        match self.client.stat(&self.spec, path).await {
            Err(error) if error.kind == ErrorKind::FileNotFound => Ok(None),
            found => found,
        }
    }

    /// Entries by name. A name that is no single component is nobody's file.
    pub(crate) async fn list(&self, path: &str) -> Result<Vec<FileMeta>> {
        let mut entries = self.client.list(&self.spec, path).await?;
        entries.retain(|entry| !matches!(entry.name.as_str(), "" | "." | "..") && !entry.name.contains('/'));
        entries.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(entries)
    }

    pub(crate) async fn read(&self, path: &str, limit: u64) -> Result<Bytes> {
        self.client.read(&self.spec, path, limit).await
    }

    /// In place of a file of that many bytes, 0 when there is none.
    pub(crate) async fn write(&self, path: &str, data: Bytes, replaced: u64) -> Result<()> {
        quota::check_write(&self.spec, path, (data.len() as u64).saturating_sub(replaced)).await?;
        self.client.write(&self.spec, path, data).await
    }
}

pub(crate) fn soft(error: impl Into<String>) -> Value {
    json!({"ok": false, "error": error.into()})
}

pub(crate) async fn read(files: &BoxFiles, place: &Place, given: &str) -> Result<Value> {
    let Some(meta) = place.look(files).await? else {
        return Ok(soft(format!("File not found: {given}")));
    };
    match meta.kind {
        FileKind::Directory => {
            let names: Vec<_> = files.list(&place.path).await?.into_iter().map(|entry| entry.name).collect();
            let mut content = names.iter().take(LISTED_NAMES).cloned().collect::<Vec<_>>().join("\n");
            if names.len() > LISTED_NAMES {
                content.push_str(&format!("\n... [{} more names]", names.len() - LISTED_NAMES));
            }
            Ok(json!({"ok": true, "content": content, "is_directory": true}))
        }
        FileKind::File => match whole(files, &place.path, &meta).await? {
            Ok(bytes) => Ok(json!({"ok": true, "content": String::from_utf8_lossy(&bytes)})),
            Err(size) => Ok(too_large(given, size, "Use exec with head, tail or sed to see a part of it.")),
        },
        FileKind::Symlink | FileKind::Other => Ok(soft(format!("Not a regular file: {given}"))),
    }
}

/// All of a regular file, or how large it is at least when that is too much.
async fn whole(files: &BoxFiles, path: &str, meta: &FileMeta) -> Result<std::result::Result<Bytes, u64>> {
    if meta.size > READ_BYTES {
        return Ok(Err(meta.size));
    }
    // One more than allowed: a file may have grown since it was looked at.
    let bytes = files.read(path, READ_BYTES + 1).await?;
    let size = bytes.len() as u64;
    Ok(if size > READ_BYTES { Err(size) } else { Ok(bytes) })
}

fn too_large(given: &str, size: u64, advice: &str) -> Value {
    soft(format!("File is too large: {given} has {size} bytes, and the limit is {READ_BYTES}. {advice}"))
}

pub(crate) async fn write(files: &BoxFiles, place: &Place, given: &str, content: &str) -> Result<Value> {
    let found = place.look(files).await?;
    match found.as_ref().map(|meta| meta.kind) {
        Some(FileKind::Directory) => {
            Err(HostError::new(ErrorKind::FileFailed, format!("Path is a directory: {given}")))
        }
        Some(FileKind::Symlink | FileKind::Other) => {
            Err(HostError::new(ErrorKind::FileFailed, format!("Not a regular file: {given}")))
        }
        Some(FileKind::File) | None => {
            let replaced = found.map_or(0, |meta| meta.size);
            files.write(&place.path, Bytes::copy_from_slice(content.as_bytes()), replaced).await?;
            Ok(json!({"ok": true, "path": given}))
        }
    }
}

/// Replaces one passage and leaves every other byte as it is, whatever it means.
pub(crate) async fn edit(
    files: &BoxFiles,
    place: &Place,
    given: &str,
    old: &str,
    new: &str,
) -> Result<Value> {
    let meta = match place.look(files).await? {
        Some(meta) if meta.kind == FileKind::File => meta,
        _ => return Ok(soft(format!("File not found: {given}"))),
    };
    let bytes = match whole(files, &place.path, &meta).await? {
        Ok(bytes) => bytes,
        Err(size) => return Ok(too_large(given, size, "Use exec with sed or a script to change it.")),
    };
    let places: Vec<usize> = memchr::memmem::find_iter(&bytes, old.as_bytes()).collect();
    // An empty passage is before each character and at the end.
    let count = match old {
        "" => String::from_utf8_lossy(&bytes).chars().count() + 1,
        _ => places.len(),
    };
    let (1, Some(&at)) = (count, places.first()) else {
        return Ok(match count {
            0 => soft("old_string not found in file."),
            count => soft(format!("old_string matches {count} locations; provide a more unique string.")),
        });
    };
    let edited = [&bytes[..at], new.as_bytes(), &bytes[at + old.len()..]].concat();
    files.write(&place.path, edited.into(), meta.size).await?;
    Ok(json!({"ok": true, "path": given}))
}
