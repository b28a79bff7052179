//! One entry put into a JSON text, every other byte of which stays as it is.

use std::collections::BTreeMap;

use serde_json::Value;
use serde_json::value::RawValue;

/// Why a text is left alone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum EditError {
    #[error("line {line}, column {column}: {problem}")]
    NotJson { line: usize, column: usize, problem: String },
    #[error("it must be an object, and is something else")]
    RootIsNoObject,
    #[error("its `{key}` must be an object, and is something else")]
    ServersAreNoObject { key: String },
}

type Members<'a> = BTreeMap<String, &'a RawValue>;

/// The text with `entry` as `key.name`, instead of what was there under that name.
pub(super) fn with_entry(text: &str, key: &str, name: &str, entry: &Value) -> Result<String, EditError> {
    let indent = indent_of(text);
    if text.trim().is_empty() {
        let whole = serde_json::json!({ key: { name: entry } });
        return Ok(format!("{}\n", pretty(&whole, "", indent)));
    }
    let problem = |error: serde_json::Error| EditError::NotJson {
        line: error.line(),
        column: error.column(),
        // Its own text ends with the place.
        problem: error.to_string().split(" at line ").next().unwrap_or_default().to_owned(),
    };
    let root: &RawValue = serde_json::from_str(text).map_err(problem)?;
    let Ok(members) = serde_json::from_str::<Members<'_>>(root.get()) else {
        return Err(EditError::RootIsNoObject);
    };
    let Some(servers) = members.get(key) else {
        let servers = pretty(&serde_json::json!({ name: entry }), indent, indent);
        return Ok(with_member(text, root, &members, key, &servers, "", indent));
    };
    let Ok(known) = serde_json::from_str::<Members<'_>>(servers.get()) else {
        return Err(EditError::ServersAreNoObject { key: key.to_owned() });
    };
    let deep = indent.repeat(2);
    let written = pretty(entry, &deep, indent);
    match known.get(name) {
        Some(had) if serde_json::from_str::<Value>(had.get()).is_ok_and(|had| had == *entry) => {
            Ok(text.to_owned())
        }
        Some(had) => {
            let (start, end) = span(text, had);
            Ok(format!("{}{written}{}", &text[..start], &text[end..]))
        }
        None => Ok(with_member(text, servers, &known, name, &written, indent, indent)),
    }
}

/// The text with one more member at the end of `object`, whose own line begins with `outer`.
fn with_member(
    text: &str,
    object: &RawValue,
    members: &Members<'_>,
    key: &str,
    value: &str,
    outer: &str,
    indent: &str,
) -> String {
    let key = Value::String(key.to_owned());
    let last = members.values().map(|member| span(text, member).1).max();
    let (start, end) = span(text, object);
    match last {
        Some(last) => format!("{},\n{outer}{indent}{key}: {value}{}", &text[..last], &text[last..]),
        None => format!("{}{{\n{outer}{indent}{key}: {value}\n{outer}}}{}", &text[..start], &text[end..]),
    }
}

/// Where a part of the text is in it.
fn span(text: &str, part: &RawValue) -> (usize, usize) {
    let start = part.get().as_ptr() as usize - text.as_ptr() as usize;
    (start, start + part.get().len())
}

/// What the text indents by: the beginning of its first line that has one.
fn indent_of(text: &str) -> &str {
    let blank = |line: &str| line.len() - line.trim_start_matches([' ', '\t']).len();
    let line = text.lines().find(|line| blank(line) > 0 && !line.trim().is_empty());
    line.map_or("  ", |line| &line[..blank(line)])
}

/// The value as people write it, its lines after the first with `outer` before them.
fn pretty(value: &Value, outer: &str, indent: &str) -> String {
    let text = format!("{value:#}");
    let mut lines = text.lines();
    let mut out = lines.next().unwrap_or_default().to_owned();
    for line in lines {
        let bare = line.trim_start_matches(' ');
        let depth = (line.len() - bare.len()) / 2;
        out.push_str(&format!("\n{outer}{}{bare}", indent.repeat(depth)));
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn edit(text: &str) -> Result<String, EditError> {
        with_entry(text, "mcpServers", "box", &json!({"command": "/b", "args": ["mcp", "serve"]}))
    }

    #[test]
    fn everything_else_stays_byte_for_byte() {
        let text = "{\n\t\"theme\":   \"dark\",\n\t\"mcpServers\": {\n\t\t\"other\": {\"command\": \"x\", \"n\": 1.50}\n\t},\n\t\"z\": []\n}\n";
        let edited = edit(text).unwrap();
        let expected = "{\n\t\"theme\":   \"dark\",\n\t\"mcpServers\": {\n\t\t\"other\": {\"command\": \"x\", \"n\": 1.50},\n\t\t\"box\": {\n\t\t\t\"command\": \"/b\",\n\t\t\t\"args\": [\n\t\t\t\t\"mcp\",\n\t\t\t\t\"serve\"\n\t\t\t]\n\t\t}\n\t},\n\t\"z\": []\n}\n";
        let parsed: Value = serde_json::from_str(&edited).unwrap();
        assert_eq!(parsed["mcpServers"]["box"]["command"], "/b");
        // The order of the fields in an entry is the library's business.
        let lines = |text: &str| {
            let mut lines: Vec<_> = text.lines().map(|line| line.trim_end_matches(',').to_owned()).collect();
            lines.sort();
            lines
        };
        assert_eq!(lines(&edited), lines(expected));
        assert!(
            edited.starts_with(&text[..text.find("1.50}").unwrap() + 5])
                && edited.ends_with("\t},\n\t\"z\": []\n}\n")
        );
        assert_eq!(edit(&edited).unwrap(), edited, "a second time changes nothing");
    }

    #[test]
    fn there_may_be_nothing_yet_or_an_older_entry() {
        for text in [
            "",
            "  \n",
            "{}",
            "{ }",
            "{\"a\":1}",
            "{\"mcpServers\":{}}",
            "{\"mcpServers\":{\"box\":{\"old\":1}},\"b\":2}",
        ] {
            let edited = edit(text).unwrap();
            let parsed: Value =
                serde_json::from_str(&edited).unwrap_or_else(|error| panic!("{text}: {error}\n{edited}"));
            assert_eq!(
                parsed["mcpServers"]["box"],
                json!({"command": "/b", "args": ["mcp", "serve"]}),
                "{text}"
            );
            for key in ["a", "b"] {
                assert_eq!(parsed.get(key).is_some(), text.contains(&format!("\"{key}\"")), "{text}");
            }
        }
    }

    #[test]
    fn what_cannot_be_read_is_left_alone_and_its_line_named() {
        let comment = "{\n  // mine\n  \"a\": 1\n}";
        assert!(matches!(edit(comment), Err(EditError::NotJson { line: 2, .. })), "{:?}", edit(comment));
        let comma = "{\n  \"a\": 1,\n}";
        let comma = edit(comma).unwrap_err().to_string();
        assert!(comma.starts_with("line 3, column 1: "), "{comma}");
        assert_eq!(edit("[]"), Err(EditError::RootIsNoObject));
        let list = edit("{\"mcpServers\": []}").unwrap_err();
        assert!(list.to_string().contains("`mcpServers` must be an object"));
    }
}
