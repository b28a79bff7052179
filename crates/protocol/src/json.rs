//! JSON as Python's `json.dumps` writes it, and a scanner that finds the end of a value without parsing it.

use std::io;

use serde::Serialize;
use serde_json::ser::Formatter;

use crate::python;

/// Writes `value` as `json.dumps` does by default: `", "` and `": "` between items, everything outside
/// printable ASCII as `\uXXXX`, floats with Python's digits.
///
/// # Errors
/// When `value` cannot be JSON: a map with keys that are not strings, or a failing `Serialize`.
pub fn to_wire_json<T: Serialize + ?Sized>(value: &T) -> Result<String, serde_json::Error> {
    let mut out = Vec::with_capacity(256);
    write_wire_json(&mut out, value)?;
    match String::from_utf8(out) {
        Ok(text) => Ok(text),
        Err(_) => unreachable!("the formatter writes strings in pieces of valid UTF-8"),
    }
}

pub(crate) fn write_wire_json<T: Serialize + ?Sized>(
    out: &mut Vec<u8>,
    value: &T,
) -> Result<(), serde_json::Error> {
    value.serialize(&mut serde_json::Serializer::with_formatter(out, PythonFormatter))
}

struct PythonFormatter;

impl Formatter for PythonFormatter {
    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(python::float(value).as_bytes())
    }

    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }

    /// Gets the runs between the characters that any JSON has to escape.
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        mut fragment: &str,
    ) -> io::Result<()> {
        while !fragment.is_empty() {
            let (plain, rest) = fragment.split_at(plain_prefix(fragment));
            if !plain.is_empty() {
                writer.write_all(plain.as_bytes())?;
            }
            let mut chars = rest.chars();
            fragment = loop {
                let before = chars.as_str();
                match chars.next() {
                    Some(c) if c >= '\x7f' => write_escaped(writer, c)?,
                    _ => break before,
                }
            };
        }
        Ok(())
    }
}

/// The bytes before the first character from DEL up. Whole blocks are tested at once: a byte from 0x7f up
/// plus one has the high bit, and 0xff, which would wrap, is not in UTF-8.
fn plain_prefix(text: &str) -> usize {
    let is_plain = |byte: &u8| *byte < 0x7f;
    let bytes = text.as_bytes();
    let mut blocks = bytes.chunks_exact(32);
    let clean = blocks
        .by_ref()
        .take_while(|block| block.iter().fold(0, |seen, byte| seen | byte.wrapping_add(1)) & 0x80 == 0)
        .count();
    let start = clean * 32;
    start + bytes[start..].iter().position(|byte| !is_plain(byte)).unwrap_or(bytes.len() - start)
}

fn write_escaped<W: ?Sized + io::Write>(writer: &mut W, c: char) -> io::Result<()> {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut units = [0; 2];
    for unit in c.encode_utf16(&mut units) {
        let digit = |shift: u16| HEX[usize::from((*unit >> shift) & 0xf)];
        writer.write_all(&[b'\\', b'u', digit(12), digit(8), digit(4), digit(0)])?;
    }
    Ok(())
}

/// Follows the structure of JSON text that arrives in pieces: how deep it is, whether inside a string, how
/// many values there can be. Looks at bytes only, so a piece may end anywhere.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scanner {
    depth: usize,
    in_string: bool,
    after_backslash: bool,
    opened: bool,
    excess: bool,
    nodes: usize,
}

impl Scanner {
    pub(crate) fn feed(&mut self, text: &str) {
        for byte in text.bytes() {
            if self.in_string {
                match byte {
                    _ if self.after_backslash => self.after_backslash = false,
                    b'\\' => self.after_backslash = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => {
                    self.excess |= self.complete();
                    self.opened = true;
                    self.depth += 1;
                    self.nodes += 1;
                }
                b'}' | b']' => match self.depth.checked_sub(1) {
                    Some(depth) => self.depth = depth,
                    None => self.excess = true,
                },
                b',' | b':' => self.nodes += 1,
                _ => {}
            }
        }
    }

    /// All that was opened is closed again.
    pub(crate) fn complete(&self) -> bool {
        self.opened && self.depth == 0 && !self.in_string
    }

    /// More was closed than opened, or a second value follows the first.
    pub(crate) fn excess(&self) -> bool {
        self.excess
    }

    /// An upper bound for the number of values.
    pub(crate) fn nodes(&self) -> usize {
        self.nodes + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_what_json_dumps_writes() {
        let value = serde_json::json!({"a": [1, 1.0, null, true], "b": {}, "c": [], "d": "é\u{7f}\u{0}\n\"\\/\u{8}\u{c}😀x"});
        assert_eq!(
            to_wire_json(&value).unwrap(),
            r#"{"a": [1, 1.0, null, true], "b": {}, "c": [], "d": "\u00e9\u007f\u0000\n\"\\/\b\f\ud83d\ude00x"}"#
        );
    }

    #[test]
    fn long_strings_are_escaped_wherever_the_character_stands() {
        for position in 0..130 {
            let text = format!("{}\u{7f}{}好", "a".repeat(position), "b".repeat(40));
            let expected = format!("\"{}\\u007f{}\\u597d\"", "a".repeat(position), "b".repeat(40));
            assert_eq!(to_wire_json(&text).unwrap(), expected);
        }
    }

    #[test]
    fn the_scanner_finds_the_end_at_any_cut() {
        let text = r#"{"a": "}\"{[", "b": [1, {"c": "\\"}]}"#;
        for cut in 1..text.len() {
            let mut scanner = Scanner::default();
            scanner.feed(&text[..cut]);
            assert!(!scanner.complete(), "cut at {cut}");
            scanner.feed(&text[cut..]);
            assert!(scanner.complete() && !scanner.excess());
        }
    }
}
