//! What types alone cannot say about settings. Every refusal names the key, the value, its origin and the fix.

use std::path::{Component, Path, PathBuf};

use sandcrate_backend::refused_source;
use sandcrate_protocol::network::Grants;
use sandcrate_runtime::{BackendChoice, HostNetwork, OnNetwork};
use sandcrate_server::{ConfigError, Legacy};
use tracing_subscriber::EnvFilter;

use super::model::form_of;
use super::{Config, Listen};
use crate::failure::Failure;
use crate::native::image::ImageName;

/// More prepared boxes than any burst needs; each is a process and about half a MiB.
const MAX_POOL: usize = 64;
/// A year: beyond it a limit means nothing, and sums with clocks stay far from overflow.
const MAX_SECONDS: u64 = 366 * 86400;
/// Below this not even an error message fits.
const MIN_BYTES: usize = 1024;

/// Backends that this build has, beside the words for "choose".
const BACKENDS: [&str; 5] = ["native", "docker", "podman", "nsjail", "e2b"];

pub(super) fn check(config: &Config) -> anyhow::Result<()> {
    listen(config)?;
    tls(config)?;
    server(config)?;
    runtime(config)?;
    limits(config)?;
    roots(config)?;
    skills(config)?;
    network(config)?;
    if let Some((key, value, problem)) = config.server().tools.problem() {
        return Err(plain(config, &key, value, &problem));
    }
    if let Some((key, value, problem)) = config.settings.mcp.problem() {
        return Err(plain(config, &key, value, &problem));
    }
    if let Some((key, value, problem)) = config.server().e2b.problem() {
        return Err(plain(config, &key, value, &problem));
    }
    let pool = config.settings.native.pool;
    if pool > MAX_POOL {
        return Err(plain(config, "native.pool", pool, &format!("at most {MAX_POOL}")));
    }
    for (asked, image) in &config.settings.images {
        if let Err(error) = ImageName::new(image.clone()) {
            return Err(plain(config, "images", format!("{asked} = {image}"), &error.to_string()));
        }
    }
    let filter = &config.settings.log.filter;
    if let Err(error) = filter.parse::<EnvFilter>() {
        return Err(plain(config, "log.filter", filter, &error.to_string()));
    }
    Ok(())
}

fn skills(config: &Config) -> anyhow::Result<()> {
    let skills = &config.settings.skills;
    if let Some(root) = &skills.root {
        absolute(config, "skills.root", root)?;
        let real = root.canonicalize().unwrap_or_else(|_| root.clone());
        if let Some(rule) = refused_source(&real.join("x"), &[]) {
            return Err(plain(config, "skills.root", root.display(), &rule));
        }
    }
    let least = MIN_BYTES as u64;
    for (key, value, least) in [
        ("skills.upload_bytes", skills.upload_bytes as u64, least),
        ("skills.package_bytes", skills.package_bytes, least),
        ("skills.file_bytes", skills.file_bytes as u64, least),
        ("skills.package_entries", skills.package_entries as u64, 1),
    ] {
        if value < least {
            return Err(plain(config, key, value, &format!("must be at least {least}")));
        }
    }
    Ok(())
}

fn network(config: &Config) -> anyhow::Result<()> {
    let network = &config.settings.network;
    if network.host == HostNetwork::Allow && config.token.is_none() {
        return Err(refuse(
            config,
            "network.host",
            "allow",
            "a box on the host's network reaches whatever this host reaches, so clients must show a token",
            "set a token (SANDCRATE_TOKEN or --token-file), or network.host = \"deny\"",
        ));
    }
    match &network.policy {
        OnNetwork::Host if network.host != HostNetwork::Allow => {
            return Err(refuse(
                config,
                "network.policy",
                "host",
                "the host's network is shared only where that is allowed by name",
                "set network.host = \"allow\" too, or a policy such as \"public\"",
            ));
        }
        OnNetwork::Host => {}
        OnNetwork::Policy(policy) => {
            let grants = Grants { allow: network.allow.clone(), deny: network.deny.clone() };
            policy
                .check_against(&grants)
                .map_err(|error| plain(config, "network.policy", policy, &error.to_string()))?;
        }
    }
    let limits = &network.limits;
    for (key, value, least) in [
        ("network.limits.connections", u64::from(limits.connections), 1),
        ("network.limits.associations", u64::from(limits.associations), 1),
        ("network.limits.opened_per_second", u64::from(limits.opened_per_second), 1),
        ("network.limits.bytes_per_second", limits.bytes_per_second.unwrap_or(u64::MAX), 1024),
        ("network.limits.connect_timeout_sec", limits.connect_timeout_sec, 1),
        ("network.limits.tcp_idle_sec", limits.tcp_idle_sec, 1),
        ("network.limits.udp_idle_sec", limits.udp_idle_sec, 1),
    ] {
        if value < least {
            return Err(plain(config, key, value, &format!("must be at least {least}")));
        }
    }
    Ok(())
}

fn refuse(
    config: &Config,
    key: &str,
    value: impl std::fmt::Display,
    problem: &str,
    fix: &str,
) -> anyhow::Error {
    let origin = config.origin(key);
    Failure::invalid(format!("{key} = {value} ({origin}): {problem}")).hint(fix).into()
}

/// The fix is what the key takes.
fn plain(config: &Config, key: &str, value: impl std::fmt::Display, problem: &str) -> anyhow::Error {
    let fix = format!("{key} is {}", form_of(key).unwrap_or("another value"));
    refuse(config, key, value, problem, &fix)
}

fn listen(config: &Config) -> anyhow::Result<()> {
    let server = &config.settings.server;
    let listen = server.listen.as_deref().unwrap_or_default();
    if listen.is_empty() {
        return Err(plain(config, "server.listen", "[]", "names no address"));
    }
    let protected =
        config.token.is_some() || server.insecure_no_auth || matches!(server.legacy, Some(Legacy::Cidrs(_)));
    match listen.iter().find(|listen| !listen.is_local()) {
        Some(open) if !protected => Err(refuse(
            config,
            "server.listen",
            open,
            "other machines can reach it, and nothing is asked of them",
            "set a token (SANDCRATE_TOKEN or --token-file), list networks in server.legacy, listen on \
             127.0.0.1, or pass --insecure-no-auth",
        )),
        _ => Ok(()),
    }
}

/// Addresses with TLS need a certificate, and a certificate such an address: one without the other is a slip.
fn tls(config: &Config) -> anyhow::Result<()> {
    let tls = &config.settings.server.tls;
    let wanted = config.listen().iter().find(|listen| matches!(listen, Listen::Tls(_)));
    match (wanted, &tls.cert, &tls.key) {
        (Some(listen), cert, key) if cert.is_none() || key.is_none() => Err(refuse(
            config,
            "server.listen",
            listen,
            "there is no certificate for it",
            "set server.tls.cert and server.tls.key (--tls-cert, --tls-key); `sandcrate tls init` makes them",
        )),
        (Some(_), Some(cert), Some(key)) => {
            absolute(config, "server.tls.cert", cert)?;
            absolute(config, "server.tls.key", key)
        }
        (None, Some(cert), _) => Err(refuse(
            config,
            "server.tls.cert",
            cert.display(),
            "no address in server.listen is served with it",
            "name one that begins with `tls:`, such as --listen tls:0.0.0.0:8443, or remove it",
        )),
        _ => Ok(()),
    }
}

fn server(config: &Config) -> anyhow::Result<()> {
    let server = &config.settings.server;
    if let Some(path) = &server.token_file {
        absolute(config, "server.token_file", path)?;
    }
    let far = &config.settings.e2b_backend;
    for (key, path) in
        [("e2b_backend.api_key_file", &far.api_key_file), ("e2b_backend.ca_file", &far.ca_file)]
    {
        if let Some(path) = path {
            absolute(config, key, path)?;
        }
    }
    if server.insecure_no_auth && config.token.is_some() {
        return Err(refuse(
            config,
            "server.insecure_no_auth",
            "true",
            &format!("contradicts the token ({})", config.token_origin),
            "remove one of them",
        ));
    }
    if server.shutdown_grace_ms > MAX_SECONDS * 1000 {
        let (key, value) = ("server.shutdown_grace_ms", server.shutdown_grace_ms);
        return Err(plain(config, key, value, "at most one year"));
    }
    config.server().validate().map_err(|error| match error {
        ConfigError::TooSmall { key, least } => {
            let key = format!("server.{key}");
            let value = config.value(&key);
            plain(config, &key, value, &format!("must be at least {least}"))
        }
        other => Failure::invalid(format!("[server]: {other}")).into(),
    })
}

fn runtime(config: &Config) -> anyhow::Result<()> {
    let runtime = &config.settings.runtime;
    absolute(config, "runtime.state_dir", config.state_dir())?;
    if !(1..=MAX_SECONDS).contains(&runtime.session_ttl_sec) {
        let (key, value) = ("runtime.session_ttl_sec", runtime.session_ttl_sec);
        return Err(plain(config, key, value, "must be from 1 second to a year"));
    }
    if let Some(other) = runtime.request_backends.iter().find(|name| !BACKENDS.contains(&name.as_str())) {
        return Err(plain(config, "runtime.request_backends", other, "this build does not have it"));
    }
    match &runtime.backend {
        Some(BackendChoice::Named(name)) if !BACKENDS.contains(&name.as_str()) => {
            Err(plain(config, "runtime.backend", name, "this build does not have it"))
        }
        _ => Ok(()),
    }
}

fn limits(config: &Config) -> anyhow::Result<()> {
    let limits = &config.settings.limits;
    for (key, value, least) in [
        ("limits.sessions", limits.sessions, 1),
        ("limits.processes", limits.processes, 1),
        ("limits.commands", limits.commands, 1),
        ("limits.queued_commands", limits.queued_commands, 1),
        ("limits.output_bytes", limits.output_bytes, MIN_BYTES),
        ("limits.log_bytes", limits.log_bytes, MIN_BYTES),
    ] {
        if value < least {
            return Err(plain(config, key, value, &format!("must be at least {least}")));
        }
    }
    Ok(())
}

fn absolute(config: &Config, key: &str, path: &Path) -> anyhow::Result<()> {
    let plain_path = path.is_absolute() && !path.components().any(|part| part == Component::ParentDir);
    if plain_path {
        Ok(())
    } else {
        Err(plain(config, key, path.display(), "must be absolute, without `..`"))
    }
}

/// A root below which nothing could ever be mounted is a slip.
fn roots(config: &Config) -> anyhow::Result<()> {
    let own_state: Vec<PathBuf> = config.state_dir().canonicalize().into_iter().collect();
    for root in config.settings.mounts.roots.iter().flatten() {
        absolute(config, "mounts.roots", root)?;
        let real = root.canonicalize().unwrap_or_else(|_| root.clone());
        let rule = if real == Path::new("/") {
            Some("the host's root is never shared".to_owned())
        } else {
            // What is too wide as a whole may well have directories below it that are not.
            refused_source(&real.join("x"), &own_state)
        };
        if let Some(rule) = rule {
            return Err(plain(config, "mounts.roots", root.display(), &rule));
        }
    }
    Ok(())
}
