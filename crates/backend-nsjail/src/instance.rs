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
pub(crate) struct Instance {
    pub(crate) name: String,
    pub(crate) directory: PathBuf,
    lock_path: PathBuf,
    _lock: File,
}

impl Instance {
    pub(crate) fn create(state_dir: &Path) -> io::Result<Self> {
        let all = instances(state_dir);
        DirBuilder::new().recursive(true).mode(0o700).create(&all)?;
        let all = all.canonicalize()?;
        loop {
            let name = random_name()?;
            let lock_path = all.join(format!("{name}{LOCK_SUFFIX}"));
            let lock = File::options().write(true).create_new(true).mode(0o600).open(&lock_path)?;
            // A sweeper may have been quicker than our lock; then the file is gone, and we take another name.
            if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() || !is_at(&lock, &lock_path) {
                continue;
            }
            let directory = all.join(&name);
            DirBuilder::new().mode(0o700).create(&directory)?;
            return Ok(Self { name, directory, lock_path, _lock: lock });
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // What cannot be removed is swept by a later instance.
        if remove_tree::remove(&self.directory).is_ok() {
            let _ = fs::remove_file(&self.lock_path);
        }
    }
}

/// Removes what instances left whose daemon is gone.
pub(crate) fn sweep(state_dir: &Path) -> io::Result<SweepReport> {
    let mut report = SweepReport::default();
    let entries = match fs::read_dir(instances(state_dir)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(report),
        entries => entries?,
    };
    for entry in entries {
        let lock_path = entry?.path();
        let Some(name) = lock_path.file_name().and_then(|name| name.to_str()?.strip_suffix(LOCK_SUFFIX))
        else {
            continue;
        };
        let Ok(lock) = File::open(&lock_path) else { continue };
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() || !is_at(&lock, &lock_path) {
            continue;
        }
        report.cgroups += sweep_cgroups(name);
        let directory = lock_path.with_file_name(name);
        match remove_tree::remove(&directory) {
            Ok(()) => report.directories += 1,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!(path = %directory.display(), %error, "a dead instance's directory cannot be removed");
                continue;
            }
        }
        report.instances += 1;
        fs::remove_file(&lock_path)?;
    }
    Ok(report)
}

/// Ends and removes what is left in the cgroups of a dead instance; how many there were.
fn sweep_cgroups(name: &str) -> u32 {
    let found = cgroup::Discovery::probe(Path::new("/"));
    found
        .and_then(|found| cgroup::sweep(&found, name))
        .map_or(0, |swept| u32::try_from(swept).unwrap_or(u32::MAX))
}

fn instances(state_dir: &Path) -> PathBuf {
    state_dir.join("nsjail")
}

fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

fn random_name() -> io::Result<String> {
    let mut bytes = [0_u8; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_spares_the_living_and_removes_the_dead() {
        let state = tempfile::tempdir().unwrap();
        let living = Instance::create(state.path()).unwrap();
        let dead = Instance::create(state.path()).unwrap();
        let dead_directory = dead.directory.clone();
        fs::create_dir_all(dead_directory.join("box-1/workspace/a/b")).unwrap();
        // Dies without a clean-up: the lock goes, the files stay.
        let Instance { _lock, .. } = &dead;
        rustix::fs::flock(_lock, FlockOperation::Unlock).unwrap();
        let report = sweep(state.path()).unwrap();
        assert_eq!((report.instances, report.directories), (1, 1));
        assert!(!dead_directory.exists() && living.directory.exists());
        std::mem::forget(dead);
        assert_eq!(sweep(state.path()).unwrap(), SweepReport::default(), "a second sweep finds nothing");
    }

    #[test]
    fn an_instance_leaves_nothing_when_it_ends() {
        let state = tempfile::tempdir().unwrap();
        drop(Instance::create(state.path()).unwrap());
        assert_eq!(fs::read_dir(instances(state.path())).unwrap().count(), 0);
    }
}
