//! What a body asks of a box: known fields only, read by the rules that every face shares.

use std::collections::BTreeMap;
use std::time::Duration;

use sandcrate_protocol::network::{NetworkRequest, PortRequest};
use sandcrate_protocol::{BoxSpec, SessionInfo};
use sandcrate_runtime::{SessionOptions, SessionView};
use serde_json::{Map, Value};

use super::error::ApiError;
use super::extract::cut;

/// Fields of the box and of what its commands begin with, without its name.
pub(crate) const BOX_FIELDS: [&str; 15] = [
    "workdir",
    "timeout_sec",
    "network",
    "env",
    "image",
    "host_path",
    "host_path_mode",
    "mount_path",
    "extra_mounts",
    "persistent",
    "cpus",
    "memory_mb",
    "pids_limit",
    "read_only_rootfs",
    "workspace_quota_mb",
];
/// What a session may carry beside its box.
pub(crate) const OPTION_FIELDS: [&str; 4] = ["labels", "ttl_sec", "ports", "backend"];
/// A session keeps its labels for its whole life: as many as Kubernetes objects carry, and then some.
const MAX_LABELS: usize = 64;
const MAX_LABEL_BYTES: usize = 1024;

pub(crate) fn unknown_field(field: &str, known: &[&str]) -> ApiError {
    let known: Vec<_> = known.iter().map(|known| format!("`{known}`")).collect();
    ApiError::invalid(cut(field), format!("is not a field of this request; known are {}", known.join(", ")))
}

/// Refuses what would otherwise be overlooked: a misspelt limit is a limit that does not hold.
pub(crate) fn check_fields(body: &Map<String, Value>, known: &[&[&str]]) -> Result<(), ApiError> {
    let known = known.concat();
    match body.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => Err(unknown_field(key, &known)),
        None => Ok(()),
    }
}

/// A body may repeat the name that is in the path, and no other.
pub(crate) fn check_named(id: &str, body: &mut Map<String, Value>) -> Result<(), ApiError> {
    match body.remove("session_id") {
        None => Ok(()),
        Some(Value::String(named)) if named == id => Ok(()),
        Some(_) => Err(ApiError::invalid("session_id", "must be the one in the path, or absent")),
    }
}

/// Takes the options out of a body.
pub(crate) fn options(body: &mut Map<String, Value>) -> Result<SessionOptions, ApiError> {
    let labels = match body.remove("labels") {
        None | Some(Value::Null) => BTreeMap::new(),
        Some(labels) => serde_json::from_value::<BTreeMap<String, String>>(labels)
            .map_err(|_| ApiError::invalid("labels", "must be an object whose values are strings"))?,
    };
    if labels.len() > MAX_LABELS {
        return Err(ApiError::invalid("labels", format!("must be at most {MAX_LABELS}")));
    }
    for (key, value) in &labels {
        if key.is_empty() || key.contains('=') || key.len() > MAX_LABEL_BYTES || value.len() > MAX_LABEL_BYTES
        {
            let problem = format!(
                "have keys without `=` and values, of at most {MAX_LABEL_BYTES} bytes; not so `{}`",
                cut(key)
            );
            return Err(ApiError::invalid("labels", problem));
        }
    }
    let ttl = match body.remove("ttl_sec") {
        None | Some(Value::Null) => None,
        Some(ttl) => match ttl.as_u64() {
            Some(seconds @ 1..) => Some(Duration::from_secs(seconds)),
            _ => return Err(ApiError::invalid("ttl_sec", "must be a whole number of seconds, at least 1")),
        },
    };
    let network = network(body)?;
    let ports = match body.remove("ports") {
        None | Some(Value::Null) => Vec::new(),
        Some(ports) => serde_json::from_value::<Vec<PortRequest>>(ports)
            .map_err(|error| ApiError::invalid("ports", format!("is not acceptable: {error}")))?,
    };
    let backend = match body.remove("backend") {
        None | Some(Value::Null) => None,
        Some(Value::String(name)) => Some(name),
        Some(_) => return Err(ApiError::invalid("backend", "must be the name of a backend")),
    };
    Ok(SessionOptions { labels, ttl, network, ports, backend, ..SessionOptions::default() })
}

/// Takes the network out of a body: more than LangBot's wire can say.
pub(crate) fn network(body: &mut Map<String, Value>) -> Result<Option<NetworkRequest>, ApiError> {
    match body.remove("network") {
        None | Some(Value::Null) => Ok(None),
        Some(network) => serde_json::from_value(network)
            .map(Some)
            .map_err(|error| ApiError::invalid("network", format!("is not acceptable: {error}"))),
    }
}

pub(crate) fn box_spec(id: &str, mut body: Map<String, Value>) -> Result<BoxSpec, ApiError> {
    body.insert("session_id".to_owned(), Value::String(id.to_owned()));
    Ok(BoxSpec::from_json(&Value::Object(body))?)
}

/// Fills in what a body leaves open from the session that is there, so that a request which says nothing
/// about the box fits whatever box it is.
pub(crate) fn fill_from(info: &SessionInfo, body: &mut Map<String, Value>) {
    let Ok(Value::Object(present)) = serde_json::to_value(info) else { return };
    for (key, value) in present {
        if key != "session_id" && key != "network" && BOX_FIELDS.contains(&key.as_str()) {
            body.entry(key).or_insert(value);
        }
    }
}

/// Whether the box that is there is the one asked for; mounts beside the workspace are not in its record.
pub(crate) fn fits(view: &SessionView, spec: &BoxSpec, options: &SessionOptions) -> bool {
    let info = &view.info;
    info.image == spec.image
        && options.network.as_ref() == Some(&view.network)
        && options.ports.is_empty()
        && options.backend.as_ref().is_none_or(|backend| *backend == info.backend_name)
        && info.host_path == spec.host_path
        && info.host_path_mode == spec.host_path_mode
        && info.mount_path == spec.mount_path
        && info.persistent == spec.persistent
        && info.cpus == spec.cpus
        && info.memory_mb == spec.memory_mb
        && info.pids_limit == spec.pids_limit
        && info.read_only_rootfs == spec.read_only_rootfs
        && info.workspace_quota_mb == spec.workspace_quota_mb
}
