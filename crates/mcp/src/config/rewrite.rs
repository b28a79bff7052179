//! Another program's file with every stdio server prefixed by `sandcrate mcp run`: the whole integration for people
//! without a server. Comments, order and layout stay; only the two values of each entry change.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::import::{ImportError, NotImported, parse, remote, servers_key};
use super::jsonc;
use crate::launch::missing::{note, path_in};
use crate::launch::{MountBy, locate, understand};

/// The names of a file's entries with their places in it.
type Fields<'a> = BTreeMap<String, &'a RawValue>;

/// The file with its entries prefixed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewritten {
    pub text: String,
    /// Entries that were prefixed.
    pub count: usize,
    pub left: Vec<NotImported>,
    /// What entries that were prefixed lack, each with its name.
    pub warnings: Vec<String>,
}

/// Prefixes every stdio server of a file. Paths in it are those of this machine, where `home` is the user's.
///
/// # Errors
/// When the file as a whole is none.
pub fn rewrite(text: &str, home: Option<&Path>) -> Result<Rewritten, ImportError> {
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
    let (mut count, mut left, mut warnings) = (0, Vec::new(), Vec::new());
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
        warnings.extend(doubts(command, &args, home).into_iter().map(|doubt| format!("{name}: {doubt}")));
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
    let mut text = text.to_owned();
    for (start, end, new) in changes {
        text.replace_range(start..end, &new);
    }
    Ok(Rewritten { text, count, left, warnings })
}

/// Why a server may not run as it stands behind `sandcrate mcp run --`.
fn doubts(command: &str, args: &[String], home: Option<&Path>) -> Vec<String> {
    let program = command.rsplit('/').next().unwrap_or(command);
    if ["docker", "podman", "nerdctl"].contains(&program) {
        return vec![format!(
            "a box has no container engine for `{program}`: write the server's own command after `--`, and \
             `--image NAME` in front of it if that needs an image"
        )];
    }
    let understood = match understand(command, args) {
        Ok(understood) => understood,
        Err(error) => return vec![error.to_string()],
    };
    let project = locate(&understood, command, args, Path::new("/"), home, &[]);
    let in_project = |argument: &&String| {
        let path = path_in(argument).and_then(|path| Path::new(path).canonicalize().ok());
        path.zip(project.as_ref()).is_some_and(|(path, project)| path.starts_with(project))
    };
    args.iter().filter(|arg| !in_project(arg)).filter_map(|arg| note(arg, &[], MountBy::Flag)).collect()
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
        let Rewritten { text: rewritten, count, left, warnings } = rewrite(text, None).unwrap();
        assert_eq!(rewritten, expected);
        assert_eq!((count, warnings.len()), (2, 0));
        let left: Vec<_> = left.iter().map(ToString::to_string).collect();
        assert_eq!(left, ["done: it runs in a box already", "net: it is reached over the network (url)"]);
        let again = rewrite(&rewritten, None).unwrap();
        assert_eq!((again.text, again.count), (rewritten, 0), "twice is once");
    }

    #[test]
    fn what_cannot_run_as_rewritten_is_told_with_what_to_add() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path().canonicalize().unwrap();
        let (data, project) = (place.join("data"), place.join("project"));
        std::fs::create_dir(&data).unwrap();
        std::fs::create_dir(&project).unwrap();
        std::fs::write(project.join("main.py"), "").unwrap();
        let text = json!({"mcpServers": {
            "a": {"command": "npx", "args": ["-y", "server-filesystem", data]},
            "b": {"command": "/usr/bin/docker", "args": ["run", "-i", "--rm", "x"]},
            "c": {"command": "npx", "args": ["--call", "x"]},
            "d": {"command": "python3", "args": [project.join("main.py")]},
        }});
        let rewritten = rewrite(&text.to_string(), None).unwrap();
        assert_eq!(rewritten.count, 4);
        let data = data.display();
        let [a, b, c] = rewritten.warnings.as_slice() else { panic!("{:?}", rewritten.warnings) };
        assert_eq!(*a, format!("a: {data} is not in the box; -v {data}:{data}:ro shows it there"));
        assert!(b.starts_with("b: a box has no container engine for `docker`"), "{b}");
        assert!(c.starts_with("c: ") && c.contains("--call"), "{c}");
    }

    #[test]
    fn vs_code_s_settings_are_found_below_their_key() {
        let text = r#"{"mcp": {"servers": {"a": {"type": "stdio", "args": [], "command": "x"}}}}"#;
        let Rewritten { text: rewritten, count, .. } = rewrite(text, None).unwrap();
        assert_eq!(count, 1);
        assert!(
            rewritten.contains(r#""args": ["mcp","run","--","x"], "command": "sandcrate""#),
            "{rewritten}"
        );
        assert_eq!(rewrite("{}", None).unwrap_err(), ImportError::NoServers);
    }
}
