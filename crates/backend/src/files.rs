//! File operations inside a box.

use bytes::Bytes;
use serde::Serialize;

/// One operation. Paths are of the box; a relative one starts at the session's workdir. Symbolic links are
/// followed, inside the box's own root.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileRequest {
    /// What the path is, without following a final symbolic link.
    Stat {
        path: String,
    },
    /// Entries of a directory in no particular order; at most `FileRequest::MAX_ENTRIES`.
    List {
        path: String,
    },
    /// Up to `limit` bytes from `offset`, and at most `FileRequest::MAX_BYTES`; none at or after the end.
    Read {
        path: String,
        offset: u64,
        limit: u64,
    },
    /// Replaces the content of a regular file, or makes it; missing parents are made.
    Write {
        path: String,
        data: Bytes,
    },
    /// Adds to the end of a regular file, or makes it; missing parents are made. A file larger than
    /// `FileRequest::MAX_BYTES` arrives as one `Write` and many of these.
    Append {
        path: String,
        data: Bytes,
    },
    /// Makes a directory and its missing parents; one that exists is no error.
    MakeDir {
        path: String,
    },
    /// Removes a file, or a directory with all below it.
    Remove {
        path: String,
    },
    Rename {
        from: String,
        to: String,
    },
}

impl FileRequest {
    /// A listing is held in memory on both sides.
    pub const MAX_ENTRIES: usize = 100_000;
    /// One read or write is held in memory; larger files move in pieces.
    pub const MAX_BYTES: u64 = 64 << 20;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    File,
    Directory,
    Symlink,
    Other,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileEntry {
    /// The last component; for `Stat`, of the path asked for. Lossy where the name is not UTF-8.
    pub name: String,
    pub kind: FileKind,
    pub bytes: u64,
    /// Permission bits, without the type.
    pub mode: u32,
    /// Seconds since 1970.
    pub modified: i64,
    /// Where a symbolic link points.
    pub link_target: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileReply {
    Entry(FileEntry),
    Entries(Vec<FileEntry>),
    /// The bytes, and the size of the whole file.
    Data {
        data: Bytes,
        file_bytes: u64,
    },
    Done,
}
