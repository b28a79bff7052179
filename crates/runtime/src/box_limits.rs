//! `box.limits` of LangBot's configuration since 4.10.7.

use serde::Serialize;
use serde_json::Value;

use crate::error::RuntimeError;

/// What a host lets all its workspaces have together. Fields in the order of the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct BoxLimits {
    pub max_sessions: usize,
    pub max_managed_processes: usize,
    pub max_completed_processes: usize,
    pub max_admission_records: usize,
    pub max_rpc_file_bytes: usize,
    #[serde(skip)]
    pub completed_process_retention_sec: usize,
}

impl Default for BoxLimits {
    fn default() -> Self {
        Self {
            max_sessions: 64,
            max_managed_processes: 64,
            max_completed_processes: 256,
            max_admission_records: 100_000,
            max_rpc_file_bytes: 20 << 20,
            completed_process_retention_sec: 300,
        }
    }
}

impl BoxLimits {
    /// Nothing when the section is not there; keys that are not there have LangBot's defaults, others are left alone.
    pub(crate) fn parse(section: Option<&Value>) -> Result<Option<Self>, RuntimeError> {
        let fields = match section {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::Object(fields)) => fields,
            Some(_) => return Err(RuntimeError::invalid("box.limits", "must be an object")),
        };
        let mut limits = Self::default();
        for (key, place, least, most) in [
            ("max_sessions", &mut limits.max_sessions, 0, 5000),
            ("max_managed_processes", &mut limits.max_managed_processes, 0, 1024),
            ("max_completed_processes", &mut limits.max_completed_processes, 0, 10_000),
            ("max_admission_records", &mut limits.max_admission_records, 1, 250_000),
            ("max_rpc_file_bytes", &mut limits.max_rpc_file_bytes, 1, 100 << 20),
            ("completed_process_retention_sec", &mut limits.completed_process_retention_sec, 0, 86_400),
        ] {
            let Some(value) = fields.get(key) else { continue };
            let field = format!("box.limits.{key}");
            let number = value.as_i64().ok_or_else(|| RuntimeError::invalid(&field, "must be an integer"))?;
            *place =
                usize::try_from(number).ok().filter(|number| (least..=most).contains(number)).ok_or_else(
                    || RuntimeError::invalid(&field, format!("must be between {least} and {most}")),
                )?;
        }
        Ok(Some(limits))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_within_bounds_are_taken_and_others_are_named() {
        let parsed = BoxLimits::parse(Some(&json!({"max_sessions": 3, "max_workspace_entries": "x"})));
        assert_eq!(parsed.unwrap(), Some(BoxLimits { max_sessions: 3, ..BoxLimits::default() }));
        assert_eq!(BoxLimits::parse(None).unwrap(), None);
        for (section, message) in [
            (json!({"max_sessions": 99999}), "box.limits.max_sessions must be between 0 and 5000"),
            (json!({"max_sessions": true}), "box.limits.max_sessions must be an integer"),
            (
                json!({"max_admission_records": 0}),
                "box.limits.max_admission_records must be between 1 and 250000",
            ),
            (json!({"max_sessions": -1}), "box.limits.max_sessions must be between 0 and 5000"),
            (json!([]), "box.limits must be an object"),
        ] {
            assert_eq!(BoxLimits::parse(Some(&section)).unwrap_err().to_string(), message);
        }
    }
}
