//! Addresses of the API: segments of a path, queries.

use std::fmt::Write;

/// A path of the API out of segments, each percent-encoded.
pub(super) fn path(segments: &[&str]) -> String {
    segments.iter().fold(String::new(), |mut path, segment| {
        path.push('/');
        encode(&mut path, segment, "");
        path
    })
}

/// The path of the API for an absolute path of the box.
pub(super) fn file_path(session: &str, file: &str) -> String {
    let mut path = path(&["v1", "sessions", session, "files"]);
    path.push('/');
    encode(&mut path, file.trim_start_matches('/'), "/");
    path
}

/// `?a=b&c=d`, or nothing.
pub(super) fn query(pairs: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (key, value) in pairs {
        text.push(if text.is_empty() { '?' } else { '&' });
        encode(&mut text, key, "");
        text.push('=');
        encode(&mut text, value, "");
    }
    text
}

/// RFC 3986: all but unreserved characters, and those in `also`, are escaped.
fn encode(out: &mut String, text: &str, also: &str) {
    for byte in text.bytes() {
        let plain =
            byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || also.as_bytes().contains(&byte);
        if plain {
            out.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_any_kind_stay_one_segment() {
        assert_eq!(path(&["v1", "sessions", "a/b c?ä%"]), "/v1/sessions/a%2Fb%20c%3F%C3%A4%25");
        assert_eq!(file_path("s", "/workspace/a b#c"), "/v1/sessions/s/files/workspace/a%20b%23c");
        assert_eq!(file_path("s", "/"), "/v1/sessions/s/files/");
        assert_eq!(query(&[("cmd", "a&b=c+d"), ("rows", "2")]), "?cmd=a%26b%3Dc%2Bd&rows=2");
        assert_eq!(query(&[]), "");
    }
}
