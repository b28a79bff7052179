//! One daemon's part of the state directory, and what dead daemons left in theirs.
//!
//! An instance is a directory and a lock file beside it, held for as long as the daemon lives: by the lock, and
//! by nothing else, is told who is dead. Two instances never touch each other's things.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use sandcrate_backend::SweepReport;
use sandcrate_jail::{cgroup, remove_tree};

const LOCK_SUFFIX: &str = ".lock";

/// The living instance; dropping it removes its directory.
#[derive(Debug)]
pub struct Instance {
    pub name: String,
    /// Absolute: others who are told of it know no working directory of ours.
    pub directory: PathBuf,
    lock_path: PathBuf,
    lock: File,
}

impl Instance {
    /// Takes a place below `part`, the directory of one backend in the state directory, made when it is not there.
    pub fn create(part: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(part)?;
        let part = part.canonicalize()?;
        loop {
            let name = random_name()?;
            let lock_path = part.join(format!("{name}{LOCK_SUFFIX}"));
            let lock = File::options().write(true).create_new(true).mode(0o600).open(&lock_path)?;
            // A sweeper may have been quicker than our lock; then the file is gone, and we take another name.
            if !is_taken(&lock, &lock_path) {
                continue;
            }
            let directory = part.join(&name);
            DirBuilder::new().mode(0o700).create(&directory)?;
            return Ok(Self { name, directory, lock_path, lock });
        }
    }

    /// Lets go of the lock, as the death of its daemon would, for tests of what comes after that.
    pub fn die(self) -> io::Result<()> {
        flock(&self.lock, FlockOperation::Unlock)?;
        std::mem::forget(self);
        Ok(())
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // What cannot be removed is swept by a later instance.
        if remove_if_there(&self.directory).is_ok() {
            let _ = fs::remove_file(&self.lock_path);
        }
    }
}

/// An instance whose daemon is gone, held by its lock while it is cleared away.
#[derive(Debug)]
pub struct Dead {
    pub name: String,
    pub directory: PathBuf,
    lock_path: PathBuf,
    _lock: File,
}

impl Dead {
    /// Removes its directory and its name; whether there was a directory.
    pub fn clear(self) -> io::Result<bool> {
        let there = self.directory.exists();
        remove_if_there(&self.directory)?;
        fs::remove_file(&self.lock_path)?;
        Ok(there)
    }
}

/// The dead instances below `part`.
pub fn dead(part: &Path) -> io::Result<Vec<Dead>> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(part) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        entries => entries?,
    };
    for entry in entries {
        let lock_path = entry?.path();
        let name = lock_path.file_name().and_then(|name| name.to_str()?.strip_suffix(LOCK_SUFFIX));
        let Some(name) = name.map(str::to_owned) else { continue };
        let Ok(lock) = File::open(&lock_path) else { continue };
        if is_taken(&lock, &lock_path) {
            let directory = lock_path.with_file_name(&name);
            found.push(Dead { name, directory, lock_path, _lock: lock });
        }
    }
    Ok(found)
}

/// Removes what the dead below `part` left, their cgroups too. `before` is told of each directory before it goes.
pub fn sweep(part: &Path, before: impl Fn(&Path)) -> io::Result<SweepReport> {
    let mut report = SweepReport::default();
    for dead in dead(part)? {
        report.cgroups += sweep_cgroups(&dead.name);
        before(&dead.directory);
        let directory = dead.directory.clone();
        match dead.clear() {
            Ok(there) => {
                report.instances += 1;
                report.directories += u32::from(there);
            }
            Err(error) => {
                tracing::warn!(path = %directory.display(), %error, "a dead instance's directory cannot be removed");
            }
        }
    }
    Ok(report)
}

/// Ends and removes what is left in the cgroups of a dead instance or launcher; how many there were.
pub fn sweep_cgroups(name: &str) -> u32 {
    let found = cgroup::Discovery::probe(Path::new("/"));
    found
        .and_then(|found| cgroup::sweep(&found, name))
        .map_or(0, |swept| u32::try_from(swept).unwrap_or(u32::MAX))
}

/// Whether an instance lives. One without a lock file is gone for good; one whose lock cannot be looked at may live.
pub fn is_alive(part: &Path, name: &str) -> bool {
    match File::open(part.join(format!("{name}{LOCK_SUFFIX}"))) {
        Ok(lock) => flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err(),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

pub fn random_name() -> io::Result<String> {
    let mut bytes = [0_u8; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Removes a directory with all that is in it, as deep as it is.
pub fn remove_if_there(directory: &Path) -> io::Result<()> {
    match remove_tree::remove(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// The lock is ours now, and is still that of its name.
fn is_taken(lock: &File, path: &Path) -> bool {
    if flock(lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        return false;
    }
    match (lock.metadata(), fs::symlink_metadata(path)) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_spares_the_living_and_removes_the_dead() {
        let state = tempfile::tempdir().unwrap();
        let part = state.path().join("part");
        let living = Instance::create(&part).unwrap();
        let dying = Instance::create(&part).unwrap();
        let (name, directory) = (dying.name.clone(), dying.directory.clone());
        fs::create_dir_all(directory.join("box-1/workspace/a/b")).unwrap();
        assert!(is_alive(&part, &name));
        dying.die().unwrap();
        assert!(is_alive(&part, &living.name) && !is_alive(&part, &name));
        assert_eq!(dead(&part).unwrap()[0].name, name);
        let told = std::cell::RefCell::new(Vec::new());
        let report = sweep(&part, |path| told.borrow_mut().push(path.to_owned())).unwrap();
        assert_eq!((report.instances, report.directories), (1, 1));
        assert_eq!(told.into_inner(), std::slice::from_ref(&directory));
        assert!(!directory.exists() && living.directory.exists());
        assert_eq!(sweep(&part, |_| ()).unwrap(), SweepReport::default(), "a second sweep finds nothing");
    }

    #[test]
    fn an_instance_leaves_nothing_when_it_ends() {
        let state = tempfile::tempdir().unwrap();
        drop(Instance::create(state.path()).unwrap());
        assert_eq!(fs::read_dir(state.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_lock_that_cannot_be_looked_at_says_nothing_about_its_owner() {
        let state = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("loop.lock", state.path().join("loop.lock")).unwrap();
        assert!(is_alive(state.path(), "loop") && !is_alive(state.path(), "nobody"));
    }
}
