//! Whom a call is for: LangBot's dialects since 4.10.7 name the instance, the workspace and its generation.

use serde_json::Value;

use crate::python;

/// The part of a call's context that a runtime has use for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Context {
    pub instance_uuid: String,
    pub workspace_uuid: String,
    /// At least 1; a higher one replaces the lower ones of the same workspace.
    pub placement_generation: u64,
}

/// A context that cannot be read, in words that name the field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("context{field} {problem}")]
pub struct BadContext {
    field: String,
    problem: &'static str,
}

/// What a context may hold beside the three; looked at and left.
const OTHERS: [&str; 3] = ["installation_uuid", "runtime_revision", "artifact_digest"];

impl Context {
    /// # Errors
    /// Names the field that is missing, of the wrong type or not known.
    pub fn from_json(value: &Value) -> Result<Self, BadContext> {
        let bad = |field: &str, problem| BadContext { field: field.to_owned(), problem };
        let fields = value.as_object().ok_or_else(|| bad("", "must be an object"))?;
        let known = |name: &str| {
            matches!(name, "instance_uuid" | "workspace_uuid" | "placement_generation")
                || OTHERS.contains(&name)
        };
        if let Some(name) = fields.keys().find(|name| !known(name)) {
            let shown: String = name.chars().take(50).collect();
            return Err(bad(&format!(".{shown}"), "is not known"));
        }
        let text = |name: &str| {
            let text = fields.get(name).and_then(Value::as_str).map(python::trim).unwrap_or_default();
            if text.is_empty() {
                return Err(bad(&format!(".{name}"), "must be a string that is not blank"));
            }
            Ok(text.to_owned())
        };
        let generation = match fields.get("placement_generation") {
            None => Some(1),
            Some(value) => value.as_u64().filter(|generation| *generation >= 1),
        };
        Ok(Self {
            instance_uuid: text("instance_uuid")?,
            workspace_uuid: text("workspace_uuid")?,
            placement_generation: generation
                .ok_or_else(|| bad(".placement_generation", "must be an integer of at least 1"))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn three_fields_are_read_and_the_generation_has_a_default() {
        let context = Context::from_json(&json!({"instance_uuid": " i ", "workspace_uuid": "w"})).unwrap();
        assert_eq!((&*context.instance_uuid, &*context.workspace_uuid), ("i", "w"));
        assert_eq!(context.placement_generation, 1);
        let fuller = json!({"instance_uuid": "i", "workspace_uuid": "w", "placement_generation": 4,
                            "installation_uuid": "x", "runtime_revision": 2, "artifact_digest": "0"});
        assert_eq!(Context::from_json(&fuller).unwrap().placement_generation, 4);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (value, field) in [
            (json!(5), "context must be an object"),
            (json!({"workspace_uuid": "w"}), "context.instance_uuid"),
            (json!({"instance_uuid": "i", "workspace_uuid": " "}), "context.workspace_uuid"),
            (json!({"instance_uuid": "i", "workspace_uuid": "w", "placement_generation": 0}), "generation"),
            (
                json!({"instance_uuid": "i", "workspace_uuid": "w", "placement_generation": true}),
                "generation",
            ),
            (json!({"instance_uuid": "i", "workspace_uuid": "w", "plan": "x"}), "context.plan is not known"),
        ] {
            let error = Context::from_json(&value).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
    }
}
