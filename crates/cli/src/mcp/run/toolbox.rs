//! Programs of the caller's PATH for boxes, wherever they are installed.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use sandcrate_mcp::launch::{Tool, Toolbox};
use sandcrate_protocol::{MountMode, MountSpec};

use crate::run::volume;
use crate::toolchain::{self, Surroundings};

#[derive(Debug)]
pub(super) struct HostTools {
    pub(super) around: Surroundings,
    /// Directories of ours that no box may see.
    pub(super) own_state: Vec<PathBuf>,
}

impl HostTools {
    /// A read-only mount at the same path, where the rules for mounts allow one.
    pub(super) fn mount(&self, source: &Path, target: &Path) -> Option<MountSpec> {
        volume::source_of(source, &self.own_state).ok()?;
        let target = target.to_str().filter(|target| sandcrate_backend::check_target(target).is_ok())?;
        Some(MountSpec::new(source.to_str()?, target, MountMode::Ro))
    }
}

impl Toolbox for HostTools {
    fn find(&self, program: &str) -> Option<Tool> {
        let found = toolchain::find(OsStr::new(program), &self.around)?;
        let chain = toolchain::resolve(OsStr::new(program), &self.around);
        let mounts = chain.roots.iter().filter_map(|root| self.mount(&root.source, &root.path)).collect();
        let path = chain.path.iter().filter_map(|dir| dir.to_str()).map(str::to_owned).collect();
        Some(Tool { program: found, mounts, path })
    }
}
