//! How Python prints and trims: peers compare or show what the reference runtime wrote, so numbers, values
//! in messages and white space follow its rules.

use std::fmt::Write as _;

use serde_json::Value;

/// The longest value that a message shows in full, in bytes.
const SHOWN_IN_FULL: usize = 50;

/// `str.strip()`: Unicode white space, and the four ASCII separators that Rust does not count.
pub fn trim(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_whitespace() || ('\x1c'..='\x1f').contains(&c))
}

/// `repr(float)` of a finite number: the shortest digits, an exponent outside 1e-4..1e16.
pub fn float(value: f64) -> String {
    let scientific = format!("{value:e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific };
    let Ok(exponent) = exponent.parse::<i32>() else { return scientific };
    if !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs());
    }
    let mut plain = format!("{value}");
    if !plain.contains('.') {
        plain.push_str(".0");
    }
    plain
}

/// The name of the type that Python's `json.loads` gives.
pub fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "NoneType",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float",
        Value::Number(_) => "int",
        Value::String(_) => "str",
        Value::Array(_) => "list",
        Value::Object(_) => "dict",
    }
}

/// `repr(value)`, the middle left out when it is long. What is inside lists and objects is never shown:
/// these messages are logged, and an object may hold the environment.
pub(crate) fn shown(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) => match number.as_f64() {
            Some(value) if number.is_f64() => float(value),
            _ => number.to_string(),
        },
        Value::String(text) => elide(text),
        Value::Array(items) if items.is_empty() => "[]".to_owned(),
        Value::Array(_) => "[...]".to_owned(),
        Value::Object(fields) if fields.is_empty() => "{}".to_owned(),
        Value::Object(_) => "{...}".to_owned(),
    }
}

fn elide(text: &str) -> String {
    // Only the ends are looked at: no text becomes shorter by being quoted.
    if text.len() <= 4 * SHOWN_IN_FULL {
        let quoted = string(text);
        if quoted.len() <= SHOWN_IN_FULL {
            return quoted;
        }
        return join_ends(&quoted, &quoted);
    }
    let (head, _) = text.split_at(text.floor_char_boundary(2 * SHOWN_IN_FULL));
    let (_, tail) = text.split_at(text.ceil_char_boundary(text.len() - 2 * SHOWN_IN_FULL));
    join_ends(&string(head), &string(tail))
}

fn join_ends(head: &str, tail: &str) -> String {
    let head = head.split_at(head.floor_char_boundary(25)).0;
    let tail = tail.split_at(tail.ceil_char_boundary(tail.len().saturating_sub(24))).1;
    format!("{head}...{tail}")
}

/// `repr(str)`.
pub fn string(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::with_capacity(text.len() + 2);
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if c == quote => out.extend(['\\', c]),
            ' '..='~' => out.push(c),
            // Writing to a String cannot fail.
            _ if printable(c) => out.push(c),
            _ => {
                let code = u32::from(c);
                let _ = match code {
                    0..=0xff => write!(out, "\\x{code:02x}"),
                    0x100..=0xffff => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
    out
}

/// Near enough to `str.isprintable()`: Rust's own table, and no white space but the blank.
fn printable(c: char) -> bool {
    !c.is_whitespace() && c.escape_debug().len() == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_space_is_what_python_takes_for_it() {
        assert_eq!(trim("\x1c\x1d\x1e\x1f\u{85}\u{a0}\u{3000} a b \r\n\x0b\x0c"), "a b");
        assert_eq!(trim("\u{200b}a\u{feff}"), "\u{200b}a\u{feff}");
    }

    #[test]
    fn floats_look_like_those_of_python() {
        for (value, text) in [
            (1.0, "1.0"),
            (0.5, "0.5"),
            (-0.0, "-0.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.234_567_890_123_456_8e17, "1.2345678901234568e+17"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (2.5e-9, "2.5e-09"),
            (1e300, "1e+300"),
            (f64::MAX, "1.7976931348623157e+308"),
            (5e-324, "5e-324"),
            (0.1 + 0.2, "0.30000000000000004"),
        ] {
            assert_eq!(float(value), text);
        }
    }

    #[test]
    fn a_huge_string_is_shown_by_its_ends() {
        let text = format!("a{}z", "好".repeat(1_000_000));
        let shown = shown(&Value::String(text));
        assert!(shown.len() <= 52 && shown.starts_with("'a好") && shown.ends_with("好z'"), "{shown}");
    }
}
