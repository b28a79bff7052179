//! Profiles: presets for a box, some of whose fields a caller cannot change. Four are built in, others are the
//! operator's.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{DEFAULT_IMAGE, ErrorKind, MountMode, NetworkMode};

/// A preset. Fields have the names of [`crate::BoxSpec`]; one that is left out is as in the profile `default`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BoxProfile {
    /// The key of its table in a configuration, which has no field for it.
    #[serde(skip_deserializing)]
    pub name: Cow<'static, str>,
    pub image: Cow<'static, str>,
    pub network: NetworkMode,
    pub timeout_sec: u64,
    pub host_path_mode: MountMode,
    /// Longer timeouts are cut to this.
    pub max_timeout_sec: u64,
    pub cpus: f64,
    pub memory_mb: u64,
    pub pids_limit: u64,
    pub read_only_rootfs: bool,
    pub workspace_quota_mb: u64,
    /// The names of the fields that a caller cannot change.
    pub locked: Cow<'static, [Cow<'static, str>]>,
}

const DEFAULT: BoxProfile = BoxProfile {
    name: Cow::Borrowed("default"),
    image: Cow::Borrowed(DEFAULT_IMAGE),
    network: NetworkMode::Off,
    timeout_sec: 30,
    host_path_mode: MountMode::Rw,
    max_timeout_sec: 120,
    cpus: 1.0,
    memory_mb: 512,
    pids_limit: 128,
    read_only_rootfs: true,
    workspace_quota_mb: 0,
    locked: Cow::Borrowed(&[]),
};

static BUILTIN: [BoxProfile; 4] = [
    DEFAULT,
    BoxProfile { name: Cow::Borrowed("network_basic"), network: NetworkMode::On, ..DEFAULT },
    BoxProfile {
        name: Cow::Borrowed("network_extended"),
        network: NetworkMode::On,
        max_timeout_sec: 300,
        cpus: 2.0,
        memory_mb: 1024,
        pids_limit: 256,
        read_only_rootfs: false,
        ..DEFAULT
    },
    BoxProfile {
        name: Cow::Borrowed("offline_readonly"),
        host_path_mode: MountMode::Ro,
        max_timeout_sec: 60,
        cpus: 0.5,
        memory_mb: 256,
        pids_limit: 64,
        locked: Cow::Borrowed(&[
            Cow::Borrowed("network"),
            Cow::Borrowed("host_path_mode"),
            Cow::Borrowed("read_only_rootfs"),
        ]),
        ..DEFAULT
    },
];

impl BoxProfile {
    /// All of them, sorted by name.
    pub fn builtin() -> &'static [Self] {
        &BUILTIN
    }

    /// # Errors
    /// When there is no such profile; the text lists those that exist.
    pub fn named(name: &str) -> Result<&'static Self, UnknownProfile> {
        let found = BUILTIN.iter().find(|profile| profile.name == name);
        found.ok_or_else(|| UnknownProfile { name: name.to_owned() })
    }

    pub fn locks(&self, field: &str) -> bool {
        self.locked.iter().any(|locked| locked == field)
    }

    /// What keeps a profile of an operator's from being used, with its field.
    pub fn problem(&self) -> Option<(&'static str, String)> {
        let known = |field: &str| LOCKABLE.contains(&field);
        if let Some(unknown) = self.locked.iter().find(|field| !known(field)) {
            return Some(("locked", format!("names `{unknown}`; it can name {}", LOCKABLE.join(", "))));
        }
        if self.timeout_sec == 0 || self.timeout_sec > self.max_timeout_sec {
            return Some(("timeout_sec", "must be at least 1 and at most max_timeout_sec".to_owned()));
        }
        if !(self.cpus.is_finite() && self.cpus > 0.0) {
            return Some(("cpus", "must be greater than 0".to_owned()));
        }
        if self.memory_mb < 32 {
            return Some(("memory_mb", "must be at least 32".to_owned()));
        }
        (self.pids_limit == 0).then(|| ("pids_limit", "must be at least 1".to_owned()))
    }
}

/// The fields that a profile can lock.
const LOCKABLE: [&str; 9] = [
    "image",
    "network",
    "timeout_sec",
    "host_path_mode",
    "cpus",
    "memory_mb",
    "pids_limit",
    "read_only_rootfs",
    "workspace_quota_mb",
];

impl Default for BoxProfile {
    fn default() -> Self {
        DEFAULT
    }
}

/// A profile that does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownProfile {
    pub name: String,
}

impl UnknownProfile {
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::Validation
    }
}

impl fmt::Display for UnknownProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = BoxProfile::builtin().iter().map(|profile| &*profile.name).collect::<Vec<_>>().join(", ");
        write!(f, "unknown box profile '{}', available profiles: {names}", self.name)
    }
}

impl std::error::Error for UnknownProfile {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        assert_eq!(BoxProfile::named("default").unwrap().max_timeout_sec, 120);
        assert_eq!(
            BoxProfile::named("x").unwrap_err().to_string(),
            "unknown box profile 'x', available profiles: default, network_basic, network_extended, offline_readonly"
        );
    }

    #[test]
    fn profiles_are_consistent() {
        for profile in BoxProfile::builtin() {
            assert_eq!(profile.problem(), None, "{}", profile.name);
            let mut fields = serde_json::to_value(crate::BoxSpec::new("s")).unwrap();
            assert!(profile.locked.iter().all(|field| fields.get(&**field).is_some()), "{}", profile.name);
            fields["memory_mb"] = profile.memory_mb.into();
            fields["cpus"] = profile.cpus.into();
            fields["pids_limit"] = profile.pids_limit.into();
            assert!(crate::BoxSpec::from_json(&fields).is_ok(), "{}", profile.name);
        }
        assert!(BoxProfile::named("offline_readonly").unwrap().locks("network"));
    }
    #[test]
    fn a_profile_of_an_operator_says_only_what_differs_and_is_checked() {
        let read = |text| serde_json::from_str::<BoxProfile>(text).map_err(|error| error.to_string());
        let big = read(r#"{"memory_mb": 4096, "locked": ["network"]}"#).unwrap();
        assert_eq!((big.memory_mb, big.cpus, big.locks("network")), (4096, 1.0, true));
        assert!(read(r#"{"memroy_mb": 1}"#).unwrap_err().contains("memroy_mb"));
        let field = |text| read(text).unwrap().problem().map(|(field, _)| field);
        assert_eq!(field("{}"), None);
        assert_eq!(field(r#"{"locked": ["colour"]}"#), Some("locked"));
        assert_eq!(field(r#"{"timeout_sec": 121}"#), Some("timeout_sec"));
        assert_eq!(field(r#"{"cpus": 0}"#), Some("cpus"));
        assert_eq!(field(r#"{"memory_mb": 31}"#), Some("memory_mb"));
        assert_eq!(field(r#"{"pids_limit": 0}"#), Some("pids_limit"));
    }
}
