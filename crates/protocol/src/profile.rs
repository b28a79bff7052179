//! The built-in profiles: presets for a box, some of whose fields a caller cannot change.

use std::fmt;

use crate::{DEFAULT_IMAGE, ErrorKind, MountMode, NetworkMode};

/// A preset. Fields have the names of [`crate::BoxSpec`].
#[derive(Debug, Clone, PartialEq)]
pub struct BoxProfile {
    pub name: &'static str,
    pub image: &'static str,
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
    pub locked: &'static [&'static str],
}

const DEFAULT: BoxProfile = BoxProfile {
    name: "default",
    image: DEFAULT_IMAGE,
    network: NetworkMode::Off,
    timeout_sec: 30,
    host_path_mode: MountMode::Rw,
    max_timeout_sec: 120,
    cpus: 1.0,
    memory_mb: 512,
    pids_limit: 128,
    read_only_rootfs: true,
    workspace_quota_mb: 0,
    locked: &[],
};

static BUILTIN: [BoxProfile; 4] = [
    DEFAULT,
    BoxProfile { name: "network_basic", network: NetworkMode::On, ..DEFAULT },
    BoxProfile {
        name: "network_extended",
        network: NetworkMode::On,
        max_timeout_sec: 300,
        cpus: 2.0,
        memory_mb: 1024,
        pids_limit: 256,
        read_only_rootfs: false,
        ..DEFAULT
    },
    BoxProfile {
        name: "offline_readonly",
        host_path_mode: MountMode::Ro,
        max_timeout_sec: 60,
        cpus: 0.5,
        memory_mb: 256,
        pids_limit: 64,
        locked: &["network", "host_path_mode", "read_only_rootfs"],
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
        self.locked.contains(&field)
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
        let names = BoxProfile::builtin().iter().map(|profile| profile.name).collect::<Vec<_>>().join(", ");
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
            assert!(profile.timeout_sec <= profile.max_timeout_sec, "{}", profile.name);
            let mut fields = serde_json::to_value(crate::BoxSpec::new("s")).unwrap();
            assert!(profile.locked.iter().all(|field| fields.get(field).is_some()), "{}", profile.name);
            fields["memory_mb"] = profile.memory_mb.into();
            fields["cpus"] = profile.cpus.into();
            fields["pids_limit"] = profile.pids_limit.into();
            assert!(crate::BoxSpec::from_json(&fields).is_ok(), "{}", profile.name);
        }
        assert!(BoxProfile::named("offline_readonly").unwrap().locks("network"));
    }
}
