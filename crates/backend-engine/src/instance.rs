//! This backend's part of the state directory: an instance of ours, with what containers are given of it.
//!
//! The state directory has an id of its own, by which containers are told from those of other runtimes on the same
//! engine.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use sandcrate_driver::instance::{self, random_name};

/// The living instance; dropping it removes its directory.
#[derive(Debug)]
pub(crate) struct Instance {
    place: instance::Instance,
    /// Names the state directory, on every engine and after every move.
    pub(crate) state_id: String,
    /// The guest's program, as containers get it.
    pub(crate) guest: PathBuf,
    /// The resolver's configuration of boxes with an isolated network.
    pub(crate) resolver: PathBuf,
    /// Whether it runs only in images that have its libraries.
    pub(crate) guest_needs_loader: bool,
}

impl Instance {
    /// Takes a place below `part`, a directory of the state directory for one engine.
    pub(crate) fn create(part: &Path, program: &Path) -> io::Result<Self> {
        let place = instance::Instance::create(part)?;
        let state_id = state_id(part)?;
        let guest = place.directory.join("init");
        place_program(program, &guest)?;
        let guest_needs_loader = needs_loader(&guest)?;
        let resolver = place.directory.join("resolv.conf");
        fs::write(&resolver, format!("nameserver {}\n", sandcrate_driver::interface().gateway_v4))?;
        Ok(Self { place, state_id, guest, resolver, guest_needs_loader })
    }

    pub(crate) fn name(&self) -> &str {
        &self.place.name
    }

    pub(crate) fn box_directory(&self, number: u64) -> PathBuf {
        self.place.directory.join(format!("box-{number}"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_of_one_state_directory_have_its_id_and_the_program() {
        let state = tempfile::tempdir().unwrap();
        let program = Path::new("/proc/self/exe");
        let one = Instance::create(state.path(), program).unwrap();
        let other = Instance::create(state.path(), program).unwrap();
        assert_eq!(one.state_id, other.state_id);
        assert_ne!(one.name(), other.name());
        assert_eq!(fs::read(&one.guest).unwrap(), fs::read(program).unwrap());
    }
}
