//! Shapes for the API document, of types that are read or written by rules of other crates. A test compares
//! them with real answers.
#![expect(dead_code, reason = "the shapes alone are wanted")]

use std::collections::BTreeMap;

use utoipa::ToSchema;

/// A box; every field has a default.
#[derive(Debug, ToSchema)]
pub(crate) struct BoxRequest {
    /// `off`, `on` (what the server's operator means by it), `host` where that is allowed, a policy such as
    /// `allow *.example.com:443`, or an object with `base`, `allow` and `deny`.
    #[schema(example = "off", default = "off")]
    network: Option<NetworkWish>,
    /// Environment of every command.
    env: Option<BTreeMap<String, String>>,
    /// Where commands start; made when missing.
    #[schema(default = "/workspace")]
    workdir: Option<String>,
    image: Option<String>,
    /// A directory of the host to show at `mount_path`; only below roots that the server allows.
    host_path: Option<String>,
    /// `rw`, `ro` or `none`.
    #[schema(default = "rw")]
    host_path_mode: Option<String>,
    #[schema(default = "/workspace")]
    mount_path: Option<String>,
    extra_mounts: Option<Vec<MountRequest>>,
    /// Files outlive the box and the server.
    #[schema(default = false)]
    persistent: Option<bool>,
    #[schema(default = 1.0)]
    cpus: Option<f64>,
    #[schema(default = 512, minimum = 32)]
    memory_mb: Option<u64>,
    #[schema(default = 128, minimum = 1)]
    pids_limit: Option<u64>,
    #[schema(default = true)]
    read_only_rootfs: Option<bool>,
    /// 0: the server's default bound.
    #[schema(default = 0)]
    workspace_quota_mb: Option<u64>,
    /// For `GET /v1/sessions?label=key=value`.
    labels: Option<BTreeMap<String, String>>,
    /// Instead of the server's own.
    #[schema(minimum = 1)]
    ttl_sec: Option<u64>,
    /// Ports of the box to publish; see `POST …/ports`.
    ports: Option<Vec<PortWish>>,
    /// Instead of the server's own choice, where its operator lets requests choose.
    #[schema(example = "docker")]
    backend: Option<String>,
}

/// A network as text, or as its parts.
#[derive(Debug, ToSchema)]
#[serde(untagged)]
pub(crate) enum NetworkWish {
    Text(String),
    Parts {
        /// `nothing` or `public`.
        base: Option<String>,
        allow: Option<Vec<String>>,
        deny: Option<Vec<String>>,
    },
}

/// A port as `[ADDRESS:]HOST:BOX`, or as its parts.
#[derive(Debug, ToSchema)]
#[serde(untagged)]
pub(crate) enum PortWish {
    Text(String),
    Parts {
        #[schema(example = 80)]
        box_port: u16,
        /// 0: any that is free.
        host_port: Option<u16>,
        /// 127.0.0.1 unless the server allows others.
        address: Option<String>,
    },
}

/// What was refused, and what could be done about it.
#[derive(Debug, ToSchema)]
pub(crate) struct DenialFacts {
    /// `connect`, `datagram`, `echo`, `resolve`, `name`, `limit`, `path` or `syscall`.
    #[schema(example = "connect")]
    kind: String,
    #[schema(example = "tcp 10.0.0.1:5432 (db.corp)")]
    target: String,
    /// The rule that refused it.
    rule: String,
    hint: String,
    /// How often.
    #[schema(example = 1)]
    count: u32,
}

/// What a box's network carried. Bytes are payload, seen from the box.
#[derive(Debug, ToSchema)]
pub(crate) struct CounterFacts {
    bytes_sent: u64,
    bytes_received: u64,
    connections_opened: u64,
    /// The peer or the host's network refused.
    connections_failed: u64,
    /// UDP and echo.
    associations_opened: u64,
    names_asked: u64,
    denied: u64,
    /// Malformed, fragmented, of another protocol.
    packets_dropped: u64,
    connections_now: u32,
}

/// A published port.
#[derive(Debug, ToSchema)]
pub(crate) struct PortFacts {
    #[schema(example = "127.0.0.1")]
    address: String,
    #[schema(example = 8080)]
    host_port: u16,
    #[schema(example = 80)]
    box_port: u16,
}

#[derive(Debug, ToSchema)]
pub(crate) struct MountRequest {
    #[schema(example = "/srv/data")]
    host_path: String,
    #[schema(example = "/data")]
    mount_path: String,
    /// `rw` or `ro`.
    #[schema(default = "rw")]
    mode: Option<String>,
}

/// A box and its name.
#[derive(Debug, ToSchema)]
pub(crate) struct SessionRequest {
    /// Any text without control characters, up to 256 characters.
    #[schema(example = "demo")]
    session_id: Option<String>,
    #[schema(inline)]
    #[serde(flatten)]
    of_box: BoxRequest,
}

/// Standard input: text, or bytes as base64.
#[derive(Debug, ToSchema)]
#[serde(untagged)]
pub(crate) enum StdinRequest {
    Text(String),
    Bytes { base64: String },
}

/// A command in a session that is there. Exactly one of `cmd` and `argv`.
#[derive(Debug, ToSchema)]
pub(crate) struct CommandRequest {
    /// Text for the box's shell.
    #[schema(example = "echo hello")]
    cmd: Option<String>,
    /// A program and its arguments, without a shell.
    argv: Option<Vec<String>>,
    /// Over the session's environment.
    env: Option<BTreeMap<String, String>>,
    /// Instead of the session's.
    workdir: Option<String>,
    /// Wall time after which the command's whole tree is killed.
    #[schema(minimum = 1)]
    timeout_sec: Option<u64>,
    stdin: Option<StdinRequest>,
    /// More standard input comes by `POST …/commands/{cid}/stdin`.
    #[schema(default = false)]
    keep_stdin_open: Option<bool>,
    /// A terminal of this size: stdout carries everything, standard input stays open.
    pty: Option<PtyRequest>,
}

#[derive(Debug, ToSchema)]
pub(crate) struct PtyRequest {
    #[schema(default = 24, minimum = 1)]
    rows: Option<u16>,
    #[schema(default = 80, minimum = 1)]
    cols: Option<u16>,
}

/// A command, and the box for it when there is none of that name yet.
#[derive(Debug, ToSchema)]
pub(crate) struct ExecRequestBody {
    #[schema(inline)]
    #[serde(flatten)]
    command: CommandRequest,
    #[schema(inline)]
    #[serde(flatten)]
    of_box: BoxRequest,
}

/// A signal by name or number.
#[derive(Debug, ToSchema)]
pub(crate) struct SignalRequest {
    #[schema(example = "TERM")]
    signal: String,
}

/// A process to keep running.
#[derive(Debug, ToSchema)]
pub(crate) struct ProcessRequest {
    #[schema(default = "default")]
    process_id: Option<String>,
    #[schema(example = "python3")]
    command: String,
    args: Option<Vec<String>>,
    env: Option<BTreeMap<String, String>>,
    #[schema(default = "/workspace")]
    cwd: Option<String>,
    /// Of the session's memory, at most this for the process and all it starts; 0 for no bound of its own.
    #[schema(default = 0)]
    memory_mb: Option<u64>,
}

/// An image that sessions can be made of.
#[derive(Debug, ToSchema)]
pub(crate) struct ImageFacts {
    #[schema(example = "python")]
    name: String,
    #[schema(example = "sha256:9f0c…")]
    digest: String,
    /// `tar`, `docker`, `oci` or `directory`.
    #[schema(example = "docker")]
    source: String,
    #[schema(example = "2026-01-31T12:00:00Z")]
    imported_at: String,
    entries: u64,
    bytes: u64,
    #[schema(example = "native")]
    backend: String,
}

/// The box of a session.
#[derive(Debug, ToSchema)]
pub(crate) struct SessionFacts {
    #[schema(example = "demo")]
    session_id: String,
    #[schema(example = "native")]
    backend_name: String,
    backend_session_id: String,
    image: String,
    #[schema(example = "off")]
    network: String,
    host_path: Option<String>,
    #[schema(example = "rw")]
    host_path_mode: String,
    #[schema(example = "/workspace")]
    mount_path: String,
    persistent: bool,
    #[schema(example = 1.0)]
    cpus: f64,
    #[schema(example = 512)]
    memory_mb: u64,
    #[schema(example = 128)]
    pids_limit: u64,
    read_only_rootfs: bool,
    workspace_quota_mb: u64,
    #[schema(example = "2026-01-31T12:00:00.000001Z")]
    created_at: String,
    #[schema(example = "2026-01-31T12:00:00.000001Z")]
    last_used_at: String,
}

/// A managed process.
#[derive(Debug, ToSchema)]
pub(crate) struct ProcessFacts {
    #[schema(example = "demo")]
    session_id: String,
    #[schema(example = "default")]
    process_id: String,
    /// `running` or `exited`.
    #[schema(example = "running")]
    status: String,
    #[schema(example = "python3")]
    command: String,
    args: Vec<String>,
    #[schema(example = "/workspace")]
    cwd: String,
    /// Values are never given back.
    env_keys: Vec<String>,
    /// Whether a relay is connected.
    attached: bool,
    started_at: String,
    exited_at: Option<String>,
    exit_code: Option<i32>,
    /// The last lines of standard error.
    stderr_preview: String,
}

/// What holds one promise of a box.
#[derive(Debug, ToSchema)]
pub(crate) struct Finding {
    #[schema(example = "memory")]
    control: String,
    /// `enforced`, `degraded` or `absent`.
    #[schema(example = "enforced")]
    state: String,
    #[schema(example = "cgroup v2")]
    by: String,
}

/// A file or directory of the box.
#[derive(Debug, ToSchema)]
pub(crate) struct FileFacts {
    #[schema(example = "a.txt")]
    name: String,
    /// `file`, `directory`, `symlink` or `other`.
    #[schema(example = "file")]
    kind: String,
    #[schema(example = 12)]
    bytes: u64,
    /// Permission bits.
    #[schema(example = 420)]
    mode: u32,
    /// Seconds since 1970.
    modified: i64,
    link_target: Option<String>,
}

/// A skill: a directory with a `SKILL.md`.
#[derive(Debug, ToSchema)]
pub(crate) struct SkillFacts {
    #[schema(example = "pdf")]
    name: String,
    #[schema(example = "PDF tools")]
    display_name: String,
    description: String,
    /// The body of its `SKILL.md`.
    instructions: String,
    /// Its directory on the server's host; what a session mounts.
    #[schema(example = "/srv/langbot/data/box/skills/pdf")]
    package_root: String,
    #[schema(example = "SKILL.md")]
    entry_file: String,
    created_at: String,
    updated_at: String,
}

/// A skill in an archive.
#[derive(Debug, ToSchema)]
pub(crate) struct CandidateFacts {
    #[serde(flatten)]
    skill: SkillFacts,
    /// Where it is in the archive; names it when it is installed.
    #[schema(example = "skills/pdf")]
    source_path: Option<String>,
}

/// An entry of a skill's directory.
#[derive(Debug, ToSchema)]
pub(crate) struct SkillEntryFacts {
    #[schema(example = "scripts/run.py")]
    path: String,
    #[schema(example = "run.py")]
    name: String,
    is_dir: bool,
    /// Of a file; null for a directory, and for a link that leads out of the package.
    size: Option<u64>,
}

/// A preset of a session.
#[derive(Debug, ToSchema)]
pub(crate) struct ProfileFacts {
    #[schema(example = "default")]
    name: String,
    image: String,
    #[schema(example = "off")]
    network: String,
    #[schema(example = 30)]
    timeout_sec: u64,
    #[schema(example = "rw")]
    host_path_mode: String,
    /// Longer timeouts are cut to this.
    #[schema(example = 120)]
    max_timeout_sec: u64,
    cpus: f64,
    memory_mb: u64,
    pids_limit: u64,
    read_only_rootfs: bool,
    workspace_quota_mb: u64,
    /// The fields that a caller cannot change.
    locked: Vec<String>,
}

/// A failure of a tool.
#[derive(Debug, ToSchema)]
pub(crate) struct ErrorFacts {
    #[schema(example = "2026-01-01T12:00:00.000000+00:00")]
    timestamp: String,
    #[schema(example = "BoxValidationError")]
    r#type: String,
    message: String,
    query_id: String,
}

/// The backend that serves, if any.
#[derive(Debug, ToSchema)]
pub(crate) struct HealthFacts {
    #[schema(example = "native")]
    name: Option<String>,
    available: bool,
}

/// The runtime at a glance.
#[derive(Debug, ToSchema)]
pub(crate) struct StatusFacts {
    backend: HealthFacts,
    active_sessions: u64,
    /// Running ones only.
    managed_processes: u64,
    #[schema(example = 300)]
    session_ttl_sec: u64,
    /// Every backend there is.
    backends: Vec<BackendFacts>,
}

/// A backend, in use or not.
#[derive(Debug, ToSchema)]
pub(crate) struct BackendFacts {
    #[schema(example = "docker")]
    name: String,
    available: bool,
    /// Why it is not.
    why: Option<String>,
}
