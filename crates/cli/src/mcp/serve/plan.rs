//! From flags to what is opened: nothing starts before all of it is known to be acceptable.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sandcrate_mcp::box_server::Blueprint;
use sandcrate_protocol::network::{AddressClass, Grants, NetworkRequest, Rule, classify};
use sandcrate_protocol::{BoxProfile, BoxSpec};
use sandcrate_runtime::{HostNetwork, NetworkConfig, RuntimeConfig, SessionOptions};
use serde_json::{Map, Value, json};

use super::args::ServeArgs;
use crate::failure::Failure;
use crate::native::NativeConfig;
use crate::run::{environment, volume};

/// The private storage of a box; a mount there is the workspace itself.
const WORKSPACE: &str = "/workspace";
/// Of the session when it is not named.
const UNNAMED: &str = "mcp";
/// Characters of each stream that a model is shown.
const OUTPUT_CHARS: usize = 4000;
/// A box lives as long as its client; nobody else can find it.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// Everything that one server needs.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) native: NativeConfig,
    /// Its directory is a private one that does not stay, unless the session has a name.
    pub(super) runtime: RuntimeConfig,
    pub(super) blueprint: Blueprint,
    pub(super) session: String,
    pub(super) kept: Option<PathBuf>,
}

pub(super) fn plan(
    args: &ServeArgs,
    cwd: &Path,
    inherited: impl Fn(&str) -> Option<OsString>,
) -> anyhow::Result<Plan> {
    let mut native = NativeConfig::for_this_user();
    native.pool = 0;
    // Whoever names an image wants that one; that of a profile is for backends that have it.
    native.require_image = args.image.is_some();
    let own_state = [native.state_dir.canonicalize().unwrap_or_else(|_| native.state_dir.clone())];
    let kept = args.session.as_deref().map(|name| kept_in(&native.state_dir, name)).transpose()?;
    if let Some(directory) = &kept {
        native.image_state_dir.get_or_insert_with(|| native.state_dir.clone());
        native.state_dir.clone_from(directory);
    }
    let profile = BoxProfile::named(&args.profile)
        .map_err(|error| Failure::invalid(format!("--profile {}: {error}", args.profile)))?;
    let mut fields = fields(args, profile)?;
    let mut roots = Vec::new();
    let mut extra = Vec::new();
    for flag in &args.volume {
        let mount = volume::mount(flag, cwd, &own_state)?;
        let utf8 = || Failure::invalid(format!("--volume {}: the source must be UTF-8", flag.display()));
        let source = mount.source.to_str().ok_or_else(utf8)?.to_owned();
        let mode = volume::mode(mount.access);
        if mount.target == WORKSPACE {
            fields.insert("host_path".to_owned(), json!(source));
            fields.insert("host_path_mode".to_owned(), json!(mode));
        } else {
            extra.push(json!({"host_path": source, "mount_path": mount.target, "mode": mode}));
        }
        roots.push(mount.source);
    }
    fields.insert("extra_mounts".to_owned(), json!(extra));
    let env: BTreeMap<_, _> = environment::variables(&args.env, &[], inherited)?.into_iter().collect();
    fields.insert("env".to_owned(), json!(env));
    let session = args.session.clone().unwrap_or_else(|| UNNAMED.to_owned());
    fields.insert("session_id".to_owned(), json!(session));
    fields.insert("persistent".to_owned(), json!(kept.is_some()));
    let spec = BoxSpec::from_json(&Value::Object(fields)).map_err(|invalid| {
        let issues: Vec<_> = invalid.issues().iter().map(|issue| issue.message.clone()).collect();
        Failure::invalid(issues.join("; "))
    })?;
    let network = args.network.request()?;
    let mut runtime = RuntimeConfig::new(native.state_dir.clone());
    runtime.mount_roots = Some(roots);
    runtime.session_ttl = FOREVER;
    runtime.network = granted(network.as_ref());
    let options = SessionOptions {
        network,
        ports: args.network.ports()?,
        ttl: Some(FOREVER),
        ..SessionOptions::default()
    };
    let max_timeout_sec = match args.max_timeout {
        Some(time) => whole_seconds("--max-timeout", time)?,
        // Whoever lets a command run longer by itself means it.
        None => profile.max_timeout_sec.max(spec.timeout_sec),
    };
    let blueprint = Blueprint {
        spec,
        options,
        max_timeout_sec,
        output_limit_chars: OUTPUT_CHARS,
        policy: Default::default(),
    };
    Ok(Plan { native, runtime, blueprint, session, kept })
}

/// The profile's fields, and over them the flags.
fn fields(args: &ServeArgs, profile: &BoxProfile) -> anyhow::Result<Map<String, Value>> {
    let mut fields = Map::new();
    let mut set = |key: &str, flag: &str, preset: Value, given: Option<Value>| {
        if given.is_some() && profile.locks(key) {
            let text = format!("{flag}: the profile {} does not let it be changed", profile.name);
            return Err(Failure::invalid(text).hint("leave the flag out, or take another --profile"));
        }
        fields.insert(key.to_owned(), given.unwrap_or(preset));
        Ok(())
    };
    let mebibytes = |bytes: u64| json!(bytes.div_ceil(1 << 20));
    set("image", "--image", json!(profile.image), args.image.as_ref().map(|image| json!(image)))?;
    set("memory_mb", "--memory", json!(profile.memory_mb), args.memory.map(mebibytes))?;
    let cpus = args.cpus.map(|thousandths| json!(f64::from(thousandths) / 1000.0));
    set("cpus", "--cpus", json!(profile.cpus), cpus)?;
    set("pids_limit", "--pids-limit", json!(profile.pids_limit), args.pids_limit.map(|limit| json!(limit)))?;
    set("workspace_quota_mb", "--quota", json!(profile.workspace_quota_mb), args.quota.map(mebibytes))?;
    let root = args.writable_root.then_some(Value::Bool(false));
    set("read_only_rootfs", "--writable-root", json!(profile.read_only_rootfs), root)?;
    let timeout = args.timeout.map(|time| whole_seconds("--timeout", time)).transpose()?;
    set("timeout_sec", "--timeout", json!(profile.timeout_sec), timeout.map(|seconds| json!(seconds)))?;
    let asks_network = args.network.request()?.is_some().then(|| json!(profile.network));
    set("network", "--network", json!(profile.network), asks_network)?;
    set("host_path_mode", "--volume", json!(profile.host_path_mode), None)?;
    Ok(fields)
}

fn whole_seconds(flag: &str, time: Duration) -> anyhow::Result<u64> {
    match time.as_secs() + u64::from(time.subsec_nanos() > 0) {
        0 => Err(Failure::invalid(format!("{flag} must be more than 0")).into()),
        seconds => Ok(seconds),
    }
}

/// The person is the operator: what they name is granted.
fn granted(request: Option<&NetworkRequest>) -> NetworkConfig {
    let mut network = NetworkConfig::default();
    match request {
        Some(NetworkRequest::Host) => network.host = HostNetwork::Allow,
        Some(NetworkRequest::Policy(policy)) => {
            // Ranges that somebody writes out are meant; a name is not trusted with where it points.
            let private = |rule: &&Rule| {
                rule.range().is_some_and(|range| classify(range.base()) != AddressClass::Public)
            };
            let allow = policy.allow().iter().filter(private).cloned().collect();
            network.grants = Grants { allow, deny: Vec::new() };
        }
        _ => {}
    }
    network
}

/// Where the files of a named session are kept.
fn kept_in(state_dir: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.chars().all(fits) {
        return Err(Failure::invalid(format!("--session `{name}`: not a name for kept files"))
            .hint("up to 64 letters, digits, `.`, `_` and `-`, not with a dot first")
            .into());
    }
    Ok(state_dir.join("mcp").join(name))
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
