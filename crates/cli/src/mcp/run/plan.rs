//! From flags to what is started: nothing starts before all of it is known to be acceptable.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use sandcrate_backend::{MountAccess, SessionId, merge_env};
use sandcrate_mcp::launch::{ImageTools, LaunchConfig, Toolbox, index_settings, is_withheld};
use sandcrate_mcp::{BoxSettings, Identity, ServerConfig};
use sandcrate_protocol::network::{AddressClass, Grants, NetworkRequest, Rule, classify};
use sandcrate_protocol::{MountMode, MountSpec};

use super::args::McpRunArgs;
use super::toolbox::HostTools;
use crate::failure::Failure;
use crate::run::{environment, volume};
use crate::toolchain::Surroundings;

#[derive(Debug)]
pub(super) struct Plan {
    pub(super) server: ServerConfig,
    pub(super) identity: Identity,
    pub(super) launch: LaunchConfig,
    /// Ranges that somebody wrote out are meant.
    pub(super) grants: Grants,
    /// Names of variables that were kept back.
    pub(super) withheld: Vec<String>,
    pub(super) quiet: bool,
}

/// Below this not even a shell starts.
const MIN_MEMORY: u64 = 32 << 20;

pub(super) fn plan(args: &McpRunArgs, around: Surroundings, own_state: Vec<PathBuf>) -> anyhow::Result<Plan> {
    let mut words = Vec::new();
    for word in &args.command {
        let word =
            word.to_str().ok_or_else(|| Failure::invalid(format!("the argument {word:?} must be UTF-8")))?;
        words.push(word.to_owned());
    }
    let command = words.remove(0);
    if args.memory < MIN_MEMORY {
        return Err(Failure::invalid(format!("--memory {}: must be at least 32M", args.memory)).into());
    }
    if !args.network.ports()?.is_empty() {
        return Err(Failure::invalid(
            "--publish: a stdio server is reached by its streams, and has no ports",
        )
        .hint("leave it out; `sandcrate run -p` publishes ports of a program")
        .into());
    }
    let network = args.network.request()?.unwrap_or(NetworkRequest::Off);
    let install_network: NetworkRequest = args.install_network.parse().map_err(|error| {
        Failure::invalid(format!("--install-network {}: {error}", args.install_network))
            .hint("`off`, `on`, `host`, or a policy: 'allow index.example.org:443, allow files.example.org'")
    })?;
    let mut mounts = Vec::new();
    for flag in &args.volume {
        let mount = volume::mount(flag, &around.cwd, &own_state)?;
        let mode = if mount.access == MountAccess::ReadOnly { MountMode::Ro } else { MountMode::Rw };
        let source = mount.source.to_str();
        let source = source.ok_or_else(|| Failure::invalid(format!("--volume {flag:?}: must be UTF-8")))?;
        mounts.push(MountSpec::new(source, mount.target, mode));
    }
    let session_id = match &args.name {
        Some(name) => SessionId::new(name.clone()).context("--name")?.to_string(),
        None => format!("mcp-run-{}", std::process::id()),
    };
    let (env, withheld) = variables(args)?;
    let settings = BoxSettings {
        image: args.image.clone(),
        network: Some(network.to_string()),
        install_network: Some(install_network.to_string()),
        host_path: args.project.clone(),
        host_path_mode: args.project_mode.as_str().to_owned(),
        mounts,
        startup_timeout_sec: args.timeout.as_secs().max(1),
        cpus: Some(f64::from(args.cpus) / 1000.0),
        memory_mb: Some(args.memory >> 20),
        pids_limit: Some(u64::from(args.pids_limit)),
        read_only_rootfs: Some(!args.writable_root),
        env: BTreeMap::new(),
    };
    let server =
        ServerConfig { name: session_id.clone(), command, args: words, env, enabled: true, settings };
    let mut launch = LaunchConfig::new(cache_dir(&around)?);
    launch.cwd.clone_from(&around.cwd);
    launch.home.clone_from(&around.home);
    launch.reinstall = args.reinstall;
    launch.install_timeout = args.install_timeout;
    launch.install_env = index_settings(
        std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))),
    );
    let tools = HostTools { around, own_state };
    launch.install_mounts =
        launch.install_env.values().flat_map(|value| index_mounts(value, &tools)).collect();
    launch.toolbox = match &args.image {
        Some(image) => Arc::new(ImageTools { image: image.clone() }) as Arc<dyn Toolbox>,
        None => Arc::new(tools),
    };
    let grants = Grants { allow: granted(&[&network, &install_network]), deny: Vec::new() };
    let identity = Identity { session_id, process_id: "server".to_owned(), transient: true };
    Ok(Plan { server, identity, launch, grants, withheld, quiet: args.quiet })
}

/// The server's variables, and the names of those that stay here.
fn variables(args: &McpRunArgs) -> anyhow::Result<(BTreeMap<String, String>, Vec<String>)> {
    let named = environment::variables(&args.env, &args.env_file, |key| std::env::var_os(key))?;
    let (mut passed, mut withheld) = (Vec::new(), Vec::new());
    if args.env_from_client {
        for (name, value) in std::env::vars_os() {
            let shown = name.to_string_lossy().into_owned();
            match (name.into_string(), value.into_string()) {
                (Ok(name), Ok(value))
                    if !is_withheld(&name) && sandcrate_backend::check_env(&name, &value).is_ok() =>
                {
                    passed.push((name, value));
                }
                _ => withheld.push(shown),
            }
        }
        withheld.retain(|name| !named.iter().any(|(known, _)| known == name));
        withheld.sort();
    }
    Ok((merge_env(&[&passed, &named]).into_iter().collect(), withheld))
}

/// Files and directories that an index setting names: certificates, local packages.
fn index_mounts(value: &str, tools: &HostTools) -> Vec<MountSpec> {
    let paths = value.split_whitespace().map(Path::new).filter(|path| path.is_absolute());
    paths.filter_map(|path| tools.mount(&path.canonicalize().ok()?, path)).collect()
}

/// Private ranges that a policy names.
fn granted(requests: &[&NetworkRequest]) -> Vec<Rule> {
    let private =
        |rule: &&Rule| rule.range().is_some_and(|range| classify(range.base()) != AddressClass::Public);
    let policies = requests.iter().filter_map(|request| match request {
        NetworkRequest::Policy(policy) => Some(policy),
        _ => None,
    });
    policies.flat_map(|policy| policy.allow().iter().filter(private).cloned()).collect()
}

/// Where environments are kept: no part of our state, which no box may see.
fn cache_dir(around: &Surroundings) -> anyhow::Result<PathBuf> {
    let absolute = |name: &str| {
        let value = around.vars.get(std::ffi::OsStr::new(name)).map(PathBuf::from);
        value.filter(|path| path.is_absolute())
    };
    let cache = absolute("XDG_CACHE_HOME").or_else(|| around.home.as_ref().map(|home| home.join(".cache")));
    let cache = cache.ok_or_else(|| {
        Failure::invalid("there is no place for installed packages: neither HOME nor XDG_CACHE_HOME is set")
            .hint("set XDG_CACHE_HOME to a directory of yours")
    })?;
    Ok(cache.join("sandcrate/mcp"))
}
