//! Paused sandboxes on disk, one file each, beside the records of the sessions that they are.
//!
//! A sandbox that runs ends with its server; one that is paused is there again when the server comes back.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::sandbox::Facts;
use super::target::is_id;

/// More than any sandbox's environment and metadata.
const MAX_BYTES: u64 = 1 << 20;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Paused {
    pub(crate) facts: Facts,
    pub(crate) since: Timestamp,
}

/// All calls block for the disk.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    directory: PathBuf,
}

impl Store {
    pub(crate) fn new(state_dir: &Path) -> Self {
        Self { directory: state_dir.join("e2b") }
    }

    /// Written whole, or not at all. It holds the sandbox's secret, so it is nobody else's to read.
    pub(crate) fn save(&self, paused: &Paused) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        let (place, fresh) = (self.place(&paused.facts.id, "json"), self.place(&paused.facts.id, "new"));
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
        file.write_all(&serde_json::to_vec(paused)?)?;
        file.sync_all()?;
        fs::rename(fresh, place)
    }

    pub(crate) fn remove(&self, id: &str) -> io::Result<()> {
        match fs::remove_file(self.place(id, "json")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Those that can be read; others are said aloud and left alone.
    pub(crate) fn load(&self) -> Vec<Paused> {
        let Ok(entries) = fs::read_dir(&self.directory) else { return Vec::new() };
        let mut found = Vec::new();
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            match read(&path) {
                Ok(paused) if is_id(&paused.facts.id) => found.push(paused),
                Ok(_) => tracing::warn!(path = %path.display(), "a paused sandbox's record has a strange id"),
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "a paused sandbox's record cannot be read");
                }
            }
        }
        found
    }

    fn place(&self, id: &str, extension: &str) -> PathBuf {
        self.directory.join(format!("{id}.{extension}"))
    }
}

fn read(path: &Path) -> io::Result<Paused> {
    if fs::metadata(path)?.len() > MAX_BYTES {
        return Err(io::Error::other("it is too large"));
    }
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}
