//! The images of a state directory.
//!
//! ```text
//! images/lock         held while names change
//! images/names/NAME   a record: written whole or not at all
//! images/roots/ID     the files of one image, under a lock: exclusive while they are made or removed, shared
//!                     while a box uses them
//! ```
//!
//! A root without a name that nobody has locked is a leftover: of an import that was killed, of an image that was
//! replaced or removed while boxes used it. Every import and every start of a daemon sweeps those.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, open, openat};
use rustix::io::Errno;
use sandcrate_jail::remove_tree;

use crate::error::{ImageError, Step};
use crate::import::{Input, Order, unpack};
use crate::limits::{ImportLimits, Progress};
use crate::name::ImageName;
use crate::record::{ImageRecord, Ownership};

/// The files of an image in its root's directory, beside what may be kept there one day.
const FILES: &str = "rootfs";
const MAX_RECORD: u64 = 4 << 20;

#[derive(Debug, Clone)]
pub struct ImageStore {
    directory: PathBuf,
}

/// An image that is not removed while this lives.
#[derive(Debug)]
pub struct HeldImage {
    pub record: ImageRecord,
    /// Its root directory on the host.
    pub path: PathBuf,
    /// The same, opened; carries no lock.
    pub root: OwnedFd,
    _lock: File,
}

enum Hold {
    Done(Option<Box<HeldImage>>),
    /// Its files went meanwhile, or somebody has them alone.
    Missed,
}

/// The least that is read of a record.
#[derive(Debug, serde::Deserialize)]
struct NamedRoot {
    root: String,
}

/// Whether an import took the name of an earlier image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replaced {
    Nothing,
    /// It is gone, or goes when the last box that uses it ends.
    Earlier,
}

impl HeldImage {
    /// The same for the same files, and for no others.
    pub fn id(&self) -> &str {
        &self.record.root
    }
}

impl ImageStore {
    pub fn of_state_dir(state_dir: &Path) -> Self {
        Self { directory: state_dir.join("images") }
    }

    fn names(&self) -> PathBuf {
        self.directory.join("names")
    }

    fn roots(&self) -> PathBuf {
        self.directory.join("roots")
    }

    fn make_directories(&self) -> Result<(), ImageError> {
        for directory in [self.names(), self.roots()] {
            // Nobody else passes: files in it have the owners and modes that the image says.
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&directory)
                .step(|| format!("making {}", directory.display()))?;
        }
        Ok(())
    }

    /// Held while names are read to be changed.
    fn lock(&self) -> Result<File, ImageError> {
        let path = self.directory.join("lock");
        let lock = File::options().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let lock = lock.step(|| format!("opening {}", path.display()))?;
        flock(&lock, FlockOperation::LockExclusive).step(|| format!("locking {}", path.display()))?;
        Ok(lock)
    }

    /// Every image, by name. A record that cannot be read is reported and left out.
    pub fn list(&self) -> Result<Vec<ImageRecord>, ImageError> {
        let entries = match fs::read_dir(self.names()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.step(|| format!("reading {}", self.names().display()))?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let path = entry.step(|| format!("reading {}", self.names().display()))?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            match read_record(&path) {
                Ok(Some(record)) => found.push(record),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "an image's record cannot be read")
                }
            }
        }
        found.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(found)
    }

    pub fn find(&self, name: &ImageName) -> Result<Option<ImageRecord>, ImageError> {
        let path = self.names().join(name.file_name());
        read_record(&path).step(|| format!("reading {}", path.display()))
    }

    /// Takes an image into use; nothing when there is none of that name. Blocks while names change.
    pub fn hold(&self, name: &ImageName) -> Result<Option<HeldImage>, ImageError> {
        if let Hold::Done(held) = self.try_hold(name)? {
            return Ok(held.map(|held| *held));
        }
        // It was replaced or removed between reading its name and locking its files. While names do not change, the
        // files that a name leads to are nobody's alone.
        let _changing = self.lock()?;
        match self.try_hold(name)? {
            Hold::Done(held) => Ok(held.map(|held| *held)),
            Hold::Missed => Err(ImageError::NotFound { name: name.to_string() }),
        }
    }

    fn try_hold(&self, name: &ImageName) -> Result<Hold, ImageError> {
        let Some(record) = self.find(name)? else { return Ok(Hold::Done(None)) };
        if record.owners != Ownership::of_this_user() {
            let (name, by) = (name.to_string(), record.owners.to_string());
            return Err(ImageError::OtherOwner { name, by });
        }
        let directory = self.roots().join(&record.root);
        let Locked::Ours(lock) = lock_root(&directory, FlockOperation::NonBlockingLockShared)? else {
            return Ok(Hold::Missed);
        };
        let path = directory.join(FILES);
        let path = path.canonicalize().step(|| format!("finding {}", path.display()))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = open(&path, flags, Mode::empty()).step(|| format!("opening {}", path.display()))?;
        Ok(Hold::Done(Some(Box::new(HeldImage { record, path, root, _lock: lock }))))
    }

    /// Removes an image. One that boxes use is refused, unless `force`: then the name goes now, its files with the
    /// last box. A record that cannot be read goes by `force` too; there is nothing to tell of it.
    pub fn remove(&self, name: &ImageName, force: bool) -> Result<Option<ImageRecord>, ImageError> {
        let missing = || ImageError::NotFound { name: name.to_string() };
        if !self.directory.is_dir() {
            return Err(missing());
        }
        let path = self.names().join(name.file_name());
        let unlink = || fs::remove_file(&path).step(|| format!("removing {}", path.display()));
        let changing = self.lock()?;
        let record = match self.find(name) {
            Err(_) if force => {
                unlink()?;
                drop(changing);
                self.sweep_or_warn();
                return Ok(None);
            }
            found => found?.ok_or_else(missing)?,
        };
        let directory = self.roots().join(&record.root);
        let lock = lock_root(&directory, FlockOperation::NonBlockingLockExclusive)?;
        if matches!(lock, Locked::Others) && !force {
            return Err(ImageError::InUse { name: name.to_string() });
        }
        unlink()?;
        drop(changing);
        if let Locked::Ours(_lock) = lock {
            remove_tree::remove(&directory).step(|| format!("removing {}", directory.display()))?;
        }
        Ok(Some(record))
    }

    /// Removes the files of an image that has ended its last box, when its name leads elsewhere by now.
    pub fn sweep_after(&self, name: &ImageName, id: &str) -> Result<u32, ImageError> {
        match self.find(name) {
            Ok(Some(record)) if record.root == id => Ok(0),
            _ => self.sweep(),
        }
    }

    /// Removes roots that no name leads to and nobody uses; how many there were.
    pub fn sweep(&self) -> Result<u32, ImageError> {
        if !self.directory.is_dir() {
            return Ok(0);
        }
        self.make_directories()?;
        let reading = || format!("reading {}", self.roots().display());
        // Locked under the lock of names: an import that ends meanwhile has either its name or its lock.
        let changing = self.lock()?;
        for entry in fs::read_dir(self.names()).step(reading)? {
            let path = entry.step(reading)?.path();
            // Records are written under the lock that we have.
            if path.extension().is_some_and(|extension| extension == "new") {
                let _ = fs::remove_file(&path);
            }
        }
        let named: Vec<String> = self.roots_with_names()?;
        let mut leftovers = Vec::new();
        for entry in fs::read_dir(self.roots()).step(reading)? {
            let entry = entry.step(reading)?;
            let path = entry.path();
            if !named.iter().any(|name| entry.file_name() == name.as_str())
                && let Locked::Ours(lock) = lock_root(&path, FlockOperation::NonBlockingLockExclusive)?
            {
                leftovers.push((path, lock));
            }
        }
        drop(changing);
        let mut swept = 0;
        for (path, _lock) in leftovers {
            match remove_tree::remove(&path) {
                Ok(()) => swept += 1,
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "what is left of an image cannot be removed")
                }
            }
        }
        Ok(swept)
    }

    /// For those who came for something else.
    fn sweep_or_warn(&self) {
        if let Err(error) = self.sweep() {
            tracing::warn!(error = &error as &dyn std::error::Error, "what is left of images is not removed");
        }
    }

    /// A record of which no more than the root can be read still protects it. One that is no record at all protects
    /// nothing: no box can be made of what it named.
    fn roots_with_names(&self) -> Result<Vec<String>, ImageError> {
        let reading = || format!("reading {}", self.names().display());
        let mut named = Vec::new();
        for entry in fs::read_dir(self.names()).step(reading)? {
            let path = entry.step(reading)?.path();
            let text = match fs::read(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                text => text.step(|| format!("reading {}", path.display()))?,
            };
            match serde_json::from_slice::<NamedRoot>(&text) {
                Ok(record) => named.push(record.root),
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "an image's record is damaged: remove the image by force")
                }
            }
        }
        Ok(named)
    }

    /// Imports a file or a directory under a name. What had the name before goes.
    pub fn import(
        &self,
        name: &ImageName,
        source: &Path,
        limits: ImportLimits,
        report: &mut dyn FnMut(Progress),
    ) -> Result<(ImageRecord, Replaced), ImageError> {
        let opening = || format!("opening {}", source.display());
        // Not waiting for the writer of a FIFO.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(open(source, flags, Mode::empty()).step(opening)?);
        let facts = file.metadata().step(opening)?;
        if facts.is_dir() {
            self.import_from(name, Input::Directory(source), limits, report)
        } else if facts.is_file() {
            self.import_from(name, Input::File(file), limits, report)
        } else {
            Err(ImageError::archive(format!("{} is neither a file nor a directory", source.display())))
        }
    }

    /// Imports an archive that is open already.
    pub fn import_file(
        &self,
        name: &ImageName,
        file: File,
        limits: ImportLimits,
        report: &mut dyn FnMut(Progress),
    ) -> Result<(ImageRecord, Replaced), ImageError> {
        self.import_from(name, Input::File(file), limits, report)
    }

    /// Imports an archive that can be read once only: it is kept in a nameless file meanwhile.
    pub fn import_stream(
        &self,
        name: &ImageName,
        input: &mut dyn Read,
        limits: ImportLimits,
        report: &mut dyn FnMut(Progress),
    ) -> Result<(ImageRecord, Replaced), ImageError> {
        let mut file = self.spool()?;
        let most = limits.stream_bytes();
        let copied =
            io::copy(&mut input.take(most.saturating_add(1)), &mut file).step(|| "receiving the archive")?;
        if copied > most {
            return Err(limits.too_many_bytes());
        }
        file.seek(SeekFrom::Start(0)).step(|| "receiving the archive")?;
        self.import_from(name, Input::File(file), limits, report)
    }

    /// A file without a name: it is gone with its descriptor, whatever happens.
    pub fn spool(&self) -> Result<File, ImageError> {
        self.make_directories()?;
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let made = match openat(CWD, &self.directory, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => Ok(File::from(file)),
            // File systems without nameless files.
            Err(_) => {
                let path = self.roots().join(format!("spool-{}", random()?));
                let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path);
                file.inspect(|_| drop(fs::remove_file(&path)))
            }
        };
        made.step(|| "making a file for the archive")
    }

    fn import_from(
        &self,
        name: &ImageName,
        input: Input<'_>,
        limits: ImportLimits,
        report: &mut dyn FnMut(Progress),
    ) -> Result<(ImageRecord, Replaced), ImageError> {
        self.make_directories()?;
        self.sweep_or_warn();
        let (id, directory, lock) = self.new_root()?;
        let made = (|| {
            DirBuilder::new().mode(0o755).create(directory.join(FILES))?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            Ok::<_, io::Error>(open(directory.join(FILES), flags, Mode::empty())?)
        })()
        .step(|| format!("making {}", directory.display()));
        let spool = || self.spool();
        let order = Order { name, limits, spool: &spool, report };
        let named = made.and_then(|into| unpack(input, into, &id, order)).and_then(|record| {
            let replaced = self.give_name(&record, &lock)?;
            Ok((record, replaced))
        });
        if named.is_err() {
            // What cannot be removed now is swept later.
            let _ = remove_tree::remove(&directory);
        }
        drop(lock);
        if matches!(named, Ok((_, Replaced::Earlier))) {
            self.sweep_or_warn();
        }
        named
    }

    /// A new directory among the roots, locked by us alone.
    fn new_root(&self) -> Result<(String, PathBuf, File), ImageError> {
        loop {
            let id = random()?;
            let directory = self.roots().join(&id);
            DirBuilder::new()
                .mode(0o700)
                .create(&directory)
                .step(|| format!("making {}", directory.display()))?;
            // A sweeper may have been quicker than our lock; then we take another.
            if let Locked::Ours(lock) = lock_root(&directory, FlockOperation::NonBlockingLockExclusive)? {
                return Ok((id, directory, lock));
            }
        }
    }

    /// From here on the image is there. Whoever comes last has the name.
    fn give_name(&self, record: &ImageRecord, lock: &File) -> Result<Replaced, ImageError> {
        let writing = || "writing the image's record";
        let _changing = self.lock()?;
        let path = self.names().join(record.name.file_name());
        let new = path.with_extension("new");
        let text = serde_json::to_vec_pretty(record).map_err(io::Error::other).step(writing)?;
        let mut file =
            File::options().write(true).create(true).truncate(true).mode(0o600).open(&new).step(writing)?;
        file.write_all(&text).and_then(|()| file.sync_all()).step(writing)?;
        let replaced = if path.exists() { Replaced::Earlier } else { Replaced::Nothing };
        // Whoever reads the name takes the files into use, while it still goes to the disk. Nobody sweeps meanwhile: that
        // takes the lock of names.
        flock(lock, FlockOperation::NonBlockingLockShared).step(writing)?;
        fs::rename(&new, &path).step(writing)?;
        File::open(self.names()).and_then(|names| names.sync_all()).step(writing)?;
        Ok(replaced)
    }
}

fn read_record(path: &Path) -> io::Result<Option<ImageRecord>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut text = Vec::new();
    file.take(MAX_RECORD).read_to_end(&mut text)?;
    let record: ImageRecord = serde_json::from_slice(&text).map_err(io::Error::other)?;
    // Part of a path; nobody but us writes here, and still.
    if record.root.len() != 32 || !record.root.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(io::Error::other("its root has no name of ours"));
    }
    Ok(Some(record))
}

/// What came of locking a root.
#[derive(Debug)]
enum Locked {
    Ours(File),
    /// Somebody has it.
    Others,
    /// It is not there any more.
    Gone,
}

/// Locks a root that is still where it was when it was opened.
fn lock_root(directory: &Path, how: FlockOperation) -> Result<Locked, ImageError> {
    let locking = || format!("locking {}", directory.display());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let lock = match open(directory, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(Locked::Gone),
        opened => File::from(opened.step(locking)?),
    };
    match flock(&lock, how) {
        Err(Errno::WOULDBLOCK) => return Ok(Locked::Others),
        locked => locked.step(locking)?,
    }
    let was = lock.metadata().step(locking)?;
    match fs::symlink_metadata(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Locked::Gone),
        Ok(is) if (is.dev(), is.ino()) != (was.dev(), was.ino()) => Ok(Locked::Gone),
        is => is.step(locking).map(|_| Locked::Ours(lock)),
    }
}

fn random() -> Result<String, ImageError> {
    let mut bytes = [0_u8; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).step(|| "drawing a name")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl std::os::fd::AsFd for HeldImage {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.root.as_fd()
    }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
