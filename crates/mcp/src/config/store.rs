//! The servers that clients added: one file of the state directory, replaced as a whole.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Registration;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    #[error("reading {} failed", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is damaged; mend it, or remove it to begin anew", path.display())]
    Damaged { path: PathBuf, source: serde_json::Error },
    #[error("writing {} failed", path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// A file of servers. Calls block.
#[derive(Debug, Clone)]
pub struct Store {
    path: PathBuf,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    servers: BTreeMap<String, Registration>,
}

impl Store {
    /// Of this state directory.
    pub fn of_state_dir(dir: &Path) -> Self {
        Self { path: dir.join("mcp").join("servers.json") }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// # Errors
    /// When there is a file that cannot be read.
    pub fn load(&self) -> Result<BTreeMap<String, Registration>, StoreError> {
        let path = || self.path.clone();
        let text = match fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
            Err(source) => return Err(StoreError::Read { path: path(), source }),
        };
        let content: Content =
            serde_json::from_slice(&text).map_err(|source| StoreError::Damaged { path: path(), source })?;
        Ok(content.servers)
    }

    /// All of it at once: a reader, or we after a crash, see the earlier file or this one.
    ///
    /// # Errors
    /// When it cannot be written; then the earlier file stays.
    pub fn save(&self, servers: &BTreeMap<String, Registration>) -> Result<(), StoreError> {
        self.replace(servers).map_err(|source| StoreError::Write { path: self.path.clone(), source })
    }

    fn replace(&self, servers: &BTreeMap<String, Registration>) -> io::Result<()> {
        let dir = self.path.parent().unwrap_or(Path::new("/"));
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let new = dir.join(".servers.json.new");
        // Variables may be secrets: nobody else reads them.
        let mut file =
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        let content = Content { servers: servers.clone() };
        file.write_all(&serde_json::to_vec_pretty(&content).map_err(io::Error::other)?)?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        fs::rename(&new, &self.path)?;
        fs::File::open(dir)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_is_saved_is_loaded_and_nobody_else_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::of_state_dir(dir.path());
        assert!(store.load().unwrap().is_empty());
        let mut entry = Registration::new("uvx", ["mcp-server-time"]);
        entry.env.insert("TOKEN".to_owned(), "secret".to_owned());
        let servers = BTreeMap::from([("time".to_owned(), entry)]);
        store.save(&servers).unwrap();
        assert_eq!(store.load().unwrap(), servers);
        let mode = fs::metadata(store.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        store.save(&BTreeMap::new()).unwrap();
        assert!(store.load().unwrap().is_empty());
        assert_eq!(fs::read_dir(dir.path().join("mcp")).unwrap().count(), 1, "no half file is left");
    }

    #[test]
    fn a_damaged_file_is_not_taken_for_an_empty_one() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::of_state_dir(dir.path());
        fs::create_dir(dir.path().join("mcp")).unwrap();
        fs::write(store.path(), "{\"servers\": {").unwrap();
        assert!(matches!(store.load(), Err(StoreError::Damaged { .. })));
    }
}
