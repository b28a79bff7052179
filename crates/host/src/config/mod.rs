//! The `box` section of an application's configuration, read once and with every mistake named.
//!
//! Nothing is touched but names: paths are made absolute and links in them resolved, whether they exist or not.

mod environment;
mod paths;

use std::path::{Path, PathBuf};

use sandcrate_protocol::{BoxProfile, lax_integer, python_trim};
use serde_json::{Map, Value};

use crate::{HostError, Result};

pub use environment::apply_environment;
pub(crate) use paths::{opened_directory, resolved};

/// Keys of earlier versions, and what they are called now.
const OLD_KEYS: [(&str, &str); 3] = [
    ("profile", "profile"),
    ("allowed_host_mount_roots", "allowed_mount_roots"),
    ("default_host_workspace", "default_workspace"),
];

/// What the application says of its Box.
///
/// ```
/// use sandcrate_host::BoxConfig;
/// use serde_json::json;
///
/// let config = BoxConfig::from_section(&json!({"local": {"host_root": "/srv/bot", "workspace_quota_mb": "32"}}))?;
/// assert_eq!(config.default_workspace.as_deref(), Some("/srv/bot/default".as_ref()));
/// assert_eq!(config.workspace_quota_mb, Some(32));
/// # Ok::<(), sandcrate_host::HostError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct BoxConfig {
    pub enabled: bool,
    /// Which backend the runtime is asked to use; read by the host for messages only.
    pub backend: Option<String>,
    /// Where the runtime listens; none: a child of ours, or what the deployment suggests.
    pub endpoint: Option<String>,
    pub profile: BoxProfile,
    pub image: Option<String>,
    pub host_root: Option<PathBuf>,
    pub default_workspace: Option<PathBuf>,
    /// Whether each session has a directory of its own below the default workspace. Without it all share that.
    pub workspace_per_session: bool,
    pub skills_root: PathBuf,
    pub allowed_mount_roots: Vec<PathBuf>,
    /// `Some(0)` means none, whatever the profile says.
    pub workspace_quota_mb: Option<u64>,
    /// What the runtime is told: the section without what concerns the host alone.
    pub forwarded: Value,
}

impl BoxConfig {
    /// Reads the section. Absent and null are the same everywhere.
    ///
    /// # Errors
    /// Names the first field that cannot be read, or the profile that does not exist.
    pub fn from_section(section: &Value) -> Result<Self> {
        let empty = Map::new();
        let section = match section {
            Value::Null => &empty,
            Value::Object(section) => section,
            _ => return Err(HostError::invalid("box must be a mapping")),
        };
        let local = local_section(section)?;
        let profile = text(&local, "box.local.profile")?.unwrap_or_else(|| "default".to_owned());
        let profile =
            BoxProfile::named(&profile).map_err(|error| HostError::invalid(error.to_string()))?.clone();
        let host_root = text(&local, "box.local.host_root")?.map(|root| resolved(Path::new(&root)));
        let below_root = |path: &str| match &host_root {
            Some(root) => resolved(&root.join(path)),
            None => resolved(Path::new(path)),
        };
        let default_workspace = match text(&local, "box.local.default_workspace")? {
            Some(path) => Some(below_root(&path)),
            None => host_root.as_ref().map(|root| resolved(&root.join("default"))),
        };
        let skills_root = text(&local, "box.local.skills_root")?.unwrap_or_else(|| "skills".to_owned());
        let mut allowed_mount_roots = mount_roots(local.get("allowed_mount_roots"))?;
        if allowed_mount_roots.is_empty() {
            allowed_mount_roots.extend(host_root.clone());
        }
        let runtime = object(section.get("runtime"), "box.runtime")?;
        Ok(Self {
            enabled: truth(section.get("enabled"), "box.enabled", true)?,
            backend: text(section, "box.backend")?,
            endpoint: text(&runtime, "box.runtime.endpoint")?,
            profile,
            image: text(&local, "box.local.image")?,
            skills_root: below_root(&skills_root),
            host_root,
            default_workspace,
            workspace_per_session: truth(
                local.get("workspace_per_session"),
                "box.local.workspace_per_session",
                false,
            )?,
            allowed_mount_roots,
            workspace_quota_mb: quota(local.get("workspace_quota_mb"))?,
            forwarded: forwarded(section, local),
        })
    }

    /// The section of a whole configuration, and the template that all pipelines are forced to.
    pub(crate) fn of_application(config: &Value) -> Result<(Self, Option<String>)> {
        let forced = config.pointer("/system/limitation/force_box_session_id_template");
        let forced = forced.and_then(scalar).map(|text| python_trim(&text).to_owned());
        let section = Self::from_section(config.get("box").unwrap_or(&Value::Null))?;
        Ok((section, forced.filter(|template| !template.is_empty())))
    }

    pub(crate) fn roots(&self) -> String {
        let roots = self.allowed_mount_roots.iter().map(|root| root.display().to_string());
        roots.collect::<Vec<_>>().join(", ")
    }

    /// Whether a resolved path is one of the roots, or below one.
    pub(crate) fn allows(&self, path: &Path) -> bool {
        self.allowed_mount_roots.iter().any(|root| path.starts_with(root))
    }
}

impl Default for BoxConfig {
    fn default() -> Self {
        match Self::from_section(&Value::Null) {
            Ok(config) => config,
            Err(_) => unreachable!("the empty section is valid"),
        }
    }
}

/// `box.local`, with values of old keys where it is silent.
fn local_section(section: &Map<String, Value>) -> Result<Map<String, Value>> {
    let mut local = object(section.get("local"), "box.local")?;
    for (old, new) in OLD_KEYS {
        let Some(value) = section.get(old).filter(|value| !value.is_null()) else { continue };
        tracing::warn!(key = old, "box.{old} is deprecated; it is box.local.{new} now");
        if local.get(new).is_none_or(Value::is_null) {
            local.insert(new.to_owned(), value.clone());
        }
    }
    Ok(local)
}

/// Without what only the host has use for, and with old keys by their new names. Everything else goes as it is:
/// the runtime reads it by itself.
fn forwarded(section: &Map<String, Value>, local: Map<String, Value>) -> Value {
    let mut section = section.clone();
    section.remove("runtime");
    if OLD_KEYS.iter().any(|(old, _)| section.contains_key(*old)) {
        OLD_KEYS.iter().for_each(|(old, _)| drop(section.remove(*old)));
        section.insert("local".to_owned(), Value::Object(local));
    }
    Value::Object(section)
}

fn object(value: Option<&Value>, name: &str) -> Result<Map<String, Value>> {
    match value {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(map)) => Ok(map.clone()),
        Some(_) => Err(HostError::invalid(format!("{name} must be a mapping"))),
    }
}

/// What a scalar is as text; nothing for null, lists and mappings.
fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(truth) => Some(truth.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// The field by the last part of its full name; trimmed, blank is absent.
fn text(map: &Map<String, Value>, name: &str) -> Result<Option<String>> {
    let key = name.rsplit('.').next().unwrap_or(name);
    let Some(value) = map.get(key).filter(|value| !value.is_null()) else { return Ok(None) };
    let text = scalar(value).ok_or_else(|| HostError::invalid(format!("{name} must be a string")))?;
    Ok(Some(python_trim(&text).to_owned()).filter(|text| !text.is_empty()))
}

/// Words that are neither yes nor no are a mistake, and a mistake must not decide whether there is a sandbox.
fn truth(value: Option<&Value>, name: &str, default: bool) -> Result<bool> {
    let text = match value {
        None | Some(Value::Null) => return Ok(default),
        Some(Value::Bool(truth)) => return Ok(*truth),
        Some(value) => scalar(value).map(|text| python_trim(&text).to_lowercase()),
    };
    match text.as_deref() {
        Some("true" | "1" | "yes" | "on") => Ok(true),
        Some("false" | "0" | "no" | "off" | "") => Ok(false),
        Some(text) => Err(HostError::invalid(format!("{name} must be true or false, not \"{text}\""))),
        None => Err(HostError::invalid(format!("{name} must be true or false"))),
    }
}

fn mount_roots(value: Option<&Value>) -> Result<Vec<PathBuf>> {
    let wrong = || HostError::invalid("box.local.allowed_mount_roots must be a list of paths");
    let roots: Vec<String> = match value {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(joined)) => joined.split(',').map(str::to_owned).collect(),
        Some(Value::Array(items)) => {
            let items = items.iter().filter(|item| !item.is_null());
            items.map(|item| scalar(item).ok_or_else(wrong)).collect::<Result<_>>()?
        }
        Some(_) => return Err(wrong()),
    };
    let roots = roots.iter().map(|root| python_trim(root)).filter(|root| !root.is_empty());
    Ok(roots.map(|root| resolved(Path::new(root))).collect())
}

fn quota(value: Option<&Value>) -> Result<Option<u64>> {
    let value = match value {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) if text.is_empty() => return Ok(None),
        Some(value) => value,
    };
    let Some(quota) = lax_integer(value) else {
        return Err(HostError::invalid("workspace_quota_mb must be an integer greater than or equal to 0"));
    };
    let quota = u64::try_from(quota.min(i128::from(u64::MAX)));
    let negative = |_| HostError::invalid("workspace_quota_mb must be greater than or equal to 0");
    quota.map(Some).map_err(negative)
}
