//! The contract between Sandcrate and whatever really makes boxes.
//!
//! [`Backend`] is the one trait; [`SessionSpec`] and [`ExecRequest`] say what is wanted, [`Execution`] is a
//! running command, [`BackendError`] what can go wrong. `fake` is a scripted backend for tests of the layers
//! above, `conformance` the suite that every backend passes.

mod arguments;
mod backend;
#[cfg(feature = "conformance")]
pub mod conformance;
mod error;
mod examine;
mod exec;
pub mod fake;
mod files;
mod mounts;
mod network;
mod notice;
mod session;

pub use arguments::{
    MAX_SCRIPT_BYTES, MAX_START_BYTES, MAX_STRING_BYTES, MAX_VARIABLES, check_argv, check_env,
    check_start_size, check_workdir, merge_env,
};
pub use backend::{Backend, Capabilities, ImageInfo, ImageRemoval, SweepReport};
pub use error::BackendError;
pub use examine::{Examination, Examined, Promise};
pub use exec::{
    Collected, Command, ExecControl, ExecEvent, ExecExit, ExecRequest, Execution, ExecutionEnds, ExitStatus,
    LimitHit, MemoryScope, PtySize, StdinMode, Stream, Usage,
};
pub use files::{FileEntry, FileKind, FileReply, FileRequest};
pub use mounts::{MAX_MOUNTS, MAX_PATH_BYTES, check_mounts, check_target, refused_source};
pub use network::{Isolation, Network, NetworkReport};
pub use notice::{StartNotice, StartNotices};
pub use session::{
    DiskLimit, Limits, Mount, MountAccess, RootAccess, SessionId, SessionInfo, SessionSpec, Strictness,
};
