//! The skill actions: data read as the reference reads it, answers in its shapes.
//!
//! All but the list and the look show every failure as one of validation, a missing key included.

use base64::Engine;
use base64::alphabet;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use sandcrate_protocol::{lax_integer, python_repr, python_type};
use sandcrate_skills::{Archive, Chunk, ListRequest, NewSkill, Scope, Selection, SkillChange, SkillError};
use serde_json::{Map, Value};

use super::actions::{Call, Outcome};
use super::answer::{ActionError, Answer, SkillFiles, SkillName};
use super::dialect::Dialect;

/// Python does not look at the bits behind the last byte.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// Whose skills a call is about. The first dialect knows one kind of client.
fn scope(call: &Call<'_>) -> Scope {
    call.placement.map_or(Scope::Shared, |placement| Scope::Tenant(placement.workspace().to_owned()))
}

/// Whose uploads a call is about. A host sends them for all its workspaces, under keys that nobody can guess.
fn upload_scope(call: &Call<'_>) -> Scope {
    match call.dialect {
        Dialect::First => Scope::Shared,
        Dialect::Tenant => Scope::Tenant("uploads".to_owned()),
    }
}

fn wrapped(outcome: Outcome) -> Outcome {
    outcome.map_err(|error| error.as_invalid())
}

pub(super) async fn file_chunk(call: Call<'_>) -> Outcome {
    let key = required(call.data, "file_key")?;
    let text = required(call.data, "chunk_base64")?;
    let file_key = string("file_key", key)?;
    let bytes = decode(string("chunk_base64", text)?)?;
    let index = number("chunk_index", required(call.data, "chunk_index")?)?;
    let amount = number("chunk_amount", required(call.data, "chunk_amount")?)?;
    let file_key = file_key.to_owned();
    let chunk = Chunk { file_key, index, amount, bytes };
    let most_bytes = match call.dialect {
        Dialect::First => usize::MAX,
        Dialect::Tenant => call.runtime.box_limits().max_rpc_file_bytes,
    };
    call.runtime.skills().upload(&upload_scope(&call), chunk, most_bytes)?;
    Ok(Answer::Empty {})
}

pub(super) async fn list_skills(call: Call<'_>) -> Outcome {
    Ok(Answer::Skills { skills: call.runtime.skills().list(&scope(&call)).await? })
}

pub(super) async fn get_skill(call: Call<'_>) -> Outcome {
    let name = string("name", required(call.data, "name")?)?;
    let skill = match call.runtime.skills().get(&scope(&call), name).await {
        Ok(skill) => Some(Box::new(skill)),
        Err(SkillError::NotFound { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    Ok(Answer::Skill { skill })
}

pub(super) async fn create_skill(call: Call<'_>) -> Outcome {
    let work = async {
        let skill = object("skill", required(call.data, "skill")?)?;
        let field = |key| Ok::<_, ActionError>(text(skill, key)?.unwrap_or_default());
        let new = NewSkill {
            name: field("name")?,
            display_name: field("display_name")?,
            description: field("description")?,
            instructions: field("instructions")?,
            package_root: field("package_root")?,
        };
        let skill = call.runtime.skills().create(&scope(&call), new).await?;
        Ok(Answer::Skill { skill: Some(Box::new(skill)) })
    };
    wrapped(work.await)
}

pub(super) async fn update_skill(call: Call<'_>) -> Outcome {
    let work = async {
        let name = string("name", required(call.data, "name")?)?.to_owned();
        let skill = object("skill", required(call.data, "skill")?)?;
        let change = SkillChange {
            name: text(skill, "name")?,
            display_name: text(skill, "display_name")?,
            description: text(skill, "description")?,
            instructions: text(skill, "instructions")?,
            package_root: text(skill, "package_root")?,
        };
        let skills = call.runtime.skills();
        let skill = skills.with(&scope(&call), move |store| store.update(&name, &change)).await?;
        Ok(Answer::Skill { skill: Some(Box::new(skill)) })
    };
    wrapped(work.await)
}

pub(super) async fn delete_skill(call: Call<'_>) -> Outcome {
    let work = async {
        let name = string("name", required(call.data, "name")?)?.to_owned();
        let deleted = name.clone();
        call.runtime.skills().with(&scope(&call), move |store| store.delete(&name)).await?;
        Ok(Answer::Deleted { deleted })
    };
    wrapped(work.await)
}

pub(super) async fn scan_skill_directory(call: Call<'_>) -> Outcome {
    let work = async {
        let path = string("path", required(call.data, "path")?)?.to_owned();
        let skill = call.runtime.skills().scan(&scope(&call), path).await?;
        Ok(Answer::ScannedSkill(Box::new(skill)))
    };
    wrapped(work.await)
}

pub(super) async fn list_skill_files(call: Call<'_>) -> Outcome {
    let work = async {
        let name = string("name", required(call.data, "name")?)?.to_owned();
        let mut request = ListRequest::default();
        if let Some(path) = optional(call.data, "path") {
            request.path = string("path", path)?.to_owned();
        }
        request.include_hidden = optional(call.data, "include_hidden").is_some_and(truthy);
        if let Some(most) = optional(call.data, "max_entries") {
            request.max_entries = entries(most)?;
        }
        let skill = SkillName { name: name.clone() };
        let skills = call.runtime.skills();
        let listing = skills.with(&scope(&call), move |store| store.list_files(&name, &request)).await?;
        Ok(Answer::SkillFiles(SkillFiles { skill, listing }))
    };
    wrapped(work.await)
}

pub(super) async fn read_skill_file(call: Call<'_>) -> Outcome {
    let work = async {
        let name = string("name", required(call.data, "name")?)?.to_owned();
        let path = string("path", required(call.data, "path")?)?.to_owned();
        let skill = SkillName { name: name.clone() };
        let skills = call.runtime.skills();
        let read = skills.with(&scope(&call), move |store| store.read_file(&name, &path)).await?;
        let content =
            String::from_utf8(read.bytes).map_err(|_| SkillError::NotText { path: read.path.clone() })?;
        Ok(Answer::SkillFile { skill, path: read.path, content })
    };
    wrapped(work.await)
}

pub(super) async fn write_skill_file(call: Call<'_>) -> Outcome {
    let work = async {
        let name = string("name", required(call.data, "name")?)?.to_owned();
        let path = string("path", required(call.data, "path")?)?.to_owned();
        let content = match call.data.get("content") {
            None => String::new(),
            Some(Value::String(content)) => content.clone(),
            Some(other) => {
                let problem = format!("write() argument must be str, not {}", python_type(other));
                return Err(ActionError::invalid(problem));
            }
        };
        let skill = SkillName { name: name.clone() };
        let skills = call.runtime.skills();
        let write =
            move |store: &sandcrate_skills::Store| store.write_file(&name, &path, content.as_bytes(), None);
        let written = skills.with(&scope(&call), write).await?;
        Ok(Answer::WrittenSkillFile { skill, path: written.path, bytes_written: written.bytes_written })
    };
    wrapped(work.await)
}

pub(super) async fn preview_skill_zip(call: Call<'_>) -> Outcome {
    let work = async {
        let skills = call.runtime.skills();
        let room = skills.room().await?;
        let archive = archive(&call)?;
        // The work goes on when the caller leaves, and keeps its room.
        let look = move |store: &sandcrate_skills::Store| {
            let _room = room;
            store.preview(&archive)
        };
        let skills = skills.with(&scope(&call), look).await?;
        Ok(Answer::SkillCandidates { skills })
    };
    wrapped(work.await)
}

pub(super) async fn install_skill_zip(call: Call<'_>) -> Outcome {
    let work = async {
        let skills = call.runtime.skills();
        let room = skills.room().await?;
        let archive = archive(&call)?;
        let mut source_paths = match optional(call.data, "source_paths") {
            None => Vec::new(),
            Some(Value::Array(paths)) => {
                let paths = paths.iter().map(|path| string("source_paths", path).map(str::to_owned));
                paths.collect::<Result<_, _>>()?
            }
            Some(_) => return Err(ActionError::invalid("source_paths must be a list of strings")),
        };
        if let Some(path) = optional(call.data, "source_path") {
            source_paths.push(string("source_path", path)?.to_owned());
        }
        let selection = Selection { source_paths };
        let put = move |store: &sandcrate_skills::Store| {
            let _room = room;
            store.install(&archive, &selection)
        };
        let skills = skills.with(&scope(&call), put).await?;
        Ok(Answer::Skills { skills })
    };
    wrapped(work.await)
}

/// The upload a call names, which is used up by it.
fn archive(call: &Call<'_>) -> Result<Archive, ActionError> {
    let key = string("file_key", required(call.data, "file_key")?)?;
    let bytes = call.runtime.skills().uploaded(&upload_scope(call), key)?;
    let field = |key, default: &str| match optional(call.data, key) {
        None => Ok(default.to_owned()),
        Some(value) => string(key, value).map(str::to_owned),
    };
    Ok(Archive {
        bytes,
        filename: field("filename", Archive::DEFAULT_FILENAME)?,
        source_subdir: field("source_subdir", "")?,
        target_suffix: field("target_suffix", Archive::DEFAULT_SUFFIX)?,
    })
}

fn required<'a>(data: &'a Value, key: &'static str) -> Result<&'a Value, ActionError> {
    data.get(key).ok_or(ActionError::MissingKey { key })
}

/// Null counts as absent.
fn optional<'a>(data: &'a Value, key: &str) -> Option<&'a Value> {
    data.get(key).filter(|value| !value.is_null())
}

fn string<'a>(key: &str, value: &'a Value) -> Result<&'a str, ActionError> {
    value.as_str().ok_or_else(|| ActionError::invalid(format!("{key} must be a string")))
}

fn object<'a>(key: &str, value: &'a Value) -> Result<&'a Map<String, Value>, ActionError> {
    value.as_object().ok_or_else(|| ActionError::invalid(format!("{key} must be an object")))
}

/// A text of a skill; null clears it.
fn text(skill: &Map<String, Value>, key: &'static str) -> Result<Option<String>, ActionError> {
    match skill.get(key) {
        None => Ok(None),
        Some(Value::Null) => Ok(Some(String::new())),
        Some(value) => string(key, value).map(|text| Some(text.to_owned())),
    }
}

fn number(key: &str, value: &Value) -> Result<u64, ActionError> {
    let number = lax_integer(value).and_then(|number| u64::try_from(number).ok());
    number.ok_or_else(|| ActionError::invalid(format!("{key} must be a number of at least 0")))
}

/// `int(value)`; none are fewer than no entries.
fn entries(value: &Value) -> Result<usize, ActionError> {
    match lax_integer(value) {
        Some(number) => Ok(usize::try_from(number.max(0)).unwrap_or(usize::MAX)),
        None => Err(ActionError::invalid(match value {
            Value::String(text) => {
                let shown: String = text.chars().take(50).collect();
                format!("invalid literal for int() with base 10: {}", python_repr(&shown))
            }
            _ => "max_entries must be a number".to_owned(),
        })),
    }
}

fn truthy(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(value) => *value,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    }
}

/// What is not of the alphabet is left out, as Python does.
fn decode(text: &str) -> Result<Vec<u8>, ActionError> {
    let known = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=');
    let known: Vec<u8> = text.bytes().filter(known).collect();
    BASE64.decode(known).map_err(|_| ActionError::Padding)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn base64_is_read_as_python_reads_it() {
        assert_eq!(decode("eA==").unwrap(), b"x");
        assert_eq!(decode("!!").unwrap(), b"");
        assert_eq!(decode("e\nA=\r=").unwrap(), b"x");
        assert_eq!(decode("eB==").unwrap(), b"x", "bits behind the last byte");
        assert_eq!(decode("abc").unwrap_err().message(), "Error: Incorrect padding");
    }

    #[test]
    fn numbers_are_read_as_python_reads_them() {
        assert_eq!(entries(&json!("5")).unwrap(), 5);
        assert_eq!(entries(&json!(-3)).unwrap(), 0);
        let refused = entries(&json!("x")).unwrap_err().as_invalid().message();
        assert_eq!(refused, "BoxValidationError: invalid literal for int() with base 10: 'x'");
    }
}
