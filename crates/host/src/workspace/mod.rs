//! A directory of the host as a box has it: paths and commands rewritten for the box, and what is sent to make
//! sessions, commands and processes in it.
//!
//! Used for programs of a user that are configured with paths of the host, such as MCP servers. Nothing here is an
//! access check: whether a directory may be mounted is the service's and the runtime's to say.

mod install;
mod path;
mod payload;

pub use install::{PythonWorkspace, classify_python_workspace, install_command};
pub use path::{
    infer_host_path, normalize, rewrite_argument, rewrite_mounted_path, rewrite_venv_command,
    unwrap_venv_path,
};
pub use payload::{ExecRequest, Workspace};

/// Where the directory appears, unless told otherwise.
pub const DEFAULT_MOUNT: &str = sandcrate_protocol::DEFAULT_WORKDIR;
/// Files at the root of a Python project that say what it needs, in the order they count.
pub(crate) const MANIFESTS: [&str; 4] = ["requirements.txt", "pyproject.toml", "setup.py", "setup.cfg"];
pub(crate) const VENV_DIRECTORY: &str = ".venv";
