//! Which directories of the host a box may have.

use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use sandcrate_protocol::BoxSpec;

use super::Service;
use crate::config::opened_directory;
use crate::{HostError, Result};

/// What file systems take for one name.
const MAX_NAME: usize = 255;

/// A session's id as one name: what is neither a letter, a digit, `-` nor `_` stands as its bytes, so no two ids share
/// a directory, none is hidden and none leads anywhere.
fn directory_name(session: &str) -> String {
    let mut name = String::new();
    for byte in session.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => name.push(char::from(byte)),
            _ => drop(write!(name, "%{byte:02X}")),
        }
    }
    name
}

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

    /// The directory of one session below the default workspace, made when it is not there.
    pub(super) fn own_workspace(&self, workspace: &Path, session: &str) -> Result<PathBuf> {
        let name = directory_name(session);
        if name.len() > MAX_NAME {
            return Err(HostError::invalid("session_id is too long for a directory of its own"));
        }
        let own = workspace.join(name);
        match fs::create_dir(&own) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                let what = format!("cannot make the workspace of session {session}: {error}");
                Err(HostError::invalid(what))
            }
            _ => Ok(own),
        }
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
