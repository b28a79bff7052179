//! Settings by environment variables: `BOX__LOCAL__PROFILE=offline_readonly`.

use serde_json::{Map, Number, Value};

/// Puts overrides into a configuration. A variable counts when its name has `__` and no lower-case letter; each
/// part is a key. Values take the type of what they replace; what cannot becomes text, for the reader of the
/// field to refuse by name.
///
/// ```
/// let mut config = serde_json::json!({"box": {"enabled": true}});
/// sandcrate_host::apply_environment(&mut config, [("BOX__ENABLED".to_owned(), "off".to_owned())]);
/// assert_eq!(config, serde_json::json!({"box": {"enabled": false}}));
/// ```
pub fn apply_environment(config: &mut Value, variables: impl IntoIterator<Item = (String, String)>) {
    if config.is_null() {
        *config = Value::Object(Map::new());
    }
    for (name, value) in variables {
        if is_candidate(&name) {
            apply(config, &name, value);
        }
    }
}

fn is_candidate(name: &str) -> bool {
    name.contains("__") && name.chars().any(char::is_uppercase) && !name.chars().any(char::is_lowercase)
}

fn apply(config: &mut Value, name: &str, value: String) {
    let keys = name.split("__").map(str::to_lowercase);
    let mut place = config;
    let mut keys = keys.peekable();
    while let Some(key) = keys.next() {
        // A variable below something that has nothing below it means nothing.
        let Value::Object(map) = place else { return };
        if keys.peek().is_none() {
            let replaced = map.get(&key).map_or(Some(Value::String(value.clone())), |old| typed(old, value));
            if let Some(replaced) = replaced {
                map.insert(key, replaced);
            }
            return;
        }
        place = map.entry(key).or_insert_with(|| Value::Object(Map::new()));
    }
}

/// Nothing when the old value cannot be replaced by a text.
fn typed(old: &Value, value: String) -> Option<Value> {
    Some(match old {
        Value::Object(_) => return None,
        Value::Array(_) => {
            let items = value.split(',').map(str::trim).filter(|item| !item.is_empty());
            items.map(|item| Value::String(item.to_owned())).collect()
        }
        Value::Bool(_) => match value.to_lowercase().as_str() {
            "true" | "1" | "yes" | "on" => Value::Bool(true),
            "false" | "0" | "no" | "off" | "" => Value::Bool(false),
            _ => Value::String(value),
        },
        Value::Number(number) if number.is_f64() => {
            let parsed = value.trim().parse().ok().and_then(Number::from_f64);
            parsed.map_or(Value::String(value), Value::Number)
        }
        Value::Number(_) => match value.trim().parse::<i64>() {
            Ok(number) => Value::from(number),
            Err(_) => Value::String(value),
        },
        Value::String(_) | Value::Null => Value::String(value),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_take_the_type_of_what_they_replace() {
        let mut config = json!({
            "box": {"enabled": true, "backend": "local", "local": {"allowed_mount_roots": ["/a"], "workspace_quota_mb": null}},
            "n": {"i": 1, "f": 1.5},
        });
        let variables = [
            ("BOX__ENABLED", "Off"),
            ("BOX__LOCAL__ALLOWED_MOUNT_ROOTS", " /b , ,/c"),
            ("BOX__LOCAL__WORKSPACE_QUOTA_MB", "32"),
            ("BOX__LOCAL__PROFILE", "x"),
            ("BOX__LOCAL", "ignored: it is a mapping"),
            ("BOX__BACKEND__X", "ignored: nothing is below a text"),
            ("box__backend", "ignored"),
            ("Box__BACKEND", "ignored"),
            ("NEW__A__B", "1"),
            ("N__I", "7"),
            ("N__F", "2.5"),
            ("PATH", "/bin"),
        ];
        apply_environment(&mut config, variables.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(
            config,
            json!({
                "box": {
                    "enabled": false,
                    "backend": "local",
                    "local": {"allowed_mount_roots": ["/b", "/c"], "workspace_quota_mb": "32", "profile": "x"},
                },
                "n": {"i": 7, "f": 2.5},
                "new": {"a": {"b": "1"}},
            })
        );
    }

    #[test]
    fn b9_a_word_that_is_no_truth_value_stays_for_its_reader_to_refuse() {
        let mut config = json!({"box": {"enabled": true}});
        apply_environment(&mut config, [("BOX__ENABLED".to_owned(), "junk".to_owned())]);
        let error = crate::BoxConfig::from_section(&config["box"]).unwrap_err();
        assert_eq!(error.message, "box.enabled must be true or false, not \"junk\"");
    }
}
