//! What a caller asks for: the box, its mounts, and a process to keep running in it.
//!
//! The types are plain data with the field names and the field order of the wire. Whatever comes from
//! outside goes through `from_json`, also when serde reads it: there is no way around the rules.

mod admission;
mod bounds;
mod coerce;
mod invalid;
mod read;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use admission::{AdmissionGrant, AdmissionPolicy, AdmissionRevocation};
pub use coerce::lax_integer;
pub use invalid::{InvalidSpec, Issue};

/// Where a box works, unless told otherwise.
pub const DEFAULT_WORKDIR: &str = "/workspace";
/// The image of a box that names none.
pub const DEFAULT_IMAGE: &str = "rockchin/langbot-sandbox:latest";
/// The id of a managed process that was given none.
pub const DEFAULT_PROCESS_ID: &str = "default";

/// Whether a box may reach a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkMode {
    Off,
    On,
}

impl NetworkMode {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::On => "on",
        }
    }
}

impl fmt::Display for NetworkMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How a host path appears in a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MountMode {
    /// Not at all: the path is only remembered.
    None,
    Ro,
    Rw,
}

impl MountMode {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Ro => "ro",
            Self::Rw => "rw",
        }
    }
}

impl fmt::Display for MountMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One more host path to show in a box.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountSpec {
    pub host_path: String,
    pub mount_path: String,
    pub mode: MountMode,
    /// `sha256:` and 64 digits: what the directory must hold, by its manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_digest: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest_path: Option<String>,
}

/// Where directories that are named by their content appear in a box, each under its digest.
pub const ARTIFACTS: &str = "/opt/langbot-artifacts";

impl MountSpec {
    pub fn new(host_path: impl Into<String>, mount_path: impl Into<String>, mode: MountMode) -> Self {
        let (host_path, mount_path) = (host_path.into(), mount_path.into());
        Self { host_path, mount_path, mode, content_digest: None, manifest_path: None }
    }

    /// Whether it is named by its content.
    pub fn is_artifact(&self) -> bool {
        self.content_digest.is_some()
    }
}

/// A box, and for an exec also the command to run in it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Value")]
pub struct BoxSpec {
    pub cmd: String,
    pub workdir: String,
    pub timeout_sec: u64,
    pub network: NetworkMode,
    pub session_id: String,
    pub env: BTreeMap<String, String>,
    pub image: String,
    pub host_path: Option<String>,
    pub host_path_mode: MountMode,
    pub mount_path: String,
    pub extra_mounts: Vec<MountSpec>,
    pub persistent: bool,
    pub cpus: f64,
    pub memory_mb: u64,
    pub pids_limit: u64,
    pub read_only_rootfs: bool,
    /// 0 means that none was asked for.
    pub workspace_quota_mb: u64,
}

impl BoxSpec {
    /// A box with every default; the id is taken as it is.
    pub fn new(session_id: impl Into<String>) -> Self {
        Self {
            cmd: String::new(),
            workdir: DEFAULT_WORKDIR.to_owned(),
            timeout_sec: 30,
            network: NetworkMode::Off,
            session_id: session_id.into(),
            env: BTreeMap::new(),
            image: DEFAULT_IMAGE.to_owned(),
            host_path: None,
            host_path_mode: MountMode::Rw,
            mount_path: DEFAULT_WORKDIR.to_owned(),
            extra_mounts: Vec::new(),
            persistent: false,
            cpus: 1.0,
            memory_mb: 512,
            pids_limit: 128,
            read_only_rootfs: true,
            workspace_quota_mb: 0,
        }
    }
}

/// A process that outlives the request that started it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Value")]
pub struct ProcessSpec {
    pub process_id: String,
    pub command: String,
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub cwd: String,
    /// Of the session's memory, at most this for the process and all it starts; 0 means that none was asked for.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub memory_mb: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl ProcessSpec {
    /// The process `default` in the usual directory, without arguments.
    pub fn new(command: impl Into<String>) -> Self {
        Self {
            process_id: DEFAULT_PROCESS_ID.to_owned(),
            command: command.into(),
            args: Vec::new(),
            env: BTreeMap::new(),
            cwd: DEFAULT_WORKDIR.to_owned(),
            memory_mb: 0,
        }
    }
}

impl TryFrom<Value> for BoxSpec {
    type Error = InvalidSpec;

    fn try_from(value: Value) -> Result<Self, Self::Error> {
        Self::from_json(&value)
    }
}

impl TryFrom<Value> for ProcessSpec {
    type Error = InvalidSpec;

    fn try_from(value: Value) -> Result<Self, Self::Error> {
        Self::from_json(&value)
    }
}
