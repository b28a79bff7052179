//! JSON as editors write it: comments and trailing commas become spaces, so that every other byte stays in its place.

/// The same text as strict JSON. What is not JSON for another reason is left for the parser to find.
pub(super) fn to_json(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    // The mark that some editors of Windows put first.
    if bytes.starts_with(b"\xef\xbb\xbf") {
        bytes[..3].fill(b' ');
    }
    let mut comma: Option<usize> = None;
    let mut at = 0;
    while at < bytes.len() {
        match (bytes[at], bytes.get(at + 1)) {
            (b'"', _) => {
                comma = None;
                at = end_of_string(&bytes, at);
                continue;
            }
            (b'/', Some(b'/')) => {
                let end = (at..bytes.len()).find(|end| bytes[*end] == b'\n').unwrap_or(bytes.len());
                bytes[at..end].fill(b' ');
                at = end;
                continue;
            }
            (b'/', Some(b'*')) => {
                let end = (at + 2..bytes.len()).find(|end| bytes[*end..].starts_with(b"*/"));
                let end = end.map_or(bytes.len(), |end| end + 2);
                for byte in &mut bytes[at..end] {
                    // Lines keep their numbers.
                    if *byte != b'\n' {
                        *byte = b' ';
                    }
                }
                at = end;
                continue;
            }
            (b',', _) => comma = Some(at),
            (b'}' | b']', _) => {
                if let Some(comma) = comma.take() {
                    bytes[comma] = b' ';
                }
            }
            (byte, _) if byte.is_ascii_whitespace() => {}
            _ => comma = None,
        }
        at += 1;
    }
    // Only whole comments and single ASCII bytes were replaced.
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

/// The place after the closing quote.
fn end_of_string(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn comments_and_trailing_commas_are_gone_and_nothing_moved() {
        let text = "\u{feff}{ // one\n \"a\": [1, 2, /* two, */ ],\n \"url\": \"http://x/*y*/\", \"q\": \"\\\"//\",\n /* é */ }";
        let strict = to_json(text);
        assert_eq!(strict.len(), text.len());
        assert_eq!(strict.lines().count(), text.lines().count());
        let value: Value = serde_json::from_str(&strict).unwrap();
        assert_eq!(value, json!({"a": [1, 2], "url": "http://x/*y*/", "q": "\"//"}));
    }

    #[test]
    fn strict_json_is_unchanged_and_broken_text_ends() {
        let text = r#"{"a": ["b,]", {}], "c": "/"}"#;
        assert_eq!(to_json(text), text);
        for broken in ["\"", "/*", "{,", "\"\\", "[1,,]", "//"] {
            assert_eq!(to_json(broken).len(), broken.len());
        }
    }
}
