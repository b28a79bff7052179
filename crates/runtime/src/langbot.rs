//! LangBot's own configuration, as far as a runtime has use for it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::BoxLimits;
use crate::config::{BackendChoice, InitSource, LangbotConfig};
use crate::error::RuntimeError;

/// Reads the `box` section. Nulls mean nothing in particular, unknown keys are left alone; what is there and of the wrong type
/// is an error that names it.
pub(crate) fn parse(config: &Value, source: &InitSource) -> Result<LangbotConfig, RuntimeError> {
    let Value::Object(section) = config else {
        return Err(RuntimeError::invalid("config", "must be an object"));
    };
    let mut parsed = LangbotConfig { backend: backend(section.get("backend"))?, ..LangbotConfig::default() };
    parsed.limits = BoxLimits::parse(section.get("limits"))?;
    let local = match section.get("local") {
        None | Some(Value::Null) => return Ok(parsed),
        Some(Value::Object(local)) => local,
        Some(_) => return Err(RuntimeError::invalid("local", "must be an object")),
    };
    let mut roots = texts("local.allowed_mount_roots", local.get("allowed_mount_roots"))?;
    let host_root = text("local.host_root", local.get("host_root"))?;
    let skills_root = text("local.skills_root", local.get("skills_root"))?;
    parsed.skills_root = skills_place(source, host_root.as_deref(), skills_root.as_deref());
    if let Some(host_root) = &host_root {
        let named = text("local.default_workspace", local.get("default_workspace"))?;
        let host_root = absolute(&source.base_dir, host_root);
        parsed.default_workspace = Some(absolute(&host_root, named.as_deref().unwrap_or("default")));
    }
    roots.extend(host_root);
    parsed.mount_roots = roots.iter().map(|root| absolute(&source.base_dir, root)).collect();
    parsed.mount_roots.dedup();
    Ok(parsed)
}

/// What it says of a backend, in the section of its name. What is no text is of no use there.
pub(crate) fn of_backend(config: &Value, name: &str) -> Option<BTreeMap<String, String>> {
    let section = config.get(name)?.as_object()?;
    let texts = section.iter().filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    Some(texts.collect())
}

/// `skills_root` below `host_root`, with the defaults that LangBot has; nothing when it names neither.
fn skills_place(source: &InitSource, host_root: Option<&str>, skills_root: Option<&str>) -> Option<PathBuf> {
    if host_root.is_none() && skills_root.is_none() {
        return None;
    }
    let host_root = absolute(&source.base_dir, host_root.unwrap_or("./data/box"));
    let skills_root = skills_root.unwrap_or("skills");
    Some(match skills_root.strip_prefix("~/").zip(std::env::home_dir()) {
        Some((below, home)) => absolute(&home, below),
        None => absolute(&host_root, skills_root),
    })
}

/// A backend that is there without a name undoes an earlier choice; one that is not there leaves it.
fn backend(value: Option<&Value>) -> Result<Option<BackendChoice>, RuntimeError> {
    let named = text("backend", value)?.map(|name| match name.as_str() {
        "local" => BackendChoice::Local,
        "auto" => BackendChoice::Auto,
        _ => BackendChoice::Named(name),
    });
    Ok(named.or(value.map(|_| BackendChoice::Auto)))
}

/// Trimmed; blank counts as absent.
fn text(field: &str, value: Option<&Value>) -> Result<Option<String>, RuntimeError> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty())),
        Some(_) => Err(RuntimeError::invalid(field, "must be a string")),
    }
}

/// A list, or a string with commas.
fn texts(field: &str, value: Option<&Value>) -> Result<Vec<String>, RuntimeError> {
    let parts: Vec<Option<String>> = match value {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(joined)) => joined.split(',').map(|part| Some(part.trim().to_owned())).collect(),
        Some(Value::Array(parts)) => {
            parts.iter().map(|part| text(field, Some(part))).collect::<Result<_, _>>()?
        }
        Some(_) => return Err(RuntimeError::invalid(field, "must be a list or a string with commas")),
    };
    Ok(parts.into_iter().flatten().filter(|part| !part.is_empty()).collect())
}

fn absolute(base: &Path, path: &str) -> PathBuf {
    // Joined by components, so that `./data` and `data` are the same root.
    base.join(path).components().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn source() -> InitSource {
        InitSource { known: true, base_dir: "/srv/langbot".into() }
    }

    #[test]
    fn the_shipped_section_gives_its_roots_below_the_callers_directory() {
        let shipped = json!({
            "enabled": true,
            "backend": "local",
            "local": {
                "profile": "default",
                "image": "",
                "host_root": "./data/box",
                "default_workspace": "",
                "skills_root": "skills",
                "allowed_mount_roots": ["./data/box", "/tmp"],
                "workspace_quota_mb": null,
            },
            "e2b": {"api_key": "", "api_url": "", "template": ""},
            "something_new": [1, 2],
        });
        let parsed = parse(&shipped, &source()).unwrap();
        assert_eq!(parsed.backend, Some(BackendChoice::Local));
        let roots = ["/srv/langbot/data/box", "/tmp", "/srv/langbot/data/box"].map(PathBuf::from);
        assert_eq!(parsed.mount_roots, roots);
        assert_eq!(parsed.skills_root.as_deref(), Some(Path::new("/srv/langbot/data/box/skills")));
    }

    #[test]
    fn skills_are_below_the_host_root_unless_they_are_elsewhere() {
        let place = |local: Value| parse(&json!({ "local": local }), &source()).unwrap().skills_root;
        let path = |text: &str| Some(PathBuf::from(text));
        assert_eq!(place(json!({})), None);
        assert_eq!(place(json!({"host_root": "/h"})), path("/h/skills"));
        assert_eq!(place(json!({"host_root": "/h", "skills_root": "s/t"})), path("/h/s/t"));
        assert_eq!(place(json!({"host_root": "/h", "skills_root": "/s"})), path("/s"));
        assert_eq!(place(json!({"skills_root": "s"})), path("/srv/langbot/data/box/s"));
        assert_eq!(place(json!({"skills_root": "~/s"})), std::env::home_dir().map(|home| home.join("s")));
    }

    #[test]
    fn l11_nulls_are_absent_and_wrong_types_are_named() {
        let parsed = parse(&json!({"local": null}), &source()).unwrap();
        assert_eq!(parsed, LangbotConfig::default());
        for unnamed in [json!(null), json!(" ")] {
            let parsed = parse(&json!({"backend": unnamed}), &source()).unwrap();
            assert_eq!(parsed.backend, Some(BackendChoice::Auto), "back to automatic");
        }
        for (config, field) in [
            (json!([]), "config"),
            (json!({"backend": 5}), "backend"),
            (json!({"local": "x"}), "local"),
            (json!({"local": {"host_root": 7}}), "local.host_root"),
            (json!({"local": {"allowed_mount_roots": {"a": 1}}}), "local.allowed_mount_roots"),
        ] {
            let error = parse(&config, &source()).unwrap_err();
            assert!(error.to_string().starts_with(field), "{error}");
        }
        let commas = parse(&json!({"local": {"allowed_mount_roots": " /a , ,b"}}), &source()).unwrap();
        assert_eq!(commas.mount_roots, ["/a", "/srv/langbot/b"].map(PathBuf::from));
    }
}
