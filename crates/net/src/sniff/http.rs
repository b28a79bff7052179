//! The head of an HTTP/1 request (RFC 9112), read for its one authority.

use super::Sniffed;
use sandcrate_protocol::network::HostName;

/// Longer than any registered method.
const MAX_METHOD: usize = 24;

/// `None` while the head is not complete.
pub(super) fn request(bytes: &[u8]) -> Option<Sniffed> {
    // Servers skip empty lines in front of a request (RFC 9112, 2.2).
    let start = bytes.iter().position(|byte| !matches!(byte, b'\r' | b'\n'))?;
    let bytes = &bytes[start..];
    match method_length(bytes) {
        Method::Incomplete => return None,
        Method::None => return Some(Sniffed::Other),
        Method::Length(_) => {}
    }
    let line_end = bytes.iter().position(|byte| *byte == b'\n');
    let Some(line_end) = line_end else {
        // A first line that cannot be a request any more: no other words than printable ones.
        return if bytes.iter().any(|byte| byte.is_ascii_control() && *byte != b'\r') {
            Some(Sniffed::Other)
        } else {
            None
        };
    };
    let line = trim_return(&bytes[..line_end]);
    let Some(target) = request_target(line) else { return Some(Sniffed::Other) };
    if line.starts_with(b"PRI * ") {
        // HTTP/2 without TLS: names come later, compressed.
        return Some(Sniffed::Http { name: None });
    }
    let mut rest = &bytes[line_end + 1..];
    let mut hosts: Vec<&[u8]> = Vec::new();
    let mut ambiguous = false;
    loop {
        let end = rest.iter().position(|byte| *byte == b'\n')?;
        let line = trim_return(&rest[..end]);
        rest = &rest[end + 1..];
        if line.is_empty() {
            break;
        }
        match line.iter().position(|byte| *byte == b':') {
            // Folded lines, and blanks before the colon, mean different things to different servers.
            _ if matches!(line[0], b' ' | b'\t') => ambiguous = true,
            None => ambiguous = true,
            Some(colon) => {
                let (field, value) = (&line[..colon], &line[colon + 1..]);
                ambiguous |= field.iter().any(|byte| byte.is_ascii_whitespace() || byte.is_ascii_control());
                if field.eq_ignore_ascii_case(b"host") {
                    hosts.push(value.trim_ascii());
                }
            }
        }
    }
    Some(Sniffed::Http { name: if ambiguous { None } else { authority(target, &hosts) } })
}

enum Method {
    Incomplete,
    None,
    Length(#[expect(dead_code, reason = "says that there is one")] usize),
}

fn method_length(bytes: &[u8]) -> Method {
    for (index, byte) in bytes.iter().take(MAX_METHOD + 1).enumerate() {
        match byte {
            b' ' | b'\t' if index > 0 => return Method::Length(index),
            // The token characters that any method in use consists of.
            b'A'..=b'Z' | b'a'..=b'z' | b'-' | b'_' => {}
            _ => return Method::None,
        }
    }
    if bytes.len() > MAX_METHOD { Method::None } else { Method::Incomplete }
}

/// The middle of `METHOD target HTTP/x.y`; `None` for other lines. Some servers take `METHOD target` alone, as
/// HTTP/0.9: that one is a request without a host.
fn request_target(line: &[u8]) -> Option<&[u8]> {
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty());
    let method = words.next()?;
    let target = words.next()?;
    match words.next() {
        Some(version) if version.starts_with(b"HTTP/") => Some(target),
        None if method == b"GET" => Some(target),
        // What has a method and a path is near enough to a request for some server.
        Some(_) | None if target.starts_with(b"/") => Some(target),
        _ => None,
    }
}

/// The host that target and header agree on.
fn authority(target: &[u8], hosts: &[&[u8]]) -> Option<HostName> {
    let header = match hosts {
        [host] => host_of(host)?,
        _ => return None,
    };
    let lower = target.to_ascii_lowercase();
    let in_target =
        if let Some(rest) = lower.strip_prefix(b"http://").or_else(|| lower.strip_prefix(b"https://")) {
            let authority = rest.split(|byte| matches!(byte, b'/' | b'?' | b'#')).next()?;
            Some(host_of(authority)?)
        } else if target.starts_with(b"/") || target == b"*" {
            None
        } else {
            // CONNECT host:port; or nothing that we understand.
            Some(host_of(target)?)
        };
    match in_target {
        Some(name) if name != header => None,
        _ => Some(header),
    }
}

fn host_of(authority: &[u8]) -> Option<HostName> {
    let text = std::str::from_utf8(authority).ok()?;
    let host = match text.split_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        Some(_) => return None,
        None => text,
    };
    host.parse().ok()
}

fn trim_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}
