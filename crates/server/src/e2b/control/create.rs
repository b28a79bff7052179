//! A new sandbox: what was asked for is checked, and what cannot be had is refused rather than left out.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use sandcrate_backend::check_env;
use sandcrate_e2b_wire::control::{DEFAULT_TIMEOUT_SEC, NewSandbox, OnTimeout, Sandbox as Handle};
use sandcrate_runtime::SessionOptions;

use super::super::TEMPLATE_LABEL;
use super::super::config::E2bConfig;
use super::super::error::Refused;
use super::super::sandbox::{Facts, NoRandomness, Secret, new_id};
use super::network::wanted_network;
use super::show::handle;
use super::{Body, to_the_end};
use crate::App;

/// A sandbox carries its metadata for its whole life, and each list shows it.
const MAX_METADATA: usize = 64;
const MAX_METADATA_BYTES: usize = 1024;
/// One that no host can be asked about is spared the trouble.
const MAX_TEMPLATE_CHARS: usize = 128;

type Made = (StatusCode, Json<Handle>);

/// `POST /sandboxes`.
pub(super) async fn create(
    State(app): State<App>,
    headers: HeaderMap,
    Body(wanted): Body<NewSandbox>,
) -> Result<Made, Refused> {
    let making = {
        let app = app.clone();
        async move { app.e2b.keys.once(&headers, &wanted, || make(&app, wanted.clone())).await }
    };
    Ok((StatusCode::CREATED, Json(to_the_end(&app, making).await?)))
}

/// `POST /v2/sandboxes`, whose sandboxes are always secured.
pub(super) async fn create_secured(
    app: State<App>,
    headers: HeaderMap,
    Body(wanted): Body<NewSandbox>,
) -> Result<Made, Refused> {
    create(app, headers, Body(NewSandbox { secure: Some(true), ..wanted })).await
}

async fn make(app: &App, wanted: NewSandbox) -> Result<Handle, Refused> {
    let config = &app.config.e2b;
    let template =
        config.template(&wanted.template_id).ok_or_else(|| no_template(config, &wanted.template_id))?;
    refuse_absent(&wanted)?;
    check_metadata(&wanted.metadata)?;
    for (name, value) in &wanted.env_vars {
        check_env(name, value).map_err(|error| Refused::invalid(format!("envVars: {error}")))?;
    }
    let time = time(config, wanted.timeout.unwrap_or(DEFAULT_TIMEOUT_SEC), "timeout")?;
    let asked = wanted_network(wanted.allow_internet_access, wanted.network.as_ref())?;
    let unsaid = asked.is_none();
    let network = asked.or_else(|| template.network.clone()).unwrap_or_else(|| config.network.clone());
    let private = wanted.network.as_ref().and_then(|network| network.allow_public_traffic) == Some(false);
    let secured = wanted.secure.unwrap_or(true);
    let id = new_id()?;
    let spec = template.spec(&id);
    let mut labels = wanted.metadata.clone();
    labels.insert(TEMPLATE_LABEL.to_owned(), wanted.template_id.clone());
    let options = SessionOptions {
        labels,
        network: Some(network),
        ends_with_server: true,
        ..SessionOptions::default()
    };
    let facts = Facts {
        id,
        template: wanted.template_id,
        access: if secured { Some(Secret::new()?) } else { None },
        traffic: if secured || private { Some(Secret::new()?) } else { None },
        private_ports: private,
        metadata: wanted.metadata,
        envs: wanted.env_vars,
        started_at: Timestamp::now(),
        on_timeout: if wanted.auto_pause == Some(true) { OnTimeout::Pause } else { OnTimeout::Kill },
        internet: wanted.allow_internet_access,
        network: wanted.network,
    };
    let sandbox = app.e2b.create(&app.runtime, facts, &spec, options, time).await.map_err(|refused| {
        if unsaid {
            refused.with_hint("; set [e2b] network = \"off\" for sandboxes without")
        } else {
            refused
        }
    })?;
    Ok(handle(app, &sandbox))
}

/// What this server does not have, and would have to pretend.
fn refuse_absent(wanted: &NewSandbox) -> Result<(), Refused> {
    let refuse = |why: &str| Err(Refused::unsupported(why));
    if wanted.auto_pause == Some(true) && wanted.auto_pause_memory == Some(true) {
        return refuse(
            "autoPauseMemory: a pause keeps the files of a sandbox here, and not its memory; pause with mode \
             `filesystem`, or leave the mode out",
        );
    }
    if wanted.auto_resume.is_some_and(|auto| auto.enabled) {
        return refuse(
            "autoResume: a paused sandbox keeps its files and not its memory here, so traffic does not resume it; \
             use connect",
        );
    }
    if wanted.mcp.is_some() {
        return refuse("mcp: sandboxes have no MCP gateway of their own here; this server has one at /mcp");
    }
    if wanted.iam.is_some() {
        return refuse("iam: this server gives sandboxes no workload identity");
    }
    if !wanted.volume_mounts.is_empty() {
        return refuse("volumeMounts: this server has no volumes");
    }
    Ok(())
}

fn check_metadata(metadata: &BTreeMap<String, String>) -> Result<(), Refused> {
    let fits = |(key, value): (&String, &String)| {
        (1..=MAX_METADATA_BYTES).contains(&key.len())
            && value.len() <= MAX_METADATA_BYTES
            && key != TEMPLATE_LABEL
    };
    if metadata.len() <= MAX_METADATA && metadata.iter().all(fits) {
        return Ok(());
    }
    Err(Refused::invalid(format!(
        "metadata: at most {MAX_METADATA} entries, keys and values of at most {MAX_METADATA_BYTES} bytes, and no key \
         `{TEMPLATE_LABEL}`"
    )))
}

/// So many seconds, as far as they can be given.
pub(super) fn time(config: &E2bConfig, seconds: u64, field: &str) -> Result<Duration, Refused> {
    if seconds > config.max_timeout_sec {
        return Err(Refused::invalid(format!(
            "{field}: a sandbox has at most {} seconds (e2b.max_timeout_sec)",
            config.max_timeout_sec
        )));
    }
    Ok(Duration::from_secs(seconds))
}

fn no_template(config: &E2bConfig, asked: &str) -> Refused {
    let shown: String = asked.chars().take(MAX_TEMPLATE_CHARS).collect();
    let names = config.names().join(", ");
    let message =
        format!("template `{shown}` not found; there are {names} ([e2b.templates] of sandcrate.toml)");
    Refused::new(StatusCode::NOT_FOUND, message)
}

impl From<NoRandomness> for Refused {
    fn from(error: NoRandomness) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
    }
}
