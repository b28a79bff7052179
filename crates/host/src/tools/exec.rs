//! exec: a command in the box, in the package of at most one activated skill.
//!
//! The text of a command proves nothing, since a shell can spell a path in many ways. The checks here tell an honest
//! model what it forgot; what a command can reach is decided by the mounts of its box.

use sandcrate_protocol::{NetworkMode, python_trim};
use serde_json::{Value, json};

use super::arguments::Arguments;
use super::path::{self, skill_of};
use super::{PythonEnvironment, Toolbox, python_env};
use crate::skills::{SKILLS_MOUNT, Skill, activated_skill};
use crate::{HostError, Query, Result};

/// Of a command in the log.
const LOGGED_CHARS: usize = 400;
/// For a command that may first have to build an environment, when it names no time of its own.
const BUILD_TIMEOUT_SEC: i64 = 120;

pub(crate) const FIELDS: [&str; 6] = ["command", "workdir", "timeout_sec", "env", "description", "elevated"];

pub(crate) async fn exec(toolbox: &Toolbox, arguments: &Value, query: &Query) -> Result<Value> {
    let arguments = Arguments::new("exec", arguments, &FIELDS)?;
    let command = arguments.text("command")?;
    let workdir = arguments.optional_text("workdir")?;
    let timeout = arguments.optional_count("timeout_sec")?;
    let env = arguments.optional_texts("env")?;
    let description = arguments.optional_text("description")?;
    let elevated = arguments.flag("elevated")?;
    if elevated {
        toolbox.policy.check_elevation()?;
    }
    tracing::debug!(
        command = logged(command),
        workdir,
        timeout_sec = timeout,
        env = ?env.iter().flatten().map(|(name, _)| name).collect::<Vec<_>>(),
        description,
        "exec"
    );
    let skill = skill_for(toolbox, query, command, workdir)?;
    let mut parameters = json!({"command": command});
    if let Some(workdir) = workdir {
        parameters["workdir"] = workdir.into();
    }
    if let Some(timeout) = timeout {
        parameters["timeout_sec"] = timeout.into();
    }
    if let Some(env) = env {
        parameters["env"] = json!(env);
    }
    if elevated {
        parameters["elevated"] = true.into();
    }
    let Some(skill) = skill else {
        return toolbox.executor.execute_tool(parameters, query).await;
    };
    let files = toolbox.files(query).await?;
    let directory = skill.mount_path();
    if python_env::is_needed(&files, &directory).await? {
        let network = files.spec.network;
        parameters["command"] = PythonEnvironment::new(directory, network).wrap(command).into();
        if timeout.is_none() && network == NetworkMode::On {
            parameters["timeout_sec"] = BUILD_TIMEOUT_SEC.into();
        }
    }
    let result = toolbox.executor.execute_tool(parameters, query).await;
    toolbox.skills.reload(&*files.client).await;
    result
}

/// The skill whose package a command works in.
fn skill_for(
    toolbox: &Toolbox,
    query: &Query,
    command: &str,
    workdir: Option<&str>,
) -> Result<Option<Skill>> {
    let selected = selected_by(toolbox, query, workdir.unwrap_or_default())?;
    let referenced = referenced(command);
    let skill = match (selected, referenced.as_slice()) {
        (None, []) => return Ok(None),
        (None, [name]) => activated_skill(query, name).ok_or_else(|| {
            HostError::invalid(format!(
                "Skill \"{name}\" must be activated before exec can run in its package."
            ))
        })?,
        (None, _) => {
            return Err(HostError::invalid("exec can target at most one activated skill package per call."));
        }
        (Some(skill), names) if names.iter().all(|name| *name == skill.name) => skill,
        (Some(_), _) => {
            return Err(HostError::invalid(
                "exec can reference files from only one activated skill package per call.",
            ));
        }
    };
    if skill.package_root.is_empty() {
        let message = format!("Activated skill \"{}\" has no package_root.", skill.name);
        return Err(HostError::invalid(message));
    }
    Ok(Some(skill))
}

/// The activated skill that a working directory is in. Other directories are the runtime's to judge.
fn selected_by(toolbox: &Toolbox, query: &Query, workdir: &str) -> Result<Option<Skill>> {
    let Ok(parts) = path::below_workspace(python_trim(workdir)) else { return Ok(None) };
    let Some(name) = skill_of(&parts)? else { return Ok(None) };
    let skill = activated_skill(query, name);
    skill.map(Some).ok_or_else(|| path::not_available(&toolbox.skills, query, name))
}

/// Names of the skills whose packages the text mentions, each once, in order.
fn referenced(command: &str) -> Vec<&str> {
    let mut names = Vec::new();
    for (at, mark) in command.match_indices(SKILLS_MOUNT) {
        let Some(rest) = command[at + mark.len()..].strip_prefix('/') else { continue };
        let other = |c: char| !(c.is_alphanumeric() || matches!(c, '-' | '_'));
        let name = &rest[..rest.find(other).unwrap_or(rest.len())];
        if !name.is_empty() && !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn logged(command: &str) -> String {
    let command = command.trim();
    if command.chars().count() <= LOGGED_CHARS {
        return command.to_owned();
    }
    let mut short: String = command.chars().take(LOGGED_CHARS - 3).collect();
    short.push_str("...");
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mentioned_skills_are_found_once_and_in_order() {
        let text = "cat /workspace/.skills/b/x /workspace/.skills/a-1; ls /workspace/.skills/b '/workspace/.skills/技能'";
        assert_eq!(referenced(text), ["b", "a-1", "技能"]);
        assert_eq!(referenced("ls /workspace/.skills /workspace/.skills/ /workspace/.skillsX/a"), [""; 0]);
    }

    #[test]
    fn a_long_command_is_logged_with_397_characters() {
        let text = logged(&"ä".repeat(500));
        assert_eq!(text.chars().count(), 400);
        assert!(text.ends_with("ä..."));
        assert_eq!(logged(" ls "), "ls");
    }
}
