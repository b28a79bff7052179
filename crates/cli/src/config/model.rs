//! Every setting, typed, with its default. What a key means to people is in `docs/reference/config.md`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use sandcrate_protocol::BoxProfile;
use sandcrate_protocol::network::{Limits, Rule};
use sandcrate_runtime::{
    BackendChoice, HostNetwork, NetworkConfig, OnNetwork, PublishOn, ReportedBackend, RuntimeConfig,
    RuntimeLimits,
};
use sandcrate_server::{E2bConfig, InstanceId, Legacy, McpConfig, ServerConfig, ServerLimits, ToolsConfig};
use sandcrate_skills::Limits as SkillLimits;
use serde::{Deserialize, Serialize};

use super::listen::Listen;

/// The whole of `sandcrate.toml`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Settings {
    pub(crate) server: Server,
    pub(crate) runtime: Runtime,
    pub(crate) limits: RuntimeLimits,
    pub(crate) mounts: Mounts,
    pub(crate) skills: Skills,
    pub(crate) langbot: Langbot,
    pub(crate) network: Network,
    pub(crate) native: Native,
    pub(crate) e2b_backend: E2bBackend,
    /// What sessions call an image, and the imported one that it is.
    pub(crate) images: BTreeMap<String, String>,
    pub(crate) tools: ToolsConfig,
    /// The operator's profiles, by name.
    pub(crate) profiles: BTreeMap<String, BoxProfile>,
    pub(crate) mcp: McpConfig,
    pub(crate) e2b: E2bConfig,
    pub(crate) log: Log,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Server {
    /// `None`: what the verb's own default is.
    pub(crate) listen: Option<Vec<Listen>>,
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) tls: Tls,
    /// The one LangBot that is served; `None` takes the first that comes.
    pub(crate) instance: Option<InstanceId>,
    pub(crate) legacy: Option<Legacy>,
    pub(crate) allow_uids: Vec<u32>,
    pub(crate) insecure_no_auth: bool,
    pub(crate) shutdown_grace_ms: u64,
    pub(crate) limits: ServerLimits,
}

impl Default for Server {
    fn default() -> Self {
        let faces = ServerConfig::default();
        Self {
            listen: None,
            token_file: None,
            tls: Tls::default(),
            instance: None,
            legacy: None,
            allow_uids: faces.allow_uids,
            insecure_no_auth: faces.insecure_no_auth,
            shutdown_grace_ms: u64::try_from(faces.shutdown_grace.as_millis()).unwrap_or(u64::MAX),
            limits: faces.limits,
        }
    }
}

/// For addresses that begin with `tls:`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Tls {
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Runtime {
    /// `None`: that of the user, and a directory of its own in it for `box`.
    pub(crate) state_dir: Option<PathBuf>,
    pub(crate) session_ttl_sec: u64,
    /// `None` leaves the choice to LangBot's configuration.
    pub(crate) backend: Option<BackendChoice>,
    /// Backends that a request may ask for.
    pub(crate) request_backends: Vec<String>,
}

impl Default for Runtime {
    fn default() -> Self {
        Self {
            state_dir: None,
            session_ttl_sec: RuntimeConfig::DEFAULT_TTL.as_secs(),
            backend: None,
            request_backends: Vec::new(),
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Mounts {
    /// `None` leaves them to a known client's LangBot configuration.
    pub(crate) roots: Option<Vec<PathBuf>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Langbot {
    /// `None`: LangBot is told the backend's own name.
    pub(crate) report_backend_as: Option<ReportedBackend>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Skills {
    /// `None` leaves it to a known client's LangBot configuration, then to the state directory.
    pub(crate) root: Option<PathBuf>,
    pub(crate) upload_bytes: usize,
    pub(crate) package_entries: usize,
    pub(crate) package_bytes: u64,
    pub(crate) file_bytes: usize,
}

impl Default for Skills {
    fn default() -> Self {
        let SkillLimits { upload_bytes, package_entries, package_bytes, file_bytes } = SkillLimits::default();
        Self { root: None, upload_bytes, package_entries, package_bytes, file_bytes }
    }
}

impl From<&Skills> for SkillLimits {
    fn from(skills: &Skills) -> Self {
        Self {
            upload_bytes: skills.upload_bytes,
            package_entries: skills.package_entries,
            package_bytes: skills.package_bytes,
            file_bytes: skills.file_bytes,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Network {
    pub(crate) host: HostNetwork,
    pub(crate) policy: OnNetwork,
    pub(crate) locked: bool,
    pub(crate) allow: Vec<Rule>,
    pub(crate) deny: Vec<Rule>,
    pub(crate) publish: PublishOn,
    pub(crate) ports: usize,
    pub(crate) limits: NetworkLimits,
}

impl Default for Network {
    fn default() -> Self {
        let NetworkConfig { host, policy, locked, grants, limits: _, publish, ports } =
            NetworkConfig::default();
        let limits = NetworkLimits::default();
        Self { host, policy, locked, allow: grants.allow, deny: grants.deny, publish, ports, limits }
    }
}

/// Per box.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct NetworkLimits {
    pub(crate) connections: u32,
    pub(crate) associations: u32,
    pub(crate) opened_per_second: u32,
    pub(crate) bytes_per_second: Option<u64>,
    pub(crate) connect_timeout_sec: u64,
    pub(crate) tcp_idle_sec: u64,
    pub(crate) udp_idle_sec: u64,
}

impl Default for NetworkLimits {
    fn default() -> Self {
        let limits = Limits::default();
        Self {
            connections: limits.connections,
            associations: limits.associations,
            opened_per_second: limits.opened_per_second,
            bytes_per_second: limits.bytes_per_second,
            connect_timeout_sec: limits.connect_timeout.as_secs(),
            tcp_idle_sec: limits.tcp_idle.as_secs(),
            udp_idle_sec: limits.udp_idle.as_secs(),
        }
    }
}

impl From<&NetworkLimits> for Limits {
    fn from(limits: &NetworkLimits) -> Self {
        Self {
            connections: limits.connections,
            associations: limits.associations,
            opened_per_second: limits.opened_per_second,
            bytes_per_second: limits.bytes_per_second,
            connect_timeout: Duration::from_secs(limits.connect_timeout_sec),
            tcp_idle: Duration::from_secs(limits.tcp_idle_sec),
            udp_idle: Duration::from_secs(limits.udp_idle_sec),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Native {
    pub(crate) pool: usize,
    pub(crate) cgroup_parent: Option<String>,
    /// Refuse sessions whose image is not imported.
    pub(crate) require_image: bool,
}

impl Default for Native {
    fn default() -> Self {
        // Four boxes cover the usual burst of one agent, and cost about 2 MiB.
        Self { pool: 4, cgroup_parent: None, require_image: false }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Log {
    pub(crate) format: LogFormat,
    pub(crate) filter: String,
}

impl Default for Log {
    fn default() -> Self {
        Self { format: LogFormat::Text, filter: "info".to_owned() }
    }
}

/// Where sandboxes are made, for the backend of that name. Its key is no part of this, so that nobody prints it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct E2bBackend {
    pub(crate) api_key_file: Option<PathBuf>,
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) api_url: Option<String>,
    pub(crate) domain: Option<String>,
    pub(crate) sandbox_url: Option<String>,
    pub(crate) template: Option<String>,
}

/// How the log is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// Lines for people
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

/// Every key and what it takes, for the fix in an error. A test compares it with the types and the reference.
pub(crate) const KEYS: [(&str, &str); 80] = [
    ("server.listen", r#"a list such as ["127.0.0.1:5410", "unix:/run/sandcrate.sock"]"#),
    ("server.token_file", r#"the absolute path of a file, such as "/etc/sandcrate/token""#),
    ("server.tls.cert", r#"the absolute path of a certificate in PEM, such as "/etc/sandcrate/cert.pem""#),
    ("server.tls.key", r#"the absolute path of its private key in PEM, such as "/etc/sandcrate/key.pem""#),
    ("server.instance", r#"the UUID of the one LangBot that is served"#),
    ("server.legacy", r#""off", "loopback", or a list of networks such as ["172.16.0.0/12"]"#),
    ("server.allow_uids", "a list of user ids such as [1000, 1001]"),
    ("server.insecure_no_auth", "true or false"),
    ("server.shutdown_grace_ms", "milliseconds, such as 10000"),
    ("server.limits.max_connections", "a number of at least 1"),
    ("server.limits.in_flight_per_connection", "a number of at least 1"),
    ("server.limits.in_flight_total", "a number of at least 1"),
    ("server.limits.header_timeout_ms", "milliseconds, at least 10"),
    ("server.limits.body_timeout_ms", "milliseconds, at least 10"),
    ("server.limits.ping_interval_ms", "milliseconds, at least 10"),
    ("server.limits.write_timeout_ms", "milliseconds, at least 10"),
    ("server.limits.mcp_sessions", "a number of at least 1"),
    ("server.limits.mcp_idle_ms", "milliseconds, at least 10"),
    ("runtime.state_dir", r#"an absolute path such as "/var/lib/sandcrate""#),
    ("runtime.session_ttl_sec", "seconds, at least 1, such as 300"),
    ("runtime.request_backends", r#"a list of "native", "docker", "podman", "nsjail" and "e2b""#),
    ("runtime.backend", r#""auto", "local", "native", "docker", "podman", "nsjail" or "e2b""#),
    ("limits.sessions", "a number of at least 1"),
    ("limits.processes", "a number of at least 1"),
    ("limits.exited_processes", "a number"),
    ("limits.commands", "a number of at least 1"),
    ("limits.queued_commands", "a number of at least 1"),
    ("limits.output_bytes", "bytes, at least 1024, such as 1048576"),
    ("limits.log_bytes", "bytes, at least 1024, such as 1048576"),
    ("mounts.roots", r#"a list of absolute paths such as ["/srv/langbot/data/box"]"#),
    ("skills.root", r#"an absolute path such as "/srv/langbot/data/box/skills""#),
    ("skills.upload_bytes", "bytes, at least 1024, such as 67108864"),
    ("skills.package_entries", "a number of at least 1, such as 10000"),
    ("skills.package_bytes", "bytes, at least 1024, such as 268435456"),
    ("skills.file_bytes", "bytes, at least 1024, such as 4194304"),
    ("langbot.report_backend_as", r#""nsjail", or nothing"#),
    ("network.host", r#""deny" or "allow""#),
    ("network.policy", r#"a policy such as "public" or "allow *.example.com:443", or "host""#),
    ("network.locked", "true or false"),
    ("network.allow", r#"a list of rules such as ["10.1.0.0/16:5432", "db.example"]"#),
    ("network.deny", r#"a list of rules such as ["*.ads.example"]"#),
    ("network.publish", r#""loopback" or "any""#),
    ("network.ports", "a number, such as 16"),
    ("network.limits.connections", "a number of at least 1"),
    ("network.limits.associations", "a number of at least 1"),
    ("network.limits.opened_per_second", "a number of at least 1"),
    ("network.limits.bytes_per_second", "bytes, at least 1024"),
    ("network.limits.connect_timeout_sec", "seconds, at least 1"),
    ("network.limits.tcp_idle_sec", "seconds, at least 1"),
    ("network.limits.udp_idle_sec", "seconds, at least 1"),
    ("native.pool", "a number from 0 to 64, such as 4"),
    ("native.cgroup_parent", r#"the name of a cgroup that exists, such as "sandcrate.slice""#),
    ("native.require_image", "true or false"),
    ("e2b_backend.api_key_file", r#"the absolute path of a file, such as "/etc/sandcrate/e2b-key""#),
    ("e2b_backend.ca_file", r#"the absolute path of a file, such as "/etc/sandcrate/ca.pem""#),
    ("e2b_backend.api_url", r#"a URL such as "https://box.example:5410", or a domain"#),
    ("e2b_backend.domain", r#"a domain such as "e2b.app""#),
    ("e2b_backend.sandbox_url", r#"a URL such as "https://box.example:5410""#),
    ("e2b_backend.template", r#"the name of a template, such as "base""#),
    (
        "images",
        r#"a table of names and imported images, such as {"rockchin/langbot-sandbox:latest" = "langbot"}"#,
    ),
    ("tools.profile", r#"the name of a profile, such as "default""#),
    ("tools.session_template", r#"text with names in braces, such as "{launcher_type}_{launcher_id}""#),
    ("tools.output_limit_chars", "a number of at least 100, such as 4000"),
    ("tools.allow", r#"a list of tools such as ["read", "glob", "grep"]"#),
    ("tools.deny", r#"a list of tools such as ["write", "edit"]"#),
    ("profiles", r#"a table of profiles, such as {big = {memory_mb = 4096, max_timeout_sec = 600}}"#),
    ("mcp.allow", r#"a list of servers and tools such as ["time", "git__git_log"]"#),
    ("mcp.deny", r#"a list of servers and tools such as ["git__git_push"]"#),
    ("mcp.call_timeout_sec", "seconds, at least 1, such as 120"),
    ("mcp.shared_session", "true or false"),
    ("mcp.max_sessions", "a number of at least 1, such as 256"),
    ("mcp.session_idle_sec", "seconds, at least 1, such as 1800"),
    (
        "mcp.servers",
        r#"a table of MCP servers, such as {time = {command = "uvx", args = ["mcp-server-time"]}}"#,
    ),
    ("e2b.enabled", "true or false"),
    ("e2b.domain", r#"a host name, such as "sandbox.example.com""#),
    ("e2b.network", r#""on", "off", or a policy such as "allow *.example.com:443""#),
    ("e2b.max_timeout_sec", "seconds, at least 1, such as 86400"),
    ("e2b.templates", r#"a table of templates, such as {data = {image = "data", memory_mb = 2048}}"#),
    ("log.format", r#""text" or "json""#),
    ("log.filter", r#"a level such as "info", or "info,sandcrate_server=debug""#),
];

/// What a key takes.
pub(crate) fn form_of(key: &str) -> Option<&'static str> {
    KEYS.iter().find(|(known, _)| *known == key).map(|(_, form)| *form)
}
