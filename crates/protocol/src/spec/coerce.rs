//! Reading single values as leniently as the reference does: `"30"` and `30.0` are the integer 30, `"yes"`
//! is true. What is refused, and with which words, was recorded from the reference.

use std::borrow::Cow;

use serde_json::{Number, Value};

use super::invalid::Issue;

const NOT_AN_INTEGER: &str = "Input should be a valid integer, unable to parse string as an integer";
const NOT_A_NUMBER: &str = "Input should be a valid number, unable to parse string as a number";
const NOT_A_BOOLEAN: &str = "Input should be a valid boolean, unable to interpret input";

pub(super) fn string(value: &Value) -> Result<&str, Issue> {
    value.as_str().ok_or_else(|| Issue::new("string_type", "Input should be a valid string", value))
}

/// Integers beyond `i128` come back as its nearest end: every field's bound is far below.
pub(super) fn integer(value: &Value) -> Result<i128, Issue> {
    match value {
        Value::Number(number) => integer_number(number).ok_or_else(|| {
            let message = "Input should be a valid integer, got a number with a fractional part";
            Issue::new("int_from_float", message, value)
        }),
        Value::Bool(truth) => Ok(i128::from(*truth)),
        Value::String(text) => {
            integer_text(text).ok_or_else(|| Issue::new("int_parsing", NOT_AN_INTEGER, value))
        }
        _ => Err(Issue::new("int_type", "Input should be a valid integer", value)),
    }
}

/// The integer that a lenient reader sees in `value`: `45`, `45.0`, `true`, `" +4_5.00 "`. Values that do
/// not fit come back as the nearest `i128`.
pub fn lax_integer(value: &Value) -> Option<i128> {
    integer(value).ok()
}

fn integer_number(number: &Number) -> Option<i128> {
    if let Some(value) = number.as_i128() {
        return Some(value);
    }
    let float = number.as_f64()?;
    // The conversion saturates.
    (float.is_finite() && float.fract() == 0.0).then_some(float as i128)
}

fn integer_text(text: &str) -> Option<i128> {
    let text = text.trim();
    let (negative, digits) = match text.strip_prefix(['-', '+']) {
        Some(rest) => (text.starts_with('-'), rest),
        None => (false, text),
    };
    let digits = match digits.split_once('.') {
        Some((whole, zeros)) if !zeros.is_empty() && zeros.bytes().all(|byte| byte == b'0') => whole,
        Some(_) => return None,
        None => digits,
    };
    let mut value: i128 = 0;
    for byte in without_underscores(digits)?.bytes() {
        if !byte.is_ascii_digit() {
            return None;
        }
        value = value.saturating_mul(10).saturating_add(i128::from(byte - b'0'));
    }
    Some(if negative { -value } else { value })
}

/// Removes single underscores between other characters; none may stand at an end or beside another.
fn without_underscores(text: &str) -> Option<Cow<'_, str>> {
    if text.is_empty() || text.starts_with('_') || text.ends_with('_') || text.contains("__") {
        return None;
    }
    Some(if text.contains('_') { Cow::Owned(text.replace('_', "")) } else { Cow::Borrowed(text) })
}

pub(super) fn float(value: &Value) -> Result<f64, Issue> {
    let float = match value {
        Value::Number(number) => number.as_f64(),
        Value::Bool(truth) => Some(f64::from(*truth)),
        Value::String(text) => {
            let parsed = without_underscores(text.trim()).and_then(|text| text.parse::<f64>().ok());
            Some(parsed.ok_or_else(|| Issue::new("float_parsing", NOT_A_NUMBER, value))?)
        }
        _ => None,
    };
    match float {
        Some(float) if float.is_finite() => Ok(float),
        Some(_) => Err(Issue::new("finite_number", "Input should be a finite number", value)),
        None => Err(Issue::new("float_type", "Input should be a valid number", value)),
    }
}

pub(super) fn boolean(value: &Value) -> Result<bool, Issue> {
    let unclear = || Issue::new("bool_parsing", NOT_A_BOOLEAN, value);
    match value {
        Value::Bool(truth) => Ok(*truth),
        Value::Number(number) => match integer_number(number) {
            Some(0) => Ok(false),
            Some(1) => Ok(true),
            Some(_) => Err(unclear()),
            None => Err(Issue::new("bool_type", "Input should be a valid boolean", value)),
        },
        Value::String(text) => match text.to_ascii_lowercase().as_str() {
            "1" | "true" | "t" | "yes" | "y" | "on" => Ok(true),
            "0" | "false" | "f" | "no" | "n" | "off" => Ok(false),
            _ => Err(unclear()),
        },
        _ => Err(Issue::new("bool_type", "Input should be a valid boolean", value)),
    }
}
