//! What the suite needs to know of the backend and this machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandcrate_backend::conformance::Harness;
use sandcrate_backend::{Backend, Capabilities};
use sandcrate_backend_nsjail::{NsjailBackend, NsjailConfig};
use sandcrate_protocol::{Control, Enforcement};

pub(crate) struct NsjailHarness {
    pub(crate) backend: Arc<NsjailBackend>,
    enforcement: Enforcement,
    pub(crate) scratch: tempfile::TempDir,
}

impl NsjailHarness {
    pub(crate) async fn new(nsjail: &Path) -> Self {
        let scratch = tempfile::Builder::new()
            .prefix("sandcrate-nsjail-")
            .tempdir_in("/var/tmp")
            .expect("a scratch directory");
        let backend = Arc::new(open(&scratch.path().join("state"), nsjail).await);
        let mut enforcement = backend.common_enforcement().await.expect("boxes can be made");
        // Counted only, with or without cgroups.
        enforcement.degraded(Control::Disk, "counted");
        Self { backend, enforcement, scratch }
    }

    /// Ends everything; what is left of it is a failure.
    pub(crate) async fn close(&self) -> Result<(), String> {
        self.backend.shutdown().await;
        let left = cgroups_of(&self.instance());
        if left.is_empty() { Ok(()) } else { Err(format!("cgroups are left: {left:?}")) }
    }

    /// The one directory of this instance, beside its lock.
    fn instance(&self) -> String {
        let entries =
            std::fs::read_dir(self.scratch.path().join("state/nsjail")).expect("the state directory");
        let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.into_iter().find(|name| !name.contains('.')).expect("an instance")
    }
}

pub(crate) async fn open(state: &Path, nsjail: &Path) -> NsjailBackend {
    let config = NsjailConfig { nsjail: Some(nsjail.to_owned()), ..NsjailConfig::new(state) };
    NsjailBackend::open(config).await.expect("the backend opens")
}

/// Directories of an instance in any hierarchy.
pub(crate) fn cgroups_of(instance: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![(PathBuf::from("/sys/fs/cgroup"), 0)];
    while let Some((directory, depth)) = pending.pop() {
        for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            if entry.file_name().to_string_lossy().contains(instance) {
                found.push(entry.path());
            } else if depth < 6 {
                pending.push((entry.path(), depth + 1));
            }
        }
    }
    found
}

impl Harness for NsjailHarness {
    fn backend(&self) -> Arc<dyn Backend> {
        Arc::clone(&self.backend) as Arc<dyn Backend>
    }

    fn capabilities(&self) -> Capabilities {
        self.backend.capabilities()
    }

    fn enforces(&self, control: Control) -> bool {
        self.enforcement.get(control).is_none() || self.enforcement.holds(control)
    }

    fn host_dir(&self) -> Result<PathBuf, String> {
        let made = tempfile::Builder::new().prefix("host-").tempdir_in(self.scratch.path());
        made.map(tempfile::TempDir::keep).map_err(|error| error.to_string())
    }
}
