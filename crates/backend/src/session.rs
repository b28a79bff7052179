//! What a session is asked to be, and what it turned out to be.

use std::path::PathBuf;
use std::time::Duration;

use sandcrate_protocol::{Control, Enforcement};
use serde::Serialize;

use crate::BackendError;
use crate::{Network, StartNotices};

/// The name of a session: any text without control characters, 1 to 256 characters.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct SessionId(String);

impl SessionId {
    /// Long enough for every id seen in the field; an id is copied into labels and audit records.
    pub const MAX_CHARS: usize = 256;

    pub fn new(text: impl Into<String>) -> Result<Self, BackendError> {
        let text = text.into();
        if text.is_empty() {
            return Err(BackendError::invalid("session_id", "must not be empty"));
        }
        if text.chars().count() > Self::MAX_CHARS {
            return Err(BackendError::invalid("session_id", "must have at most 256 characters"));
        }
        if text.chars().any(char::is_control) {
            return Err(BackendError::invalid("session_id", "must not contain control characters"));
        }
        Ok(Self(text))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for SessionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RootAccess {
    ReadOnly,
    /// Commands are the box's root user without capabilities; changes go to the session's own layer.
    Writable,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MountAccess {
    ReadOnly,
    ReadWrite,
}

/// A directory (or file) of the host that appears in the box.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mount {
    /// On the host; absolute.
    pub source: PathBuf,
    /// In the box; absolute, not a reserved place. [`crate::check_target`] gives its normal form.
    pub target: String,
    pub access: MountAccess,
    /// A bound on what the directory holds. A hard one that this machine cannot set is accounted, and the record
    /// says so.
    pub quota: Option<DiskLimit>,
    /// A resolved directory that the source must lie in: checked on what was opened, not on the text.
    pub within: Option<PathBuf>,
    /// Whether a missing source is made, with the owner of the directory it is made in. Needs `within`.
    pub create: bool,
}

impl Mount {
    pub fn new(source: impl Into<PathBuf>, target: impl Into<String>, access: MountAccess) -> Self {
        Self {
            source: source.into(),
            target: target.into(),
            access,
            quota: None,
            within: None,
            create: false,
        }
    }
}

/// A bound on files: on the private storage (workspace, home and the writable root's layer together), or on a
/// directory of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskLimit {
    /// Accounted while commands run; the box is frozen and ended when it is over.
    Accounted(u64),
    /// A write beyond it fails with ENOSPC or EDQUOT at once.
    Hard(u64),
}

impl DiskLimit {
    pub const fn bytes(self) -> u64 {
        let (Self::Accounted(bytes) | Self::Hard(bytes)) = self;
        bytes
    }
}

/// What a box may use. The defaults are those of the command line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Limits {
    pub memory_bytes: u64,
    /// 1000 is one CPU.
    pub cpu_millis: u32,
    pub pids: u32,
    pub tmp_bytes: u64,
    pub open_files: u64,
    pub disk: DiskLimit,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_bytes: 512 << 20,
            cpu_millis: 1000,
            pids: 128,
            tmp_bytes: 64 << 20,
            open_files: 1024,
            disk: DiskLimit::Accounted(1 << 30),
        }
    }
}

/// Which controls must be enforced in full for the session to start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Strictness {
    /// Whatever the machine can do; the session's enforcement record tells.
    #[default]
    BestEffort,
    /// Fail when one of these would be degraded or absent.
    Require(Vec<Control>),
}

impl Strictness {
    /// Says which required control a box does not have.
    pub fn check(&self, enforcement: &Enforcement) -> Result<(), BackendError> {
        let Self::Require(controls) = self else { return Ok(()) };
        for control in controls {
            if !enforcement.holds(*control) {
                let why = enforcement
                    .get(*control)
                    .map_or("nothing is known of it".to_owned(), |finding| finding.by.clone());
                return Err(BackendError::Unenforceable { control: *control, why });
            }
        }
        Ok(())
    }
}

/// Everything a backend needs to make a box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionSpec {
    pub id: SessionId,
    pub network: Network,
    /// What the root is made of, for backends that have images; `None` is the backend's own choice.
    pub image: Option<String>,
    pub root: RootAccess,
    pub limits: Limits,
    pub mounts: Vec<Mount>,
    /// Where the private workspace appears, unless a mount is there.
    pub workspace: String,
    /// Private files live in this directory of the host, made when missing and left when the session ends. `None`:
    /// in a place of the backend's own, gone with the session.
    pub storage: Option<PathBuf>,
    /// Environment of every command, over the box's own small default.
    pub env: Vec<(String, String)>,
    /// Where commands start unless they say otherwise; made when missing.
    pub workdir: String,
    pub strictness: Strictness,
    pub notices: StartNotices,
}

impl SessionSpec {
    /// A session with the defaults: network off, read-only root, private /workspace.
    pub fn new(id: SessionId) -> Self {
        Self {
            id,
            network: Network::Off,
            image: None,
            root: RootAccess::ReadOnly,
            limits: Limits::default(),
            mounts: Vec::new(),
            workspace: "/workspace".to_owned(),
            storage: None,
            env: Vec::new(),
            workdir: "/workspace".to_owned(),
            strictness: Strictness::default(),
            notices: StartNotices::default(),
        }
    }
}

/// What a started session is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SessionInfo {
    pub id: SessionId,
    pub backend: &'static str,
    /// What the backend itself calls the box; new for every start.
    pub backend_id: String,
    pub enforcement: Enforcement,
    /// How long `start` took.
    #[serde(serialize_with = "as_millis")]
    pub start_time: Duration,
}

fn as_millis<S: serde::Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64() * 1000.0)
}
