//! The right to change a store: one holder at a time, whichever process it is in.
//!
//! The lock is a file in the root's own `.sandcrate`, beside what is being put together. Whatever else lies there
//! when the lock is taken was left by somebody who died, and is removed.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use super::Store;
use crate::SkillError;
use crate::beneath::{Dir, Links, Miss, random_name};
use crate::name::PRIVATE_DIR;
use crate::tree;

/// Longer than any change takes; the lock of a stopped process must not hold our threads for ever.
const PATIENCE: Duration = Duration::from_secs(10);
/// For what nobody sees any more; a rest goes with the next change.
const REMOVAL: Duration = Duration::from_secs(3);
const LOCK_FILE: &str = "lock";

#[derive(Debug)]
pub(super) struct Locked {
    pub(super) root: Dir,
    /// Where the root really is.
    pub(super) path: PathBuf,
    place: Dir,
    _lock: OwnedFd,
}

/// A directory that is being put together; gone when it is not moved to its place.
#[derive(Debug)]
pub(super) struct Staged<'a> {
    locked: &'a Locked,
    name: PathBuf,
    pub(super) dir: Dir,
}

impl Store {
    pub(super) fn lock(&self) -> Result<Locked, SkillError> {
        let io = |error| SkillError::io(format!("making {}", self.root.display()), error);
        std::fs::create_dir_all(&self.root).map_err(io)?;
        let root = Dir::open(&self.root).map_err(io)?;
        let path = root.path().map_err(io)?;
        let missed = |miss| tree::failed("locking", &self.root, miss);
        let place = private_place(&root).map_err(missed)?;
        let lock = place.lock_file(Path::new(LOCK_FILE)).map_err(missed)?;
        let began = Instant::now();
        while let Err(error) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            if !matches!(error, rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) {
                return Err(io(error.into()));
            }
            if began.elapsed() > PATIENCE {
                return Err(SkillError::Busy { path: self.root.clone() });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let locked = Locked { root, path, place, _lock: lock };
        locked.clear();
        Ok(locked)
    }
}

/// Our own directory, made when it is missing. A link in its place would have us remove what it leads to.
fn private_place(root: &Dir) -> Result<Dir, Miss> {
    let name = Path::new(PRIVATE_DIR);
    match root.dir(name, Links::Refuse) {
        Err(Miss::Absent) => match root.make(name) {
            // Somebody was faster.
            Err(Miss::Failed(error)) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                root.dir(name, Links::Refuse)
            }
            made => made,
        },
        found => found,
    }
}

fn soon() -> Instant {
    Instant::now() + REMOVAL
}

impl Locked {
    /// Best effort: what cannot be removed is in nobody's way.
    fn clear(&self) {
        let Ok((entries, _)) = self.place.entries(1024) else { return };
        // One time for all of them: the change that waits is more than they are.
        let until = soon();
        for entry in entries.iter().filter(|entry| entry.name != LOCK_FILE) {
            let _ = tree::remove(&self.place, Path::new(&entry.name), until);
        }
    }

    pub(super) fn stage(&self) -> Result<Staged<'_>, SkillError> {
        let name = random_name().map_err(|error| SkillError::io("naming a directory", error))?;
        let name = PathBuf::from(name);
        let dir = self.place.make(&name).map_err(|miss| tree::failed("making", &self.path, miss))?;
        Ok(Staged { locked: self, name, dir })
    }

    /// Takes a directory away in one step; its content goes after that.
    pub(super) fn discard(&self, parent: &Dir, name: &Path) -> Result<(), Miss> {
        let trash = PathBuf::from(random_name()?);
        parent.move_to(name, &self.place, &trash)?;
        // Out of sight already; a rest goes with the next change.
        let _ = tree::remove(&self.place, &trash, soon());
        Ok(())
    }
}

impl Staged<'_> {
    /// Moves what was put together to its place, all at once.
    pub(super) fn publish(self, name: &Path) -> Result<(), SkillError> {
        let moved = self.locked.place.move_to(&self.name, &self.locked.root, name);
        moved.map_err(|miss| match miss {
            Miss::Failed(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                SkillError::DirectoryExists { path: self.locked.path.join(name) }
            }
            miss => tree::failed("making", &self.locked.path.join(name), miss),
        })
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        let _ = tree::remove(&self.locked.place, &self.name, soon());
    }
}
