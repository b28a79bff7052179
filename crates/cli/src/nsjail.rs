//! The nsjail backend, which this crate alone names.

use std::sync::Arc;

use sandcrate_backend::{Backend, BackendError};
pub(crate) use sandcrate_backend_nsjail::NsjailConfig;
use sandcrate_backend_nsjail::{NAME, NsjailBackend};

use crate::config::Config;

/// Opened when it is named or requests may name it, even while the program is missing; else where the program is, and we are root.
pub(crate) async fn open(
    config: &Config,
    named: Option<&str>,
    open_to_requests: bool,
) -> Result<Option<Arc<dyn Backend>>, BackendError> {
    let mut wanted = NsjailConfig::new(config.state_dir());
    wanted.cgroup_parent = config.settings.native.cgroup_parent.clone();
    let here = || wanted.find().is_some() && rustix::process::geteuid().is_root();
    if !(open_to_requests || named.map_or_else(here, |name| name == NAME)) {
        return Ok(None);
    }
    Ok(Some(Arc::new(NsjailBackend::open(wanted).await?)))
}
