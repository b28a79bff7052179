//! This backend's part of the state directory: an instance of ours, with the directories of its launchers.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use sandcrate_backend::SweepReport;
use sandcrate_driver::instance;

use crate::storage;

/// The living instance; dropping it removes its directory.
#[derive(Debug)]
pub(crate) struct Instance {
    place: instance::Instance,
    launchers: AtomicU32,
}

impl Instance {
    pub(crate) fn create(state_dir: &Path) -> io::Result<Self> {
        Ok(Self { place: instance::Instance::create(&part(state_dir))?, launchers: AtomicU32::new(0) })
    }

    pub(crate) fn name(&self) -> &str {
        &self.place.name
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.place.directory
    }

    /// A directory for another launcher: one that died may still have its own in use.
    pub(crate) fn launcher_directory(&self) -> io::Result<PathBuf> {
        let number = self.launchers.fetch_add(1, Ordering::Relaxed);
        let directory = self.directory().join(format!("launcher-{number}"));
        // Passed through by the box's user; the instance's directory keeps everybody else out.
        DirBuilder::new().mode(0o755).create(&directory)?;
        Ok(directory)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        storage::lift_quotas(self.directory());
    }
}

/// Removes what instances left whose daemon is gone.
pub(crate) fn sweep(state_dir: &Path) -> io::Result<SweepReport> {
    instance::sweep(&part(state_dir), storage::lift_quotas)
}

fn part(state_dir: &Path) -> PathBuf {
    state_dir.join("instances")
}
