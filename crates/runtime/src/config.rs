//! What an operator can set about the runtime, and what LangBot's own configuration may fill in.
//!
//! Typed and validated: files, environment and flags are the command line's business.

use std::path::PathBuf;
use std::time::Duration;

use sandcrate_protocol::network::{Grants, Limits, NetworkRequest, Policy};
use sandcrate_skills::Limits as SkillLimits;
use serde::{Deserialize, Serialize};

use crate::BoxLimits;

/// Which backend sessions are made on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendChoice {
    /// The first that is available, in the order given to the runtime.
    #[default]
    Auto,
    /// The same among those of this machine: LangBot's word.
    Local,
    /// The first that the runtime was given, without a look at it: whoever gives it has just opened it, and need not
    /// wait until it is up before there is something to do.
    #[serde(skip)]
    Given,
    #[serde(untagged)]
    Named(String),
}

/// Whether a session may use the host's own network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HostNetwork {
    #[default]
    Deny,
    Allow,
}

/// What a request for `on` gets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum OnNetwork {
    /// An isolated network, held to this.
    Policy(Policy),
    /// The host's own; only together with [`HostNetwork::Allow`].
    Host,
}

impl Default for OnNetwork {
    fn default() -> Self {
        Self::Policy(Policy::public())
    }
}

impl TryFrom<String> for OnNetwork {
    type Error = sandcrate_protocol::network::PolicyError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        match text.parse()? {
            NetworkRequest::Host => Ok(Self::Host),
            // The word is explained by itself: what the Internet is without the operator's word.
            NetworkRequest::On { deny } => Policy::public().without(&deny).map(Self::Policy),
            NetworkRequest::Off => Ok(Self::Policy(Policy::off())),
            NetworkRequest::Policy(policy) => Ok(Self::Policy(policy)),
        }
    }
}

impl From<OnNetwork> for String {
    fn from(on: OnNetwork) -> Self {
        match on {
            OnNetwork::Policy(policy) => policy.to_string(),
            OnNetwork::Host => "host".to_owned(),
        }
    }
}

/// Where clients may have ports of boxes published.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PublishOn {
    #[default]
    Loopback,
    /// On every address of the host.
    Any,
}

/// What the operator says of the network of boxes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkConfig {
    /// Whether a request may ask for the host's own.
    pub host: HostNetwork,
    pub policy: OnNetwork,
    /// Requests may say `on` and `off`, and nothing else.
    pub locked: bool,
    /// For every box, whatever its policy.
    pub grants: Grants,
    pub limits: Limits,
    pub publish: PublishOn,
    /// Published ports of one session.
    pub ports: usize,
}

impl Default for NetworkConfig {
    fn default() -> Self {
        Self {
            host: HostNetwork::default(),
            policy: OnNetwork::default(),
            locked: false,
            grants: Grants::default(),
            limits: Limits::default(),
            publish: PublishOn::default(),
            ports: 16,
        }
    }
}

/// Bounds of what clients can make us hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RuntimeLimits {
    pub sessions: usize,
    /// Running managed processes of one session.
    pub processes: usize,
    /// Exited processes whose record is kept, per session.
    pub exited_processes: usize,
    /// Streams and terminals of one session.
    pub commands: usize,
    /// Collected commands waiting for their turn in one session.
    pub queued_commands: usize,
    /// Bytes kept of each stream of a collected command.
    pub output_bytes: usize,
    /// Output kept of a stream or process for a client that is away.
    pub log_bytes: usize,
}

impl Default for RuntimeLimits {
    fn default() -> Self {
        Self {
            sessions: 2000,
            processes: 32,
            exited_processes: 32,
            commands: 64,
            queued_commands: 256,
            output_bytes: 1 << 20,
            log_bytes: 1 << 20,
        }
    }
}

/// What LangBot's JSON may fill in where the operator's file is silent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LangbotConfig {
    pub backend: Option<BackendChoice>,
    pub mount_roots: Vec<PathBuf>,
    /// Where its skills are.
    pub skills_root: Option<PathBuf>,
    pub limits: Option<BoxLimits>,
    /// Where files of its workspaces are, if they are shared with us.
    pub default_workspace: Option<PathBuf>,
}

/// The name by which LangBot is told of the backend, whatever it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReportedBackend {
    /// The only one that LangBot's cloud edition takes.
    Nsjail,
}

impl ReportedBackend {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nsjail => "nsjail",
        }
    }
}

/// Who sent a LangBot configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitSource {
    /// Known by token or by uid, so it may set mount roots that the operator left open.
    pub known: bool,
    /// Where its relative paths start.
    pub base_dir: PathBuf,
}

/// The whole configuration of a runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeConfig {
    /// Records and files of persistent sessions live below it, under a lock.
    pub state_dir: PathBuf,
    /// `None` leaves the choice to LangBot's configuration.
    pub backend: Option<BackendChoice>,
    /// Backends that a request may ask for by name.
    pub request_backends: Vec<String>,
    /// Host directories that may be mounted; `None` leaves them to a known client's LangBot configuration.
    pub mount_roots: Option<Vec<PathBuf>>,
    pub network: NetworkConfig,
    /// Where skills are kept; `None` leaves it to a known client's LangBot configuration, and to the state
    /// directory while there is none.
    pub skills_root: Option<PathBuf>,
    pub skill_limits: SkillLimits,
    /// `None`: LangBot is told the backend's own name.
    pub report_backend_as: Option<ReportedBackend>,
    /// After this long without use a session ends, unless it is persistent.
    pub session_ttl: Duration,
    pub limits: RuntimeLimits,
}

impl RuntimeConfig {
    pub const DEFAULT_TTL: Duration = Duration::from_secs(300);

    pub fn new(state_dir: impl Into<PathBuf>) -> Self {
        Self {
            state_dir: state_dir.into(),
            backend: None,
            request_backends: Vec::new(),
            mount_roots: None,
            network: NetworkConfig::default(),
            skills_root: None,
            skill_limits: SkillLimits::default(),
            report_backend_as: None,
            session_ttl: Self::DEFAULT_TTL,
            limits: RuntimeLimits::default(),
        }
    }
}
