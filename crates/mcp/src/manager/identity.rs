//! The names under which a server lives in the runtime.

use std::hash::Hasher;

use crate::{BoxSettings, Identity};

/// The box that servers share, when they are configured to.
pub const SHARED_SESSION: &str = "mcp-shared";

/// Which box a server gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// One for itself.
    Own,
    /// The one of all servers whose boxes have the same settings.
    Shared,
}

impl Identity {
    /// Of a server that is configured.
    pub(crate) fn of_server(name: &str, settings: &BoxSettings, sharing: Sharing) -> Self {
        let session_id = match sharing {
            Sharing::Own => format!("mcp-{name}"),
            Sharing::Shared => shared_session(settings),
        };
        Self { session_id, process_id: name.to_owned(), transient: false }
    }

    /// Of a test of a configuration: nothing that lives is touched by it.
    pub(crate) fn of_test() -> Self {
        Self::of_test_with(&uuid::Uuid::now_v7().to_string())
    }

    fn of_test_with(id: &str) -> Self {
        Self { session_id: format!("mcp-test-{id}"), process_id: id.to_owned(), transient: true }
    }
}

/// A box has one image, one network and one set of limits; servers that want others cannot share it.
fn shared_session(settings: &BoxSettings) -> String {
    let BoxSettings { image, network, cpus, memory_mb, pids_limit, read_only_rootfs, env, .. } = settings;
    let facts = serde_json::json!([image, network, cpus, memory_mb, pids_limit, read_only_rootfs, env]);
    let usual = BoxSettings::default();
    let usual = serde_json::json!([
        usual.image,
        usual.network,
        usual.cpus,
        usual.memory_mb,
        usual.pids_limit,
        usual.read_only_rootfs,
        usual.env
    ]);
    if facts == usual {
        return SHARED_SESSION.to_owned();
    }
    let mut hasher = Fnv::default();
    hasher.write(facts.to_string().as_bytes());
    format!("{SHARED_SESSION}-{:016x}", hasher.finish())
}

/// FNV-1a: the same name at every start and in every version, unlike the standard library's hasher.
#[derive(Debug)]
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_has_a_box_for_itself_unless_configured_otherwise() {
        let plain = BoxSettings::default();
        let own = Identity::of_server("time", &plain, Sharing::Own);
        assert_eq!((own.session_id.as_str(), own.process_id.as_str()), ("mcp-time", "time"));
        let shared = Identity::of_server("time", &plain, Sharing::Shared);
        assert_eq!(shared.session_id, SHARED_SESSION);
    }

    #[test]
    fn servers_with_other_boxes_do_not_share_one() {
        let session = |settings: &BoxSettings| Identity::of_server("x", settings, Sharing::Shared).session_id;
        let big = BoxSettings { memory_mb: Some(2048), ..BoxSettings::default() };
        assert_ne!(session(&big), session(&BoxSettings::default()));
        assert_eq!(session(&big), session(&big.clone()));
        assert!(session(&big).starts_with("mcp-shared-"));
        // Where its project is says nothing about the box.
        let project = BoxSettings { host_path: Some("/p".to_owned()), ..BoxSettings::default() };
        assert_eq!(session(&project), SHARED_SESSION);
    }

    #[test]
    fn two_tests_share_nothing() {
        let (a, b) = (Identity::of_test(), Identity::of_test());
        assert_ne!(a.session_id, b.session_id);
        assert!(a.transient && a.session_id == format!("mcp-test-{}", a.process_id));
        assert_eq!(Identity::of_test_with("u").session_id, "mcp-test-u");
    }
}
