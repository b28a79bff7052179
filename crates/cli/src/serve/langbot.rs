//! LangBot's own configuration, as a parent hands it to its child.

use std::error::Error;

use sandcrate_runtime::{InitSource, Runtime};

use super::log::Voice;
use crate::config::Outside;

/// JSON: the `box` section of LangBot's configuration.
pub(crate) const LANGBOT_CONFIG: &str = "LANGBOT_BOX_CONFIG";

/// Takes it as that of a known client. What cannot be used is said and left, as LangBot's own runtime does;
/// its text is not shown, as it may hold keys.
pub(super) fn apply(runtime: &Runtime, outside: &Outside, voice: Voice) {
    let Some(text) = outside.var(LANGBOT_CONFIG) else { return };
    let source = InitSource { known: true, base_dir: outside.cwd.clone() };
    let applied = serde_json::from_slice(text.as_encoded_bytes())
        .map_err(|error| Box::new(error) as Box<dyn Error>)
        .and_then(|config| runtime.init(&config, &source).map_err(Into::into));
    if let Err(error) = applied {
        voice.warn(&format!("{LANGBOT_CONFIG} is left out: {error}"));
    }
}
