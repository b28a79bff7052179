//! What a host of many workspaces lets each of them have: the policy of its configuration, grants, revocations.
//!
//! Unlike a spec these are read to the letter: an unknown key or a number of another type may mean something that
//! would then not be held.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::Value;

use super::bounds;
use super::coerce;
use super::invalid::{InvalidSpec, Issue};
use super::read::{Fields, cpus};
use crate::{Timestamp, python};

/// `box.admission` of LangBot's configuration: what holds for every workspace, whatever its grant says.
#[derive(Debug, Clone, PartialEq)]
pub struct AdmissionPolicy {
    /// Whether there is a grant to be had for every session.
    pub required: bool,
    /// The one session that a workspace has.
    pub logical_session_id: String,
    pub required_backend: String,
    pub max_sessions: u64,
    pub max_managed_processes: u64,
    pub max_grant_ttl: Duration,
    pub max_timeout_sec: u64,
    pub cpus: f64,
    pub memory_mb: u64,
    pub pids_limit: u64,
    pub read_only_rootfs: bool,
    /// 0: none is asked for.
    pub workspace_quota_mb: u64,
    /// How long what was found out of the machine counts.
    pub readiness_cache: Duration,
}

impl Default for AdmissionPolicy {
    fn default() -> Self {
        Self {
            required: false,
            logical_session_id: "global".to_owned(),
            required_backend: "nsjail".to_owned(),
            max_sessions: 1,
            max_managed_processes: 0,
            max_grant_ttl: Duration::from_secs(300),
            max_timeout_sec: 120,
            cpus: 1.0,
            memory_mb: 512,
            pids_limit: 128,
            read_only_rootfs: true,
            workspace_quota_mb: 0,
            readiness_cache: Duration::from_secs(15),
        }
    }
}

/// A year; what is longer means nothing, and sums with clocks stay far from overflow.
const SECONDS: u64 = 366 * 86_400;

impl AdmissionPolicy {
    /// # Errors
    /// Names every field that cannot be accepted.
    pub fn from_json(value: &Value) -> Result<Self, InvalidSpec> {
        const MODEL: &str = "SandboxAdmissionPolicy";
        let mut fields = Fields::of(MODEL, value).map_err(|issue| InvalidSpec::new(MODEL, vec![issue]))?;
        let default = Self::default();
        let policy = Self {
            required: fields.read("required", default.required, coerce::boolean),
            logical_session_id: fields
                .read("logical_session_id", default.logical_session_id, |value| only(value, "global")),
            required_backend: fields
                .read("required_backend", default.required_backend, |value| only(value, "nsjail")),
            max_sessions: fields.read("max_sessions", default.max_sessions, |value| {
                integer(value, 0..=1, "max_sessions must be between 0 and 1")
            }),
            max_managed_processes: fields.read("max_managed_processes", 0, |value| {
                integer(value, 0..=0, "max_managed_processes must be 0")
            }),
            max_grant_ttl: fields.read("max_grant_ttl_sec", default.max_grant_ttl, |value| {
                integer(value, 1..=SECONDS, "must be greater than 0").map(Duration::from_secs)
            }),
            max_timeout_sec: fields.read("max_timeout_sec", default.max_timeout_sec, |value| {
                integer(value, bounds::TIMEOUT_SEC, "must be greater than 0")
            }),
            cpus: fields.read("cpus", default.cpus, |value| match value {
                Value::Number(_) => cpus(value),
                _ => Err(Issue::value("cpus must be a number", value)),
            }),
            memory_mb: fields.read("memory_mb", default.memory_mb, |value| {
                integer(value, bounds::MEMORY_MB, "memory_mb must be at least 32")
            }),
            pids_limit: fields.read("pids_limit", default.pids_limit, |value| {
                integer(value, bounds::PIDS_LIMIT, "must be greater than 0")
            }),
            read_only_rootfs: fields.read("read_only_rootfs", default.read_only_rootfs, coerce::boolean),
            workspace_quota_mb: fields.read("workspace_quota_mb", default.workspace_quota_mb, |value| {
                integer(value, bounds::WORKSPACE_QUOTA_MB, NOT_NEGATIVE)
            }),
            readiness_cache: fields.read("readiness_cache_sec", default.readiness_cache, |value| {
                integer(value, 0..=SECONDS, NOT_NEGATIVE).map(Duration::from_secs)
            }),
        };
        fields.refuse_others(&[
            "required",
            "logical_session_id",
            "required_backend",
            "max_sessions",
            "max_managed_processes",
            "max_grant_ttl_sec",
            "max_timeout_sec",
            "cpus",
            "memory_mb",
            "pids_limit",
            "read_only_rootfs",
            "workspace_quota_mb",
            "readiness_cache_sec",
        ]);
        fields.finish(MODEL, policy)
    }
}

/// The right of one workspace to sessions, for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmissionGrant {
    pub instance_uuid: String,
    pub workspace_uuid: String,
    pub execution_generation: u64,
    /// Which state of the workspace's rights it is of; a newer one has a higher number.
    pub entitlement_revision: u64,
    pub expires_at: Timestamp,
    pub max_sessions: u64,
    pub max_managed_processes: u64,
}

impl AdmissionGrant {
    /// # Errors
    /// Names every field that cannot be accepted.
    pub fn from_json(value: &Value) -> Result<Self, InvalidSpec> {
        const MODEL: &str = "SandboxAdmissionGrant";
        let mut fields = Fields::of(MODEL, value).map_err(|issue| InvalidSpec::new(MODEL, vec![issue]))?;
        let grant = Self {
            instance_uuid: fields.read_required("instance_uuid", id),
            workspace_uuid: fields.read_required("workspace_uuid", id),
            execution_generation: fields.read_required("execution_generation", revision),
            entitlement_revision: fields.read_required("entitlement_revision", revision),
            expires_at: fields.read_required("expires_at", |value| moment(value).map(Some)).unwrap_or(NEVER),
            max_sessions: fields.read_required("max_sessions", count),
            max_managed_processes: fields.read_required("max_managed_processes", count),
        };
        fields.refuse_others(&[
            "instance_uuid",
            "workspace_uuid",
            "execution_generation",
            "entitlement_revision",
            "expires_at",
            "max_sessions",
            "max_managed_processes",
        ]);
        fields.finish(MODEL, grant)
    }
}

/// The end of a workspace's rights up to a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmissionRevocation {
    pub instance_uuid: String,
    pub workspace_uuid: String,
    pub entitlement_revision: u64,
}

impl AdmissionRevocation {
    /// # Errors
    /// Names every field that cannot be accepted.
    pub fn from_json(value: &Value) -> Result<Self, InvalidSpec> {
        const MODEL: &str = "SandboxAdmissionRevocation";
        let mut fields = Fields::of(MODEL, value).map_err(|issue| InvalidSpec::new(MODEL, vec![issue]))?;
        let revocation = Self {
            instance_uuid: fields.read_required("instance_uuid", id),
            workspace_uuid: fields.read_required("workspace_uuid", id),
            entitlement_revision: fields.read_required("entitlement_revision", revision),
        };
        fields.refuse_others(&["instance_uuid", "workspace_uuid", "entitlement_revision"]);
        fields.finish(MODEL, revocation)
    }
}

/// Stands where a moment could not be read; such a grant is refused.
const NEVER: Timestamp = Timestamp(jiff::Timestamp::UNIX_EPOCH);
const NOT_NEGATIVE: &str = "must be greater than or equal to 0";

fn only(value: &Value, word: &str) -> Result<String, Issue> {
    if value.as_str() == Some(word) {
        return Ok(word.to_owned());
    }
    Err(Issue::new("literal_error", format!("Input should be '{word}'"), value))
}

fn integer(value: &Value, range: RangeInclusive<u64>, outside: &str) -> Result<u64, Issue> {
    let number = value.as_i64().ok_or_else(|| Issue::value("must be an integer", value))?;
    match u64::try_from(number) {
        Ok(number) if range.contains(&number) => Ok(number),
        Ok(number) if number > *range.end() && *range.end() > 1 => {
            Err(Issue::value(format_args!("must be at most {}", range.end()), value))
        }
        _ => Err(Issue::value(outside, value)),
    }
}

fn revision(value: &Value) -> Result<u64, Issue> {
    integer(value, 1..=u64::MAX, "must be greater than or equal to 1")
}

fn count(value: &Value) -> Result<u64, Issue> {
    integer(value, 0..=u64::MAX, NOT_NEGATIVE)
}

fn id(value: &Value) -> Result<String, Issue> {
    let text =
        value.as_str().ok_or_else(|| Issue::new("string_type", "Input should be a valid string", value))?;
    match python::trim(text) {
        "" => Err(Issue::value("must not be empty", value)),
        id if id.chars().count() > bounds::ID_CHARS => {
            Err(Issue::value(format_args!("must have at most {} characters", bounds::ID_CHARS), value))
        }
        id => Ok(id.to_owned()),
    }
}

fn moment(value: &Value) -> Result<Timestamp, Issue> {
    let bad = || Issue::new("datetime_parsing", "Input should be a valid datetime", value);
    let text = value.as_str().ok_or_else(bad)?;
    match text.parse() {
        Ok(time) => Ok(time),
        Err(_) if text.parse::<jiff::civil::DateTime>().is_ok() => {
            Err(Issue::value("expires_at must include a timezone", value))
        }
        Err(_) => Err(bad()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn grant() -> Value {
        json!({
            "instance_uuid": " i ", "workspace_uuid": "w", "execution_generation": 2, "entitlement_revision": 1,
            "expires_at": "2026-11-15T08:27:10.222425+02:00", "max_sessions": 1, "max_managed_processes": 0,
        })
    }

    #[test]
    fn a_grant_is_read_to_the_letter() {
        let read = AdmissionGrant::from_json(&grant()).unwrap();
        assert_eq!((read.instance_uuid.as_str(), read.execution_generation), ("i", 2));
        assert_eq!(read.expires_at.to_string(), "2026-11-15T06:27:10.222425Z");
        for (key, value, part) in [
            ("plan", json!("pro"), "\nplan\n  Extra inputs are not permitted [type=extra_forbidden"),
            (
                "max_sessions",
                json!(true),
                "\nmax_sessions\n  Value error, must be an integer [type=value_error",
            ),
            ("max_sessions", json!(1.0), "must be an integer"),
            ("max_sessions", json!(-1), "must be greater than or equal to 0"),
            ("execution_generation", json!(0), "must be greater than or equal to 1"),
            ("entitlement_revision", json!("1"), "must be an integer"),
            ("expires_at", json!("2026-11-15T06:27:10"), "expires_at must include a timezone"),
            ("expires_at", json!("soon"), "Input should be a valid datetime"),
            ("workspace_uuid", json!(" "), "must not be empty"),
            ("workspace_uuid", json!(7), "Input should be a valid string"),
        ] {
            let mut changed = grant();
            changed[key] = value;
            let error = AdmissionGrant::from_json(&changed).unwrap_err().to_string();
            assert!(error.starts_with("1 validation error for SandboxAdmissionGrant\n"), "{error}");
            assert!(error.contains(part), "{error}");
        }
        let error = AdmissionGrant::from_json(&json!({})).unwrap_err();
        assert_eq!(error.issues().len(), 7, "{error}");
        let error = AdmissionRevocation::from_json(&json!({"entitlement_revision": 0, "x": 1})).unwrap_err();
        assert_eq!(error.issues().len(), 4, "{error}");
    }

    #[test]
    fn a_policy_has_defaults_and_refuses_what_it_does_not_know() {
        assert_eq!(AdmissionPolicy::from_json(&json!({})).unwrap(), AdmissionPolicy::default());
        let policy = json!({"required": true, "workspace_quota_mb": 64, "cpus": 2, "readiness_cache_sec": 0});
        let policy = AdmissionPolicy::from_json(&policy).unwrap();
        assert!(policy.required && policy.workspace_quota_mb == 64 && policy.readiness_cache.is_zero());
        for (policy, part) in [
            (json!({"bogus": 1}), "bogus\n  Extra inputs are not permitted"),
            (json!({"logical_session_id": "s"}), "Input should be 'global'"),
            (json!({"required_backend": "docker"}), "Input should be 'nsjail'"),
            (json!({"max_sessions": 2}), "max_sessions must be between 0 and 1"),
            (json!({"max_managed_processes": 1}), "max_managed_processes must be 0"),
            (json!({"memory_mb": 31}), "memory_mb must be at least 32"),
            (json!({"pids_limit": true}), "must be an integer"),
            (json!({"cpus": "1"}), "cpus must be a number"),
            (json!({"max_grant_ttl_sec": 0}), "must be greater than 0"),
            (json!({"required": "maybe"}), "Input should be a valid boolean"),
            (json!("yes"), "Input should be a valid dictionary"),
        ] {
            let error = AdmissionPolicy::from_json(&policy).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
