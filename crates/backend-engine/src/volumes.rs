//! Volumes that an image declares: the engine makes one for each, writable and without a bound of its own.

use std::path::PathBuf;

use bollard::models::ContainerInspectResponse;
use sandcrate_backend::BackendError;

use crate::config::EngineKind;

/// A directory of the engine's that the box writes to.
#[derive(Debug)]
pub(crate) struct Volume {
    /// In the box.
    pub(crate) place: String,
    /// On this host, where it is counted.
    pub(crate) directory: PathBuf,
}

/// The volumes of a container. One that cannot be counted from here is refused: it would be unbounded. Blocks.
pub(crate) fn of(
    kind: EngineKind,
    inspected: &ContainerInspectResponse,
) -> Result<Vec<Volume>, BackendError> {
    let mounts = inspected.mounts.iter().flatten();
    let volumes = mounts.filter(|mount| mount.typ.as_deref() == Some("volume"));
    volumes
        .map(|mount| {
            let place = mount.destination.clone().unwrap_or_default();
            let directory = PathBuf::from(mount.source.as_deref().unwrap_or_default());
            match std::fs::read_dir(&directory) {
                Ok(_) => Ok(Volume { place, directory }),
                Err(error) => Err(BackendError::Unsupported {
                    backend: kind.name(),
                    what: format!("an image with a volume at `{}`", place.escape_debug()),
                    hint: format!(
                        "what is written there cannot be counted from here ({error}); mount a directory there, or \
                         use an image without VOLUME"
                    ),
                }),
            }
        })
        .collect()
}
