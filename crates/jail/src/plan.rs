//! What will be done to make a box: decided before anything is touched, printable, and sent to init as it is.
//!
//! [`Plan::new`] is pure. Everything that depends on the machine comes in by the spec; everything that needs
//! a privilege happens later, in `launcher` and `init`, which carry a plan out and decide nothing.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use crate::identity::{BOX_USER, IdMapping};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NetworkMode {
    /// A namespace of its own with loopback only.
    Off,
    /// A namespace of its own with loopback and one tun device, whose packets go to a helper of the daemon's.
    Isolated,
    /// The host's namespace.
    Host,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RootMode {
    ReadOnly,
    /// Overlays on the session's storage; commands are the box's uid 0, without capabilities.
    Writable,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    ReadOnly,
    ReadWrite,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeKind {
    Directory,
    File,
}

/// A mount that the session asks for; its source is handed in as a detached mount, in this order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestedMount {
    pub target: String,
    pub access: Access,
    pub kind: NodeKind,
}

/// What is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JailSpec {
    pub mapping: IdMapping,
    pub network: NetworkMode,
    /// The device of an isolated network.
    pub interface: Option<Interface>,
    pub root: RootMode,
    /// Name of the image that the root is made of; the host's template without one.
    pub image: Option<String>,
    pub memory_bytes: u64,
    pub pids: u32,
    /// A cgroup counts the box's processes.
    pub pids_counted: bool,
    pub tmp_bytes: u64,
    pub open_files: u64,
    /// Per-process bound on writable memory, where no cgroup bounds the box.
    pub data_bytes: Option<u64>,
    pub mounts: Vec<RequestedMount>,
    /// Where the private workspace appears.
    pub workspace: String,
}

/// One mount, in the order in which they are made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedMount {
    pub target: String,
    pub source: MountSource,
    pub access: Access,
    pub kind: NodeKind,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MountSource {
    /// A directory of the storage, handed in by the launcher.
    Storage { directory: String },
    /// The overlay over a template directory or an image, handed in by the launcher.
    Overlay { index: usize },
    /// A mount the session asked for.
    Requested { index: usize },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedRlimit {
    pub resource: Rlimit,
    pub value: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rlimit {
    Core,
    OpenFiles,
    LockedMemory,
    MessageQueues,
    RealtimePriority,
    Nice,
    PendingSignals,
    Processes,
    Data,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub mapping: IdMapping,
    /// Box uid and gid of commands.
    pub user: u32,
    pub home: String,
    pub network: NetworkMode,
    pub interface: Option<Interface>,
    pub root: RootMode,
    pub image: Option<String>,
    /// A layer of the box's own lies over the image's whole root: the session writes to it, or mounts where the
    /// image may have no place.
    pub layered: bool,
    pub tmp_bytes: u64,
    pub shm_bytes: u64,
    pub mounts: Vec<PlannedMount>,
    /// Below these, Landlock lets commands write.
    pub writable: Vec<String>,
    pub rlimits: Vec<PlannedRlimit>,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    #[error("a writable root needs root: an ordinary user cannot own the system's files, not even in a box")]
    RootlessWritableRoot,
    #[error("must be at least {} MiB: less leaves no room for a shell", MIN_MEMORY >> 20)]
    TooLittleMemory,
    #[error("must be at least {MIN_PIDS}: fewer processes leave no room for a shell")]
    TooFewProcesses,
    #[error("an isolated network has an interface, and no other network has one")]
    Interface,
}

/// A shell, its libraries and the box's init.
const MIN_MEMORY: u64 = 6 << 20;
const MIN_PIDS: u32 = 2;
/// Shared memory is for semaphores and small buffers of multiprocessing libraries.
const MAX_SHM: u64 = 64 << 20;
/// What /tmp and /dev/shm have unless the session says otherwise: prepared boxes have it already.
pub(crate) const USUAL_TMPFS_BYTES: u64 = 64 << 20;

/// Directories of the template that a writable root lays an overlay over. The order is that of the overlays
/// the launcher hands in.
pub(crate) const OVERLAID: [&str; 2] = ["usr", "etc"];
/// Directories of the root that are plain storage when the root is writable.
const WRITABLE_DIRECTORIES: [&str; 3] = ["var", "opt", "srv"];

impl NetworkMode {
    /// Decided when the box is cloned; everything else about a network comes with the plan.
    pub fn has_own_namespace(self) -> bool {
        self != Self::Host
    }
}

/// Name of the device of an isolated network.
pub(crate) const INTERFACE_NAME: &str = "tun0";

/// Addresses of the one device of an isolated network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    pub v4: (Ipv4Addr, u8),
    pub gateway_v4: Ipv4Addr,
    pub v6: (Ipv6Addr, u8),
    pub gateway_v6: Ipv6Addr,
    pub mtu: u32,
}

impl Plan {
    pub fn new(spec: &JailSpec) -> Result<Self, PlanError> {
        if spec.interface.is_some() != (spec.network == NetworkMode::Isolated) {
            return Err(PlanError::Interface);
        }
        if spec.memory_bytes < MIN_MEMORY {
            return Err(PlanError::TooLittleMemory);
        }
        if spec.pids < MIN_PIDS {
            return Err(PlanError::TooFewProcesses);
        }
        let (user, home) = match spec.root {
            RootMode::Writable if spec.mapping.is_rootless() => return Err(PlanError::RootlessWritableRoot),
            RootMode::Writable => (0, "/root"),
            RootMode::ReadOnly => (BOX_USER, "/home/box"),
        };
        // tmpfs is charged to the box: together at most half of its memory, or filling /tmp would get the
        // box's processes killed instead of an error to the writer.
        let shm_bytes = (spec.memory_bytes / 8).min(MAX_SHM);
        let tmp_bytes = spec.tmp_bytes.min(spec.memory_bytes / 2 - shm_bytes);
        let layered = spec.image.is_some() && needs_layer(spec, home);
        let mounts = plan_mounts(spec, home, layered);
        let writable = writable_paths(spec, &mounts);
        Ok(Self {
            mapping: spec.mapping,
            user,
            home: home.to_owned(),
            network: spec.network,
            interface: spec.interface,
            root: spec.root,
            image: spec.image.clone(),
            layered,
            tmp_bytes,
            shm_bytes,
            mounts,
            writable,
            rlimits: plan_rlimits(spec),
        })
    }

    /// The directories that the storage must hold.
    pub fn storage_directories(&self) -> impl Iterator<Item = &str> {
        self.mounts.iter().filter_map(|mount| match &mount.source {
            MountSource::Storage { directory } => Some(directory.as_str()),
            _ => None,
        })
    }
}

/// Whether an image's root does not do as it is: it surely has the usual places, and no others.
fn needs_layer(spec: &JailSpec, home: &str) -> bool {
    const WORKSPACE: &str = "/workspace";
    let has_place = |target: &str| {
        [WORKSPACE, home].iter().any(|place| {
            target.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    };
    spec.root == RootMode::Writable
        || spec.workspace != WORKSPACE
        || !spec.mounts.iter().all(|mount| has_place(&mount.target))
}

/// Parents before children, so that a mount never hides one that was made before it.
fn plan_mounts(spec: &JailSpec, home: &str, layered: bool) -> Vec<PlannedMount> {
    let storage = |target: &str, directory: &str| PlannedMount {
        target: target.to_owned(),
        source: MountSource::Storage { directory: directory.to_owned() },
        access: Access::ReadWrite,
        kind: NodeKind::Directory,
    };
    let mut mounts = Vec::new();
    if layered {
        mounts.push(PlannedMount {
            target: "/".to_owned(),
            source: MountSource::Overlay { index: 0 },
            access: Access::ReadWrite,
            kind: NodeKind::Directory,
        });
    } else if spec.root == RootMode::Writable {
        for (index, directory) in OVERLAID.iter().enumerate() {
            mounts.push(PlannedMount {
                target: format!("/{directory}"),
                source: MountSource::Overlay { index },
                access: Access::ReadWrite,
                kind: NodeKind::Directory,
            });
        }
        mounts.extend(WRITABLE_DIRECTORIES.iter().map(|name| storage(&format!("/{name}"), name)));
    }
    let requested = |target: &str| spec.mounts.iter().any(|mount| mount.target == target);
    for (target, directory) in [(spec.workspace.as_str(), "workspace"), (home, "home")] {
        if !requested(target) {
            mounts.push(storage(target, directory));
        }
    }
    mounts.extend(spec.mounts.iter().enumerate().map(|(index, mount)| PlannedMount {
        target: behind_links(&mount.target),
        source: MountSource::Requested { index },
        access: mount.access,
        kind: mount.kind,
    }));
    // Stable, so that overlays stay before what lies below them.
    mounts.sort_by_key(|mount| mount.target.split('/').count());
    mounts
}

/// Where a target is, when it lies behind one of the root's own links; no other link is ever followed to a target.
fn behind_links(target: &str) -> String {
    match target.strip_prefix("/var/tmp/") {
        Some(rest) => format!("/tmp/{rest}"),
        None => target.to_owned(),
    }
}

fn writable_paths(spec: &JailSpec, mounts: &[PlannedMount]) -> Vec<String> {
    if spec.root == RootMode::Writable {
        return vec!["/".to_owned()];
    }
    // The root of a layer becomes read-only when all is placed.
    let mounted = mounts.iter().filter(|mount| mount.access == Access::ReadWrite && mount.target != "/");
    // /proc and /dev: what may be written there is decided by the mounts and nodes themselves.
    ["/tmp", "/dev", "/proc"]
        .map(str::to_owned)
        .into_iter()
        .chain(mounted.map(|mount| mount.target.clone()))
        .collect()
}

fn plan_rlimits(spec: &JailSpec) -> Vec<PlannedRlimit> {
    let mut rlimits = vec![
        (Rlimit::Core, 0),
        (Rlimit::OpenFiles, spec.open_files),
        (Rlimit::LockedMemory, 64 << 10),
        (Rlimit::MessageQueues, 64 << 10),
        (Rlimit::RealtimePriority, 0),
        (Rlimit::Nice, 0),
        (Rlimit::PendingSignals, 1024),
        // Counted per user and namespace, so it bounds the box too. Two more: init and its worker. Behind a cgroup
        // it is the second line, and must not come first: only the cgroup says that it was hit.
        (Rlimit::Processes, (u64::from(spec.pids) + 2) * if spec.pids_counted { 2 } else { 1 }),
    ];
    rlimits.extend(spec.data_bytes.map(|bytes| (Rlimit::Data, bytes)));
    rlimits.into_iter().map(|(resource, value)| PlannedRlimit { resource, value }).collect()
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "identity  {:?}, commands as {}, init as {}",
            self.mapping,
            self.user,
            self.mapping.init_user()
        )?;
        writeln!(f, "network   {:?}", self.network)?;
        let image = self.image.as_deref().unwrap_or("none");
        writeln!(f, "root      {:?}, image {image}", self.root)?;
        writeln!(f, "tmpfs     /tmp {} bytes, /dev/shm {} bytes", self.tmp_bytes, self.shm_bytes)?;
        for mount in &self.mounts {
            writeln!(f, "mount     {} <- {:?}, {:?}", mount.target, mount.source, mount.access)?;
        }
        for limit in &self.rlimits {
            writeln!(f, "rlimit    {:?} = {}", limit.resource, limit.value)?;
        }
        writeln!(f, "landlock  write below {}", self.writable.join(" "))
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
