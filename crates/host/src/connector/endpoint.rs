//! Where a runtime listens, from what a configuration says.

use std::net::Ipv6Addr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::{HostError, Result};

/// The port of a runtime that was given none.
pub(super) const DEFAULT_PORT: u16 = 5410;

/// A runtime's address: `ws://box:5410`, `https://user:secret@box/prefix`, `[::1]:5410`, `box`.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    secure: bool,
    /// With its brackets when it is an IPv6 address.
    host: String,
    port: u16,
    /// Starts with a slash, or is empty; without a slash at its end.
    path: String,
    query: Option<String>,
    credentials: Option<Credentials>,
}

#[derive(Clone, PartialEq, Eq)]
struct Credentials {
    user: String,
    password: Option<String>,
}

impl Endpoint {
    /// # Errors
    /// When it is no address of the schemes ws, wss, http and https. The message has no credentials.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |problem: &str| {
            let shown = text.rsplit_once('@').map_or(text, |(_, address)| address);
            HostError::invalid(format!("box.runtime.endpoint \"{shown}\" is not valid: {problem}"))
        };
        let (scheme, rest) = text.split_once("://").unwrap_or(("ws", text));
        let secure = match scheme.to_ascii_lowercase().as_str() {
            "ws" | "http" => false,
            "wss" | "https" => true,
            _ => return Err(wrong("the scheme is one of ws, wss, http and https")),
        };
        if rest.contains(|c: char| c.is_whitespace() || c.is_control() || c == '#') {
            return Err(wrong("it has characters that an address cannot have"));
        }
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        let (path, query) = match rest.split_once('?') {
            Some((path, query)) => (path, Some(query.to_owned())),
            None => (rest, None),
        };
        let (user_info, address) = match authority.rsplit_once('@') {
            Some((user_info, address)) => (Some(user_info), address),
            None => (None, authority),
        };
        let (host, port) = split_port(address).map_err(wrong)?;
        let path = path.trim_end_matches('/');
        Ok(Self {
            secure,
            host,
            port: port.unwrap_or(DEFAULT_PORT),
            path: path.strip_suffix("/rpc/ws").unwrap_or(path).to_owned(),
            query,
            credentials: user_info.map(Credentials::parse),
        })
    }

    /// Where the RPC is. Without credentials: those go into a header.
    pub fn rpc_url(&self) -> String {
        let query = self.query.as_ref().map(|query| format!("?{query}")).unwrap_or_default();
        format!("{}/rpc/ws{query}", self.base(if self.secure { "wss" } else { "ws" }))
    }

    /// What paths for managed processes are added to.
    pub fn relay_url(&self) -> String {
        self.base(if self.secure { "https" } else { "http" })
    }

    /// Where a managed process is attached to. Ids may have any character, so they are escaped.
    pub fn attach_url(&self, session: &str, process: &str) -> String {
        let base = self.base(if self.secure { "wss" } else { "ws" });
        let (session, process) = (escaped(session), escaped(process));
        format!("{base}/v1/sessions/{session}/managed-process/{process}/ws")
    }

    fn base(&self, scheme: &str) -> String {
        let Self { host, port, path, .. } = self;
        format!("{scheme}://{host}:{port}{path}")
    }

    /// The value of the header `Authorization`: a password alone is a token.
    pub fn authorization(&self) -> Option<String> {
        let Credentials { user, password } = self.credentials.as_ref()?;
        Some(match password {
            Some(token) if user.is_empty() => format!("Bearer {token}"),
            password => {
                let password = password.as_deref().unwrap_or_default();
                format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
            }
        })
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Endpoint").field(&self.base(if self.secure { "wss" } else { "ws" })).finish()
    }
}

impl Credentials {
    fn parse(text: &str) -> Self {
        let (user, password) = match text.split_once(':') {
            Some((user, password)) => (user, Some(unescaped(password))),
            None => (text, None),
        };
        Self { user: unescaped(user), password }
    }
}

fn split_port(address: &str) -> std::result::Result<(String, Option<u16>), &'static str> {
    let (host, port) = match address.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']').ok_or("a bracket is not closed")?;
            host.parse::<Ipv6Addr>().map_err(|_| "brackets hold an IPv6 address")?;
            let port = match after {
                "" => None,
                after => Some(after.strip_prefix(':').ok_or("after a bracket only a port can stand")?),
            };
            (format!("[{host}]"), port)
        }
        None => {
            let (host, port) = match address.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (address, None),
            };
            if port.is_some_and(|port| port.contains(':')) {
                return Err("an IPv6 address stands in brackets");
            }
            let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
            if host.is_empty() || !host.chars().all(known) {
                return Err("it has no host that can be reached");
            }
            (host.to_owned(), port)
        }
    };
    let port = match port {
        None | Some("") => None,
        Some(port) => {
            Some(port.parse().ok().filter(|port| *port != 0).ok_or("the port is no number of one")?)
        }
    };
    Ok((host, port))
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    // These alone would be taken for steps of the path.
    if matches!(out.as_str(), "." | "..") { out.replace('.', "%2E") } else { out }
}

fn unescaped(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, after @ ..] = rest {
        let hex = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match hex.filter(|_| *byte == b'%').and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(decoded) => {
                out.push(decoded);
                rest = &after[2..];
            }
            None => {
                out.push(*byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b13_every_form_of_an_address_is_read() {
        for (text, rpc, relay) in [
            ("ws://pod-x-box:5410", "ws://pod-x-box:5410/rpc/ws", "http://pod-x-box:5410"),
            ("http://box", "ws://box:5410/rpc/ws", "http://box:5410"),
            ("https://box:1/", "wss://box:1/rpc/ws", "https://box:1"),
            ("WSS://box:1/a/b/", "wss://box:1/a/b/rpc/ws", "https://box:1/a/b"),
            ("ws://box:1/rpc/ws?x=1", "ws://box:1/rpc/ws?x=1", "http://box:1"),
            ("ws://[::1]:5410", "ws://[::1]:5410/rpc/ws", "http://[::1]:5410"),
            ("[fe80::1]", "ws://[fe80::1]:5410/rpc/ws", "http://[fe80::1]:5410"),
            ("box:99", "ws://box:99/rpc/ws", "http://box:99"),
            ("box", "ws://box:5410/rpc/ws", "http://box:5410"),
            ("ws://u:p@10.0.0.1", "ws://10.0.0.1:5410/rpc/ws", "http://10.0.0.1:5410"),
        ] {
            let endpoint = Endpoint::parse(text).unwrap();
            assert_eq!((endpoint.rpc_url().as_str(), endpoint.relay_url().as_str()), (rpc, relay), "{text}");
        }
    }

    #[test]
    fn b13_nonsense_is_refused_by_name_and_without_secrets() {
        for text in [
            "ftp://x",
            "ws://",
            "ws://:5410",
            "ws://a b",
            "::1:5410",
            "ws://[::1",
            "ws://[x]:1",
            "ws://x:0",
            "ws://x:70000",
            "ws://x#y",
            "ws://x/\n",
        ] {
            let error = Endpoint::parse(text).unwrap_err();
            assert_eq!(error.class(), "BoxValidationError");
            assert!(error.message.starts_with("box.runtime.endpoint \""), "{error}");
        }
        let error = Endpoint::parse("ws://u:secret@x:0").unwrap_err();
        assert!(!error.message.contains("secret"), "{error}");
        assert!(!format!("{:?}", Endpoint::parse("ws://u:secret@x").unwrap()).contains("secret"));
    }

    #[test]
    fn s7_credentials_go_into_a_header() {
        let header = |text: &str| Endpoint::parse(text).unwrap().authorization();
        assert_eq!(header("ws://u:p%40@x").unwrap(), format!("Basic {}", STANDARD.encode("u:p@")));
        assert_eq!(header("ws://:token@x").unwrap(), "Bearer token");
        assert_eq!(header("ws://x"), None);
    }

    #[test]
    fn s8_ids_in_urls_are_escaped() {
        let endpoint = Endpoint::parse("http://h:1").unwrap();
        assert_eq!(endpoint.attach_url("rc", "p"), "ws://h:1/v1/sessions/rc/managed-process/p/ws");
        assert_eq!(
            endpoint.attach_url("a/b?c", "..é"),
            "ws://h:1/v1/sessions/a%2Fb%3Fc/managed-process/..%C3%A9/ws"
        );
        assert_eq!(endpoint.attach_url("..", "."), "ws://h:1/v1/sessions/%2E%2E/managed-process/%2E/ws");
    }
}
