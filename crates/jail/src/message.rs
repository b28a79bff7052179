//! What the three roles say to each other. Each direction has its own type, so a role can only send what is its
//! to say.

use std::path::PathBuf;

use sandcrate_protocol::Enforcement;
use serde::{Deserialize, Serialize};

use crate::cgroup::Limits;
use crate::plan::{Access, NetworkMode, Plan, RootMode};

/// The first message to a launcher.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LauncherConfig {
    /// Names the cgroups of this instance; unique on the machine.
    pub instance: String,
    /// Holds the storage of this launcher's boxes; empty, and no other launcher's.
    pub directory: PathBuf,
    /// Where cgroups go, when not below the daemon's own.
    pub cgroup_parent: Option<String>,
    /// The daemon, whose cgroup may have to be tidied for delegation.
    pub daemon_pid: i32,
    /// For how many boxes something is made ahead, at most. For none when no other will follow the first.
    pub boxes_ahead: usize,
}

/// Daemon to launcher.
#[derive(Debug, Serialize, Deserialize)]
pub enum LauncherRequest {
    /// Make a box up to the point where its own mounts and limits are needed. Descriptors: init's end of its
    /// channel, then the root directory of the image, where there is one.
    Prepare { box_id: u64, network: NetworkMode, image: Option<ImageRoot> },
    /// Set limits and make mounts for a prepared box. Descriptors: the image, when the storage is one, then one
    /// O_PATH descriptor for each source.
    Furnish { box_id: u64, order: FurnishOrder },
    /// The seccomp filters of boxes with this network; sent before the first of them is prepared. Compiled by the
    /// daemon, so that its memory and not the launcher's pays for it: every box and command is a copy of that.
    Policy { network: NetworkMode, filters: Filters },
    /// Stop or resume the box's commands; its init goes on.
    Freeze { box_id: u64, frozen: bool },
    /// Prepare a bound of memory for one command of the box. One descriptor: the end of a channel that gets a
    /// [`ConfineReply`].
    Confine { box_id: u64, memory_bytes: u64 },
}

/// Launcher to whoever asked for a bound. Descriptors: those that [`cgroup::Confined`](crate::cgroup::Confined) has, of
/// which there are two or none.
pub type ConfineReply = Result<(), Failure>;

/// Compiled filters.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Filters {
    pub init: Vec<FilterInstruction>,
    /// Above that of init; nothing by itself.
    pub command: Vec<FilterInstruction>,
}

/// One BPF instruction: code, jump if true, jump if false, constant.
pub type FilterInstruction = (u16, u8, u8, u32);

/// What one session needs from the launcher.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FurnishOrder {
    pub limits: Limits,
    pub storage: StorageSource,
    /// The storage is a directory that outlives the box; its descriptor is the first, this its path.
    pub kept: Option<PathBuf>,
    /// The storage's name among the boxes' directories.
    pub storage_name: String,
    /// Made on the storage, for the box's user.
    pub directories: Vec<String>,
    pub root: RootMode,
    /// An image's box has a layer of its own over the whole root.
    pub layered: bool,
    /// Box id of commands.
    pub user: u32,
    pub sources: Vec<SourceMount>,
}

/// The root directory of an image.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ImageRoot {
    /// The same for the same files, and for no others.
    pub id: String,
    /// For launchers that have to find it again in their own mount namespace, and for messages.
    pub path: PathBuf,
}

/// What bounds a storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StorageSource {
    Directory,
    /// A directory with a bound of its own: project, bytes and inodes.
    ProjectDirectory {
        project: u32,
        bytes: u64,
        inodes: u64,
    },
    /// A file that holds a file system.
    Image,
    /// Memory, hard-bounded: what an ordinary user has for a hard quota.
    Memory {
        bytes: u64,
        inodes: u64,
    },
}

/// A host path that the daemon has opened and checked.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SourceMount {
    /// For launchers that have to find it again in their own mount namespace, and for messages.
    pub path: PathBuf,
    /// Owner and group on disk.
    pub owner: (u32, u32),
    pub access: Access,
}

/// Launcher to daemon.
#[derive(Debug, Serialize, Deserialize)]
pub enum LauncherReply {
    /// The launcher can make boxes; what it found out on the way. One descriptor: the directory that has the
    /// storage of its boxes, as boxes see it. What boxes have seen must be removed there, or the overlay would
    /// hold on to it.
    Ready {
        enforcement: Enforcement,
    },
    /// It cannot, and ends.
    Unusable {
        failure: Failure,
    },
    /// Init lives. Descriptors: its pidfd, then the directories of a `UsageReader`.
    Prepared {
        box_id: u64,
    },
    /// Detached mounts, as descriptors: directories of the storage, overlays, sources.
    Furnished {
        box_id: u64,
    },
    Failed {
        box_id: u64,
        failure: Failure,
    },
    /// Init has ended, with it everything in the box; its cgroups are removed.
    Gone {
        box_id: u64,
        status: String,
    },
}

/// Daemon to init.
#[derive(Debug, Serialize, Deserialize)]
pub enum InitRequest {
    /// Finish the box. Descriptors as of [`LauncherReply::Furnished`]. A box that was prepared for an isolated
    /// network can have none here.
    Configure { plan: Box<Plan> },
    /// Run a program. Descriptors: stdin, stdout, stderr; none of these with a terminal. Then, for a program whose memory
    /// is bounded by a v1 cgroup, the `tasks` file of that.
    Start { id: u32, command: StartCommand, memory_bytes: Option<u64> },
    /// A signal to the program's process group.
    Signal { id: u32, signal: i32 },
    /// SIGTERM to the program's process group; what it leaves behind when it ends is killed.
    Terminate { id: u32 },
    /// SIGKILL to everything the program started.
    Kill { id: u32 },
    /// Work on files as the box's user. One descriptor for Read (a pipe to write to) and Write (to read from).
    File { id: u32, operation: FileOperation },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StartCommand {
    /// Not empty; without a slash, the first is found by the PATH in `env`.
    pub argv: Vec<Vec<u8>>,
    /// `KEY=VALUE`.
    pub env: Vec<Vec<u8>>,
    pub cwd: Vec<u8>,
    /// Rows and columns, for a program with a terminal.
    pub terminal: Option<(u16, u16)>,
    /// A shell script too long for an argument: written to a file in the box, whose path becomes the last
    /// argument.
    pub script: Option<Vec<u8>>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum FileOperation {
    Stat { path: Vec<u8> },
    List { path: Vec<u8>, max_entries: u64 },
    Read { path: Vec<u8>, offset: u64, limit: u64 },
    Write { path: Vec<u8>, placement: Placement },
    MakeDir { path: Vec<u8> },
    Remove { path: Vec<u8> },
    Rename { from: Vec<u8>, to: Vec<u8> },
}

/// Where written bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Placement {
    /// In place of what was there.
    Replace,
    End,
}

/// Init to daemon.
#[derive(Debug, Serialize, Deserialize)]
pub enum InitReply {
    Prepared,
    /// The box is finished, and this is what holds it, read back after the fact. One descriptor with an isolated
    /// network: the box's tun device.
    Configured {
        enforcement: Enforcement,
    },
    Failed {
        failure: Failure,
    },
    /// One descriptor: the terminal's master end.
    Terminal {
        id: u32,
    },
    /// The program could not be started; `Exited` follows.
    StartFailed {
        id: u32,
        failure: Failure,
    },
    Exited {
        id: u32,
        ended: ProcessEnd,
    },
    FileDone {
        id: u32,
        outcome: Result<FileOutcome, Failure>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum EndStatus {
    Code(i32),
    Signal(i32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessEnd {
    pub status: EndStatus,
    pub user_micros: u64,
    pub system_micros: u64,
    pub peak_rss_bytes: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum FileOutcome {
    Entry(FileFacts),
    Entries(Vec<FileFacts>),
    /// Bytes moved, and the size of the whole file.
    Moved {
        bytes: u64,
        file_bytes: u64,
    },
    Done,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFacts {
    pub name: Vec<u8>,
    /// st_mode, type included.
    pub mode: u32,
    pub bytes: u64,
    pub modified: i64,
    pub link_target: Option<Vec<u8>>,
}

/// A step that failed in another process, on its way to a person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{step}: {}", std::io::Error::from_raw_os_error(*errno))]
pub struct Failure {
    pub step: String,
    pub errno: i32,
}

impl Failure {
    pub fn new(step: impl Into<String>, error: &std::io::Error) -> Self {
        Self { step: step.into(), errno: error.raw_os_error().unwrap_or(libc::EIO) }
    }
}

/// Names the step in an error on its way out.
pub trait Step<T>: Sized {
    /// The name is only made when it is needed.
    fn step_with<S: Into<String>>(self, step: impl FnOnce() -> S) -> Result<T, Failure>;

    fn step(self, step: &str) -> Result<T, Failure> {
        self.step_with(|| step)
    }
}

impl<T, E: Into<std::io::Error>> Step<T> for Result<T, E> {
    fn step_with<S: Into<String>>(self, step: impl FnOnce() -> S) -> Result<T, Failure> {
        self.map_err(|error| {
            let error: std::io::Error = error.into();
            let mut step = step().into();
            if error.raw_os_error().is_none() {
                step = format!("{step} ({error})");
            }
            Failure::new(step, &error)
        })
    }
}
