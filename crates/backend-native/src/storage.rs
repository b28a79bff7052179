//! The private files of a session: where they are, what bounds them, and how much is used.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, flock, open, unlinkat};
use sandcrate_backend::{BackendError, DiskLimit};
use sandcrate_driver::{inodes_of, on_disk, project_of};
use sandcrate_jail::message::StorageSource;
use sandcrate_jail::remove_tree;
use sandcrate_protocol::{Control, Enforcement};
use sandcrate_sys::quota;

/// The file system of a hard quota, where it is one of its own.
const IMAGE: &str = "disk.img";
/// A second in all: longer than the launcher needs for a box.
const REMOVAL_TRIES: u32 = 20;
const REMOVAL_PAUSE: Duration = Duration::from_millis(50);
/// Five seconds in all: a box that is ended has gone by then.
const CLAIM_TRIES: u32 = 1000;
const CLAIM_PAUSE: Duration = Duration::from_millis(5);
/// What ext4 needs for an inode of its tables.
const INODE_BYTES: u64 = 256;

/// Storage of one session. Whoever needs to know that it is gone calls `remove`; dropped, it goes in the
/// background.
#[derive(Debug)]
pub(crate) struct Storage {
    pub(crate) name: String,
    pub(crate) directory: PathBuf,
    pub(crate) source: StorageSource,
    /// The boxes' directories as boxes see them.
    shelf: Arc<OwnedFd>,
    /// The image, until it is mounted.
    pub(crate) image: Option<OwnedFd>,
    limit: DiskLimit,
    /// In a directory of the caller's, which outlives the session.
    pub(crate) kept: Option<OwnedFd>,
    removed: bool,
}

impl Storage {
    fn at(directory: PathBuf, shelf: &Shelf, box_name: &str, limit: DiskLimit) -> Self {
        Self {
            name: box_name.to_owned(),
            directory,
            source: StorageSource::Directory,
            shelf: Arc::clone(&shelf.seen),
            image: None,
            limit,
            kept: None,
            removed: false,
        }
    }

    /// Makes the storage of a box, with what this machine has to enforce its bound.
    pub(crate) async fn create(
        shelf: &Shelf,
        box_name: &str,
        limit: DiskLimit,
    ) -> Result<Self, BackendError> {
        let failed = |error| BackendError::failed("making the session's storage", error);
        let directory = shelf.directory.join(box_name);
        // Passed through by the box's user; the instance's directory keeps everybody else out.
        DirBuilder::new().mode(0o755).create(&directory).map_err(failed)?;
        let mut made = Self::at(directory, shelf, box_name, limit);
        made.bound().await.map_err(failed)?;
        Ok(made)
    }

    /// Storage in a directory of the caller's: made when it is missing, as it was left when it is there.
    pub(crate) async fn keep(
        shelf: &Shelf,
        box_name: &str,
        directory: &Path,
        limit: DiskLimit,
    ) -> Result<Self, BackendError> {
        let failed = |error| BackendError::failed("opening the session's kept storage", error);
        DirBuilder::new().recursive(true).mode(0o755).create(directory).map_err(failed)?;
        let directory = directory.canonicalize().map_err(failed)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = open(&directory, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
        let mut kept = Self::at(directory, shelf, box_name, limit);
        kept.kept = Some(opened);
        // Whoever keeps it removes it.
        kept.removed = true;
        kept.bound().await.map_err(failed)?;
        Ok(kept)
    }

    /// What is in memory goes with its box.
    pub(crate) fn outlives_its_box(&self) -> Result<(), BackendError> {
        match self.source {
            StorageSource::Memory { .. } => Err(BackendError::Unsupported {
                backend: crate::NAME,
                what: "making a box anew whose files are in memory".to_owned(),
                hint: "end the session, or ask for it without a quota".to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// The same storage for another box of its session.
    pub(crate) async fn again(&mut self) -> Result<(), BackendError> {
        self.outlives_its_box()?;
        if let StorageSource::Image = self.source {
            let failed = |error| BackendError::failed("opening the disk image", error);
            // That of a start that failed, and its lock.
            self.image = None;
            let image = File::options().read(true).write(true).open(self.directory.join(IMAGE));
            let image = image.map_err(failed)?;
            claim(&image).await.map_err(failed)?;
            self.image = Some(image.into());
        }
        Ok(())
    }

    async fn bound(&mut self) -> io::Result<()> {
        if let DiskLimit::Hard(bytes) = self.limit {
            let inodes = inodes_of(bytes);
            let directory = File::open(&self.directory)?;
            if !rustix::process::geteuid().is_root() {
                if self.kept.is_some() {
                    // Memory would not keep it: counted, and the record says so.
                    return Ok(());
                }
                self.source = StorageSource::Memory { bytes, inodes };
                return Ok(());
            }
            if quota::usage(directory.as_fd(), 0).is_ok() {
                let project = project_of(&directory)?;
                self.source = StorageSource::ProjectDirectory { project, bytes, inodes };
            } else if let Some(image) = make_image(&self.directory, bytes, inodes).await? {
                self.source = StorageSource::Image;
                self.image = Some(image);
            }
            // Else it is counted, and the record says so.
        }
        Ok(())
    }

    pub(crate) fn report(&self, record: &mut Enforcement) {
        let (DiskLimit::Hard(bytes) | DiskLimit::Accounted(bytes)) = self.limit;
        let size = format!("{} MiB", bytes >> 20);
        match self.source {
            StorageSource::Directory => record.degraded(
                Control::Disk,
                match self.limit {
                    DiskLimit::Accounted(_) => format!("{size}, accounted while commands run (without open files that have no name) and ended when over; ask for a quota to have a hard bound"),
                    DiskLimit::Hard(_) => format!("{size}, accounted while commands run (without open files that have no name) and ended when over; a hard bound needs mke2fs (package e2fsprogs) and loop devices"),
                },
            ),
            StorageSource::ProjectDirectory { inodes, .. } => {
                record.enforced(Control::Disk, format!("{size} and {inodes} inodes by project quota"));
            }
            StorageSource::Image => {
                record.enforced(Control::Disk, format!("{size} and {} inodes by a file system of its own on a loop device", inodes_of(bytes)));
            }
            StorageSource::Memory { inodes, .. } => {
                record.enforced(Control::Disk, format!("{size} and {inodes} inodes by a tmpfs: private files are kept in memory"));
            }
        }
    }

    /// Where the box's files are. Beside those that are kept an overlay works, in a directory that nobody may read.
    pub(crate) fn files(&self) -> PathBuf {
        if self.kept.is_some() { self.directory.join("box") } else { self.directory.clone() }
    }

    /// Bytes that have to be counted, when nothing else bounds them; None when something does.
    pub(crate) fn accounted_limit(&self) -> Option<u64> {
        match (self.source, self.limit) {
            (StorageSource::Directory, DiskLimit::Accounted(bytes) | DiskLimit::Hard(bytes)) => Some(bytes),
            _ => None,
        }
    }

    fn removal(&mut self) -> Removal {
        self.removed = true;
        let project = match self.source {
            StorageSource::ProjectDirectory { project, .. } => Some(project),
            _ => None,
        };
        Removal {
            name: std::mem::take(&mut self.name),
            directory: std::mem::take(&mut self.directory),
            shelf: Arc::clone(&self.shelf),
            project,
        }
    }

    /// Removes everything, off the async threads.
    pub(crate) async fn remove(mut self) -> io::Result<()> {
        if self.removed {
            return Ok(());
        }
        let removal = self.removal();
        on_disk(move || removal.carry_out()).await
    }
}

/// Where a launcher has the storage of its boxes.
#[derive(Debug, Clone)]
pub(crate) struct Shelf {
    pub(crate) directory: PathBuf,
    /// The same as boxes see it, by the launcher's overlay.
    pub(crate) seen: Arc<OwnedFd>,
}

impl Drop for Storage {
    fn drop(&mut self) {
        if self.removed {
            return;
        }
        let removal = self.removal();
        // What is left of it goes with the instance, or at the next start.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || removal.carry_out())),
            Err(_) => drop(removal.carry_out()),
        }
    }
}

/// What it takes to remove a storage.
struct Removal {
    name: String,
    directory: PathBuf,
    shelf: Arc<OwnedFd>,
    project: Option<u32>,
}

impl Removal {
    /// Blocks. The launcher may still be furnishing a box whose start was given up, so once more, a few times.
    fn carry_out(&self) -> io::Result<()> {
        let mut tries = 0;
        loop {
            match self.attempt() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(_) if tries < REMOVAL_TRIES => {
                    tries += 1;
                    std::thread::sleep(REMOVAL_PAUSE);
                }
                other => return other,
            }
        }
    }

    /// What boxes see goes where they see it: the overlay would hold on to whatever vanished beneath it.
    fn attempt(&self) -> io::Result<()> {
        let shelf = self.shelf.as_fd();
        match remove_tree::remove_at(shelf, &Path::new(&self.name).join("files")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other?,
        }
        remove_tree::empty(CWD, &self.directory)?;
        if let Some(project) = self.project {
            // Nothing is left to bound, and the file system would remember the bound for ever. One that cannot be
            // lifted is no reason to keep the directory.
            let _ = quota::set_limit(File::open(&self.directory)?.as_fd(), project, 0, 0);
        }
        Ok(unlinkat(shelf, &self.name, AtFlags::REMOVEDIR)?)
    }
}

/// Removes storage that was kept. Blocks.
pub(crate) fn remove_kept(directory: &Path) -> io::Result<()> {
    let opened = match File::open(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    let project = project_of(&opened)?;
    remove_tree::empty(CWD, directory)?;
    if quota::usage(opened.as_fd(), project).is_ok() {
        // Nothing is left to bound, and the file system would remember the bound for ever.
        let _ = quota::set_limit(opened.as_fd(), project, 0, 0);
    }
    std::fs::remove_dir(directory)
}

/// Lifts the quotas of all boxes that an instance has left, before their directories go.
pub(crate) fn lift_quotas(instance: &Path) {
    let entries = |directory: &Path| std::fs::read_dir(directory).into_iter().flatten().flatten();
    for launcher in entries(instance) {
        for storage in entries(&launcher.path().join("boxes")) {
            // Not for those that had none, nor where the file system knows of no quotas.
            let _ = File::open(storage.path())
                .and_then(|directory| quota::set_limit(directory.as_fd(), project_of(&directory)?, 0, 0));
        }
    }
}

fn mke2fs() -> Option<&'static str> {
    ["/usr/sbin/mke2fs", "/sbin/mke2fs"].into_iter().find(|path| Path::new(path).exists())
}

/// Whether this machine can make and mount disk images.
pub(crate) fn has_images() -> bool {
    mke2fs().is_some() && Path::new("/dev/loop-control").exists()
}

/// Locks a disk image: mounted twice it would be ruined, and a box that was ended may still be on its way out. The
/// loop device keeps the open file, and so the lock, for as long as it is attached.
async fn claim(image: &File) -> io::Result<()> {
    for _ in 0..CLAIM_TRIES {
        match flock(image, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => tokio::time::sleep(CLAIM_PAUSE).await,
            other => return Ok(other?),
        }
    }
    Err(io::Error::other("an earlier box still has it"))
}

/// A file with an empty ext4 whose free space is the quota; None when this machine cannot make or mount one.
async fn make_image(directory: &Path, bytes: u64, inodes: u64) -> io::Result<Option<OwnedFd>> {
    let Some(mke2fs) = mke2fs().filter(|_| has_images()) else { return Ok(None) };
    let (finished, path) = (directory.join(IMAGE), directory.join("disk.new"));
    match File::options().read(true).write(true).open(&finished) {
        // Of an earlier box of a kept session.
        Ok(image) => {
            claim(&image).await?;
            return Ok(Some(image.into()));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let image = File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
    // Room for the inode tables besides; the file system's own few blocks come off the quota, never on top.
    image.set_len(bytes + inodes * INODE_BYTES)?;
    let made = tokio::process::Command::new(mke2fs)
        .args([
            "-q",
            "-F",
            "-t",
            "ext4",
            "-m",
            "0",
            "-O",
            "^has_journal,^resize_inode",
            "-E",
            "lazy_itable_init=1,nodiscard",
        ])
        .args(["-N", &inodes.to_string()])
        .arg(&path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .output()
        .await?;
    if !made.status.success() {
        return Err(io::Error::other(format!("mke2fs: {}", String::from_utf8_lossy(&made.stderr).trim())));
    }
    // Under its name only when it is whole: its maker may have died over it.
    std::fs::rename(&path, &finished)?;
    claim(&image).await?;
    Ok(Some(image.into()))
}
