//! Directories named by their content: copied out of the host's, checked by their manifest, shown to a box read-only.
//!
//! A session that may have them gets one directory of its own, bound when its box is made. What is put there later
//! shows in the box at once, so a live session gains artifacts without another box. The copy is ours: what becomes of
//! the source afterwards does not matter, and no box can write it.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use sandcrate_backend::{Mount, MountAccess};
use sandcrate_protocol::{ARTIFACTS, MountMode, MountSpec};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::RuntimeError;
use crate::mounts::MountPolicy;
use crate::runtime::Inner;
use crate::session::Session;
use crate::tenant::owner;

const MANIFEST_BYTES: u64 = 4 << 20;
const MAX_FILES: usize = 2048;
/// Of one tree, and of all of a session.
const MAX_BYTES: u64 = 256 << 20;
const MAX_TREES: usize = 256;
const ALGORITHM: &str = "sha256-tree-v1";

/// What a tree holds. Fields in the order of their names: the digest is that of this as compact JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    algorithm: String,
    files: Vec<Entry>,
    total_bytes: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    executable: bool,
    path: String,
    sha256: String,
    size: u64,
}

/// The artifacts of all sessions, below the state directory.
#[derive(Debug)]
pub(crate) struct Artifacts {
    root: PathBuf,
    staged: AtomicU64,
}

fn refused(why: impl Into<String>) -> RuntimeError {
    RuntimeError::Artifact { why: why.into() }
}

fn failed(step: &str) -> impl Fn(io::Error) -> RuntimeError + '_ {
    move |error| refused(format!("{step}: {error}"))
}

impl Artifacts {
    /// Nothing of an earlier life is of use: sessions that come back get their artifacts with their next command.
    pub(crate) fn open(state_dir: &Path) -> Self {
        let root = state_dir.join("artifacts");
        let _ = std::fs::remove_dir_all(&root);
        Self { root, staged: AtomicU64::new(0) }
    }

    /// Whether a session has a place for them.
    pub(crate) fn are_for(session: &Session) -> bool {
        owner(session.id.as_str()).is_some() || session.wants_artifacts
    }

    fn place(&self, session: &Session) -> PathBuf {
        let hash = Sha256::digest(session.id.as_str().as_bytes());
        let name: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        self.root.join(format!("{name}-{}", session.number))
    }

    /// The mount that a box of this session is made with. Blocks.
    fn mount(&self, place: &Path) -> io::Result<Mount> {
        DirBuilder::new().recursive(true).mode(0o755).create(place)?;
        open_to_all(place, 0o755)?;
        Ok(Mount {
            source: place.canonicalize()?,
            target: ARTIFACTS.to_owned(),
            access: MountAccess::ReadOnly,
            quota: None,
            within: Some(self.root.canonicalize()?),
            create: false,
        })
    }

    /// Puts one artifact into a session's place, unless it is there. Blocks.
    fn put(&self, place: &Path, mount: &MountSpec, policy: &MountPolicy) -> Result<(), RuntimeError> {
        let digest = mount.content_digest.as_deref().and_then(|digest| digest.strip_prefix("sha256:"));
        let digest = digest.ok_or_else(|| refused("content_digest is not sha256:…"))?;
        let target = place.join(digest);
        if target.is_dir() {
            return Ok(());
        }
        let admitted = |path: &str| match policy.admit(path, ARTIFACTS, MountMode::Ro, None)? {
            Some(mount) => Ok(mount.source),
            None => Err(refused("it is not mounted")),
        };
        let source = admitted(&mount.host_path)?;
        let manifest = admitted(mount.manifest_path.as_deref().unwrap_or_default())?;
        let manifest = read_manifest(&manifest, digest)?;
        let (trees, bytes) = held(place).map_err(failed("looking at what the session has"))?;
        if trees >= MAX_TREES || bytes + manifest.total_bytes > MAX_BYTES {
            return Err(refused(format!(
                "a session holds at most {MAX_TREES} artifacts of {} MiB together",
                MAX_BYTES >> 20
            )));
        }
        let staging = self.root.join(format!(".staging-{}", self.staged.fetch_add(1, Ordering::Relaxed)));
        let copied = copy(&source, &staging, &manifest).and_then(|()| {
            match std::fs::rename(&staging, &target) {
                // Another command brought the same.
                Err(_) if target.is_dir() => Ok(()),
                renamed => renamed.map_err(failed("moving the copy to its place")),
            }
        });
        // Gone already, if all is well.
        let _ = std::fs::remove_dir_all(&staging);
        copied
    }
}

impl Inner {
    /// The place for artifacts in a new box, if this session has one.
    pub(crate) async fn artifact_mount(&self, session: &Session) -> Result<Option<Mount>, RuntimeError> {
        if !Artifacts::are_for(session) {
            return Ok(None);
        }
        let (artifacts, place) = (self.artifacts.clone(), self.artifacts.place(session));
        let made = tokio::task::spawn_blocking(move || artifacts.mount(&place)).await;
        let made = made.unwrap_or_else(|error| Err(io::Error::other(error)));
        made.map(Some).map_err(|error| RuntimeError::failed("making a place for artifacts", error))
    }

    /// Brings the artifacts of a request into a session that has a box.
    pub(crate) async fn place_artifacts(
        &self,
        session: &Session,
        mounts: &[MountSpec],
    ) -> Result<(), RuntimeError> {
        let wanted: Vec<MountSpec> = mounts.iter().filter(|mount| mount.is_artifact()).cloned().collect();
        if wanted.is_empty() {
            return Ok(());
        }
        if !Artifacts::are_for(session) {
            return Err(refused("the session was made without artifacts; make another"));
        }
        let (artifacts, place, policy) =
            (self.artifacts.clone(), self.artifacts.place(session), self.mount_policy(session.id.as_str()));
        let placed = tokio::task::spawn_blocking(move || {
            wanted.iter().try_for_each(|mount| artifacts.put(&place, mount, &policy))
        });
        placed.await.map_err(|error| refused(error.to_string()))?
    }

    /// Forgets what a session had, when it is gone.
    pub(crate) async fn forget_artifacts(&self, session: &Session) {
        if !Artifacts::are_for(session) {
            return;
        }
        let place = self.artifacts.place(session);
        let removed = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(place)).await;
        if let Ok(Err(error)) = removed
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(session.id = session.id.as_str(), %error, "a session's artifacts cannot be removed");
        }
    }
}

fn read_manifest(path: &Path, digest: &str) -> Result<Manifest, RuntimeError> {
    let mut text = Vec::new();
    let file = OpenOptions::new().read(true).custom_flags(libc_flags()).open(path);
    let file = file.map_err(failed("the manifest cannot be opened"))?;
    if !file.metadata().is_ok_and(|facts| facts.is_file()) {
        return Err(refused("the manifest is not a regular file"));
    }
    file.take(MANIFEST_BYTES + 1).read_to_end(&mut text).map_err(failed("the manifest cannot be read"))?;
    if text.len() as u64 > MANIFEST_BYTES {
        return Err(refused("the manifest is longer than 4 MiB"));
    }
    let manifest: Manifest = serde_json::from_slice(&text)
        .map_err(|error| refused(format!("the manifest is not valid: {error}")))?;
    let canonical = serde_json::to_string(&manifest).map_err(|error| refused(error.to_string()))?;
    if hex(&Sha256::digest(canonical.as_bytes())) != digest {
        return Err(refused("Artifact manifest does not match content_digest"));
    }
    let mut paths = std::collections::BTreeSet::new();
    let total: u64 = manifest.files.iter().fold(0, |sum, file| sum.saturating_add(file.size));
    let bounded = manifest.files.len() <= MAX_FILES && total <= MAX_BYTES && total == manifest.total_bytes;
    let normal = |path: &str| {
        !path.is_empty()
            && !path.contains(['\\', '\0'])
            && path.split('/').all(|part| !matches!(part, "" | "." | ".."))
    };
    if manifest.algorithm != ALGORITHM {
        return Err(refused(format!("the manifest's algorithm is not {ALGORITHM}")));
    }
    if !bounded {
        return Err(refused("the manifest's sizes are wrong, or beyond 2048 files and 256 MiB"));
    }
    if !manifest.files.iter().all(|file| normal(&file.path) && paths.insert(&file.path)) {
        return Err(refused("the manifest has a path that is not normal, or one twice"));
    }
    Ok(manifest)
}

/// A pipe in the place of a file must not hold us.
fn libc_flags() -> i32 {
    OFlags::NONBLOCK.union(OFlags::NOFOLLOW).bits().cast_signed()
}

fn copy(source: &Path, staging: &Path, manifest: &Manifest) -> Result<(), RuntimeError> {
    let source = File::open(source).map_err(failed("the directory cannot be opened"))?;
    std::fs::create_dir_all(staging).map_err(failed("making room for the copy"))?;
    open_to_all(staging, 0o755).map_err(failed("making room for the copy"))?;
    for entry in &manifest.files {
        let told = |error: io::Error| refused(format!("{}: {error}", entry.path));
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let file = openat2(&source, &entry.path, flags, Mode::empty(), resolve);
        let file = File::from(file.map_err(|error| told(error.into()))?);
        if !file.metadata().map_err(told)?.is_file() {
            return Err(told(io::Error::other("not a regular file")));
        }
        let target = staging.join(&entry.path);
        let mut parent = staging.to_owned();
        for part in Path::new(&entry.path).parent().into_iter().flat_map(Path::components) {
            parent.push(part);
            if std::fs::create_dir(&parent).is_ok() {
                open_to_all(&parent, 0o755).map_err(told)?;
            }
        }
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&target);
        copy_checked(file, made.map_err(told)?, entry).map_err(told)?;
        open_to_all(&target, if entry.executable { 0o555 } else { 0o444 }).map_err(told)?;
    }
    Ok(())
}

/// Whatever the mask of this process: a box has other users.
fn open_to_all(path: &Path, mode: u32) -> io::Result<()> {
    std::fs::set_permissions(path, Permissions::from_mode(mode))
}

fn copy_checked(source: File, mut target: File, entry: &Entry) -> io::Result<()> {
    let mut hash = Sha256::new();
    let mut left = entry.size;
    let mut source = source.take(entry.size + 1);
    let mut buffer = vec![0; 64 << 10];
    loop {
        let length = source.read(&mut buffer)?;
        if length == 0 {
            break;
        }
        left = left
            .checked_sub(length as u64)
            .ok_or_else(|| io::Error::other("longer than the manifest says"))?;
        hash.update(&buffer[..length]);
        target.write_all(&buffer[..length])?;
    }
    if left > 0 {
        return Err(io::Error::other("shorter than the manifest says"));
    }
    if hex(&hash.finalize()) != entry.sha256 {
        return Err(io::Error::other("not the content that the manifest says"));
    }
    Ok(())
}

/// Trees and bytes in a session's place.
fn held(place: &Path) -> io::Result<(usize, u64)> {
    fn bytes(directory: &Path) -> io::Result<u64> {
        let mut sum = 0;
        for entry in std::fs::read_dir(directory)? {
            let entry = entry?;
            let facts = entry.metadata()?;
            sum += if facts.is_dir() { bytes(&entry.path())? } else { facts.len() };
        }
        Ok(sum)
    }
    Ok((std::fs::read_dir(place)?.count(), bytes(place)?))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As it was recorded of the reference, with its digest.
    const MANIFEST: &str = r#"{"algorithm": "sha256-tree-v1", "files": [{"path": "SKILL.md", "size": 8, "sha256": "1c847feefce08ae0afb3f8202bd3b22d516cd04044be3d150e919d2b3272445e", "executable": false}, {"path": "bin/run.sh", "size": 19, "sha256": "e23628ed42e31358d7234aac753c38be5a80846413438c57305799b91760056f", "executable": true}], "total_bytes": 27}"#;
    const DIGEST: &str = "a4f7d61039b1b1adac4572ee39b446a79df8bfd8ab218b7376fe9705eed1efb2";

    fn mount(root: &Path, digest: &str) -> MountSpec {
        let text = |name: &str| root.join(name).to_str().unwrap().to_owned();
        let mut mount = MountSpec::new(text("s1"), format!("{ARTIFACTS}/{digest}"), MountMode::Ro);
        mount.content_digest = Some(format!("sha256:{digest}"));
        mount.manifest_path = Some(text("s1.json"));
        mount
    }

    #[test]
    fn a_tree_is_taken_only_as_its_manifest_says() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("s1/bin")).unwrap();
        std::fs::write(root.path().join("s1.json"), MANIFEST).unwrap();
        std::fs::write(root.path().join("s1/SKILL.md"), "# hi é\n").unwrap();
        std::fs::write(root.path().join("s1/bin/run.sh"), "#!/bin/sh\necho evil\n").unwrap();
        std::fs::write(root.path().join("s1/unlisted"), "x").unwrap();
        let artifacts = Artifacts::open(&root.path().join("state"));
        let place = artifacts.root.join("one");
        let made = artifacts.mount(&place).unwrap();
        assert_eq!((made.access, &*made.target), (MountAccess::ReadOnly, ARTIFACTS));
        let policy = MountPolicy { roots: Some(vec![root.path().to_owned()]), ..MountPolicy::default() };
        let put =
            |mount: &MountSpec| artifacts.put(&place, mount, &policy).map_err(|error| error.to_string());

        let other = put(&mount(root.path(), &"0".repeat(64))).unwrap_err();
        assert_eq!(
            other,
            "Immutable artifact preparation failed: Artifact manifest does not match content_digest"
        );
        let changed = put(&mount(root.path(), DIGEST)).unwrap_err();
        assert!(changed.contains("bin/run.sh: "), "{changed}");
        assert_eq!(held(&place).unwrap(), (0, 0), "nothing half done is left");

        std::fs::write(root.path().join("s1/bin/run.sh"), "#!/bin/sh\necho ran\n").unwrap();
        put(&mount(root.path(), DIGEST)).unwrap();
        put(&mount(root.path(), DIGEST)).unwrap();
        assert_eq!(held(&place).unwrap(), (1, 27), "once, and without what is not listed");
        let mode = |name: &str| {
            let facts = std::fs::metadata(place.join(DIGEST).join(name)).unwrap();
            std::os::unix::fs::MetadataExt::mode(&facts) & 0o777
        };
        assert_eq!((mode("SKILL.md"), mode("bin/run.sh")), (0o444, 0o555));

        std::fs::remove_dir_all(place.join(DIGEST)).unwrap();
        std::fs::remove_file(root.path().join("s1/SKILL.md")).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", root.path().join("s1/SKILL.md")).unwrap();
        assert!(put(&mount(root.path(), DIGEST)).unwrap_err().contains("SKILL.md"), "no link is followed");
        let denied = MountPolicy { roots: Some(vec!["/nowhere".into()]), ..MountPolicy::default() };
        assert!(artifacts.put(&place, &mount(root.path(), DIGEST), &denied).is_err(), "outside the roots");
    }
}
