//! Which image a session is made of: the one that the operator maps its `image` to, or the one of that name. A name
//! that is no image of ours is no error: LangBot names one for every session, whether anybody has it or not.

use std::fs::File;
use std::sync::Arc;

use sandcrate_backend::{BackendError, ImageInfo, ImageRemoval};
use sandcrate_image::{HeldImage, ImageError, ImageName, ImageRecord, ImageStore, ImportLimits};
use sandcrate_jail::message::ImageRoot;
use sandcrate_protocol::{Control, Enforcement, State};

use crate::config::NativeConfig;

/// What a session's root is made of.
#[derive(Debug, Clone)]
pub(crate) enum RootImage {
    /// The host's template, for a session that asks for nothing else.
    Host,
    /// The same for one that names an image which is not imported.
    HostInstead {
        asked: String,
    },
    Image(Arc<UsedImage>),
}

/// An image in use by boxes. With the last of them the files go, if the image was removed or replaced meanwhile.
#[derive(Debug)]
pub(crate) struct UsedImage {
    /// Before the sweeper: the lock goes first.
    held: HeldImage,
    _sweeper: Sweeper,
}

impl std::ops::Deref for UsedImage {
    type Target = HeldImage;

    fn deref(&self) -> &HeldImage {
        &self.held
    }
}

#[derive(Debug)]
struct Sweeper {
    store: ImageStore,
    name: ImageName,
    id: String,
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        let (store, name, id) = (self.store.clone(), self.name.clone(), std::mem::take(&mut self.id));
        let sweep = move || {
            if let Err(error) = store.sweep_after(&name, &id) {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "what is left of an image is not removed"
                );
            }
        };
        // Without a runtime the daemon ends: the next one sweeps at its start.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            drop(runtime.spawn_blocking(sweep));
        }
    }
}

impl RootImage {
    /// Finds the image and takes it into use. Blocks: it looks into the state directory, and waits while an import
    /// gives its image the name.
    pub(crate) fn resolve(config: &NativeConfig, asked: Option<&str>) -> Result<Self, BackendError> {
        let Some(asked) = asked.filter(|asked| !asked.is_empty()) else { return Ok(Self::Host) };
        let mapped = config.images.get(asked);
        let must = config.require_image || mapped.is_some();
        let asked = asked.to_owned();
        let name = match ImageName::new(mapped.unwrap_or(&asked)) {
            Ok(name) => name,
            Err(_) if !must => return Ok(Self::HostInstead { asked }),
            Err(error) => return Err(refused(&asked, &error)),
        };
        let store = config.image_store();
        match store.hold(&name) {
            Ok(Some(held)) => {
                let _sweeper = Sweeper { store, name, id: held.id().to_owned() };
                Ok(Self::Image(Arc::new(UsedImage { held, _sweeper })))
            }
            Ok(None) if !must => Ok(Self::HostInstead { asked }),
            Ok(None) => Err(refused(&asked, &ImageError::NotFound { name: name.to_string() })),
            Err(error) => Err(failed(error, &asked)),
        }
    }

    pub(crate) fn held(&self) -> Option<&HeldImage> {
        match self {
            Self::Image(used) => Some(&used.held),
            _ => None,
        }
    }

    /// What reports call it.
    pub(crate) fn name(&self) -> Option<String> {
        self.held().map(|held| held.record.name.to_string())
    }

    /// The environment that the image brings along.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let config = self.held().map(|held| &held.record.config);
        let pairs = config.into_iter().flat_map(|config| config.environment());
        pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    /// Adds to the record what the box's init cannot know: which image it is exactly, or that there is none.
    pub(crate) fn report(&self, enforcement: &mut Enforcement) {
        let note = match self {
            Self::Host => return,
            Self::HostInstead { asked } => {
                format!("image `{asked}` is not imported: this is the host's own root")
            }
            Self::Image(held) => held.record.digest.clone(),
        };
        let known = enforcement.get(Control::Filesystem).map(|finding| (finding.state, finding.by.clone()));
        let (state, by) = known.unwrap_or((State::Enforced, String::new()));
        enforcement.record(Control::Filesystem, state, format!("{by}; {note}"));
    }
}

/// What the store has, for callers of the backend.
pub(crate) fn list(store: &ImageStore) -> Result<Vec<ImageInfo>, BackendError> {
    let records = store.list().map_err(|error| failed(error, "images"))?;
    Ok(records.into_iter().map(info).collect())
}

fn info(record: ImageRecord) -> ImageInfo {
    ImageInfo {
        name: record.name.to_string(),
        digest: record.digest,
        source: record.source.to_string(),
        imported_at: record.imported_at,
        entries: record.entries,
        bytes: record.bytes,
    }
}

/// With the usual bounds; an operator who needs more imports on the machine itself.
pub(crate) fn import(store: &ImageStore, name: &str, archive: File) -> Result<ImageInfo, BackendError> {
    let imported = ImageName::new(name)
        .and_then(|name| store.import_file(&name, archive, ImportLimits::default(), &mut |_| {}));
    imported.map(|(record, _)| info(record)).map_err(|error| failed(error, name))
}

pub(crate) fn spool(store: &ImageStore) -> Result<File, BackendError> {
    store.spool().map_err(|error| failed(error, "spool"))
}

pub(crate) fn remove(store: &ImageStore, name: &str, removal: ImageRemoval) -> Result<(), BackendError> {
    let removed = ImageName::new(name).and_then(|name| store.remove(&name, removal == ImageRemoval::Force));
    removed.map(drop).map_err(|error| failed(error, name))
}

fn failed(error: ImageError, name: &str) -> BackendError {
    match error {
        ImageError::NotFound { name } => BackendError::ImageNotFound { image: name },
        ImageError::InUse { name } => BackendError::ImageInUse { image: name },
        ImageError::Failed { step, source } => BackendError::failed(step, source),
        ImageError::TooLarge { what, limit, .. } => {
            BackendError::LimitExceeded { what: format!("{what} of the image"), limit: limit.to_string() }
        }
        other => refused(name, &other),
    }
}

/// For the launcher.
pub(crate) fn image_root(held: &HeldImage) -> ImageRoot {
    ImageRoot { id: held.id().to_owned(), path: held.path.clone() }
}

fn refused(asked: &str, error: &ImageError) -> BackendError {
    BackendError::invalid("image", format!("`{asked}` cannot be used: {error}"))
}
