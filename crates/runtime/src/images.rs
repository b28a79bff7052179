//! Images of all backends, as one list.

use std::fs::File;
use std::sync::Arc;

use sandcrate_backend::{Backend, BackendError, ImageInfo, ImageRemoval};
use serde::Serialize;

use crate::RuntimeError;
use crate::runtime::Runtime;

/// An image, and the backend that can make boxes of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ImageView {
    #[serde(flatten)]
    pub image: ImageInfo,
    pub backend: &'static str,
}

/// An import whose archive is being received.
#[derive(Debug)]
pub struct ImageImport(Arc<dyn Backend>);

impl ImageImport {
    pub async fn finish(self, name: &str, archive: File) -> Result<ImageView, RuntimeError> {
        let image = self.0.import_image(name, archive).await;
        let image = image.map_err(|error| RuntimeError::Backend(error.into()))?;
        Ok(ImageView { image, backend: self.0.name() })
    }
}

impl Runtime {
    /// By backend, then by name.
    pub async fn images(&self) -> Result<Vec<ImageView>, RuntimeError> {
        let mut found = Vec::new();
        for backend in self.inner.backends.all() {
            let images = backend.images().await.map_err(|error| RuntimeError::Backend(error.into()))?;
            found.extend(images.into_iter().map(|image| ImageView { image, backend: backend.name() }));
        }
        Ok(found)
    }

    /// A nameless file for an archive, and the backend that imports it.
    pub async fn image_spool(&self) -> Result<(ImageImport, File), RuntimeError> {
        let mut refusal = None;
        for backend in self.inner.backends.all() {
            match backend.image_spool().await {
                Ok(file) => return Ok((ImageImport(Arc::clone(backend)), file)),
                Err(error) => refusal = refusal.or(Some(error)),
            }
        }
        Err(match refusal {
            Some(error) => RuntimeError::Backend(error.into()),
            None => RuntimeError::NoBackend { why: "This runtime was built without any.".to_owned() },
        })
    }

    /// Removes an image from the first backend that has it.
    pub async fn remove_image(&self, name: &str, removal: ImageRemoval) -> Result<(), RuntimeError> {
        for backend in self.inner.backends.all() {
            match backend.remove_image(name, removal).await {
                Err(BackendError::ImageNotFound { .. }) => {}
                other => return other.map_err(|error| RuntimeError::Backend(error.into())),
            }
        }
        Err(RuntimeError::Backend(BackendError::ImageNotFound { image: name.to_owned() }.into()))
    }
}
