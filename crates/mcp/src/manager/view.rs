//! A server and a test of one as they are told.

use serde::Serialize;

use super::info::RuntimeInfo;
use crate::config::Origin;

/// A server as it is told.
#[derive(Debug, Clone, Serialize)]
pub struct ServerView {
    pub name: String,
    pub origin: Origin,
    pub enabled: bool,
    pub command: String,
    pub args: Vec<String>,
    /// Names only: their values may be secrets.
    pub env: Vec<String>,
    #[serde(rename = "box")]
    pub settings: crate::BoxSettings,
    pub allow: Vec<String>,
    pub deny: Vec<String>,
    pub call_timeout_sec: u64,
    /// What is being done for its start, while that takes long.
    pub doing: Option<String>,
    /// What a person should know of its start, such as paths that its box does not have.
    pub notes: Vec<String>,
    pub runtime_info: RuntimeInfo,
}

/// How a test went.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TestReport {
    pub ok: bool,
    pub runtime_info: RuntimeInfo,
    /// The server's last words, when it failed.
    pub log: String,
}
