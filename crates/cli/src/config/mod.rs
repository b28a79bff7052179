//! The configuration of a server: file, environment and flags, later wins.
//!
//! Three steps: `layers` parses each source into the types of `model`, `check` validates the whole, and the
//! methods of [`Config`] build what the runtime and the faces take. Nothing binds or starts before.

mod check;
mod layers;
mod listen;
mod model;
mod show;
mod token;

use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sandcrate_protocol::network::Grants;
use sandcrate_runtime::{NetworkConfig, RuntimeConfig};
use sandcrate_server::{E2bConfig, Legacy, ServerConfig, Token, ToolsConfig};
use serde_json::Value;

use layers::Layers;
pub(crate) use layers::Origin;
pub(crate) use listen::{Listen, MAX_SOCKET_PATH, parse_host};
pub(crate) use model::LogFormat;
use model::Settings;
pub(crate) use show::{ConfigVerb, main};

use crate::failure::Failure;
use crate::native::NativeConfig;
use crate::settings;

/// Names the file, when `--config` does not.
pub(crate) const CONFIG_VARIABLE: &str = "SANDCRATE_CONFIG";
/// The id of the LangBot that starts us, or that an operator wants to serve alone.
pub(crate) const LANGBOT_INSTANCE: &str = "LANGBOT_BOX_TRUSTED_INSTANCE_UUID";
const PLACES: [&str; 2] = ["sandcrate.toml", "/etc/sandcrate/sandcrate.toml"];

/// What the arguments say.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) config: Option<PathBuf>,
    /// Flag, key, value.
    pub(crate) flags: Vec<(&'static str, &'static str, Value)>,
    pub(crate) role: Role,
}

/// Whose configuration it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Serve,
    /// Stands in for LangBot's own runtime, with that one's flags.
    Box {
        host: Option<IpAddr>,
        port: Option<u16>,
        stdio: bool,
    },
}

/// What surrounds this process.
#[derive(Debug)]
pub(crate) struct Outside {
    pub(crate) vars: Vec<(OsString, OsString)>,
    pub(crate) cwd: PathBuf,
}

impl Outside {
    pub(crate) fn of_this_process() -> Self {
        let cwd = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
        Self { vars: std::env::vars_os().collect(), cwd }
    }

    /// A variable that is not empty.
    pub(crate) fn var(&self, name: &str) -> Option<&OsStr> {
        let found = self.vars.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_os_str()).filter(|value| !value.is_empty())
    }
}

/// A configuration that is valid as a whole, every default filled in.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) file: Option<PathBuf>,
    pub(crate) settings: Settings,
    pub(crate) token: Option<Token>,
    pub(crate) token_origin: Origin,
    pub(crate) role: Role,
    /// To be said once there is a log.
    pub(crate) warnings: Vec<String>,
    layers: Layers,
}

pub(crate) fn load(asked: Asked, outside: &Outside) -> anyhow::Result<Config> {
    let file = find_file(asked.config.as_deref(), outside)?;
    let mut layers = Layers::default();
    if let Some(file) = &file {
        layers.add_file(file)?;
    }
    if let Some(dir) = outside.var(NativeConfig::STATE_DIR_VARIABLE) {
        let dir = outside.cwd.join(dir);
        layers.add_variable(NativeConfig::STATE_DIR_VARIABLE, "runtime.state_dir", dir.as_os_str())?;
    }
    if let Some(instance) = outside.var(LANGBOT_INSTANCE) {
        layers.add_variable(LANGBOT_INSTANCE, "server.instance", instance)?;
    }
    if let Some(filter) = outside.var(settings::LOG) {
        layers.add_variable(settings::LOG, "log.filter", filter)?;
    }
    layers.add_env(&outside.vars)?;
    for (flag, key, value) in asked.flags {
        layers.add_flag(flag, key, value);
    }
    let settings = layers.settings()?;
    let mut warnings = Vec::new();
    let found = token::find(&settings, &layers, outside, &mut warnings)?;
    let (token, token_origin) = match found {
        Some((token, origin)) => (Some(token), origin),
        None => (None, Origin::Default),
    };
    let mut config = Config { file, settings, token, token_origin, role: asked.role, warnings, layers };
    config.fill_in();
    check::check(&config)?;
    Ok(config)
}

/// The first of the flag, the variable and the usual places. What was named must be there.
fn find_file(flag: Option<&Path>, outside: &Outside) -> anyhow::Result<Option<PathBuf>> {
    if let Some(named) = flag.or_else(|| outside.var(CONFIG_VARIABLE).map(Path::new)) {
        let path = outside.cwd.join(named);
        if !path.is_file() {
            let by = if flag.is_some() { "--config" } else { CONFIG_VARIABLE };
            let why = if path.is_dir() { "is a directory, not a file" } else { "there is no such file" };
            return Err(Failure::invalid(format!("{by} {}: {why}", path.display()))
                .hint("without a file the defaults hold; `sandcrate config show` prints them")
                .into());
        }
        return Ok(Some(path));
    }
    Ok(PLACES.iter().map(|place| outside.cwd.join(place)).find(|path| path.is_file()))
}

impl Config {
    pub(crate) fn origin(&self, key: &str) -> Origin {
        self.layers.origin(key)
    }

    /// A setting by its key.
    fn value(&self, key: &str) -> Value {
        let tree = serde_json::to_value(&self.settings).unwrap_or_default();
        tree.pointer(&format!("/{}", key.replace('.', "/"))).cloned().unwrap_or_default()
    }

    pub(crate) fn state_dir(&self) -> &Path {
        self.settings.runtime.state_dir.as_deref().unwrap_or(Path::new(""))
    }

    pub(crate) fn listen(&self) -> &[Listen] {
        self.settings.server.listen.as_deref().unwrap_or_default()
    }

    pub(crate) fn is_stdio(&self) -> bool {
        matches!(self.role, Role::Box { stdio: true, .. })
    }

    /// Defaults that depend on other settings.
    fn fill_in(&mut self) {
        let role = self.role;
        let state_dir = self.settings.runtime.state_dir.get_or_insert_with(|| {
            let usual = NativeConfig::for_this_user().state_dir;
            if role == Role::Serve { usual } else { usual.join("box") }
        });
        let socket = state_dir.join(settings::SOCKET_NAME);
        if self.is_stdio() && self.origin("server.shutdown_grace_ms") == Origin::Default {
            self.settings.server.shutdown_grace_ms = STDIO_GRACE_MS;
        }
        self.settings.server.legacy = Some(self.server().legacy());
        let listen = match (self.settings.server.listen.take(), role) {
            // Whoever names neither host nor port leaves both to the file.
            (Some(named), Role::Serve | Role::Box { host: None, port: None, .. }) => named,
            (None, Role::Serve) => {
                let usual = Listen::Tcp(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), DEFAULT_PORT));
                self.with_socket(usual, socket)
            }
            (_, Role::Box { host, port, stdio }) => {
                let asked = host.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
                let host_was_given = host.is_some();
                let host = self.narrowed(asked, host_was_given || !stdio);
                let usual = Listen::Tcp(SocketAddr::new(host, port.unwrap_or(DEFAULT_PORT)));
                if stdio { vec![usual] } else { self.with_socket(usual, socket) }
            }
        };
        self.settings.server.listen = Some(listen);
    }

    fn with_socket(&mut self, address: Listen, socket: PathBuf) -> Vec<Listen> {
        if socket.as_os_str().len() > MAX_SOCKET_PATH {
            self.warnings.push(format!("no unix socket: {} is too long a path for one", socket.display()));
            return vec![address];
        }
        vec![address, Listen::Unix(socket)]
    }

    /// The reference listens for everybody; we do for those who can be told apart.
    fn narrowed(&mut self, asked: IpAddr, say_so: bool) -> IpAddr {
        let server = &self.settings.server;
        let open = self.token.is_some()
            || server.insecure_no_auth
            || matches!(server.legacy, Some(Legacy::Cidrs(_)));
        if open || asked.to_canonical().is_loopback() {
            return asked;
        }
        let host: IpAddr =
            if asked.is_ipv6() { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
        if say_so {
            self.warnings.push(format!(
                "listening on {host} and not on {asked}: nobody could be told apart there. Set a token \
                 (SANDCRATE_TOKEN, LANGBOT_BOX_CONTROL_TOKEN), or name the networks of a LangBot that sends \
                 none: SANDCRATE__SERVER__LEGACY=172.16.0.0/12"
            ));
        }
        host
    }

    /// For the faces.
    pub(crate) fn server(&self) -> ServerConfig {
        let server = &self.settings.server;
        ServerConfig {
            token: self.token.clone(),
            instance: server.instance.clone(),
            legacy: server.legacy.clone(),
            allow_uids: server.allow_uids.clone(),
            insecure_no_auth: server.insecure_no_auth,
            stdio: self.is_stdio(),
            limits: server.limits.clone(),
            tools: ToolsConfig { profiles: self.settings.profiles.clone(), ..self.settings.tools.clone() },
            mcp: self.settings.mcp.clone(),
            e2b: E2bConfig { profiles: self.settings.profiles.clone(), ..self.settings.e2b.clone() },
            shutdown_grace: Duration::from_millis(server.shutdown_grace_ms),
        }
    }

    pub(crate) fn runtime(&self) -> RuntimeConfig {
        let mut runtime = RuntimeConfig::new(self.state_dir());
        runtime.backend = self.settings.runtime.backend.clone();
        runtime.request_backends.clone_from(&self.settings.runtime.request_backends);
        runtime.mount_roots = self.settings.mounts.roots.clone();
        runtime.network = self.network();
        runtime.skills_root = self.settings.skills.root.clone();
        runtime.skill_limits = (&self.settings.skills).into();
        runtime.report_backend_as = self.settings.langbot.report_backend_as;
        runtime.session_ttl = Duration::from_secs(self.settings.runtime.session_ttl_sec);
        runtime.limits = self.settings.limits.clone();
        runtime
    }

    fn network(&self) -> NetworkConfig {
        let network = &self.settings.network;
        NetworkConfig {
            host: network.host,
            policy: network.policy.clone(),
            locked: network.locked,
            grants: Grants { allow: network.allow.clone(), deny: network.deny.clone() },
            limits: (&network.limits).into(),
            publish: network.publish,
            ports: network.ports,
        }
    }

    /// Where `sandcrate image` puts what it imports, unless the operator chose a place for everything.
    fn image_state_dir(&self) -> Option<PathBuf> {
        let chosen = self.origin("runtime.state_dir") != Origin::Default;
        (!chosen).then(|| NativeConfig::for_this_user().state_dir)
    }

    pub(crate) fn native(&self) -> NativeConfig {
        NativeConfig {
            state_dir: self.state_dir().to_owned(),
            pool: self.settings.native.pool,
            cgroup_parent: self.settings.native.cgroup_parent.clone(),
            image_state_dir: self.image_state_dir(),
            images: self.settings.images.clone(),
            require_image: self.settings.native.require_image,
            ..NativeConfig::for_this_user()
        }
    }
}

/// Nobody reads what a command still says once a parent is gone, and its next child waits for us.
const STDIO_GRACE_MS: u64 = 2000;

/// LangBot's port.
pub(crate) const DEFAULT_PORT: u16 = 5410;

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
