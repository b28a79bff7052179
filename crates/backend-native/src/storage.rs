//! The private files of a session: where they are, what bounds them, and how much is used.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use sandcrate_backend::{BackendError, DiskLimit};
use sandcrate_jail::message::StorageSource;
use sandcrate_jail::{StorageKind, remove_tree};
use sandcrate_protocol::{Control, Enforcement};
use sandcrate_sys::quota;

/// Inodes per MiB of a hard quota.
const INODES_PER_MIB: u64 = 256;
/// What ext4 needs for an inode of its tables.
const INODE_BYTES: u64 = 256;
/// Projects of ours are told by the top bits; the rest is the directory's inode number.
const PROJECT_BASE: u32 = 0x4000_0000;

/// Storage of one session. Whoever needs to know that it is gone calls `remove`; dropped, it goes in the
/// background.
#[derive(Debug)]
pub(crate) struct Storage {
    pub(crate) name: String,
    pub(crate) directory: PathBuf,
    pub(crate) source: StorageSource,
    /// The image, until it is mounted.
    pub(crate) image: Option<OwnedFd>,
    limit: DiskLimit,
    removed: bool,
}

impl Storage {
    /// Makes the storage of a box, with what this machine has to enforce its bound.
    pub(crate) async fn create(instance: &Path, box_name: &str, limit: DiskLimit) -> Result<Self, BackendError> {
        let failed = |error| BackendError::failed("making the session's storage", error);
        let directory = instance.join(box_name);
        // Passed through by the box's user; the instance's directory keeps everybody else out.
        DirBuilder::new().mode(0o755).create(&directory).map_err(failed)?;
        let mut made = Self { name: box_name.to_owned(), directory, source: StorageSource::Directory, image: None, limit, removed: false };
        made.bound().await.map_err(failed)?;
        Ok(made)
    }

    async fn bound(&mut self) -> io::Result<()> {
        if let DiskLimit::Hard(bytes) = self.limit {
            let inodes = inodes(bytes);
            let directory = File::open(&self.directory)?;
            if !rustix::process::geteuid().is_root() {
                self.source = StorageSource::Memory;
                return Ok(());
            }
            if quota::usage(directory.as_fd(), 0).is_ok() {
                let project = PROJECT_BASE | (directory.metadata()?.ino() as u32 & (PROJECT_BASE - 1));
                self.source = StorageSource::ProjectDirectory { project, bytes, inodes };
            } else if let Some(image) = make_image(&self.directory, bytes, inodes).await? {
                self.source = StorageSource::Image;
                self.image = Some(image);
                return Ok(());
            } else {
                self.source = StorageSource::Memory;
                return Ok(());
            }
        }
        Ok(())
    }

    pub(crate) fn kind(&self) -> StorageKind {
        match (self.source, self.limit) {
            (StorageSource::Memory, DiskLimit::Hard(bytes) | DiskLimit::Accounted(bytes)) => {
                StorageKind::Memory { bytes, inodes: inodes(bytes) }
            }
            _ => StorageKind::Mounted,
        }
    }

    pub(crate) fn report(&self, record: &mut Enforcement) {
        let (DiskLimit::Hard(bytes) | DiskLimit::Accounted(bytes)) = self.limit;
        let size = format!("{} MiB", bytes >> 20);
        match self.source {
            StorageSource::Directory => record.degraded(
                Control::Disk,
                format!("{size}, accounted while commands run and ended when over; ask for a quota to have a hard bound"),
            ),
            StorageSource::ProjectDirectory { inodes, .. } => {
                record.enforced(Control::Disk, format!("{size} and {inodes} inodes by project quota"));
            }
            StorageSource::Image => {
                record.enforced(Control::Disk, format!("{size} and {} inodes by a file system of its own on a loop device", inodes(bytes)));
            }
            StorageSource::Memory => {
                record.enforced(Control::Disk, format!("{size} and {} inodes by a tmpfs: private files are kept in memory", inodes(bytes)));
            }
        }
    }

    /// Bytes that have to be counted, when nothing else bounds them; None when something does.
    pub(crate) fn accounted_limit(&self) -> Option<u64> {
        match (self.source, self.limit) {
            (StorageSource::Directory, DiskLimit::Accounted(bytes) | DiskLimit::Hard(bytes)) => Some(bytes),
            _ => None,
        }
    }

    /// Removes everything, off the async threads.
    pub(crate) async fn remove(mut self) -> io::Result<()> {
        self.removed = true;
        let directory = std::mem::take(&mut self.directory);
        let removed = tokio::task::spawn_blocking(move || remove_directory(&directory)).await;
        removed.unwrap_or_else(|error| Err(io::Error::other(error)))
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        if self.removed {
            return;
        }
        let directory = std::mem::take(&mut self.directory);
        // What is left of it goes with the instance, or at the next start.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || remove_directory(&directory))),
            Err(_) => drop(remove_directory(&directory)),
        }
    }
}

fn remove_directory(directory: &Path) -> io::Result<()> {
    match remove_tree::remove(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn inodes(bytes: u64) -> u64 {
    (bytes >> 20).max(1) * INODES_PER_MIB
}

/// A file with an empty ext4 whose free space is the quota; None when this machine cannot make or mount one.
async fn make_image(directory: &Path, bytes: u64, inodes: u64) -> io::Result<Option<OwnedFd>> {
    let Some(mke2fs) = ["/usr/sbin/mke2fs", "/sbin/mke2fs"].iter().find(|path| Path::new(path).exists()) else {
        return Ok(None);
    };
    if !Path::new("/dev/loop-control").exists() {
        return Ok(None);
    }
    let path = directory.join("disk.img");
    let image = File::options().read(true).write(true).create_new(true).open(&path)?;
    // Room for the inode tables and the file system's own blocks, so that about the quota itself is usable.
    image.set_len(bytes + inodes * INODE_BYTES + (1 << 20))?;
    let made = tokio::process::Command::new(mke2fs)
        .args(["-q", "-F", "-t", "ext4", "-m", "0", "-O", "^has_journal,^resize_inode", "-E", "lazy_itable_init=1,nodiscard"])
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
    Ok(Some(image.into()))
}

/// Bytes allocated below some directories. Blocks; what vanishes meanwhile counts nothing.
pub(crate) fn used_bytes(roots: &[PathBuf]) -> u64 {
    let mut pending: Vec<PathBuf> = roots.to_vec();
    let mut blocks = 0;
    while let Some(directory) = pending.pop() {
        let Ok(entries) = fs::read_dir(&directory) else { continue };
        for entry in entries.flatten() {
            let Ok(facts) = entry.metadata() else { continue };
            blocks += facts.blocks();
            if facts.is_dir() {
                pending.push(entry.path());
            }
        }
    }
    // st_blocks counts units of 512 bytes (stat(2)).
    blocks * 512
}
