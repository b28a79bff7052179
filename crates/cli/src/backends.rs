//! The backends of a server: what is configured, or what this machine has.

use std::sync::Arc;

use sandcrate_backend::{Backend, BackendError};
use sandcrate_backend_engine::{EngineBackend, EngineConfig, EngineKind};
use sandcrate_runtime::BackendChoice;

use crate::config::Config;
use crate::native::NativeBackend;
use crate::{e2b, nsjail};

const ENGINES: [EngineKind; 2] = [EngineKind::Docker, EngineKind::Podman];

/// Opens the one that is named and those that requests may name, which may all come up later; with none named the
/// native one and whatever else is here, so that a client's configuration can choose among them.
pub(crate) async fn open(config: &Config) -> Result<Vec<Arc<dyn Backend>>, BackendError> {
    let named = match &config.settings.runtime.backend {
        Some(BackendChoice::Named(name)) => Some(name.as_str()),
        _ => None,
    };
    let open_to_requests =
        |name: &str| config.settings.runtime.request_backends.iter().any(|open| open == name);
    let engine = EngineConfig::new(config.state_dir());
    let mut found: Vec<Arc<dyn Backend>> = Vec::new();
    for kind in ENGINES {
        let wanted = named.map_or_else(|| engine.finds(kind), |name| name == kind.name());
        if wanted || open_to_requests(kind.name()) {
            found.push(Arc::new(EngineBackend::open(kind, engine.clone()).await?));
        }
    }
    found.extend(nsjail::open(config, named, open_to_requests("nsjail")).await?);
    found.extend(e2b::open(config, named, open_to_requests("e2b")).await?);
    if named.is_none_or(|name| name == "native") || open_to_requests("native") {
        match NativeBackend::open(config.native()).await {
            Ok(native) => found.insert(0, Arc::new(native)),
            // One at an endpoint elsewhere stands for nothing of this machine.
            Err(error) if found.iter().all(|other| other.name() == "e2b") => return Err(error),
            Err(error) => tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the native backend cannot be used; going on with the others"
            ),
        }
    }
    Ok(found)
}
