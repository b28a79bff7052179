//! What a plain scalar means, by the rules of YAML 1.1 that the reference reads with, and how Python prints it.

use sandcrate_protocol::{python_float, python_repr};

use super::yaml::Value;

pub(super) fn resolve(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => return Value::Bool(true),
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => {
            return Value::Bool(false);
        }
        _ => {}
    }
    integer(text).or_else(|| float(text)).unwrap_or_else(|| Value::Text(text.to_owned()))
}

fn integer(text: &str) -> Option<Value> {
    let (sign, digits) = match text.strip_prefix(['-', '+']) {
        Some(rest) => (if text.starts_with('-') { "-" } else { "" }, rest),
        None => ("", text),
    };
    if !digits.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let bare: String = digits.chars().filter(|c| *c != '_').collect();
    let radix = |prefix: usize, radix| u128::from_str_radix(bare.get(prefix..)?, radix).ok();
    let value = match bare.as_bytes() {
        [b'0', b'x', ..] => radix(2, 16)?.to_string(),
        [b'0', b'b', ..] => radix(2, 2)?.to_string(),
        [b'0', _, ..] => radix(1, 8)?.to_string(),
        all if all.iter().all(u8::is_ascii_digit) => bare,
        _ => return None,
    };
    Some(Value::Int(if value == "0" { value } else { format!("{sign}{value}") }))
}

fn float(text: &str) -> Option<Value> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let negative = text.starts_with('-');
    match unsigned {
        ".inf" | ".Inf" | ".INF" => {
            return Some(Value::Float(if negative { f64::NEG_INFINITY } else { f64::INFINITY }));
        }
        ".nan" | ".NaN" | ".NAN" => return Some(Value::Float(f64::NAN)),
        _ => {}
    }
    // A dot is needed, and a sign in the exponent: `1e3` is a word in YAML 1.1.
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    let (whole, fraction) = mantissa.split_once('.')?;
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_');
    let signed = |text: &str| {
        let rest = text.strip_prefix(['-', '+']);
        rest.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    if !digits(whole) || !digits(fraction) || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    if !exponent.is_none_or(signed)
        || whole.starts_with('_')
        || (whole.is_empty() && fraction.starts_with('_'))
    {
        return None;
    }
    let bare: String = text.chars().filter(|c| *c != '_').collect();
    bare.parse().ok().map(Value::Float)
}

impl Value {
    /// `str(value)`, and nothing for null: a key without a value says nothing.
    pub(super) fn python_text(&self) -> String {
        match self {
            Self::Null => String::new(),
            Self::Text(text) => text.clone(),
            other => other.python_repr(),
        }
    }

    fn python_repr(&self) -> String {
        match self {
            Self::Null => "None".to_owned(),
            Self::Bool(true) => "True".to_owned(),
            Self::Bool(false) => "False".to_owned(),
            Self::Int(digits) => digits.clone(),
            Self::Float(value) if value.is_nan() => "nan".to_owned(),
            Self::Float(value) if value.is_infinite() => {
                if *value > 0.0 {
                    "inf".to_owned()
                } else {
                    "-inf".to_owned()
                }
            }
            Self::Float(value) => python_float(*value),
            Self::Text(text) => python_repr(text),
            Self::List(items) => {
                let items: Vec<_> = items.iter().map(Self::python_repr).collect();
                format!("[{}]", items.join(", "))
            }
            Self::Map(mapping) => {
                let pair =
                    |(key, value): (&Self, &Self)| format!("{}: {}", key.python_repr(), value.python_repr());
                let pairs: Vec<_> = mapping.entries().map(pair).collect();
                format!("{{{}}}", pairs.join(", "))
            }
        }
    }
}
