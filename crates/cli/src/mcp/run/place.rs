//! Where the server's box is made: in a runtime of our own, or by a server.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use sandcrate_backend::Backend;
use sandcrate_host::{BoxConfig, Client, Connection as _, Connector, Deployment, EmbeddedClient};
use sandcrate_protocol::network::Grants;
use sandcrate_runtime::{BackendChoice, HostNetwork, Runtime, RuntimeConfig};
use serde_json::json;

use crate::failure::Failure;
use crate::native::{NativeBackend, NativeConfig, NewLauncher};

/// A directory of a runtime that is being opened may have no lock yet.
const YOUNG: Duration = Duration::from_secs(60);

pub(super) enum Place {
    Own { runtime: Runtime, state: PathBuf },
    Server { connector: Box<Connector> },
}

impl Place {
    /// A runtime in this process, with a directory that nobody else has.
    pub(super) async fn own(
        config: NativeConfig,
        grants: Grants,
        launcher: Option<NewLauncher>,
    ) -> anyhow::Result<Self> {
        let all = config.state_dir.join("mcp");
        sweep(&all);
        let state = all.join(format!("run-{}-{:x}", std::process::id(), nanos()));
        let backend = Arc::new(NativeBackend::open_with(config, launcher).await?) as Arc<dyn Backend>;
        let mut config = RuntimeConfig::new(&state);
        config.backend = Some(BackendChoice::Given);
        // Whoever runs this is the operator: what they name is theirs to show.
        config.mount_roots = Some(vec![PathBuf::from("/")]);
        config.network.host = HostNetwork::Allow;
        config.network.grants = grants;
        let runtime = Runtime::open(config, vec![backend]).await.context("opening a runtime")?;
        Ok(Self::Own { runtime, state })
    }

    pub(super) async fn server(address: &str, token: Option<&str>) -> anyhow::Result<Self> {
        let token = token.map(|token| format!(":{}@", escaped(token))).unwrap_or_default();
        let section = json!({"runtime": {"endpoint": format!("ws://{token}{address}")}});
        let unusable = |error: sandcrate_host::HostError| Failure::new(error.kind, format!("--url: {error}"));
        let mut config = BoxConfig::from_section(&section).map_err(unusable)?;
        config.forwarded = json!({});
        let connector = Connector::new(&config, Deployment::default()).map_err(unusable)?;
        connector.connect().await.map_err(unusable)?;
        Ok(Self::Server { connector: Box::new(connector) })
    }

    pub(super) fn client(&self) -> Arc<dyn Client> {
        match self {
            Self::Own { runtime, .. } => Arc::new(EmbeddedClient::new(runtime.clone())),
            Self::Server { connector } => connector.client(),
        }
    }

    pub(super) fn runtime(&self) -> Option<&Runtime> {
        match self {
            Self::Own { runtime, .. } => Some(runtime),
            Self::Server { .. } => None,
        }
    }

    /// Ends what is ours of it.
    pub(super) async fn close(self) {
        match self {
            Self::Own { runtime, state } => {
                runtime.shutdown(Duration::ZERO).await;
                drop(runtime);
                remove(&state);
            }
            Self::Server { connector } => connector.dispose().await,
        }
    }
}

fn nanos() -> u32 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.subsec_nanos())
}

fn remove(directory: &Path) {
    if let Err(error) = std::fs::remove_dir_all(directory)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(path = %directory.display(), %error, "a directory could not be removed");
    }
}

/// Removes what runs that were killed left: who is dead is told by the lock of its runtime.
fn sweep(all: &Path) {
    let Ok(entries) = std::fs::read_dir(all) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let dead = match File::open(path.join("runtime.lock")) {
            Ok(lock) => lock.try_lock().is_ok(),
            Err(_) => {
                let age = entry
                    .metadata()
                    .and_then(|meta| meta.modified())
                    .ok()
                    .and_then(|time| time.elapsed().ok());
                age.is_some_and(|age| age > YOUNG)
            }
        };
        if dead {
            remove(&path);
        }
    }
}

fn escaped(token: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
    token
        .bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
