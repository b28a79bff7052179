//! What an engine says of itself, for a report; nothing is made or changed.

use std::path::PathBuf;
use std::sync::Arc;

use sandcrate_backend::BackendError;

use crate::config::{EngineConfig, EngineKind};
use crate::engine::Engine;

/// An engine that answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineFacts {
    pub socket: PathBuf,
    pub version: String,
    /// As the engine writes it: `1` or `2`.
    pub cgroup_version: String,
    /// It runs as an ordinary user.
    pub rootless: bool,
    /// Its containers have a user namespace.
    pub user_namespace: bool,
    pub seccomp: bool,
    /// Limits that it cannot set here.
    pub unlimited: Vec<&'static str>,
    /// Whether the image for sessions that name none is here.
    pub has_image: bool,
}

/// Asks an engine about itself.
pub async fn examine(kind: EngineKind, config: &EngineConfig) -> Result<EngineFacts, BackendError> {
    let socket = config.socket(kind)?;
    let engine = Engine::new(kind, Arc::new(config.clone()));
    engine.ping().await?;
    let info = engine.info().await?;
    let options = info.security_options.unwrap_or_default();
    let has = |name: &str| {
        options.iter().any(|option| option.split(',').any(|part| part == format!("name={name}")))
    };
    let limits =
        [("memory", info.memory_limit), ("processes", info.pids_limit), ("CPUs", info.cpu_cfs_quota)];
    Ok(EngineFacts {
        socket,
        version: info.server_version.unwrap_or_default(),
        cgroup_version: info.cgroup_version.map_or_else(|| "1".to_owned(), |version| version.to_string()),
        rootless: has("rootless"),
        user_namespace: has("userns") || has("rootless"),
        seccomp: has("seccomp"),
        unlimited: limits.iter().filter(|(_, able)| *able == Some(false)).map(|(name, _)| *name).collect(),
        has_image: engine.has_image(&config.image).await?,
    })
}
