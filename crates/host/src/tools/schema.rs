//! The tools as data, in the shapes that models' interfaces take.

use serde::Serialize;
use serde_json::{Value, json};

/// One tool: what it is called, what it is for, what it takes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ToolDefinition {
    pub name: &'static str,
    pub description: String,
    /// JSON Schema of the arguments.
    pub parameters: Value,
}

/// For whom a list of tools is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolFormat {
    /// `name`, `description`, `parameters`.
    Plain,
    /// `{"type": "function", "function": {…}}`.
    OpenAi,
    /// `name`, `description`, `input_schema`.
    Anthropic,
}

impl ToolDefinition {
    /// ```
    /// use sandcrate_host::tools::{ToolFormat, native_definitions};
    ///
    /// let read = native_definitions().into_iter().find(|tool| tool.name == "read").unwrap();
    /// assert_eq!(read.to_json(ToolFormat::Anthropic)["input_schema"]["required"][0], "path");
    /// assert_eq!(read.to_json(ToolFormat::OpenAi)["function"]["name"], "read");
    /// ```
    pub fn to_json(&self, format: ToolFormat) -> Value {
        let Self { name, description, parameters } = self;
        match format {
            ToolFormat::Plain => json!({"name": name, "description": description, "parameters": parameters}),
            ToolFormat::OpenAi => json!({
                "type": "function",
                "function": {"name": name, "description": description, "parameters": parameters},
            }),
            ToolFormat::Anthropic => {
                json!({"name": name, "description": description, "input_schema": parameters})
            }
        }
    }

    fn new(name: &'static str, description: &str, properties: &Value, required: &[&str]) -> Self {
        let parameters = json!({
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": false,
        });
        Self { name, description: description.to_owned(), parameters }
    }
}

fn text(description: &str) -> Value {
    json!({"type": "string", "description": description})
}

fn text_or(description: &str, default: &str) -> Value {
    json!({"type": "string", "description": description, "default": default})
}

/// exec, read, write, edit, glob and grep, in this order.
pub fn native_definitions() -> Vec<ToolDefinition> {
    let path = text("Absolute path in the sandbox, under /workspace.");
    let place = text_or("Where to look, under /workspace.", "/workspace");
    vec![
        ToolDefinition::new(
            "exec",
            "Run a shell command in the sandbox and return its exit code and output. Files under /workspace stay \
             between calls. Packages of activated skills are under /workspace/.skills/<skill-name>.",
            &json!({
                "command": text("The command, as given to sh -c; may have several lines."),
                "workdir": text_or("Directory to run it in.", "/workspace"),
                "timeout_sec": {
                    "type": "integer", "minimum": 1, "default": 30,
                    "description": "Seconds until the command is ended.",
                },
                "env": {
                    "type": "object", "additionalProperties": {"type": "string"}, "default": {},
                    "description": "Environment variables to add.",
                },
                "description": text("A few words on what the command is for; only logged."),
            }),
            &["command"],
        ),
        ToolDefinition::new(
            "read",
            "Read a text file, or list the names in a directory.",
            &json!({"path": path}),
            &["path"],
        ),
        ToolDefinition::new(
            "write",
            "Write a file, replacing what was there; missing directories are made.",
            &json!({"path": path, "content": text("All that the file is to hold.")}),
            &["path", "content"],
        ),
        ToolDefinition::new(
            "edit",
            "Replace one passage of a file. The passage must occur exactly once, line ends included.",
            &json!({
                "path": path,
                "old_string": text("The passage as it is now."),
                "new_string": text("The passage as it is to be."),
            }),
            &["path", "old_string", "new_string"],
        ),
        ToolDefinition::new(
            "glob",
            "Find files and directories by pattern, newest first, at most 100. `*` and `?` stay within a name, \
             `**` spans directories.",
            &json!({"pattern": text("Relative pattern such as **/*.py."), "path": place}),
            &["pattern"],
        ),
        ToolDefinition::new(
            "grep",
            "Find lines by regular expression, at most 200.",
            &json!({
                "pattern": text("Regular expression without look-around and back-references."),
                "path": place,
                "include": text("Only files whose name matches, such as *.py."),
            }),
            &["pattern"],
        ),
    ]
}

/// activate, with its description rendered for one request, and register_skill.
pub(crate) fn skill_definitions(activate: String) -> Vec<ToolDefinition> {
    let mut first = ToolDefinition::new(
        "activate",
        "",
        &json!({"skill_name": text("Name of the skill, as listed.")}),
        &["skill_name"],
    );
    first.description = activate;
    let second = ToolDefinition::new(
        "register_skill",
        "Make a directory under /workspace that holds a SKILL.md a skill for later use.",
        &json!({
            "path": text("The directory, under /workspace."),
            "name": text("Name of the skill; the one in SKILL.md if absent."),
            "display_name": text("Name to show."),
            "description": text("What the skill is for, in one line."),
            "instructions": text("Text of SKILL.md, replacing the one there."),
        }),
        &["path"],
    );
    vec![first, second]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of the reference: name, required, optional.
    #[test]
    fn schemas_have_the_names_and_the_requirements_of_the_reference() {
        let table: Vec<_> = native_definitions()
            .into_iter()
            .chain(skill_definitions("x".to_owned()))
            .map(|tool| {
                let parameters = &tool.parameters;
                assert_eq!(parameters["type"], "object");
                assert_eq!(parameters["additionalProperties"], false);
                assert!(!tool.description.is_empty());
                let mut all: Vec<_> = parameters["properties"].as_object().unwrap().keys().cloned().collect();
                all.sort();
                let required: Vec<_> =
                    parameters["required"].as_array().unwrap().iter().map(|v| v.as_str().unwrap()).collect();
                format!("{}: {} of {}", tool.name, required.join(","), all.join(","))
            })
            .collect();
        assert_eq!(
            table,
            [
                "exec: command of command,description,env,timeout_sec,workdir",
                "read: path of path",
                "write: path,content of content,path",
                "edit: path,old_string,new_string of new_string,old_string,path",
                "glob: pattern of path,pattern",
                "grep: pattern of include,path,pattern",
                "activate: skill_name of skill_name",
                "register_skill: path of description,display_name,instructions,name,path",
            ]
        );
        let exec = &native_definitions()[0].parameters["properties"];
        assert_eq!(exec["timeout_sec"]["minimum"], 1);
        assert_eq!(exec["timeout_sec"]["default"], 30);
        assert_eq!(exec["workdir"]["default"], "/workspace");
    }

    #[test]
    fn each_shape_carries_the_same_schema() {
        for tool in native_definitions() {
            let open = tool.to_json(ToolFormat::OpenAi);
            assert_eq!(open["type"], "function");
            assert_eq!(open["function"], tool.to_json(ToolFormat::Plain));
            let anthropic = tool.to_json(ToolFormat::Anthropic);
            assert_eq!(anthropic["input_schema"], tool.parameters);
            assert_eq!(anthropic.get("parameters"), None);
        }
    }
}
