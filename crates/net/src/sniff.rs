//! The host name in the first bytes that a client sends: the server name of a TLS ClientHello, or the Host of
//! an HTTP/1 request.
//!
//! Strict where it matters: whatever two readers could understand differently (two Host headers, a name in
//! the target and another in the header, a record that does not parse) shows no name at all.

mod http;
mod tls;

use sandcrate_protocol::network::HostName;

/// Enough for a ClientHello with post-quantum key shares and for any sane request head; servers bound theirs at
/// 8 to 16 KiB.
pub const MAX_BYTES: usize = 16 << 10;

/// What the first bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sniffed {
    Tls {
        name: Option<HostName>,
    },
    Http {
        name: Option<HostName>,
    },
    /// Neither.
    Other,
}

impl Sniffed {
    pub fn name(&self) -> Option<&HostName> {
        match self {
            Self::Tls { name } | Self::Http { name } => name.as_ref(),
            Self::Other => None,
        }
    }
}

/// Looks at what has come so far; `None` while more could change the answer. At [`MAX_BYTES`] there always is
/// one.
pub fn sniff(bytes: &[u8]) -> Option<Sniffed> {
    let complete = bytes.len() >= MAX_BYTES;
    let bytes = &bytes[..bytes.len().min(MAX_BYTES)];
    let first = *bytes.first()?;
    let found = match first {
        // A handshake record; and the version 2 hello, which carries no name.
        0x16 => tls::client_hello(bytes),
        0x80.. if bytes.get(2).is_none_or(|kind| *kind == 1) => {
            if bytes.len() < 3 {
                None
            } else {
                Some(Sniffed::Tls { name: None })
            }
        }
        _ => http::request(bytes),
    };
    match found {
        None if complete => {
            Some(if first == 0x16 { Sniffed::Tls { name: None } } else { Sniffed::Http { name: None } })
        }
        found => found,
    }
}

#[cfg(test)]
#[path = "sniff_tests.rs"]
mod tests;
