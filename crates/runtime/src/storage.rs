//! How much a workspace keeps, on the host and in its boxes, and whether a host's volume is ours too.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use sandcrate_backend::ExecRequest;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::error::RuntimeError;
use crate::runtime::{Inner, Runtime};
use crate::session::Session;
use crate::tenant::Placement;

/// Fields in the order of the wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StorageAnalysis {
    /// Of the entries of kind `root`.
    pub size_bytes: u64,
    pub directories: Vec<StorageDirectory>,
    pub active_sessions: usize,
    pub managed_processes: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StorageDirectory {
    pub key: &'static str,
    pub path: String,
    pub kind: &'static str,
    pub exists: bool,
    pub size_bytes: u64,
    pub file_count: u64,
    pub error_count: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_key: Option<&'static str>,
    pub scope: &'static str,
}

/// A marker that a host left on a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedProbe {
    pub sha256: String,
    pub size: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Size {
    exists: bool,
    bytes: u64,
    files: u64,
    errors: u64,
}

impl Size {
    fn add(&mut self, other: Self) {
        self.exists |= other.exists;
        self.bytes += other.bytes;
        self.files += other.files;
        self.errors += other.errors;
    }

    fn shown(self, key: &'static str, path: String, parent_key: Option<&'static str>) -> StorageDirectory {
        let kind = if parent_key.is_some() { "detail" } else { "root" };
        let Self { exists, bytes: size_bytes, files: file_count, errors: error_count } = self;
        StorageDirectory {
            key,
            path,
            kind,
            exists,
            size_bytes,
            file_count,
            error_count,
            parent_key,
            scope: "runtime_host",
        }
    }
}

/// Entries looked at of one directory; what is beyond counts as one error.
const MAX_ENTRIES: usize = 1_000_000;
/// For the look into one box.
const LOOK: Duration = Duration::from_secs(15);
const MARKER: &str = ".langbot-box-volume-probe-";
const MARKER_DIGITS: usize = 32;
const MARKER_BYTES: u64 = 1024;
/// The places in a box that grow, with their keys.
const PLACES: [(&str, &str); 3] =
    [("session_workspaces", "/workspace"), ("session_caches", "/root/.cache"), ("session_temp", "/tmp")];
/// One line per argument: whether it is there, its bytes, its files. Any shell has what it takes.
const SIZES: &str = r#"for d in "$@"; do
  if [ -d "$d" ]; then
    find "$d" -xdev -type f -exec stat -c %s {} + 2>/dev/null |
      { t=0; n=0; while read -r s; do t=$((t+s)); n=$((n+1)); done; echo "1 $t $n"; }
  else echo "0 0 0"; fi
done"#;

impl Runtime {
    /// Walks the files of a workspace and looks into its boxes. Those that sleep are left asleep.
    pub async fn storage_analysis(&self, placement: &Placement) -> Result<StorageAnalysis, RuntimeError> {
        let root = self.default_workspace().map(|root| root.join("tenants").join(placement.workspace()));
        let walked = root.clone();
        let host = tokio::task::spawn_blocking(move || walked.map(|root| host_directories(&root)));
        let mut directories = host
            .await
            .map_err(|error| RuntimeError::failed("looking at files", std::io::Error::other(error)))?
            .unwrap_or_default();
        let sessions: Vec<Arc<Session>> = self
            .inner
            .table
            .all()
            .into_iter()
            .filter(|session| placement.owns(session.id.as_str()))
            .collect();
        let mut sizes = [Size::default(); PLACES.len()];
        let (mut with_processes, mut their_workspaces) = (0, Size::default());
        let looks = sessions.iter().map(|session| self.inner.sizes_in(session));
        for (session, found) in sessions.iter().zip(futures_util::future::join_all(looks).await) {
            // A workspace that is a directory of the host is counted there.
            if found[0].exists && session.processes.any_running() {
                with_processes += 1;
                their_workspaces.add(found[0]);
            }
            for (sum, size) in sizes.iter_mut().zip(found) {
                sum.add(size);
            }
        }
        for ((key, path), size) in PLACES.into_iter().zip(sizes) {
            let path = format!("{path} ({} sandbox sessions)", sessions.len());
            let shown = size.shown(key, path, None);
            directories.push(StorageDirectory { scope: "sandbox_sessions", ..shown });
        }
        if with_processes > 0 {
            let path = format!("{} ({with_processes} managed-process sessions)", PLACES[0].1);
            let shown = their_workspaces.shown("managed_process_workspaces", path, Some(PLACES[0].0));
            directories.push(StorageDirectory { scope: "sandbox_sessions", ..shown });
        }
        let roots = directories.iter().filter(|directory| directory.kind == "root");
        Ok(StorageAnalysis {
            size_bytes: roots.map(|directory| directory.size_bytes).sum(),
            directories,
            active_sessions: sessions.len(),
            managed_processes: sessions.iter().map(|session| session.processes.running()).sum(),
        })
    }

    /// Reads a marker that a host wrote into the directory of its workspaces.
    pub async fn probe_shared_workspace(&self, marker: &str) -> Result<SharedProbe, RuntimeError> {
        let not_ready = |why: &str| RuntimeError::NotReady { why: why.to_owned() };
        let digits = marker.strip_prefix(MARKER).filter(|digits| {
            digits.len() == MARKER_DIGITS && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        });
        if digits.is_none() {
            return Err(not_ready("Invalid Box shared Workspace probe basename"));
        }
        let root = self.default_workspace();
        let root = root.ok_or_else(|| {
            not_ready("no default workspace is known; send `box_init` with local.host_root")
        })?;
        let marker = marker.to_owned();
        let read = tokio::task::spawn_blocking(move || read_marker(&root, &marker)).await;
        let read = read.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        let bytes = read.map_err(|error| RuntimeError::NotReady {
            why: format!("Box shared Workspace probe cannot be read: {error}"),
        })?;
        let sha256 = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(SharedProbe { sha256, size: bytes.len() })
    }
}

impl Inner {
    async fn sizes_in(self: &Arc<Self>, session: &Arc<Session>) -> [Size; PLACES.len()] {
        let mut sizes = [Size::default(); PLACES.len()];
        if session.live().is_none() {
            return sizes;
        }
        let shared = session.spec.host_path.is_some();
        // What the host shares is counted there.
        let asked = |path: &str| !(shared && Path::new(path).starts_with(&session.spec.mount_path));
        let argv = ["sh", "-c", SIZES, "sh"].into_iter();
        let argv =
            argv.chain(PLACES.into_iter().map(|(_, path)| if asked(path) { path } else { "/nowhere" }));
        let request = ExecRequest::argv(argv).cwd("/".to_owned()).timeout(LOOK);
        let _busy = session.use_now();
        let said = match self.start_in(session, request).await {
            Ok(execution) => execution.collect_with(Bytes::new(), 4096).await.ok(),
            Err(_) => None,
        };
        let Some(said) = said.filter(|said| !said.exit.timed_out) else {
            sizes.iter_mut().for_each(|size| size.errors = 1);
            return sizes;
        };
        let text = String::from_utf8_lossy(&said.stdout).into_owned();
        for (size, line) in sizes.iter_mut().zip(text.lines()) {
            let mut numbers = line.split(' ').map(|word| word.parse().unwrap_or(0));
            size.exists = numbers.next() == Some(1);
            size.bytes = numbers.next().unwrap_or(0);
            size.files = numbers.next().unwrap_or(0);
        }
        sizes
    }
}

fn host_directories(root: &Path) -> Vec<StorageDirectory> {
    let shown = |path: &Path| path.display().to_string();
    let mut directories = vec![size_of(root).shown("workspace", shown(root), None)];
    for (key, name) in [("mcp", ".mcp"), ("inbox", "inbox"), ("outbox", "outbox")] {
        let path = root.join(name);
        directories.push(size_of(&path).shown(key, shown(&path), Some("workspace")));
    }
    directories
}

/// Links count as what they are and lead nowhere.
fn size_of(root: &Path) -> Size {
    let mut size = Size::default();
    let mut waiting: Vec<PathBuf> = Vec::new();
    if std::fs::symlink_metadata(root).is_ok_and(|facts| facts.is_dir()) {
        size.exists = true;
        waiting.push(root.to_owned());
    }
    let mut seen = 0;
    while let Some(directory) = waiting.pop() {
        let Ok(entries) = std::fs::read_dir(&directory) else {
            size.errors += 1;
            continue;
        };
        for entry in entries {
            seen += 1;
            if seen > MAX_ENTRIES {
                size.errors += 1;
                return size;
            }
            // Of the entry itself: no link is followed.
            match entry.and_then(|entry| Ok((entry.metadata()?, entry.path()))) {
                Ok((facts, path)) if facts.is_dir() => waiting.push(path),
                Ok((facts, _)) if facts.is_file() => {
                    size.bytes += facts.len();
                    size.files += 1;
                }
                Ok(_) => {}
                Err(_) => size.errors += 1,
            }
        }
    }
    size
}

fn read_marker(root: &Path, marker: &str) -> std::io::Result<Vec<u8>> {
    let root = File::open(root)?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let file = File::from(openat2(&root, marker, flags, Mode::empty(), resolve)?);
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(MARKER_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.is_empty() || bytes.len() as u64 > MARKER_BYTES {
        return Err(std::io::Error::other("it must have 1 to 1024 bytes"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_counted_and_links_lead_nowhere() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("inbox/deep")).unwrap();
        std::fs::write(root.path().join("inbox/deep/a"), [0; 100]).unwrap();
        std::fs::write(root.path().join("b"), [0; 10]).unwrap();
        std::os::unix::fs::symlink("/usr", root.path().join("outbox")).unwrap();
        let found = host_directories(root.path());
        let sizes: Vec<_> =
            found.iter().map(|dir| (dir.key, dir.exists, dir.size_bytes, dir.file_count)).collect();
        let expected = [
            ("workspace", true, 110, 2),
            ("mcp", false, 0, 0),
            ("inbox", true, 100, 1),
            ("outbox", false, 0, 0),
        ];
        assert_eq!(sizes, expected);
    }

    #[test]
    fn a_marker_is_a_small_regular_file() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("m"), "x").unwrap();
        assert_eq!(read_marker(root.path(), "m").unwrap(), b"x");
        std::fs::write(root.path().join("long"), [0; 1025]).unwrap();
        std::fs::write(root.path().join("empty"), "").unwrap();
        std::os::unix::fs::symlink("m", root.path().join("link")).unwrap();
        std::fs::create_dir(root.path().join("dir")).unwrap();
        for bad in ["long", "empty", "link", "dir", "absent", "../m"] {
            assert!(read_marker(root.path(), bad).is_err(), "{bad}");
        }
    }
}
