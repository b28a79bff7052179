//! Programs of the host that a box needs, and what they stand on.

use std::fmt::Debug;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use sandcrate_protocol::MountSpec;

/// One program, found on the host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tool {
    /// Where the program is, without shims.
    pub program: PathBuf,
    /// What has to be mounted read-only for it; nothing when every box has it.
    pub mounts: Vec<MountSpec>,
    /// Directories for the front of PATH.
    pub path: Vec<String>,
}

impl Tool {
    /// Tells one version of a program from another: it is replaced when it is updated.
    pub(super) fn identity(&self) -> String {
        let real = self.program.canonicalize().unwrap_or_else(|_| self.program.clone());
        let (size, modified) = real.metadata().map_or((0, 0), |meta| (meta.size(), meta.mtime()));
        format!("{} {size} {modified}", real.display())
    }
}

/// Finds programs of the host. What a box is made of decides which there are.
pub trait Toolbox: Send + Sync + Debug {
    /// The program by its name or absolute path; `None` when it is nowhere.
    fn find(&self, program: &str) -> Option<Tool>;
}

/// What is in every box that is made of the host's /usr.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemTools;

/// Where a box looks for programs.
pub(super) const BOX_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

impl Toolbox for SystemTools {
    fn find(&self, program: &str) -> Option<Tool> {
        let is_program = |path: &Path| {
            path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
        };
        let found = if program.contains('/') {
            let path = PathBuf::from(program);
            let of_system = BOX_PATH.split(':').chain(["/usr"]).any(|place| path.starts_with(place));
            (of_system && is_program(&path)).then_some(path)
        } else {
            BOX_PATH.split(':').map(|dir| Path::new(dir).join(program)).find(|path| is_program(path))
        };
        found.map(|program| Tool { program, ..Tool::default() })
    }
}

/// What is in an image, of which the host knows nothing: everything is taken to be there.
#[derive(Debug, Clone)]
pub struct ImageTools {
    /// Tells one image from another.
    pub image: String,
}

impl Toolbox for ImageTools {
    fn find(&self, program: &str) -> Option<Tool> {
        // A tool that only some have is not counted on.
        let usual = !matches!(program, "uv");
        usual.then(|| Tool { program: PathBuf::from(format!("{}:{program}", self.image)), ..Tool::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_every_box_has_is_found() {
        let shell = SystemTools.find("sh").unwrap();
        assert!(shell.mounts.is_empty() && shell.path.is_empty());
        assert!(
            shell.identity().starts_with('/') && !shell.identity().ends_with(" 0 0"),
            "{}",
            shell.identity()
        );
        assert_eq!(SystemTools.find("no-such-program"), None);
        let place = tempfile::tempdir().unwrap();
        let own = place.path().join("tool");
        std::fs::write(&own, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(SystemTools.find(own.to_str().unwrap()), None);
    }
}
