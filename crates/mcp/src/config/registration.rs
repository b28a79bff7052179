//! A server as an operator, a client of REST or an imported file registers it.

use std::collections::BTreeMap;

use sandcrate_protocol::network::NetworkRequest;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::{BoxSettings, ServerConfig};

/// Longest name: with two underscores and a tool's name it has to fit the 64 characters that models take.
pub const MAX_NAME: usize = 32;
/// The box server has this place of the gateway.
pub const RESERVED_NAME: &str = "box";
/// The longest limit that means anything, of a start or of a call.
const MAX_SECONDS: u64 = 24 * 3600;

/// A server without its name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Registration {
    pub command: String,
    #[serde(default)]
    pub args: Vec<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default = "yes")]
    pub enabled: bool,
    #[serde(default, rename = "box", deserialize_with = "known_settings")]
    pub settings: BoxSettings,
    /// Tools that may be used; empty: all.
    #[serde(default)]
    pub allow: Vec<String>,
    /// Tools that may not, whatever `allow` says.
    #[serde(default)]
    pub deny: Vec<String>,
    /// Of one call; absent: as for all servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_timeout_sec: Option<u64>,
}

/// Where a server is configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The operator's file: only they change it.
    File,
    /// Added by a client.
    Stored,
}

impl Registration {
    pub fn new(command: impl Into<String>, args: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            command: command.into(),
            args: args.into_iter().map(Into::into).collect(),
            env: BTreeMap::new(),
            enabled: true,
            settings: BoxSettings::default(),
            allow: Vec::new(),
            deny: Vec::new(),
            call_timeout_sec: None,
        }
    }

    pub fn server(&self, name: &str) -> ServerConfig {
        ServerConfig {
            name: name.to_owned(),
            command: self.command.clone(),
            args: self.args.clone(),
            env: self.env.clone(),
            enabled: self.enabled,
            settings: self.settings.clone(),
        }
    }

    /// The field that cannot be used, and what is wrong with it.
    pub fn problem(&self) -> Option<(String, String)> {
        let said = |field: &str, problem: &str| Some((field.to_owned(), problem.to_owned()));
        if self.command.trim().is_empty() {
            return said("command", "must name a program");
        }
        if self.command.contains('\0') || self.args.iter().any(|arg| arg.contains('\0')) {
            return said("args", "must not contain a NUL character");
        }
        let variables = self.env.iter().chain(&self.settings.env);
        if let Some((name, _)) = variables
            .clone()
            .find(|(name, value)| name.is_empty() || name.contains(['=', '\0']) || value.contains('\0'))
        {
            return Some(("env".to_owned(), format!("has a variable that no process can have: `{name}`")));
        }
        if !matches!(self.settings.host_path_mode.as_str(), "ro" | "rw" | "copy" | "none") {
            return said("box.host_path_mode", "must be `ro`, `rw`, `copy` or `none`");
        }
        let networks = [
            ("box.network", &self.settings.network),
            ("box.install_network", &self.settings.install_network),
        ];
        for (field, text) in networks {
            if let Some(Err(error)) = text.as_deref().map(str::parse::<NetworkRequest>) {
                return Some((field.to_owned(), format!("must be `off`, `on`, `host` or a policy: {error}")));
            }
        }
        if !(1..=MAX_SECONDS).contains(&self.settings.startup_timeout_sec) {
            return said("box.startup_timeout_sec", "must be from 1 second to a day");
        }
        if self.call_timeout_sec.is_some_and(|limit| !(1..=MAX_SECONDS).contains(&limit)) {
            return said("call_timeout_sec", "must be from 1 second to a day");
        }
        None
    }
}

/// What is wrong with a server's name.
pub fn name_problem(name: &str) -> Option<String> {
    let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    if name.is_empty() || name.len() > MAX_NAME || !plain {
        return Some(format!("must have 1 to {MAX_NAME} letters, digits, `-` and `_`"));
    }
    if name.contains("__") || name.starts_with('_') || name.ends_with('_') {
        return Some(
            "must not begin or end with `_` nor have `__`, which parts it from a tool's name".to_owned(),
        );
    }
    match name {
        RESERVED_NAME => Some("is reserved for boxes as an MCP server".to_owned()),
        // Its session would be the one that servers share.
        "shared" => Some("is reserved for the box that servers share".to_owned()),
        _ => None,
    }
}

/// The nearest name that can be used, for a client's file that knows no such rules.
pub(crate) fn usable_name(name: &str) -> String {
    let mut usable = String::new();
    for char in name.chars() {
        let char = if char.is_ascii_alphanumeric() || char == '_' { char } else { '-' };
        let doubled = matches!(char, '-' | '_') && usable.ends_with(char);
        if !doubled && usable.len() < MAX_NAME {
            usable.push(char);
        }
    }
    usable.trim_matches(['-', '_']).to_owned()
}

/// Unlike in a record of LangBot, a setting that is not known is a slip and not somebody else's.
fn known_settings<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BoxSettings, D::Error> {
    use serde::de::Error;

    let fields = Map::deserialize(deserializer)?;
    let known = serde_json::to_value(BoxSettings::default()).map_err(D::Error::custom)?;
    if let Some(unknown) = fields.keys().find(|key| known.get(key.as_str()).is_none()) {
        let names: Vec<_> =
            known.as_object().into_iter().flat_map(Map::keys).map(|key| format!("`{key}`")).collect();
        return Err(D::Error::custom(format!(
            "unknown field `{unknown}`, expected one of {}",
            names.join(", ")
        )));
    }
    serde_json::from_value(Value::Object(fields)).map_err(D::Error::custom)
}

const fn yes() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_those_that_tools_can_carry() {
        for good in ["time", "my-server", "a_b", "X1"] {
            assert_eq!(name_problem(good), None, "{good}");
        }
        for bad in ["", "box", "shared", "a__b", "a b", "a/b", "_a", "a_", &"x".repeat(33)] {
            assert!(name_problem(bad).is_some(), "{bad}");
        }
        for (name, usable) in
            [("My Server", "My-Server"), ("@scope/x", "scope-x"), ("a__b", "a_b"), ("…", "")]
        {
            assert_eq!(usable_name(name), usable, "{name}");
        }
    }

    #[test]
    fn a_slip_is_named() {
        let read = |value: Value| serde_json::from_value::<Registration>(value);
        let error = read(json!({"command": "x", "box": {"memory": 5}})).unwrap_err().to_string();
        assert!(error.contains("unknown field `memory`") && error.contains("`memory_mb`"), "{error}");
        assert!(read(json!({"command": "x", "comand": "y"})).is_err());
        let mut entry = read(json!({"command": "x", "box": {"memory_mb": 64}})).unwrap();
        assert_eq!((entry.settings.memory_mb, entry.problem()), (Some(64), None));
        for (network, problem) in [("allow a.example:443", None), ("banana", Some("box.network"))] {
            entry.settings.network = Some(network.to_owned());
            assert_eq!(entry.problem().map(|(field, _)| field).as_deref(), problem, "{network}");
        }
        entry.settings.network = None;
        entry.settings.install_network = Some("banana".to_owned());
        let (field, problem) = entry.problem().unwrap();
        assert!(field == "box.install_network" && problem.contains("banana"), "{field} {problem}");
        entry.settings.install_network = None;
        entry.call_timeout_sec = Some(0);
        assert_eq!(entry.problem().unwrap().0, "call_timeout_sec");
        entry.env.insert("A=B".to_owned(), String::new());
        assert_eq!(entry.problem().unwrap().0, "env");
    }
}
