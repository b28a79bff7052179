//! The skill actions by their names on the wire, over the store in this process.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sandcrate_protocol::ErrorKind;
use sandcrate_skills::{
    Archive, Chunk, ListRequest, NewSkill, Scope, Selection, SkillChange, SkillError, Skills,
};
use serde_json::{Value, json};

use super::encoded;
use crate::{HostError, Result};

const SCOPE: Scope = Scope::Shared;

pub(super) async fn act(skills: &Skills, action: &str, data: Value) -> Result<Value> {
    let name = || text(&data, "name");
    match action {
        "box_list_skills" => Ok(json!({"skills": encoded(&skills.list(&SCOPE).await.map_err(failed)?)?})),
        "box_get_skill" => match skills.get(&SCOPE, &name()?).await {
            Ok(skill) => Ok(json!({"skill": encoded(&skill)?})),
            Err(SkillError::NotFound { .. }) => Ok(json!({"skill": null})),
            Err(error) => Err(failed(error)),
        },
        "box_create_skill" => {
            let skill = &data["skill"];
            let field = |key| optional(skill, key).map(Option::unwrap_or_default);
            let new = NewSkill {
                name: field("name")?,
                display_name: field("display_name")?,
                description: field("description")?,
                instructions: field("instructions")?,
                package_root: field("package_root")?,
            };
            Ok(json!({"skill": encoded(&skills.create(&SCOPE, new).await.map_err(failed)?)?}))
        }
        "box_update_skill" => {
            let (name, skill) = (name()?, &data["skill"]);
            let change = SkillChange {
                name: optional(skill, "name")?,
                display_name: optional(skill, "display_name")?,
                description: optional(skill, "description")?,
                instructions: optional(skill, "instructions")?,
                package_root: optional(skill, "package_root")?,
            };
            let updated = skills.with(&SCOPE, move |store| store.update(&name, &change)).await;
            Ok(json!({"skill": encoded(&updated.map_err(failed)?)?}))
        }
        "box_delete_skill" => {
            let (name, deleted) = (name()?, name()?);
            skills.with(&SCOPE, move |store| store.delete(&name)).await.map_err(failed)?;
            Ok(json!({"deleted": deleted}))
        }
        "box_scan_skill_directory" => {
            encoded(&skills.scan(&SCOPE, text(&data, "path")?).await.map_err(failed)?)
        }
        _ => files(skills, action, &data).await,
    }
}

async fn files(skills: &Skills, action: &str, data: &Value) -> Result<Value> {
    let name = || text(data, "name");
    match action {
        "box_list_skill_files" => {
            let (name, shown) = (name()?, name()?);
            let mut request = ListRequest::default();
            if let Some(path) = optional(data, "path")? {
                request.path = path;
            }
            request.include_hidden = data["include_hidden"] == true;
            if let Some(most) = data["max_entries"].as_u64() {
                request.max_entries = usize::try_from(most).unwrap_or(usize::MAX);
            }
            let listing = skills.with(&SCOPE, move |store| store.list_files(&name, &request)).await;
            let mut listing = encoded(&listing.map_err(failed)?)?;
            listing["skill"] = json!({"name": shown});
            Ok(listing)
        }
        "box_read_skill_file" => {
            let (name, shown, path) = (name()?, name()?, text(data, "path")?);
            let read = skills.with(&SCOPE, move |store| store.read_file(&name, &path)).await;
            let read = read.map_err(failed)?;
            let not_text = |_| failed(SkillError::NotText { path: read.path.clone() });
            let content = String::from_utf8(read.bytes).map_err(not_text)?;
            Ok(json!({"skill": {"name": shown}, "path": read.path, "content": content}))
        }
        "box_write_skill_file" => {
            let (name, shown, path) = (name()?, name()?, text(data, "path")?);
            let content = optional(data, "content")?.unwrap_or_default();
            let write = move |store: &sandcrate_skills::Store| {
                store.write_file(&name, &path, content.as_bytes(), None)
            };
            let written = skills.with(&SCOPE, write).await.map_err(failed)?;
            let bytes = written.bytes_written;
            Ok(json!({"skill": {"name": shown}, "path": written.path, "bytes_written": bytes}))
        }
        "__file_chunk" => {
            let bytes = STANDARD.decode(text(data, "chunk_base64")?);
            let bytes = bytes.map_err(|_| HostError::invalid("chunk_base64 is not valid"))?;
            let number = |key: &str| {
                data[key].as_u64().ok_or_else(|| HostError::invalid(format!("{key} must be a number")))
            };
            let (index, amount) = (number("chunk_index")?, number("chunk_amount")?);
            let chunk = Chunk { file_key: text(data, "file_key")?, index, amount, bytes };
            skills.upload(&SCOPE, chunk, usize::MAX).map_err(failed)?;
            Ok(json!({}))
        }
        "box_preview_skill_zip" | "box_install_skill_zip" => archives(skills, action, data).await,
        _ => Err(HostError::new(ErrorKind::Unsupported, format!("Action {action} not found"))),
    }
}

async fn archives(skills: &Skills, action: &str, data: &Value) -> Result<Value> {
    let room = skills.room().await.map_err(failed)?;
    let field =
        |key, default: &str| optional(data, key).map(|text| text.unwrap_or_else(|| default.to_owned()));
    let archive = Archive {
        bytes: skills.uploaded(&SCOPE, &text(data, "file_key")?).map_err(failed)?,
        filename: field("filename", Archive::DEFAULT_FILENAME)?,
        source_subdir: field("source_subdir", "")?,
        target_suffix: field("target_suffix", Archive::DEFAULT_SUFFIX)?,
    };
    if action == "box_preview_skill_zip" {
        let look = move |store: &sandcrate_skills::Store| {
            let _room = room;
            store.preview(&archive)
        };
        return Ok(json!({"skills": encoded(&skills.with(&SCOPE, look).await.map_err(failed)?)?}));
    }
    let mut source_paths = Vec::new();
    for path in data["source_paths"].as_array().into_iter().flatten() {
        let path =
            path.as_str().ok_or_else(|| HostError::invalid("source_paths must be a list of strings"))?;
        source_paths.push(path.to_owned());
    }
    source_paths.extend(optional(data, "source_path")?);
    let selection = Selection { source_paths };
    let put = move |store: &sandcrate_skills::Store| {
        let _room = room;
        store.install(&archive, &selection)
    };
    Ok(json!({"skills": encoded(&skills.with(&SCOPE, put).await.map_err(failed)?)?}))
}

#[expect(clippy::needless_pass_by_value, reason = "it is handed to map_err")]
fn failed(error: SkillError) -> HostError {
    HostError::new(error.kind(), error.to_string())
}

fn text(data: &Value, key: &str) -> Result<String> {
    optional(data, key)?.ok_or_else(|| HostError::invalid(format!("{key} is required")))
}

fn optional(data: &Value, key: &str) -> Result<Option<String>> {
    match &data[key] {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text.clone())),
        _ => Err(HostError::invalid(format!("{key} must be a string"))),
    }
}
