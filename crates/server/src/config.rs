//! What an operator can set about the faces: who may use them, and how much one peer can make us hold.
//!
//! Typed and validated here; files, environment and flags are the command line's business.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Cidr, E2bConfig, InstanceId, McpConfig, Token, ToolsConfig};

/// Who may speak LangBot's first dialect, which sends no token (LangBot 4.10.0 to 4.10.6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Legacy {
    /// Nobody.
    Off,
    /// Peers on this machine whose uid is admitted.
    Loopback,
    /// Those, and every peer in one of these networks. Such a peer is never a known one.
    Cidrs(Vec<Cidr>),
}

/// Bounds of what a peer can make us hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerLimits {
    /// Open connections, upgraded ones included; more wait in the kernel's backlog.
    pub max_connections: usize,
    /// Requests of one RPC connection under way; beyond it nothing more is read from that connection.
    pub in_flight_per_connection: usize,
    /// RPC requests under way on the whole server, those of clients that left included.
    pub in_flight_total: usize,
    /// For the whole head of a request, counted from the moment the connection is idle.
    #[serde(rename = "header_timeout_ms", with = "millis")]
    pub header_timeout: Duration,
    /// Between two pieces of a request's body.
    #[serde(rename = "body_timeout_ms", with = "millis")]
    pub body_timeout: Duration,
    /// Between two pings on a WebSocket; a peer silent for three of them is dead.
    #[serde(rename = "ping_interval_ms", with = "millis")]
    pub ping_interval: Duration,
    /// A peer that takes nothing of what is written to it for so long is closed, and one message on a WebSocket takes
    /// no longer.
    #[serde(rename = "write_timeout_ms", with = "millis")]
    pub write_timeout: Duration,
    /// MCP sessions on `/mcp/box` at a time.
    pub mcp_sessions: usize,
    /// After so long without a message such a session ends, and its box with it.
    #[serde(rename = "mcp_idle_ms", with = "millis")]
    pub mcp_idle: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            max_connections: 1024,
            in_flight_per_connection: 256,
            in_flight_total: 4096,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            ping_interval: Duration::from_secs(20),
            write_timeout: Duration::from_secs(30),
            mcp_sessions: 256,
            // A person who thinks between two questions keeps the files.
            mcp_idle: Duration::from_secs(3600),
        }
    }
}

/// The whole configuration of the faces.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerConfig {
    /// Shared with clients; never printed and never written back.
    #[serde(skip_serializing)]
    pub token: Option<Token>,
    /// The one LangBot instance that is served; `None` takes that of the first handshake. Over stdio it also says
    /// that the parent speaks the newer dialects.
    pub instance: Option<InstanceId>,
    /// `None`: loopback while there is neither a token nor an instance, off as soon as there is one.
    pub legacy: Option<Legacy>,
    /// Local users that are admitted without a token, beside our own and root.
    pub allow_uids: Vec<u32>,
    /// Admit everybody who can reach us.
    pub insecure_no_auth: bool,
    /// The RPC is spoken over stdio with our parent: without a token `/rpc/ws` is off, and the other faces
    /// admit the parent's uid alone.
    #[serde(skip)]
    pub stdio: bool,
    pub limits: ServerLimits,
    pub tools: ToolsConfig,
    pub mcp: McpConfig,
    pub e2b: E2bConfig,
    /// How long commands may go on once we are told to stop.
    #[serde(rename = "shutdown_grace_ms", with = "millis")]
    pub shutdown_grace: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            token: None,
            instance: None,
            legacy: None,
            allow_uids: Vec::new(),
            insecure_no_auth: false,
            stdio: false,
            limits: ServerLimits::default(),
            tools: ToolsConfig::default(),
            mcp: McpConfig::default(),
            e2b: E2bConfig::default(),
            shutdown_grace: Duration::from_secs(10),
        }
    }
}

/// A configuration that cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    #[error("`{key}` must be at least {least}")]
    TooSmall { key: &'static str, least: &'static str },
    #[error("`insecure_no_auth` and `token` contradict each other: remove one")]
    TokenWithoutAuth,
    #[error("`{text}` is not a network such as `10.0.0.0/8` or `fd00::/8`")]
    Cidr { text: String },
    #[error("a token needs at least {least} characters and no white space")]
    Token { least: usize },
    #[error(
        "`{text}` is not an instance's id: a letter or digit, then up to 127 of those, `.`, `_`, `:` and `-`"
    )]
    Instance { text: String },
    #[error("`legacy` is `{text}`; it must be `off`, `loopback` or a list of networks")]
    Legacy { text: String },
}

impl ServerConfig {
    /// Checks what types alone cannot say.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let limits = &self.limits;
        for (key, value) in [
            ("limits.max_connections", limits.max_connections),
            ("limits.in_flight_per_connection", limits.in_flight_per_connection),
            ("limits.in_flight_total", limits.in_flight_total),
            ("limits.mcp_sessions", limits.mcp_sessions),
        ] {
            if value == 0 {
                return Err(ConfigError::TooSmall { key, least: "1" });
            }
        }
        for (key, value) in [
            ("limits.header_timeout_ms", limits.header_timeout),
            ("limits.body_timeout_ms", limits.body_timeout),
            ("limits.ping_interval_ms", limits.ping_interval),
            ("limits.write_timeout_ms", limits.write_timeout),
            ("limits.mcp_idle_ms", limits.mcp_idle),
        ] {
            if value < Duration::from_millis(10) {
                return Err(ConfigError::TooSmall { key, least: "10 ms" });
            }
        }
        if self.insecure_no_auth && self.token.is_some() {
            return Err(ConfigError::TokenWithoutAuth);
        }
        Ok(())
    }

    /// The setting in force.
    pub fn legacy(&self) -> Legacy {
        match &self.legacy {
            Some(legacy) => legacy.clone(),
            None if self.token.is_some() || self.instance.is_some() => Legacy::Off,
            None => Legacy::Loopback,
        }
    }
}

impl Serialize for Legacy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => serializer.serialize_str("off"),
            Self::Loopback => serializer.serialize_str("loopback"),
            Self::Cidrs(cidrs) => serializer.collect_seq(cidrs.iter().map(ToString::to_string)),
        }
    }
}

impl<'de> Deserialize<'de> for Legacy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Word(String),
            List(Vec<String>),
        }
        let parsed = match Written::deserialize(deserializer)? {
            Written::Word(word) => match word.as_str() {
                "off" => Ok(Self::Off),
                "loopback" => Ok(Self::Loopback),
                _ => Err(ConfigError::Legacy { text: word }),
            },
            Written::List(list) => {
                list.iter().map(|text| text.parse()).collect::<Result<_, _>>().map(Self::Cidrs)
            }
        };
        parsed.map_err(serde::de::Error::custom)
    }
}

/// Durations stand in files as whole milliseconds, with the unit in the key.
mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legacy_is_off_as_soon_as_there_is_a_token_unless_said_otherwise() {
        let mut config = ServerConfig::default();
        assert_eq!(config.legacy(), Legacy::Loopback);
        config.token = Some("0123456789abcdef0123456789abcdef".parse().unwrap());
        assert_eq!(config.legacy(), Legacy::Off);
        config.legacy = Some(Legacy::Loopback);
        assert_eq!(config.legacy(), Legacy::Loopback);
        let pinned = ServerConfig { instance: Some("i".parse().unwrap()), ..ServerConfig::default() };
        assert_eq!(pinned.legacy(), Legacy::Off);
    }

    #[test]
    fn legacy_is_a_word_or_a_list() {
        for (text, legacy) in [
            ("\"off\"", Legacy::Off),
            ("\"loopback\"", Legacy::Loopback),
            ("[\"10.0.0.0/8\"]", Legacy::Cidrs(vec!["10.0.0.0/8".parse().unwrap()])),
        ] {
            assert_eq!(serde_json::from_str::<Legacy>(text).unwrap(), legacy);
            assert_eq!(serde_json::to_string(&legacy).unwrap(), text);
        }
        for bad in ["\"on\"", "[\"10.0.0.0/33\"]", "3"] {
            assert!(serde_json::from_str::<Legacy>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_token_is_read_and_never_written() {
        let text = r#"{"token":"0123456789abcdef0123456789abcdef"}"#;
        let config: ServerConfig = serde_json::from_str(text).unwrap();
        assert!(config.token.is_some());
        assert!(!serde_json::to_string(&config).unwrap().contains("0123456789abcdef"));
        assert!(!format!("{config:?}").contains("0123456789abcdef"));
    }

    #[test]
    fn contradictions_and_zeroes_are_refused() {
        assert_eq!(ServerConfig::default().validate(), Ok(()));
        let mut config = ServerConfig { insecure_no_auth: true, ..ServerConfig::default() };
        assert_eq!(config.validate(), Ok(()));
        config.token = Some("0123456789abcdef0123456789abcdef".parse().unwrap());
        assert_eq!(config.validate(), Err(ConfigError::TokenWithoutAuth));
        let mut config = ServerConfig::default();
        config.limits.max_connections = 0;
        assert!(matches!(config.validate(), Err(ConfigError::TooSmall { .. })));
    }
}
