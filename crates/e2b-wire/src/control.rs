//! The control plane: sandboxes made, listed, kept, paused and ended.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::json::null_is_default;

/// Seconds a sandbox has when its maker does not say.
pub const DEFAULT_TIMEOUT_SEC: u64 = 300;

/// The body of every answer that is not a success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{code}: {message}")]
pub struct ApiError {
    /// The HTTP status.
    pub code: u16,
    pub message: String,
}

/// What traffic a sandbox may have.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NetworkConfig {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_public_traffic: Option<bool>,
    /// Networks, addresses, names and `*.names`. Before what is denied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_out: Option<Vec<String>>,
    /// Networks and addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deny_out: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns_servers: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_proxy: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mask_request_host: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub https_ports: Option<Vec<u16>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<Value>,
    /// Only in a change of the network; in a new sandbox it stands beside this.
    #[serde(rename = "allow_internet_access", skip_serializing_if = "Option::is_none")]
    pub allow_internet_access: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AutoResume {
    pub enabled: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMount {
    pub name: String,
    pub path: String,
}

/// `POST /sandboxes` and `POST /v2/sandboxes`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NewSandbox {
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// Seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_pause: Option<bool>,
    /// `false`: a pause keeps the files alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_pause_memory: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_resume: Option<AutoResume>,
    /// Whether the data plane asks for a token. `/v2` has no such field, and always asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secure: Option<bool>,
    #[serde(default, rename = "allow_internet_access", skip_serializing_if = "Option::is_none")]
    pub allow_internet_access: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkConfig>,
    #[serde(default, deserialize_with = "null_is_default")]
    pub metadata: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "null_is_default")]
    pub env_vars: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mcp: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iam: Option<Value>,
    #[serde(default, deserialize_with = "null_is_default", skip_serializing_if = "Vec::is_empty")]
    pub volume_mounts: Vec<VolumeMount>,
}

/// What whoever made or found a sandbox needs to talk to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
    #[serde(rename = "templateID")]
    pub template_id: String,
    #[serde(rename = "sandboxID")]
    pub sandbox_id: String,
    /// Kept for old SDKs, which put it into host names.
    #[serde(default, rename = "clientID")]
    pub client_id: String,
    pub envd_version: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub envd_access_token: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic_access_token: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SandboxState {
    Running,
    Paused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnTimeout {
    Kill,
    Pause,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lifecycle {
    pub auto_resume: bool,
    pub on_timeout: OnTimeout,
}

/// What a pause kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PauseMode {
    Full,
    Filesystem,
}

/// A sandbox in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedSandbox {
    #[serde(rename = "templateID")]
    pub template_id: String,
    #[serde(rename = "sandboxID")]
    pub sandbox_id: String,
    #[serde(default, rename = "clientID")]
    pub client_id: String,
    pub started_at: Timestamp,
    pub end_at: Timestamp,
    pub cpu_count: u32,
    #[serde(rename = "memoryMB")]
    pub memory_mb: u64,
    #[serde(rename = "diskSizeMB")]
    pub disk_size_mb: u64,
    pub state: SandboxState,
    pub envd_version: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    #[serde(default, deserialize_with = "null_is_default")]
    pub metadata: BTreeMap<String, String>,
}

/// `GET /sandboxes/{id}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxDetail {
    #[serde(flatten)]
    pub listed: ListedSandbox,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub envd_access_token: Option<String>,
    #[serde(default)]
    pub allow_internet_access: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkConfig>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<Lifecycle>,
    /// Of one that is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_mode: Option<PauseMode>,
}

/// `POST …/connect` and `POST …/resume`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Connect {
    /// Seconds from now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u64>,
    /// `false`: with the files alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<bool>,
    /// Of `resume` alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_pause: Option<bool>,
}

/// `POST …/timeout`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeout {
    /// Seconds from now.
    pub timeout: u64,
}

/// `POST …/refreshes`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Refresh {
    /// Seconds from now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<u64>,
}

/// `POST …/pause`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Pause {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub require_healthy_guest: Option<bool>,
}

/// One of `GET …/metrics`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metric {
    pub timestamp: Timestamp,
    pub timestamp_unix: i64,
    pub cpu_count: u32,
    pub cpu_used_pct: f64,
    pub mem_used: u64,
    pub mem_total: u64,
    pub mem_cache: u64,
    pub disk_used: u64,
    pub disk_total: u64,
}

/// `GET /sandboxes/metrics`: the last of each.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SandboxesWithMetrics {
    pub sandboxes: BTreeMap<String, Metric>,
}

/// A line of `GET …/logs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    pub timestamp: Timestamp,
    pub line: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    Debug,
    Info,
    Warn,
    Error,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    pub timestamp: Timestamp,
    pub message: String,
    pub level: LogLevel,
    #[serde(default)]
    pub fields: BTreeMap<String, String>,
}

/// `GET /sandboxes/{id}/logs`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Logs {
    pub logs: Vec<LogLine>,
    pub log_entries: Vec<LogEntry>,
}

/// `GET /v2/sandboxes/{id}/logs`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogsV2 {
    pub logs: Vec<LogEntry>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_new_sandbox_is_read_as_the_sdks_send_it() {
        let sent = json!({
            "templateID": "base", "timeout": 60, "autoPause": false, "metadata": {"user": "42"}, "envVars": null,
            "allow_internet_access": false, "network": {"allowOut": ["1.1.1.1"], "denyOut": ["0.0.0.0/0"]},
            "someday": true,
        });
        let read: NewSandbox = serde_json::from_value(sent).unwrap();
        assert_eq!((read.template_id.as_str(), read.timeout), ("base", Some(60)));
        assert_eq!(read.allow_internet_access, Some(false));
        assert_eq!(read.network.unwrap().deny_out, Some(vec!["0.0.0.0/0".to_owned()]));
        assert!(read.env_vars.is_empty() && read.metadata["user"] == "42");
        assert!(serde_json::from_value::<NewSandbox>(json!({})).is_err());
    }

    #[test]
    fn a_new_sandbox_is_written_as_it_is_read() {
        let wanted = NewSandbox {
            template_id: "base".into(),
            allow_internet_access: Some(true),
            volume_mounts: vec![VolumeMount { name: "v".into(), path: "/v".into() }],
            ..NewSandbox::default()
        };
        let json = json!({
            "templateID": "base", "allow_internet_access": true, "metadata": {}, "envVars": {},
            "volumeMounts": [{"name": "v", "path": "/v"}],
        });
        assert_eq!(serde_json::to_value(&wanted).unwrap(), json);
        assert_eq!(serde_json::from_value::<NewSandbox>(json).unwrap(), wanted);
    }

    #[test]
    fn a_sandbox_in_detail_is_one_in_a_list_and_more() {
        let at = Timestamp::from_second(1_700_000_000).unwrap();
        let listed = ListedSandbox {
            template_id: "base".into(),
            sandbox_id: "i1".into(),
            client_id: "sandcrate".into(),
            started_at: at,
            end_at: at,
            cpu_count: 2,
            memory_mb: 512,
            disk_size_mb: 1024,
            state: SandboxState::Running,
            envd_version: crate::ENVD_VERSION.into(),
            alias: None,
            metadata: BTreeMap::new(),
        };
        let detail = SandboxDetail {
            listed,
            envd_access_token: Some("t".into()),
            allow_internet_access: None,
            domain: None,
            network: None,
            lifecycle: Some(Lifecycle { auto_resume: false, on_timeout: OnTimeout::Pause }),
            pause_mode: None,
        };
        let json = json!({
            "templateID": "base", "sandboxID": "i1", "clientID": "sandcrate", "startedAt": "2023-11-14T22:13:20Z",
            "endAt": "2023-11-14T22:13:20Z", "cpuCount": 2, "memoryMB": 512, "diskSizeMB": 1024,
            "state": "running", "envdVersion": "0.6.6", "metadata": {}, "envdAccessToken": "t",
            "allowInternetAccess": null, "lifecycle": {"autoResume": false, "onTimeout": "pause"},
        });
        assert_eq!(serde_json::to_value(&detail).unwrap(), json);
        assert_eq!(serde_json::from_value::<SandboxDetail>(json).unwrap(), detail);
    }
}
