//! The E2B backend, which this crate alone names.

use std::sync::Arc;

use sandcrate_backend::{Backend, BackendError};
use sandcrate_backend_e2b::{E2bBackend, E2bConfig, E2bSettings, NAME};

use crate::config::Config;

/// Opened unless another is named and requests may not name it: LangBot's configuration may bring the key later.
pub(crate) async fn open(
    config: &Config,
    named: Option<&str>,
    open_to_requests: bool,
) -> Result<Option<Arc<dyn Backend>>, BackendError> {
    if !open_to_requests && named.is_some_and(|name| name != NAME) {
        return Ok(None);
    }
    let mut wanted = E2bConfig::new(config.state_dir());
    wanted.operator = settings(config)?;
    wanted.ca_file.clone_from(&config.settings.e2b_backend.ca_file);
    Ok(Some(Arc::new(E2bBackend::open(wanted).await?)))
}

fn settings(config: &Config) -> Result<E2bSettings, BackendError> {
    let section = &config.settings.e2b_backend;
    let key = section.api_key_file.as_ref().map(|path| {
        let read = std::fs::read_to_string(path);
        let refused = |problem: String| BackendError::invalid("e2b_backend.api_key_file", problem);
        let text = read.map_err(|error| refused(format!("`{}` cannot be read: {error}", path.display())))?;
        match text.trim() {
            "" => Err(refused(format!("`{}` is empty; it holds the key alone", path.display()))),
            key => Ok(key.to_owned()),
        }
    });
    Ok(E2bSettings {
        api_key: key.transpose()?,
        api_url: section.api_url.clone(),
        domain: section.domain.clone(),
        sandbox_url: section.sandbox_url.clone(),
        template: section.template.clone(),
    })
}
