//! JSON as the reference writes it: keys in order, numbers as they stand, Python's separators and escapes.

use std::fmt::Write;

/// A document whose order and number texts are kept, so that whole replies can be compared as text.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Json {
    Null,
    Bool(bool),
    /// As written: 1.0, 1e-09 and 30-digit integers stay what they are.
    Number(String),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// # Panics
    /// If the text is no JSON document.
    #[track_caller]
    pub(super) fn parse(text: &str) -> Self {
        Self::try_parse(text).unwrap_or_else(|| panic!("no JSON: {}", super::shorten(text)))
    }

    pub(super) fn try_parse(text: &str) -> Option<Self> {
        let mut rest = text.trim();
        let value = value(&mut rest)?;
        rest.trim().is_empty().then_some(value)
    }

    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        let Self::Object(pairs) = self else { return None };
        pairs.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// # Panics
    /// If there is no such key.
    #[track_caller]
    pub(super) fn at(&self, key: &str) -> &Self {
        self.get(key).unwrap_or_else(|| panic!("no `{key}` in {}", super::shorten(&self.python())))
    }

    /// # Panics
    /// If it is not a text.
    #[track_caller]
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            other => panic!("not a text: {}", super::shorten(&other.python())),
        }
    }

    pub(super) fn list(&self) -> &[Self] {
        match self {
            Self::List(items) => items,
            _ => &[],
        }
    }

    /// What `json.dumps` of Python prints.
    pub(super) fn python(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Self::Number(text) => out.push_str(text),
            Self::Text(text) => quote(text, out),
            Self::List(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    out.push_str(if index == 0 { "" } else { ", " });
                    item.write(out);
                }
                out.push(']');
            }
            Self::Object(pairs) => {
                out.push('{');
                for (index, (key, value)) in pairs.iter().enumerate() {
                    out.push_str(if index == 0 { "" } else { ", " });
                    quote(key, out);
                    out.push_str(": ");
                    value.write(out);
                }
                out.push('}');
            }
        }
    }
}

fn quote(text: &str, out: &mut String) {
    out.push('"');
    for char in text.chars() {
        match char {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            ' '..='~' => out.push(char),
            other => {
                for unit in other.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out.push('"');
}

fn value(rest: &mut &str) -> Option<Json> {
    *rest = rest.trim_start();
    match rest.as_bytes().first()? {
        b'{' => members(rest, '}', |rest| {
            let key = string(rest)?;
            take(rest, ':')?;
            Some((key, value(rest)?))
        })
        .map(Json::Object),
        b'[' => members(rest, ']', value).map(Json::List),
        b'"' => string(rest).map(Json::Text),
        _ => {
            let end = rest.find([',', '}', ']', ' ', '\n', '\r', '\t']).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            *rest = after;
            match word {
                "null" => Some(Json::Null),
                "true" => Some(Json::Bool(true)),
                "false" => Some(Json::Bool(false)),
                number => number.parse::<f64>().ok().map(|_| Json::Number(number.to_owned())),
            }
        }
    }
}

fn members<T>(rest: &mut &str, end: char, item: impl Fn(&mut &str) -> Option<T>) -> Option<Vec<T>> {
    *rest = &rest[1..];
    let mut found = Vec::new();
    if take(rest, end).is_some() {
        return Some(found);
    }
    loop {
        found.push(item(rest)?);
        if take(rest, end).is_some() {
            return Some(found);
        }
        take(rest, ',')?;
    }
}

fn take(rest: &mut &str, char: char) -> Option<()> {
    *rest = rest.trim_start().strip_prefix(char)?;
    Some(())
}

fn string(rest: &mut &str) -> Option<String> {
    *rest = rest.trim_start();
    let mut escaped = false;
    let end = rest.char_indices().skip(1).find_map(|(index, char)| {
        let ends = char == '"' && !escaped;
        escaped = char == '\\' && !escaped;
        ends.then_some(index)
    })?;
    let (literal, after) = rest.split_at(end + 1);
    *rest = after;
    serde_json::from_str(literal).ok()
}

#[test]
fn documents_come_back_as_they_were() {
    for text in [
        r#"{"b": 1.0, "a": [1e-09, 123456789012345678901234567890, -1], "c": {}, "d": []}"#,
        r#"{"message": "\u4f60 \ud83c\udf0d \"quoted\" \\ \n\t\u0000", "ok": true, "none": null}"#,
    ] {
        assert_eq!(Json::parse(text).python(), text);
    }
    assert_eq!(Json::try_parse(r#"{"a": 1"#), None);
    assert_eq!(Json::try_parse("{\"a\": 1} x"), None);
}
