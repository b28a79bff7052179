//! Writes front matter: texts in the styles of PyYAML, which wrote those that exist; the rest as flow YAML.

use std::fmt::Write;

use super::scalar;
use super::yaml::{Mapping, Value};

/// `key: value` with its line end.
pub(super) fn entry(key: &str, value: &str, line_end: &str) -> String {
    format!("{}: {}{line_end}", text(key, line_end), text(value, line_end))
}

pub(super) fn mapping(mapping: &Mapping, line_end: &str) -> String {
    let mut out = String::new();
    for (key, value) in mapping.entries() {
        let key = match key {
            Value::Text(key) => text(key, line_end),
            other => format!("? {}{line_end}", flow(other)),
        };
        let value = match value {
            Value::Text(value) => text(value, line_end),
            other => flow(other),
        };
        let _ = write!(out, "{key}: {value}{line_end}");
    }
    out
}

/// A text as a block scalar of one style: plain where nothing can be taken for something else.
fn text(value: &str, line_end: &str) -> String {
    if is_plain(value) {
        return value.to_owned();
    }
    let special = |c: char| {
        (c.is_control() && c != '\n') || matches!(c, '\u{85}' | '\u{2028}' | '\u{2029}' | '\u{feff}')
    };
    // Blanks beside a line break would be folded away, and a text of line breaks alone has no other line.
    let folds = value.lines().any(|line| line.starts_with(' ') || line.ends_with(' '))
        || value.starts_with('\n')
        || value.ends_with('\n');
    if value.chars().any(special) || (value.contains('\n') && folds) {
        return quoted(value);
    }
    let single = value.replace('\'', "''");
    // A break is two in the text; a run of n breaks is n + 1.
    let mut out = String::from("'");
    let mut breaks = 0;
    for c in single.chars() {
        if c == '\n' {
            breaks += 1;
            continue;
        }
        if breaks > 0 {
            out.extend(std::iter::repeat_n(line_end, breaks + 1));
            out.push_str("  ");
            breaks = 0;
        }
        out.push(c);
    }
    out.push('\'');
    out
}

/// Double quotes can hold everything.
fn quoted(value: &str) -> String {
    let mut out = String::from("\"");
    for c in value.chars() {
        let code = u32::from(c);
        // Writing to a String cannot fail.
        let _ = match c {
            '"' | '\\' => write!(out, "\\{c}"),
            '\n' => write!(out, "\\n"),
            '\r' => write!(out, "\\r"),
            '\t' => write!(out, "\\t"),
            '\u{85}' | '\u{2028}' | '\u{2029}' | '\u{feff}' => write!(out, "\\u{code:04x}"),
            c if c.is_control() => write!(out, "\\u{code:04x}"),
            c => write!(out, "{c}"),
        };
    }
    out.push('"');
    out
}

fn is_plain(value: &str) -> bool {
    let starts_badly = |c: char| "-?:,[]{}#&*!|>'\"%@`=<~. ".contains(c);
    // Other readers see numbers of base 60, dates and times where ours does not.
    let number_like = |value: &str| {
        value.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '.'))
            && value.chars().all(|c| c.is_ascii_hexdigit() || ":._+-xXoOtTzZ ".contains(c))
    };
    matches!(scalar::resolve(value), Value::Text(_))
        && !matches!(value, "y" | "Y" | "n" | "N")
        && !value.starts_with(starts_badly)
        && !value.ends_with([' ', ':'])
        && !value.contains(": ")
        && !value.contains(" #")
        && !number_like(value)
        && value
            .chars()
            .all(|c| !c.is_control() && !matches!(c, '\u{85}' | '\u{2028}' | '\u{2029}' | '\u{feff}'))
}

/// On one line, whatever it is.
fn flow(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Int(digits) => digits.clone(),
        Value::Float(value) if value.is_nan() => ".nan".to_owned(),
        Value::Float(value) if value.is_infinite() => if *value > 0.0 { ".inf" } else { "-.inf" }.to_owned(),
        Value::Float(value) => {
            // YAML 1.1 wants a dot, and a sign in the exponent.
            let text = format!("{value:?}");
            match text.split_once('e') {
                Some((mantissa, exponent)) => {
                    let dot = if mantissa.contains('.') { "" } else { ".0" };
                    let sign = if exponent.starts_with('-') { "" } else { "+" };
                    format!("{mantissa}{dot}e{sign}{exponent}")
                }
                None => text,
            }
        }
        Value::Text(text) => quoted(text),
        Value::List(items) => {
            let items: Vec<_> = items.iter().map(flow).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Map(mapping) => {
            let pair = |(key, value): (&Value, &Value)| format!("{}: {}", flow(key), flow(value));
            let pairs: Vec<_> = mapping.entries().map(pair).collect();
            format!("{{{}}}", pairs.join(", "))
        }
    }
}
