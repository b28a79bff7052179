//! ClientHello (RFC 8446, 4.1.2) far enough to find the server name.

use super::Sniffed;
use sandcrate_protocol::network::HostName;

const NO_NAME: Option<Sniffed> = Some(Sniffed::Tls { name: None });

/// `None` while the hello is not complete.
pub(super) fn client_hello(bytes: &[u8]) -> Option<Sniffed> {
    let handshake = match join_records(bytes) {
        Records::Incomplete => return None,
        Records::Malformed => return NO_NAME,
        Records::Hello(handshake) => handshake,
    };
    Some(Sniffed::Tls { name: server_name(&handshake) })
}

enum Records {
    Incomplete,
    Malformed,
    /// The body of the first handshake message.
    Hello(Vec<u8>),
}

/// A hello may be cut into records at any place, to the byte: a known way past filters.
fn join_records(mut bytes: &[u8]) -> Records {
    let mut handshake = Vec::new();
    loop {
        let wanted = match handshake.get(..4) {
            Some([1, a, b, c]) => Some(4 + (usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c))),
            Some(_) => return Records::Malformed,
            None => None,
        };
        if let Some(wanted) = wanted {
            if wanted > super::MAX_BYTES {
                return Records::Malformed;
            }
            if let Some(body) = handshake.get(4..wanted) {
                return Records::Hello(body.to_vec());
            }
        }
        match bytes {
            [kind, ..] if *kind != 0x16 => return Records::Malformed,
            [_, major, ..] if *major != 3 => return Records::Malformed,
            [_, _, _, high, low, rest @ ..] => {
                let length = usize::from(*high) << 8 | usize::from(*low);
                // Empty handshake records are forbidden, and 2^14 is the most (RFC 8446, 5.1).
                if length == 0 || length > 1 << 14 {
                    return Records::Malformed;
                }
                let available = length.min(rest.len());
                handshake.extend_from_slice(&rest[..available]);
                if available < length {
                    // The hello may be whole already, in a record that goes on.
                    return match handshake.get(..4) {
                        Some([1, a, b, c]) => {
                            let wanted = 4 + (usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c));
                            match handshake.get(4..wanted) {
                                Some(body) => Records::Hello(body.to_vec()),
                                None if wanted > super::MAX_BYTES => Records::Malformed,
                                None => Records::Incomplete,
                            }
                        }
                        Some(_) => Records::Malformed,
                        None => Records::Incomplete,
                    };
                }
                bytes = &rest[available..];
            }
            _ => return Records::Incomplete,
        }
    }
}

/// The one name of the one server_name extension, or none.
fn server_name(hello: &[u8]) -> Option<HostName> {
    let mut body = Reader(hello);
    body.take(2 + 32)?;
    let session = body.u8()?;
    body.take(session.into())?;
    let ciphers = body.u16()?;
    body.take(ciphers.into())?;
    let compressions = body.u8()?;
    body.take(compressions.into())?;
    let length = body.u16()?;
    let mut extensions = Reader(body.take(length.into())?);
    if !body.0.is_empty() {
        return None;
    }
    let mut found = None;
    while !extensions.0.is_empty() {
        let kind = extensions.u16()?;
        let length = extensions.u16()?;
        let content = extensions.take(length.into())?;
        if kind == 0 {
            // A second one is an error by the RFC; who knows which a server takes.
            if found.is_some() {
                return None;
            }
            found = Some(one_host_name(content)?);
        }
    }
    found
}

fn one_host_name(content: &[u8]) -> Option<HostName> {
    let mut list = Reader(content);
    if usize::from(list.u16()?) != list.0.len() || list.u8()? != 0 {
        return None;
    }
    let length = list.u16()?;
    let name = list.take(length.into())?;
    if !list.0.is_empty() || name.ends_with(b".") {
        return None;
    }
    std::str::from_utf8(name).ok()?.parse().ok()
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }
}
