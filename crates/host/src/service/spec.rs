//! From what a caller asks for to the specification of a box: defaults of the configuration, then the profile.

use sandcrate_protocol::{BoxProfile, BoxSpec, lax_integer, python_trim};
use serde_json::{Map, Value, json};

use super::{HostMounts, Service};
use crate::{HostError, Result};

impl Service {
    /// The specification for a payload.
    ///
    /// # Errors
    /// Names the first field that cannot be accepted, or the host path that may not be mounted.
    pub fn build_spec(&self, payload: &Value, mounts: HostMounts) -> Result<BoxSpec> {
        let mut fields = match payload {
            Value::Object(fields) => fields.clone(),
            _ => return Err(HostError::invalid("a box is described by a mapping")),
        };
        fields.entry("env").or_insert_with(|| json!({}));
        let config = &self.inner.config;
        if is_blank(fields.get("host_path"))
            && let Some(workspace) = &config.default_workspace
        {
            let session = fields.get("session_id").and_then(Value::as_str).map(python_trim);
            let workspace = match session {
                Some(session) if config.workspace_per_session && !session.is_empty() => {
                    self.own_workspace(workspace, session)?
                }
                _ => workspace.clone(),
            };
            fields.insert("host_path".to_owned(), json!(workspace.display().to_string()));
        }
        if is_blank(fields.get("workspace_quota_mb"))
            && let Some(quota) = config.workspace_quota_mb
        {
            fields.insert("workspace_quota_mb".to_owned(), quota.into());
        }
        if let Some(image) = &config.image {
            fields.entry("image").or_insert_with(|| json!(image));
        }
        apply_profile(&config.profile, &mut fields);
        let spec = BoxSpec::from_json(&Value::Object(fields)).map_err(|invalid| {
            let first = invalid.issues().first().map(|issue| issue.message.clone());
            HostError::invalid(first.unwrap_or_else(|| invalid.to_string()))
        })?;
        if mounts == HostMounts::Check {
            self.check_host_mounts(&spec)?;
        }
        Ok(spec)
    }
}

fn is_blank(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(value) => value.as_str() == Some(""),
    }
}

/// Locked fields are the profile's; the others only where the caller is silent. Null is not silence.
fn apply_profile(profile: &BoxProfile, fields: &mut Map<String, Value>) {
    let presets = [
        ("image", json!(profile.image)),
        ("network", json!(profile.network)),
        ("timeout_sec", json!(profile.timeout_sec)),
        ("host_path_mode", json!(profile.host_path_mode)),
        ("cpus", json!(profile.cpus)),
        ("memory_mb", json!(profile.memory_mb)),
        ("pids_limit", json!(profile.pids_limit)),
        ("read_only_rootfs", json!(profile.read_only_rootfs)),
        ("workspace_quota_mb", json!(profile.workspace_quota_mb)),
    ];
    for (field, preset) in presets {
        if profile.locks(field) {
            fields.insert(field.to_owned(), preset);
        } else {
            fields.entry(field).or_insert(preset);
        }
    }
    // What is no integer is left for the specification to refuse.
    let asked = fields.get("timeout_sec").and_then(lax_integer);
    if asked.is_some_and(|seconds| seconds > i128::from(profile.max_timeout_sec)) {
        fields.insert("timeout_sec".to_owned(), profile.max_timeout_sec.into());
    }
}
