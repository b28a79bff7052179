//! Another program's file with every stdio server prefixed by `sandcrate mcp run`: the whole integration for people
//! without a server. Comments, order and layout stay; only the two values of each entry change.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::import::{ImportError, NotImported, parse, remote, servers_key};
use super::jsonc;

/// The names of a file's entries with their places in it.
type Fields<'a> = BTreeMap<String, &'a RawValue>;

/// The file with its entries prefixed, how many were, and those that could not be.
///
/// # Errors
/// When the file as a whole is none.
pub fn rewrite(text: &str) -> Result<(String, usize, Vec<NotImported>), ImportError> {
    let strict = jsonc::to_json(text);
    let document = parse(&strict)?;
    let whole: Fields<'_> = fields(&strict)?;
    let (document, whole) = match (document.get("mcp"), whole.get("mcp")) {
        (Some(Value::Object(inner)), Some(raw)) if servers_key(&document).is_none() => {
            (inner.clone(), fields(raw.get())?)
        }
        _ => (document, whole),
    };
    let key = servers_key(&document).ok_or(ImportError::NoServers)?;
    if !document[key].is_object() {
        return Err(ImportError::NotAnObject(key));
    }
    let mut changes: Vec<(usize, usize, String)> = Vec::new();
    let (mut count, mut left) = (0, Vec::new());
    for (name, raw) in fields(whole[key].get())? {
        let leave = |reason: &str| NotImported { name: name.clone(), reason: reason.to_owned() };
        let Some(entry) = document[key][&name].as_object() else {
            left.push(leave("it is not an object"));
            continue;
        };
        if let Some(kind) = remote(entry) {
            left.push(leave(&format!("it is reached over the network ({kind})")));
            continue;
        }
        let places = fields(raw.get())?;
        let (Some(command), Some(place)) =
            (entry.get("command").and_then(Value::as_str), places.get("command"))
        else {
            left.push(leave("it has no `command`"));
            continue;
        };
        let args = match entry.get("args") {
            None => Vec::new(),
            Some(args) => match texts(args) {
                Some(args) => args,
                None => {
                    left.push(leave("`args` must be a list of texts"));
                    continue;
                }
            },
        };
        if is_wrapped(command, &args) {
            left.push(leave("it runs in a box already"));
            continue;
        }
        let wrapped = json!(wrapped(command, args, entry)).to_string();
        let (start, end) = span(&strict, place);
        match places.get("args") {
            Some(args) => {
                changes.push((start, end, json!("sandcrate").to_string()));
                let (start, end) = span(&strict, args);
                changes.push((start, end, wrapped));
            }
            None => changes.push((start, end, format!("{}, \"args\": {wrapped}", json!("sandcrate")))),
        }
        count += 1;
    }
    // From the end, so that the places before stay where they are.
    changes.sort_by_key(|(start, ..)| std::cmp::Reverse(*start));
    let mut rewritten = text.to_owned();
    for (start, end, new) in changes {
        rewritten.replace_range(start..end, &new);
    }
    Ok((rewritten, count, left))
}

fn fields(text: &str) -> Result<Fields<'_>, ImportError> {
    serde_json::from_str(text).map_err(|error| ImportError::Json(error.to_string()))
}

/// Where a value stands in the text that it was parsed from.
fn span(text: &str, value: &RawValue) -> (usize, usize) {
    let start = value.get().as_ptr() as usize - text.as_ptr() as usize;
    (start, start + value.get().len())
}

fn texts(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
}

fn is_wrapped(command: &str, args: &[String]) -> bool {
    let ours = command == "sandcrate" || command.ends_with("/sandcrate");
    ours && args.iter().take(2).eq(["mcp", "run"])
}

/// The arguments of `sandcrate`. Variables of the entry reach us as our environment; `-e` passes each on by name.
fn wrapped(command: &str, args: Vec<String>, entry: &Map<String, Value>) -> Vec<String> {
    let mut all = vec!["mcp".to_owned(), "run".to_owned()];
    let variables = entry.get("env").and_then(Value::as_object);
    for name in variables.into_iter().flat_map(Map::keys) {
        all.extend(["-e".to_owned(), name.clone()]);
    }
    all.extend(["--".to_owned(), command.to_owned()]);
    all.extend(args);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_prefixed_and_everything_else_stays() {
        let text = r#"{
  // mine
  "theme": "dark",
  "mcpServers": {
    "z": {"command": "npx", "args": ["-y", "srv"], "env": {"B": "1", "A": "2"}}, // last letter first
    "a": { "command": "srv", },
    "net": {"url": "https://x"},
    "done": {"command": "sandcrate", "args": ["mcp", "run", "--", "x"]},
  }
}"#;
        let expected = r#"{
  // mine
  "theme": "dark",
  "mcpServers": {
    "z": {"command": "sandcrate", "args": ["mcp","run","-e","A","-e","B","--","npx","-y","srv"], "env": {"B": "1", "A": "2"}}, // last letter first
    "a": { "command": "sandcrate", "args": ["mcp","run","--","srv"], },
    "net": {"url": "https://x"},
    "done": {"command": "sandcrate", "args": ["mcp", "run", "--", "x"]},
  }
}"#;
        let (rewritten, count, left) = rewrite(text).unwrap();
        assert_eq!(rewritten, expected);
        assert_eq!(count, 2);
        let left: Vec<_> = left.iter().map(ToString::to_string).collect();
        assert_eq!(left, ["done: it runs in a box already", "net: it is reached over the network (url)"]);
        let (again, count, _) = rewrite(&rewritten).unwrap();
        assert_eq!((again, count), (rewritten, 0), "twice is once");
    }

    #[test]
    fn vs_code_s_settings_are_found_below_their_key() {
        let text = r#"{"mcp": {"servers": {"a": {"type": "stdio", "args": [], "command": "x"}}}}"#;
        let (rewritten, count, _) = rewrite(text).unwrap();
        assert_eq!(count, 1);
        assert!(
            rewritten.contains(r#""args": ["mcp","run","--","x"], "command": "sandcrate""#),
            "{rewritten}"
        );
        assert_eq!(rewrite("{}").unwrap_err(), ImportError::NoServers);
    }
}
