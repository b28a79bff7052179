//! One stdio server: what to start, with which variables, in which box.

use std::collections::BTreeMap;

use sandcrate_protocol::MountSpec;
use serde::{Deserialize, Serialize};

/// A server as an operator or a client's `mcpServers` names it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServerConfig {
    /// Unique among the servers of one place; part of the tool names of the gateway.
    pub name: String,
    pub command: String,
    #[serde(default)]
    pub args: Vec<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default = "yes")]
    pub enabled: bool,
    #[serde(default, rename = "box")]
    pub settings: BoxSettings,
}

/// The box of a server. What is absent follows from the server or from the operator's defaults.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BoxSettings {
    pub image: Option<String>,
    /// Of the running server; an install has its own.
    pub network: Option<String>,
    /// Of the box in which its packages are installed.
    pub install_network: Option<String>,
    /// The project on the host, when it cannot be told from the command.
    pub host_path: Option<String>,
    /// `ro` or `rw` shows it, `copy` gives the server a copy of its own, `none` leaves it out.
    pub host_path_mode: String,
    /// More of the host that the server sees.
    pub mounts: Vec<MountSpec>,
    pub startup_timeout_sec: u64,
    pub cpus: Option<f64>,
    pub memory_mb: Option<u64>,
    pub pids_limit: Option<u64>,
    pub read_only_rootfs: Option<bool>,
    pub env: BTreeMap<String, String>,
}

impl Default for BoxSettings {
    fn default() -> Self {
        Self {
            image: None,
            network: None,
            install_network: None,
            host_path: None,
            host_path_mode: "ro".to_owned(),
            mounts: Vec::new(),
            startup_timeout_sec: 120,
            cpus: None,
            memory_mb: None,
            pids_limit: None,
            read_only_rootfs: None,
            env: BTreeMap::new(),
        }
    }
}

const fn yes() -> bool {
    true
}
