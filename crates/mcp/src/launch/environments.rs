//! Installed environments on the host, each a directory named by its key.
//!
//! An environment is built in a directory of its own and gets its name by a rename when it is complete, so whatever
//! has a name can be used, whoever was killed meanwhile. A lock file per key lets one process build while the others
//! wait; the lock goes with the process that has it.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Where an environment appears in every box, under its key: programs remember where they were installed.
const MOUNT: &str = "/opt/sandcrate/env";
/// How often a lock that somebody else has is looked at.
const LOOKS: Duration = Duration::from_millis(100);

#[derive(Debug, Clone)]
pub(super) struct Environments {
    root: PathBuf,
}

/// The right to build one environment.
#[derive(Debug)]
pub(super) struct BuildLock(#[expect(dead_code, reason = "held for its lock")] File);

/// A directory in which an environment is built; gone unless it is published.
#[derive(Debug)]
pub(super) struct Building {
    pub(super) path: PathBuf,
    published: bool,
}

/// The place of an environment in a box.
pub(super) fn mount_path(key: &str) -> String {
    format!("{MOUNT}/{key}")
}

/// Unlikely to be anybody else's name.
pub(super) fn unique() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let nanos = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |time| u64::from(time.subsec_nanos()));
    format!("{}-{nanos:x}-{number}", std::process::id())
}

pub(super) fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

impl Environments {
    pub(super) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    fn published(&self, key: &str) -> PathBuf {
        self.root.join("environments").join(key)
    }

    fn buildings(&self) -> PathBuf {
        self.root.join("building")
    }

    /// The complete environment of that key.
    pub(super) fn ready(&self, key: &str) -> Option<PathBuf> {
        Some(self.published(key)).filter(|path| path.is_dir())
    }

    /// Waits until nobody else builds this one. `waits` is called once, when there is somebody.
    pub(super) async fn lock(&self, key: &str, waits: impl FnOnce() + Send) -> io::Result<BuildLock> {
        let directory = self.root.join("locks");
        make_directory(&directory)?;
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(directory.join(format!("{key}.lock")))?;
        let mut waits = Some(waits);
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(BuildLock(file)),
                Err(TryLockError::WouldBlock) => {
                    if let Some(waits) = waits.take() {
                        waits();
                    }
                    tokio::time::sleep(LOOKS).await;
                }
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
    }

    /// An empty directory to build in, after what killed builds of the same key left is removed.
    pub(super) fn begin(&self, key: &str, _lock: &BuildLock) -> io::Result<Building> {
        let buildings = self.buildings();
        make_directory(&buildings)?;
        for entry in fs::read_dir(&buildings)?.flatten() {
            if entry.file_name().to_str().is_some_and(|name| name.starts_with(key)) {
                remove(&entry.path());
            }
        }
        let path = buildings.join(format!("{key}-{}", unique()));
        DirBuilder::new().mode(0o755).create(&path)?;
        Ok(Building { path, published: false })
    }

    /// Gives a complete environment its name. One that had the name goes; boxes that have it mounted keep it.
    pub(super) fn publish(
        &self,
        key: &str,
        mut building: Building,
        _lock: &BuildLock,
    ) -> io::Result<PathBuf> {
        let published = self.published(key);
        make_directory(&self.root.join("environments"))?;
        let old = self.buildings().join(format!("{key}-old-{}", unique()));
        let replaced = fs::rename(&published, &old).is_ok();
        fs::rename(&building.path, &published)?;
        building.published = true;
        if replaced {
            remove(&old);
        }
        Ok(published)
    }
}

impl Drop for Building {
    fn drop(&mut self) {
        if !self.published {
            remove(&self.path);
        }
    }
}

/// What cannot be removed now is removed before the next build of its key.
pub(super) fn remove(path: &Path) {
    if let Err(error) = fs::remove_dir_all(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "a directory could not be removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> (tempfile::TempDir, Environments) {
        let place = tempfile::tempdir().unwrap();
        let environments = Environments::new(place.path().join("cache"));
        (place, environments)
    }

    #[tokio::test]
    async fn only_a_published_environment_is_ready() {
        let (_place, environments) = place();
        let lock = environments.lock("k", || panic!("nobody has it")).await.unwrap();
        let building = environments.begin("k", &lock).unwrap();
        fs::write(building.path.join("half"), "").unwrap();
        assert_eq!(environments.ready("k"), None);
        let path = building.path.clone();
        drop(building);
        assert!(!path.exists(), "a failed build leaves nothing");
        let building = environments.begin("k", &lock).unwrap();
        fs::write(building.path.join("whole"), "").unwrap();
        let published = environments.publish("k", building, &lock).unwrap();
        assert_eq!(environments.ready("k"), Some(published.clone()));
        assert!(published.join("whole").exists());
    }

    #[tokio::test]
    async fn what_a_killed_build_left_goes_with_the_next_one_and_a_rebuild_replaces() {
        let (_place, environments) = place();
        let lock = environments.lock("k", || ()).await.unwrap();
        let killed = environments.begin("k", &lock).unwrap();
        let left = killed.path.clone();
        std::mem::forget(killed);
        let building = environments.begin("k", &lock).unwrap();
        assert!(!left.exists());
        environments.publish("k", building, &lock).unwrap();
        let again = environments.begin("k", &lock).unwrap();
        fs::write(again.path.join("new"), "").unwrap();
        let published = environments.publish("k", again, &lock).unwrap();
        assert!(published.join("new").exists());
        assert_eq!(fs::read_dir(environments.buildings()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn one_builds_and_the_others_wait() {
        let (_place, environments) = place();
        let first = environments.lock("k", || ()).await.unwrap();
        environments.lock("other", || panic!("another key")).await.unwrap();
        let waits = environments.clone();
        let (told, tells) = tokio::sync::oneshot::channel();
        let second = tokio::spawn(async move { waits.lock("k", || told.send(()).unwrap()).await });
        tells.await.unwrap();
        assert!(!second.is_finished());
        drop(first);
        second.await.unwrap().unwrap();
    }
}
