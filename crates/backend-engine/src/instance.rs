//! One daemon's part of the state directory, and which others are dead.
//!
//! An instance is a directory and a lock file beside it, held for as long as the daemon lives: by the lock, and by
//! nothing else, is told who is dead. The state directory has an id of its own, by which containers are told from
//! those of other runtimes on the same engine.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::storage::remove_if_there;

const LOCK_SUFFIX: &str = ".lock";

/// The living instance; dropping it removes its directory.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) name: String,
    pub(crate) directory: PathBuf,
    /// Names the state directory, on every engine and after every move.
    pub(crate) state_id: String,
    /// The guest's program, as containers get it.
    pub(crate) guest: PathBuf,
    /// The resolver's configuration of boxes with an isolated network.
    pub(crate) resolver: PathBuf,
    /// Whether it runs only in images that have its libraries.
    pub(crate) guest_needs_loader: bool,
    lock_path: PathBuf,
    _lock: File,
}

impl Instance {
    /// Takes a place below `part`, a directory of the state directory for one engine.
    pub(crate) fn create(part: &Path, guest: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(part)?;
        // The engine knows no working directory of ours.
        let part = part.canonicalize()?;
        let state_id = state_id(&part)?;
        loop {
            let name = random_name()?;
            let lock_path = part.join(format!("{name}{LOCK_SUFFIX}"));
            let lock = File::options().write(true).create_new(true).mode(0o600).open(&lock_path)?;
            // A sweeper may have been quicker than our lock; then the file is gone, and we take another name.
            if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() || !is_at(&lock, &lock_path) {
                continue;
            }
            let directory = part.join(&name);
            DirBuilder::new().mode(0o700).create(&directory)?;
            let own = directory.join("init");
            place_program(guest, &own)?;
            let guest_needs_loader = needs_loader(&own)?;
            let resolver = directory.join("resolv.conf");
            fs::write(&resolver, format!("nameserver {}\n", sandcrate_driver::interface().gateway_v4))?;
            return Ok(Self {
                resolver,
                name,
                directory,
                state_id,
                guest: own,
                guest_needs_loader,
                lock_path,
                _lock: lock,
            });
        }
    }

    pub(crate) fn box_directory(&self, number: u64) -> PathBuf {
        self.directory.join(format!("box-{number}"))
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

/// A copy that no upgrade of the program changes under running boxes.
fn place_program(guest: &Path, place: &Path) -> io::Result<()> {
    let real = guest.canonicalize()?;
    // A link costs nothing where both are on one file system; the copy holds the very file that runs now.
    if fs::hard_link(&real, place).is_err() {
        let mut from = File::open(guest)?;
        let mut to = File::options().write(true).create_new(true).mode(0o755).open(place)?;
        io::copy(&mut from, &mut to)?;
        to.set_permissions(fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// Whether a program names a loader: elf(5), PT_INTERP, in the layout of 64 bits.
fn needs_loader(program: &Path) -> io::Result<bool> {
    const INTERPRETER: u32 = 3;
    let mut head = [0; 4096];
    let length = File::open(program)?.read(&mut head)?;
    let head = &head[..length];
    let number = |at: usize, bytes: usize| -> Option<usize> {
        let mut padded = [0; 8];
        padded[..bytes].copy_from_slice(head.get(at..at + bytes)?);
        usize::try_from(u64::from_le_bytes(padded)).ok()
    };
    let (Some(table), Some(size), Some(count)) = (number(32, 8), number(54, 2), number(56, 2)) else {
        return Ok(false);
    };
    Ok((0..count).any(|index| number(table + index * size, 4) == Some(INTERPRETER as usize)))
}

/// The id of the state directory, made when there is none.
fn state_id(part: &Path) -> io::Result<String> {
    let path = part.join("id");
    let new = part.join(format!("id.{}", random_name()?));
    File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)?
        .write_all(random_name()?.as_bytes())?;
    // Of several that start at once, the first one's counts.
    let linked = fs::hard_link(&new, &path);
    fs::remove_file(&new)?;
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let mut id = String::new();
    File::open(&path)?.take(64).read_to_string(&mut id)?;
    Ok(id)
}

/// Dead instances, each held by its lock while it is cleared away.
pub(crate) fn dead(part: &Path) -> io::Result<Vec<Dead>> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(part) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        entries => entries?,
    };
    for entry in entries {
        let lock_path = entry?.path();
        let Some(name) = lock_path.file_name().and_then(|name| name.to_str()?.strip_suffix(LOCK_SUFFIX))
        else {
            continue;
        };
        let name = name.to_owned();
        let Ok(lock) = File::open(&lock_path) else { continue };
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() && is_at(&lock, &lock_path) {
            found.push(Dead { name, lock_path, _lock: lock });
        }
    }
    Ok(found)
}

/// An instance whose daemon is gone.
#[derive(Debug)]
pub(crate) struct Dead {
    pub(crate) name: String,
    lock_path: PathBuf,
    _lock: File,
}

impl Dead {
    /// Removes its directory and its name; whether there was a directory.
    pub(crate) fn clear(self) -> io::Result<bool> {
        let directory = self.lock_path.with_file_name(&self.name);
        let there = directory.exists();
        remove_if_there(&directory)?;
        fs::remove_file(&self.lock_path)?;
        Ok(there)
    }
}

/// Whether an instance lives. One without a lock file is gone for good; one whose lock cannot be looked at may live.
pub(crate) fn is_alive(part: &Path, name: &str) -> bool {
    match File::open(part.join(format!("{name}{LOCK_SUFFIX}"))) {
        Ok(lock) => flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err(),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

pub(crate) fn random_name() -> io::Result<String> {
    let mut bytes = [0_u8; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_living_are_spared_and_the_dead_cleared() {
        let state = tempfile::tempdir().unwrap();
        let program = Path::new("/proc/self/exe");
        let living = Instance::create(state.path(), program).unwrap();
        let dying = Instance::create(state.path(), program).unwrap();
        assert_eq!(living.state_id, dying.state_id, "both are of one state directory");
        rustix::fs::flock(&dying._lock, FlockOperation::Unlock).unwrap();
        assert!(is_alive(state.path(), &living.name) && !is_alive(state.path(), &dying.name));
        let mut dead = dead(state.path()).unwrap();
        assert_eq!(dead.len(), 1);
        assert!(dead.remove(0).clear().unwrap());
        assert!(!dying.directory.exists() && living.directory.exists());
        std::mem::forget(dying);
        assert!(super::dead(state.path()).unwrap().is_empty());
        // A link to itself cannot be opened, and says nothing about its owner.
        std::os::unix::fs::symlink("loop.lock", state.path().join("loop.lock")).unwrap();
        assert!(is_alive(state.path(), "loop") && !is_alive(state.path(), "nobody"));
    }
}
