//! Which servers there are: the operator's file, what clients stored, and what other programs' files have.

mod import;
mod jsonc;
mod policy;
mod registration;
mod rewrite;
mod store;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use import::{Import, ImportError, Imported, NotImported, Values, import};
pub use policy::{Denied, Policy};
pub use registration::{MAX_NAME, Origin, RESERVED_NAME, Registration, name_problem};
pub use rewrite::{Rewritten, rewrite};
pub use store::{Store, StoreError};

/// `[mcp]` of the operator's file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct McpConfig {
    /// Servers, or tools as `server__tool`, that the gateway offers; empty: all.
    pub allow: Vec<String>,
    /// Those that it does not, whatever `allow` says.
    pub deny: Vec<String>,
    /// Of one call of a tool.
    pub call_timeout_sec: u64,
    /// One box for all servers that want the same of it, instead of one for each.
    pub shared_session: bool,
    /// Clients of the gateway at a time.
    pub max_sessions: usize,
    /// After which a client that says nothing has left.
    pub session_idle_sec: u64,
    /// The operator's servers, by name.
    pub servers: BTreeMap<String, Registration>,
}

impl Default for McpConfig {
    fn default() -> Self {
        Self {
            allow: Vec::new(),
            deny: Vec::new(),
            call_timeout_sec: 120,
            shared_session: false,
            max_sessions: 256,
            session_idle_sec: 1800,
            servers: BTreeMap::new(),
        }
    }
}

impl McpConfig {
    /// What cannot be used: the key, what it is, and what is wrong with it.
    pub fn problem(&self) -> Option<(String, String, String)> {
        for (key, value) in [
            ("mcp.call_timeout_sec", self.call_timeout_sec),
            ("mcp.max_sessions", self.max_sessions as u64),
            ("mcp.session_idle_sec", self.session_idle_sec),
        ] {
            if value == 0 {
                return Some((key.to_owned(), value.to_string(), "must be at least 1".to_owned()));
            }
        }
        for (key, names) in [("mcp.allow", &self.allow), ("mcp.deny", &self.deny)] {
            for name in names {
                let server = name.split_once("__").map_or(name.as_str(), |(server, _)| server);
                if let Some(problem) = name_problem(server) {
                    let problem =
                        format!("is neither a server nor a tool as `server__tool`: a name {problem}");
                    return Some((key.to_owned(), name.clone(), problem));
                }
            }
        }
        for (name, server) in &self.servers {
            if let Some(problem) = name_problem(name) {
                return Some(("mcp.servers".to_owned(), name.clone(), format!("as a name {problem}")));
            }
            if let Some((field, problem)) = server.problem() {
                return Some(("mcp.servers".to_owned(), format!("{name}.{field}"), problem));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_used_is_named_by_its_key() {
        let key = |change: fn(&mut McpConfig)| {
            let mut config = McpConfig::default();
            change(&mut config);
            config.problem().map(|(key, value, _)| (key, value))
        };
        let of = |key: &str, value: &str| Some((key.to_owned(), value.to_owned()));
        assert_eq!(key(|_| {}), None);
        assert_eq!(key(|config| config.call_timeout_sec = 0), of("mcp.call_timeout_sec", "0"));
        assert_eq!(key(|config| config.deny.push("a b".into())), of("mcp.deny", "a b"));
        assert_eq!(key(|config| config.deny.push("time__now".into())), None);
        let boxed = |config: &mut McpConfig| {
            config.servers.insert("box".into(), Registration::new("x", [""; 0]));
        };
        assert_eq!(key(boxed), of("mcp.servers", "box"));
        let empty = |config: &mut McpConfig| {
            config.servers.insert("a".into(), Registration::new("", [""; 0]));
        };
        assert_eq!(key(empty), of("mcp.servers", "a.command"));
    }
}
