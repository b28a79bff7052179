//! Which directories of the host a box may have.

use std::fs;
use std::path::Path;

use sandcrate_protocol::BoxSpec;

use super::Service;
use crate::config::opened_directory;
use crate::{HostError, Result};

impl Service {
    /// By opening what is named, and asking the kernel where that is. The runtime looks again, at what it mounts.
    pub(super) fn check_host_mounts(&self, spec: &BoxSpec) -> Result<()> {
        let extra = spec.extra_mounts.iter().map(|mount| &mount.host_path);
        spec.host_path.iter().chain(extra).try_for_each(|path| self.check_host_path(path))
    }

    fn check_host_path(&self, path: &str) -> Result<()> {
        let Ok((_opened, real)) = opened_directory(Path::new(path)) else {
            return Err(HostError::invalid("host_path must point to an existing directory on the host"));
        };
        let config = &self.inner.config;
        if config.allowed_mount_roots.is_empty() {
            return Err(HostError::invalid(
                "host_path mounting is disabled because no allowed_mount_roots are configured",
            ));
        }
        if config.allows(&real) {
            return Ok(());
        }
        Err(HostError::invalid(format!("host_path is outside allowed_mount_roots: {}", config.roots())))
    }

    /// Makes the default workspace when it is not there.
    ///
    /// # Errors
    /// When it is no directory, is outside the allowed roots, or cannot be made.
    pub fn ensure_default_workspace(&self) -> Result<()> {
        let config = &self.inner.config;
        let Some(workspace) = &config.default_workspace else { return Ok(()) };
        let exists = workspace.exists();
        if exists && !workspace.is_dir() {
            return Err(HostError::invalid(
                "box.local.default_workspace must point to a directory on the host",
            ));
        }
        if config.allowed_mount_roots.is_empty() {
            return Err(HostError::invalid(
                "box.local.default_workspace cannot be created because no allowed_mount_roots are configured",
            ));
        }
        if !config.allows(workspace) {
            let roots = config.roots();
            return Err(HostError::invalid(format!(
                "box.local.default_workspace is outside allowed_mount_roots: {roots}"
            )));
        }
        if exists {
            return Ok(());
        }
        fs::create_dir_all(workspace).map_err(|error| {
            HostError::invalid(format!("box.local.default_workspace cannot be created: {error}"))
        })
    }
}
