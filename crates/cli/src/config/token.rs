//! Finds the token: in a file or in a variable, never among the arguments, which everybody on the machine sees.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::Context;
use sandcrate_server::Token;

use super::layers::{Layers, Origin};
use super::{Outside, model::Settings};
use crate::failure::Failure;
use crate::settings;

/// What LangBot hands to its own runtime.
pub(crate) const LANGBOT_TOKEN: &str = "LANGBOT_BOX_CONTROL_TOKEN";

const HOW_TO_MAKE_ONE: &str = "`openssl rand -hex 32` makes a good one";

/// The token in force and where it is from: `--token-file`, the variables, then `server.token_file`.
pub(super) fn find(
    settings: &Settings,
    layers: &Layers,
    outside: &Outside,
    warnings: &mut Vec<String>,
) -> anyhow::Result<Option<(Token, Origin)>> {
    let file_origin = layers.origin("server.token_file");
    let file = settings.server.token_file.as_deref();
    if let (Some(path), Origin::Flag(_)) = (file, &file_origin) {
        return Ok(Some((read(path, &file_origin, warnings)?, file_origin)));
    }
    for name in [settings::TOKEN, LANGBOT_TOKEN] {
        let Some(value) = outside.var(name) else { continue };
        let text = value.to_str().unwrap_or_default();
        let token = text.parse().map_err(|error: sandcrate_server::ConfigError| {
            Failure::invalid(format!("{name}: {error}")).hint(HOW_TO_MAKE_ONE)
        })?;
        return Ok(Some((token, Origin::Env(name.to_owned()))));
    }
    let Some(path) = file else { return Ok(None) };
    Ok(Some((read(path, &file_origin, warnings)?, file_origin)))
}

fn read(path: &Path, origin: &Origin, warnings: &mut Vec<String>) -> anyhow::Result<Token> {
    let place = || format!("server.token_file = {} ({origin})", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::invalid(format!("{}: cannot be read: {error}", place()))
            .hint(format!("the file holds the token alone; {HOW_TO_MAKE_ONE}"))
    })?;
    let metadata = std::fs::metadata(path).with_context(place)?;
    if metadata.mode() & 0o077 != 0 {
        warnings.push(format!("{}: others can read it; chmod 600 it", place()));
    }
    // The error says what a token is, and nothing of what stands in the file.
    let token = text.parse().map_err(|error: sandcrate_server::ConfigError| {
        Failure::invalid(format!("{}: {error}", place())).hint(HOW_TO_MAKE_ONE)
    })?;
    Ok(token)
}
