//! The sources of settings, one above the other: file, environment, flags. Each is checked on its own as it is
//! laid, so that an error can say where the value stands; what wins keeps its origin.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;
use serde_json::{Map, Value};

use super::model::{Settings, form_of};
use crate::failure::Failure;

/// Variables that set a key begin with it; sections are told from keys by two underscores.
pub(crate) const ENV_PREFIX: &str = "SANDCRATE__";

/// Tables whose keys are the operator's own: each is one setting, as a whole.
const TABLES: [&str; 4] = ["e2b.templates", "images", "mcp.servers", "profiles"];

/// Where a value comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(tag = "origin", content = "source", rename_all = "lowercase")]
pub(crate) enum Origin {
    #[default]
    Default,
    File(PathBuf),
    Env(String),
    Flag(String),
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Env(name) => write!(f, "env {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// What was said, and by whom.
#[derive(Debug, Default)]
pub(crate) struct Layers {
    tree: Map<String, Value>,
    origins: BTreeMap<String, Origin>,
}

impl Layers {
    /// A file of the operator.
    pub(crate) fn add_file(&mut self, path: &Path) -> anyhow::Result<()> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            Failure::invalid(format!("the configuration {} cannot be read: {error}", path.display()))
                .hint("--config and $SANDCRATE_CONFIG name another; without any, the defaults hold")
        })?;
        check_file(path, &text)?;
        let table: toml::Table = text.parse().with_context(|| path.display().to_string())?;
        let tree = serde_json::to_value(table).with_context(|| path.display().to_string())?;
        for (key, value) in leaves(&tree) {
            self.put(&key, value, Origin::File(path.to_owned()));
        }
        Ok(())
    }

    /// Variables `SANDCRATE__SECTION__KEY`. A value is a TOML value, or text without quotes, or a list with
    /// commas; whichever fits the key.
    pub(crate) fn add_env(&mut self, vars: &[(OsString, OsString)]) -> anyhow::Result<()> {
        for (name, value) in vars {
            let Some(name) = name.to_str().filter(|name| name.starts_with(ENV_PREFIX)) else { continue };
            self.add_variable(name, &name[ENV_PREFIX.len()..].to_lowercase().replace("__", "."), value)?;
        }
        Ok(())
    }

    /// One variable that sets this key.
    pub(crate) fn add_variable(&mut self, name: &str, key: &str, value: &OsStr) -> anyhow::Result<()> {
        let text = value.to_str().ok_or_else(|| Failure::invalid(format!("{name} is not UTF-8")))?;
        let mut problems = Vec::new();
        for candidate in readings(text) {
            match check(&nested(key, candidate.clone())) {
                Ok(_) => {
                    self.put(key, candidate, Origin::Env(name.to_owned()));
                    return Ok(());
                }
                Err(problem) => problems.push(problem.text),
            }
        }
        // "Expected a list, got a string" is the least telling of them.
        let telling = problems.iter().position(|text| !text.starts_with("invalid type")).unwrap_or(0);
        let problem = problems.swap_remove(telling);
        Err(refusal(name, text, key, &problem))
    }

    /// A flag that was given; its value has a type already.
    pub(crate) fn add_flag(&mut self, flag: &str, key: &str, value: Value) {
        self.put(key, value, Origin::Flag(flag.to_owned()));
    }

    fn put(&mut self, key: &str, value: Value, origin: Origin) {
        merge(&mut self.tree, nested(key, value));
        self.origins.insert(key.to_owned(), origin);
    }

    pub(crate) fn settings(&self) -> anyhow::Result<Settings> {
        check(&self.tree).map_err(|problem| {
            let origin = self.origin(&problem.key).to_string();
            refusal(&origin, "", &problem.key, &problem.text)
        })
    }

    pub(crate) fn origin(&self, key: &str) -> Origin {
        self.origins.get(key).cloned().unwrap_or_default()
    }
}

struct Problem {
    key: String,
    text: String,
}

fn check(tree: &Map<String, Value>) -> Result<Settings, Problem> {
    serde_path_to_error::deserialize(Value::Object(tree.clone())).map_err(|error| {
        let key = error.path().to_string();
        Problem { key, text: error.into_inner().to_string() }
    })
}

/// Reads the file into the types for their errors, which know the line.
fn check_file(path: &Path, text: &str) -> anyhow::Result<()> {
    let line_of = |error: &toml::de::Error| {
        error.span().map_or(0, |span| text[..span.start.min(text.len())].matches('\n').count())
    };
    let parsed = toml::Deserializer::parse(text).map_err(|error| {
        Failure::invalid(format!("{}:{}: {}", path.display(), line_of(&error) + 1, error.message()))
            .hint("the file is TOML: sections such as [server], and below them lines such as key = \"value\"")
    })?;
    let typed: Result<Settings, _> = serde_path_to_error::deserialize(parsed);
    typed.map(drop).map_err(|error| {
        let number = line_of(error.inner());
        let place = format!("{}:{}", path.display(), number + 1);
        let line = text.lines().nth(number).unwrap_or_default().trim();
        refusal(&place, line, &error.path().to_string(), error.inner().message())
    })
}

/// An error about a key in `place`, where it is written as `written`.
fn refusal(place: &str, written: &str, key: &str, problem: &str) -> anyhow::Error {
    // What could be a secret is not repeated.
    if key.ends_with("token") {
        return Failure::invalid(format!("{place}: {key}: a token is not part of the configuration"))
            .hint("put it into a file of its own (chmod 600) and name that: server.token_file or --token-file; or set SANDCRATE_TOKEN")
            .into();
    }
    // Items of a list are the list's, entries of such a table the table's.
    let key = key.split('[').next().unwrap_or(key);
    let whole =
        TABLES.into_iter().find(|table| key.strip_prefix(table).is_some_and(|rest| rest.starts_with('.')));
    let key = whole.unwrap_or(key);
    let fix = match form_of(key) {
        Some(form) => format!("{key} is {form}"),
        None => "`sandcrate config show` prints every key".to_owned(),
    };
    Failure::invalid(format!("{place}: {written}: {key}: {}", problem.trim_end())).hint(fix).into()
}

/// What a variable's text may mean, most literal first.
fn readings(text: &str) -> Vec<Value> {
    let literal = format!("value = {text}").parse::<toml::Table>().ok();
    let literal = literal.and_then(|mut table| serde_json::to_value(table.remove("value")?).ok());
    let list = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    let list = list.map(|item| item.parse::<i64>().map_or_else(|_| item.into(), Value::from)).collect();
    literal.into_iter().chain([Value::from(text), Value::Array(list)]).collect()
}

fn nested(key: &str, value: Value) -> Map<String, Value> {
    match key.split_once('.') {
        Some((section, rest)) => {
            [(section.to_owned(), Value::Object(nested(rest, value)))].into_iter().collect()
        }
        None => [(key.to_owned(), value)].into_iter().collect(),
    }
}

fn merge(into: &mut Map<String, Value>, from: Map<String, Value>) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(Value::Object(below)), Value::Object(above)) => merge(below, above),
            (_, value) => drop(into.insert(key, value)),
        }
    }
}

/// Every value with its dotted key, in the order of the tree.
pub(crate) fn leaves(tree: &Value) -> Vec<(String, Value)> {
    fn walk(prefix: &str, value: &Value, found: &mut Vec<(String, Value)>) {
        match value {
            Value::Object(table) if !TABLES.contains(&prefix) => {
                for (key, value) in table {
                    let key = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                    walk(&key, value, found);
                }
            }
            value => found.push((prefix.to_owned(), value.clone())),
        }
    }
    let mut found = Vec::new();
    walk("", tree, &mut found);
    found
}
