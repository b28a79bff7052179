//! What an operator can set about an engine, and where its socket is found.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use sandcrate_backend::BackendError;
use sandcrate_protocol::DEFAULT_IMAGE;

/// Which engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EngineKind {
    Docker,
    Podman,
}

impl EngineKind {
    /// The backend's name in configuration and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
        }
    }

    /// The variable that names its socket.
    const fn variable(self) -> &'static str {
        match self {
            Self::Docker => "DOCKER_HOST",
            Self::Podman => "CONTAINER_HOST",
        }
    }

    /// Usual places: of root's engine, then below the directory of a user's run time files.
    const fn places(self) -> (&'static str, &'static str) {
        match self {
            Self::Docker => ("/var/run/docker.sock", "docker.sock"),
            Self::Podman => ("/run/podman/podman.sock", "podman/podman.sock"),
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Configuration of an engine's backend.
#[derive(Clone)]
pub struct EngineConfig {
    /// Private files of sessions live below it, in a directory for each engine; instances share it safely. The
    /// engine must see it under the same path.
    pub state_dir: PathBuf,
    /// The engine's socket, as a path or `unix://` address; by default what the engine's own variable names, then
    /// the usual places.
    pub socket: Option<String>,
    /// For sessions that name no image.
    pub image: String,
    /// Whether a missing image is pulled.
    pub pull: bool,
    /// The program that is PID 1 of the containers: any that calls `sandcrate_driver::dispatch_role` first. Linked
    /// statically it runs in every image; else the image needs its libraries.
    pub guest: PathBuf,
    /// For one request to the engine, pulls apart. Engines under load take seconds to start a container.
    pub request_limit: Duration,
    /// How many containers are made or removed at the same time; engines get slower, not faster, beyond.
    pub parallel: usize,
}

impl EngineConfig {
    /// The defaults, with this very program as the guest.
    pub fn new(state_dir: impl Into<PathBuf>) -> Self {
        Self {
            state_dir: state_dir.into(),
            socket: None,
            image: DEFAULT_IMAGE.to_owned(),
            pull: true,
            guest: PathBuf::from("/proc/self/exe"),
            request_limit: Duration::from_secs(120),
            parallel: 16,
        }
    }

    /// Whether the engine's socket is there.
    pub fn finds(&self, kind: EngineKind) -> bool {
        self.socket(kind).is_ok_and(|path| path.exists())
    }

    /// The socket's path.
    pub(crate) fn socket(&self, kind: EngineKind) -> Result<PathBuf, BackendError> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        if let Some(address) = &self.socket {
            return unix_path("socket", address);
        }
        if let Some(address) = variable(kind.variable()) {
            return unix_path(kind.variable(), &address);
        }
        let (of_root, of_user) = kind.places();
        let user = variable("XDG_RUNTIME_DIR").map(|directory| PathBuf::from(directory).join(of_user));
        let places: Vec<PathBuf> = [Some(PathBuf::from(of_root)), user].into_iter().flatten().collect();
        let found = places.iter().find(|place| place.exists()).cloned();
        found.ok_or_else(|| BackendError::Unavailable {
            backend: kind.name(),
            why: format!(
                "there is no socket at {}; start the engine, or name its socket in {}",
                places.iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(" or "),
                kind.variable()
            ),
        })
    }
}

impl fmt::Debug for EngineConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineConfig")
            .field("state_dir", &self.state_dir)
            .field("socket", &self.socket)
            .field("image", &self.image)
            .finish_non_exhaustive()
    }
}

/// The path in an address. Engines elsewhere are refused: boxes get directories of this host.
fn unix_path(field: &str, address: &str) -> Result<PathBuf, BackendError> {
    let path = match address.split_once("://") {
        Some(("unix", path)) => path,
        Some((scheme, _)) => {
            let problem = format!(
                "names an engine by `{scheme}://`; only one on this host can be used, by `unix:///path/to/socket`"
            );
            return Err(BackendError::invalid(field, problem));
        }
        None => address,
    };
    match path.starts_with('/') {
        true => Ok(PathBuf::from(path)),
        false => Err(BackendError::invalid(field, "must name a socket by an absolute path")),
    }
}

#[cfg(test)]
mod tests {
    use sandcrate_protocol::ErrorKind;

    use super::*;

    #[test]
    fn only_unix_sockets_are_taken() {
        for good in ["unix:///run/x.sock", "/run/x.sock"] {
            assert_eq!(unix_path("socket", good).unwrap(), PathBuf::from("/run/x.sock"));
        }
        for bad in ["tcp://10.0.0.1:2375", "ssh://host", "unix://relative", "relative", "http://x/y"] {
            let error = unix_path("DOCKER_HOST", bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Validation, "{bad}");
            assert!(error.to_string().contains("DOCKER_HOST"), "{error}");
        }
    }
}
