//! How what a Python project needs is installed in a box.

use std::path::Path;

use sandcrate_protocol::shell_word;

use super::MANIFESTS;

/// What a directory is to pip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PythonWorkspace {
    /// Something to install by itself.
    Package,
    /// A list of what to install.
    Requirements,
}

/// Not worth copying, or made anew: environments, histories, caches.
const NOT_COPIED: [&str; 8] =
    [".venv", ".git", "__pycache__", "node_modules", ".tox", ".nox", "*.egg-info", ".uv-cache"];
/// Where a package is copied to: building writes beside the sources.
const COPY: &str = "/opt/_lb_src";

/// Looks at the manifests in a directory of the host.
pub fn classify_python_workspace(directory: &Path) -> Option<PythonWorkspace> {
    let [requirements, package @ ..] = MANIFESTS;
    if package.iter().any(|name| directory.join(name).is_file()) {
        return Some(PythonWorkspace::Package);
    }
    directory.join(requirements).is_file().then_some(PythonWorkspace::Requirements)
}

/// The command that installs it, for a project at `workspace` in the box.
///
/// ```
/// use sandcrate_host::workspace::{PythonWorkspace, install_command};
///
/// let command = install_command(PythonWorkspace::Requirements, "/workspace/a b");
/// assert_eq!(command, "pip install --no-cache-dir -r '/workspace/a b/requirements.txt'");
/// ```
pub fn install_command(kind: PythonWorkspace, workspace: &str) -> String {
    let workspace = workspace.trim_end_matches('/');
    match kind {
        PythonWorkspace::Requirements => {
            format!("pip install --no-cache-dir -r {}", shell_word(&format!("{workspace}/requirements.txt")))
        }
        PythonWorkspace::Package => {
            let excludes: String = NOT_COPIED.iter().map(|name| format!(" --exclude='{name}'")).collect();
            let workspace = shell_word(workspace);
            format!(
                "mkdir -p {COPY} && tar -C {workspace}{excludes} -cf - . | tar -C {COPY} -xf - && \
                 pip install --no-cache-dir {COPY} && rm -rf {COPY}"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_counts_before_a_list_of_requirements() {
        let place = tempfile::tempdir().unwrap();
        assert_eq!(classify_python_workspace(place.path()), None);
        std::fs::write(place.path().join("requirements.txt"), "").unwrap();
        assert_eq!(classify_python_workspace(place.path()), Some(PythonWorkspace::Requirements));
        for name in ["pyproject.toml", "setup.py", "setup.cfg"] {
            std::fs::write(place.path().join(name), "").unwrap();
            assert_eq!(classify_python_workspace(place.path()), Some(PythonWorkspace::Package), "{name}");
            std::fs::remove_file(place.path().join(name)).unwrap();
        }
    }

    /// Run for real, but for pip, which is a stand-in that notes its arguments, and for the fixed directory.
    #[test]
    fn a_package_is_copied_without_its_environments_and_the_copy_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path();
        for directory in ["it's here/pkg/__pycache__", "it's here/.venv/bin", "bin"] {
            std::fs::create_dir_all(root.join(directory)).unwrap();
        }
        std::fs::write(root.join("it's here/pyproject.toml"), "x").unwrap();
        std::fs::write(root.join("it's here/pkg/a.py"), "x").unwrap();
        std::fs::write(root.join("it's here/pkg/__pycache__/a.pyc"), "x").unwrap();
        let copy = root.join("copy");
        let pip =
            format!("#!/bin/sh\necho \"$@\" >{0}/said\ncd \"$3\" && find . >{0}/seen\n", root.display());
        std::fs::write(root.join("bin/pip"), pip).unwrap();
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(root.join("bin/pip"), executable).unwrap();
        let workspace = root.join("it's here");
        let command = install_command(PythonWorkspace::Package, workspace.to_str().unwrap());
        let command = command.replace(COPY, copy.to_str().unwrap());
        let path = format!("{}/bin:/usr/bin:/bin", root.display());
        let ended =
            std::process::Command::new("sh").args(["-c", &command]).env("PATH", path).status().unwrap();
        assert!(ended.success());
        let said = std::fs::read_to_string(root.join("said")).unwrap();
        assert_eq!(said.trim(), format!("install --no-cache-dir {}", copy.display()));
        let seen = std::fs::read_to_string(root.join("seen")).unwrap();
        let mut seen: Vec<&str> = seen.lines().collect();
        seen.sort_unstable();
        assert_eq!(seen, [".", "./pkg", "./pkg/a.py", "./pyproject.toml"]);
        assert!(!copy.exists());
    }
}
