//! activate and register_skill.

use sandcrate_protocol::python_trim;
use serde_json::{Value, json};

use super::Toolbox;
use super::arguments::Arguments;
use super::path::{self, Place};
use crate::skills::is_skill_name;
use crate::{FileKind, HostError, Query, Result};

pub(crate) fn activate(toolbox: &Toolbox, arguments: &Value, query: &mut Query) -> Result<Value> {
    let arguments = Arguments::new("activate", arguments, &["skill_name"])?;
    toolbox.skills.activate(query, arguments.optional_text("skill_name")?.unwrap_or_default())
}

pub(crate) async fn register_skill(toolbox: &Toolbox, arguments: &Value, query: &Query) -> Result<Value> {
    let known = ["path", "name", "display_name", "description", "instructions"];
    let arguments = Arguments::new("register_skill", arguments, &known)?;
    let given = python_trim(arguments.optional_text("path")?.unwrap_or_default());
    if given.is_empty() {
        return Err(HostError::invalid("path is required"));
    }
    let files = toolbox.files(query).await?;
    let Some(workspace) = files.spec.host_path.clone() else {
        return Err(HostError::invalid("No default workspace configured"));
    };
    let parts = path::below_workspace(given).map_err(in_our_words)?;
    if path::skill_of(&parts)?.is_some() {
        return Err(HostError::invalid("path is in the package of a skill already"));
    }
    let below = parts.join("/");
    let place = Place { path: join(path::WORKSPACE, &below), skill: None };
    match place.look(&files).await.map_err(in_our_words)? {
        Some(meta) if meta.kind == FileKind::Directory => {}
        _ => return Err(HostError::invalid(format!("Directory does not exist: {given}"))),
    }
    let package_root = join(workspace.trim_end_matches('/'), &below);
    let scanned = files.client.skill("box_scan_skill_directory", json!({"path": package_root})).await?;
    let field = |key: &str| -> Result<String> {
        let given = arguments.optional_text(key)?.map(python_trim).filter(|text| !text.is_empty());
        let found = || scanned.get(key).and_then(Value::as_str).map(python_trim).unwrap_or_default();
        Ok(given.unwrap_or_else(found).to_owned())
    };
    let name = field("name")?;
    if name.is_empty() {
        return Err(HostError::invalid("skill name is required"));
    }
    if !is_skill_name(&name) {
        return Err(HostError::invalid(format!(
            "`{name}` cannot be the name of a skill: letters, digits, - and _ only, at most 64"
        )));
    }
    let skill = json!({
        "name": name,
        "display_name": field("display_name")?,
        "description": field("description")?,
        "instructions": field("instructions")?,
        "package_root": package_root,
    });
    let created = files.client.skill("box_create_skill", json!({"skill": skill})).await?;
    toolbox.skills.reload(&*files.client).await;
    let skill = created.get("skill").unwrap_or(&created);
    Ok(json!({"registered": true, "skill_name": name, "source_path": given, "skill": skill}))
}

fn join(base: &str, below: &str) -> String {
    if below.is_empty() { base.to_owned() } else { format!("{base}/{below}") }
}

/// The texts that this tool has for what the file tools say in their way.
fn in_our_words(error: HostError) -> HostError {
    let message = match error.message.as_str() {
        "Path must be under /workspace." => "path must be under /workspace",
        message if message.starts_with("Path escapes the workspace boundary.") => {
            "path escapes the workspace boundary"
        }
        _ => return error,
    };
    HostError::new(error.kind, message)
}
