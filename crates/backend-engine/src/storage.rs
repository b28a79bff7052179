//! The directory of a session on the host: its socket, its workspace, its home.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};

use sandcrate_backend::BackendError;
use sandcrate_driver::instance::remove_if_there;
use sandcrate_driver::on_disk;

/// The private directories of a session.
const PRIVATE: [&str; 2] = ["workspace", "home"];

/// Storage of one session. Whoever needs to know that it is gone calls `remove`; dropped, it goes in the background.
#[derive(Debug)]
pub(crate) struct Storage {
    /// Of this box, gone with it.
    own: PathBuf,
    /// Where workspace and home are: the same, or a directory of the caller's.
    files: PathBuf,
    removed: bool,
}

impl Storage {
    /// Makes the directories of a box. `kept` is a directory of the caller's for its files, made when missing.
    pub(crate) fn create(own: PathBuf, kept: Option<&Path>) -> Result<Self, BackendError> {
        let failed = |error| BackendError::failed("making the session's storage", error);
        make(&own).map_err(failed)?;
        let mut storage = Self { files: own.clone(), own, removed: false };
        make(&storage.own.join("link")).map_err(failed)?;
        if let Some(kept) = kept {
            DirBuilder::new().recursive(true).mode(0o755).create(kept).map_err(failed)?;
            storage.files = kept.canonicalize().map_err(failed)?;
        }
        for name in PRIVATE {
            make(&storage.files.join(name)).map_err(failed)?;
        }
        Ok(storage)
    }

    /// The same files for another box of the session, whose own directory is `own`.
    pub(crate) fn again(&mut self, own: PathBuf) -> Result<(), BackendError> {
        let failed = |error| BackendError::failed("making the session's storage", error);
        make(&own).map_err(failed)?;
        make(&own.join("link")).map_err(failed)?;
        if self.files == self.own {
            for (index, name) in PRIVATE.into_iter().enumerate() {
                if let Err(error) = fs::rename(self.own.join(name), own.join(name)) {
                    // All of it stays where it was.
                    for name in &PRIVATE[..index] {
                        fs::rename(own.join(name), self.own.join(name)).map_err(failed)?;
                    }
                    return Err(failed(error));
                }
            }
            self.files.clone_from(&own);
        }
        let old = std::mem::replace(&mut self.own, own);
        // Only the earlier box's socket is left in it; what cannot be removed goes with the instance.
        if let Err(error) = remove_if_there(&old) {
            tracing::warn!(%error, "an earlier box's directory cannot be removed");
        }
        Ok(())
    }

    /// Whether its files are nobody else's, and go with it.
    pub(crate) fn is_private(&self) -> bool {
        self.files == self.own
    }

    pub(crate) fn link_path(&self) -> PathBuf {
        self.own.join("link")
    }

    pub(crate) fn link_directory(&self) -> String {
        self.link_path().to_string_lossy().into_owned()
    }

    pub(crate) fn workspace_directory(&self) -> String {
        self.files.join("workspace").to_string_lossy().into_owned()
    }

    pub(crate) fn home_directory(&self) -> String {
        self.files.join("home").to_string_lossy().into_owned()
    }

    /// What counts against the session's bound.
    pub(crate) fn counted(&self) -> Vec<PathBuf> {
        PRIVATE.map(|name| self.files.join(name)).into()
    }

    /// Removes what is not kept, off the async threads.
    pub(crate) async fn remove(mut self) -> io::Result<()> {
        self.removed = true;
        let own = std::mem::take(&mut self.own);
        on_disk(move || remove_if_there(&own)).await
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        if self.removed {
            return;
        }
        let own = std::mem::take(&mut self.own);
        // What is left of it goes with the instance, or at the next start.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || remove_if_there(&own))),
            Err(_) => drop(remove_if_there(&own)),
        }
    }
}

/// One that is there is as good as a new one. Its mode lets the box's user in where an engine maps ids; the
/// directory above keeps everybody else out.
fn make(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o755).create(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Ok(()) => fs::set_permissions(directory, fs::Permissions::from_mode(0o755)),
        other => other,
    }
}

/// Makes these directories those of another user of the host. What is his already is left alone.
pub(crate) fn give_to(directories: &[PathBuf], owner: (u32, u32)) -> io::Result<()> {
    for root in directories {
        let facts = fs::symlink_metadata(root)?;
        if (facts.uid(), facts.gid()) != owner {
            give_tree(root, owner)?;
        }
    }
    Ok(())
}

fn give_tree(root: &Path, (uid, gid): (u32, u32)) -> io::Result<()> {
    let mut pending = vec![root.to_owned()];
    while let Some(path) = pending.pop() {
        lchown(&path, Some(uid), Some(gid))?;
        if fs::symlink_metadata(&path)?.is_dir() {
            for entry in fs::read_dir(&path)? {
                pending.push(entry?.path());
            }
        }
    }
    Ok(())
}
