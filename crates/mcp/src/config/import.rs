//! Other programs' lists of MCP servers: `mcpServers` of Claude Desktop and Cursor, `servers` of VS Code.
//!
//! Nothing is dropped without a word: an entry that cannot run in a box is refused by name, a field that means nothing
//! here is noted.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};

use super::registration::usable_name;
use super::{Registration, jsonc, name_problem};
use crate::BoxSettings;

/// Values for the placeholders of a file.
pub trait Values {
    /// `${env:NAME}`.
    fn variable(&self, name: &str) -> Option<String>;
    /// `${input:ID}`.
    fn input(&self, id: &str) -> Option<String>;
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    #[error("it is not JSON: {0}")]
    Json(String),
    #[error("it has neither `mcpServers` (Claude, Cursor) nor `servers` (VS Code)")]
    NoServers,
    #[error("`{0}` must be an object of servers by their names")]
    NotAnObject(&'static str),
}

/// One that can run in a box.
#[derive(Debug, Clone, PartialEq)]
pub struct Imported {
    pub name: String,
    /// What the file calls it.
    pub original: String,
    pub registration: Registration,
    /// What was not taken over.
    pub notes: Vec<String>,
}

/// One that cannot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotImported {
    pub name: String,
    pub reason: String,
}

impl fmt::Display for NotImported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.reason)
    }
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Import {
    pub servers: Vec<Imported>,
    /// Would be started here, and cannot be.
    pub refused: Vec<NotImported>,
    /// Reached over the network: nobody starts them.
    pub remote: Vec<NotImported>,
}

/// Fields that other programs have for themselves and that change nothing about the server.
const OF_THE_CLIENT: [&str; 8] =
    ["alwaysAllow", "autoApprove", "description", "gallery", "version", "dev", "timeout", "sandboxEnabled"];

/// The key that holds the servers.
pub(super) fn servers_key(document: &Map<String, Value>) -> Option<&'static str> {
    ["mcpServers", "servers"].into_iter().find(|key| document.contains_key(*key))
}

pub(super) fn parse(text: &str) -> Result<Map<String, Value>, ImportError> {
    serde_json::from_str(text).map_err(|error| ImportError::Json(error.to_string()))
}

/// Reads a file of another program.
///
/// # Errors
/// When the file as a whole is none.
pub fn import(text: &str, values: &dyn Values) -> Result<Import, ImportError> {
    let mut document = parse(&jsonc::to_json(text))?;
    // VS Code's settings have the whole file below a key.
    if let Some(Value::Object(inner)) = document.get("mcp").cloned()
        && servers_key(&document).is_none()
    {
        document = inner;
    }
    let key = servers_key(&document).ok_or(ImportError::NoServers)?;
    let servers = document[key].as_object().ok_or(ImportError::NotAnObject(key))?;
    let context = Context { values, defaults: input_defaults(&document) };
    let mut import = Import::default();
    let mut taken = BTreeMap::new();
    for (original, entry) in servers {
        if let Some(kind) = entry.as_object().and_then(remote) {
            let reason = format!(
                "it is reached over the network ({kind}); only servers that are started here (stdio) run in boxes"
            );
            import.remote.push(NotImported { name: original.clone(), reason });
            continue;
        }
        let read = usable(original).and_then(|name| Ok((context.entry(entry)?, name)));
        match read {
            Err(reason) => import.refused.push(NotImported { name: original.clone(), reason }),
            Ok(((registration, notes), name)) => match taken.insert(name.clone(), original) {
                Some(other) => {
                    let reason = format!("its name would be `{name}`, which `{other}` has already");
                    import.refused.push(NotImported { name: original.clone(), reason });
                }
                None => {
                    import.servers.push(Imported { name, original: original.clone(), registration, notes });
                }
            },
        }
    }
    Ok(import)
}

fn usable(original: &str) -> Result<String, String> {
    let name = if name_problem(original).is_none() { original.to_owned() } else { usable_name(original) };
    match name_problem(&name) {
        None => Ok(name),
        Some(problem) => Err(format!("its name {problem}")),
    }
}

/// Whether the entry is a server on the network, and how it is reached.
pub(super) fn remote(entry: &Map<String, Value>) -> Option<&str> {
    let kind = entry.get("type").or_else(|| entry.get("transport")).and_then(Value::as_str);
    match kind {
        Some("stdio") => None,
        Some(other) => Some(other),
        None => (entry.contains_key("url") || entry.contains_key("serverUrl")).then_some("url"),
    }
}

/// The defaults of VS Code's inputs, by their ids.
fn input_defaults(document: &Map<String, Value>) -> BTreeMap<String, String> {
    let inputs = document.get("inputs").and_then(Value::as_array).into_iter().flatten();
    let pair =
        |input: &Value| Some((input["id"].as_str()?.to_owned(), input["default"].as_str()?.to_owned()));
    inputs.filter_map(pair).collect()
}

struct Context<'a> {
    values: &'a dyn Values,
    defaults: BTreeMap<String, String>,
}

impl Context<'_> {
    fn entry(&self, entry: &Value) -> Result<(Registration, Vec<String>), String> {
        let entry = entry.as_object().ok_or("it is not an object")?;
        let command = entry.get("command").and_then(Value::as_str).ok_or("it has no `command`")?;
        let mut registration = Registration::new(self.filled(command)?, [""; 0]);
        let mut notes = Vec::new();
        for (key, value) in entry {
            match key.as_str() {
                "command" | "type" | "transport" => {}
                "args" => registration.args = self.texts("args", value)?,
                "env" => registration.env = self.variables(value)?,
                "disabled" => registration.enabled = value != &Value::Bool(true),
                "enabled" => registration.enabled = value != &Value::Bool(false),
                "disabledTools" => registration.deny = self.texts("disabledTools", value)?,
                "box" => {
                    registration.settings = serde_json::from_value::<BoxSettings>(value.clone())
                        .map_err(|error| format!("`box` is not acceptable: {error}"))?;
                }
                "envFile" => {
                    return Err("`envFile` is not read: put its variables into `env`".to_owned());
                }
                "cwd" => {
                    notes.push("`cwd` is not used: a server starts in its own project in the box".to_owned())
                }
                other if OF_THE_CLIENT.contains(&other) => {}
                other => notes.push(format!("`{other}` means nothing here")),
            }
        }
        match registration.problem() {
            Some((field, problem)) => Err(format!("`{field}` {problem}")),
            None => Ok((registration, notes)),
        }
    }

    fn texts(&self, field: &str, value: &Value) -> Result<Vec<String>, String> {
        let wrong = || format!("`{field}` must be a list of texts");
        let list = value.as_array().ok_or_else(wrong)?;
        list.iter().map(|item| self.filled(item.as_str().ok_or_else(wrong)?)).collect()
    }

    /// Numbers and truth values are what people write there too; a variable is text in the end.
    fn variables(&self, value: &Value) -> Result<BTreeMap<String, String>, String> {
        let object = value.as_object().ok_or("`env` must be an object")?;
        let pairs = object.iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| {
            let text = match value {
                Value::String(text) => self.filled(text)?,
                Value::Number(_) | Value::Bool(_) => value.to_string(),
                _ => return Err(format!("`env.{name}` must be text")),
            };
            Ok((name.clone(), text))
        });
        pairs.collect()
    }

    /// The text with its placeholders replaced.
    fn filled(&self, text: &str) -> Result<String, String> {
        let (mut filled, mut rest) = (String::new(), text);
        while let Some(start) = rest.find("${") {
            let Some(length) = rest[start..].find('}') else { break };
            let placeholder = &rest[start + 2..start + length];
            filled.push_str(&rest[..start]);
            filled.push_str(&self.value_of(placeholder)?);
            rest = &rest[start + length + 1..];
        }
        filled.push_str(rest);
        Ok(filled)
    }

    fn value_of(&self, placeholder: &str) -> Result<String, String> {
        if let Some(id) = placeholder.strip_prefix("input:") {
            let found = self.values.input(id).or_else(|| self.defaults.get(id).cloned());
            return found
                .ok_or_else(|| format!("it asks for the input `{id}`: give it with --input {id}=VALUE"));
        }
        let known = match placeholder {
            "userHome" => self.values.variable("HOME"),
            "/" | "pathSeparator" => Some("/".to_owned()),
            // Cursor and VS Code say `env:`; Claude Code does without, and may give a default.
            other => {
                let name = other.strip_prefix("env:").unwrap_or(other);
                let (name, default) =
                    name.split_once(":-").map_or((name, None), |(name, text)| (name, Some(text)));
                let plain =
                    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
                let of_the_editor = ["workspaceFolder", "workspaceFolderBasename", "extensionPath"];
                if !plain || of_the_editor.contains(&name) {
                    return Err(format!(
                        "`${{{placeholder}}}` is known to the editor alone: write what it stands for"
                    ));
                }
                self.values.variable(name).or_else(|| default.map(str::to_owned))
            }
        };
        known.ok_or_else(|| format!("`${{{placeholder}}}` has no value: the variable is not set here"))
    }
}

#[cfg(test)]
#[path = "import_tests.rs"]
mod tests;
