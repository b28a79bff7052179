//! The tools as MCP has them: the host's definitions, with what a client may think of each, and two of our own.

use std::sync::Arc;

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use sandcrate_host::tools::ToolDefinition;
use serde_json::{Value, json};

pub(super) const SESSION_LIST: &str = "session_list";
pub(super) const SESSION_RESET: &str = "session_reset";

/// What the host's text says beyond what there is here.
const SKILLS: &str = " Packages of activated skills";

/// All of them, in the order in which a client shows them.
pub(super) fn list(native: Vec<ToolDefinition>) -> Vec<Tool> {
    let mut tools: Vec<Tool> = native.into_iter().map(tool).collect();
    let nothing = json!({"type": "object", "properties": {}, "additionalProperties": false});
    tools.push(
        Tool::new(
            SESSION_LIST,
            "Show the sandbox session of this connection: whether it has a box, its network and its limits.",
            object(nothing.clone()),
        )
        .with_raw_output_schema(output(SESSION_LIST))
        .with_annotations(hints("List the session", Effect::Looks)),
    );
    tools.push(
        Tool::new(
            SESSION_RESET,
            "End everything that runs in the sandbox and begin anew: private files are lost, a mounted directory \
             stays as it is. Use it when the box is full, hung or in a state that cannot be repaired.",
            object(nothing),
        )
        .with_raw_output_schema(output(SESSION_RESET))
        .with_annotations(hints("Reset the session", Effect::Destroys)),
    );
    tools
}

/// What a call does to the box. In MCP whatever is not only added to is destroyed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    Looks,
    Destroys,
}

/// Nothing of this reaches beyond the box, but for the network that an operator gives it; `exec` alone has that.
fn hints(title: &str, effect: Effect) -> ToolAnnotations {
    ToolAnnotations::with_title(title)
        .read_only(effect == Effect::Looks)
        .destructive(effect == Effect::Destroys)
        .idempotent(true)
        .open_world(false)
}

fn tool(definition: ToolDefinition) -> Tool {
    let name = definition.name;
    let annotations = match name {
        "read" => hints("Read a file", Effect::Looks),
        "glob" => hints("Find files by name", Effect::Looks),
        "grep" => hints("Search in files", Effect::Looks),
        "edit" => hints("Edit a file", Effect::Destroys).idempotent(false),
        "write" => hints("Write a file", Effect::Destroys),
        _ => hints("Run a command", Effect::Destroys).idempotent(false).open_world(true),
    };
    let mut description = definition.description;
    if let Some(at) = description.find(SKILLS) {
        description.truncate(at);
    }
    Tool::new(name, description, object(definition.parameters))
        .with_raw_output_schema(output(name))
        .with_annotations(annotations)
}

fn object(value: Value) -> Arc<JsonObject> {
    match value {
        Value::Object(object) => Arc::new(object),
        _ => Arc::default(),
    }
}

/// The schema of `structuredContent`. Only `ok` is always there: a failure has `error` instead of the rest.
fn output(tool: &str) -> Arc<JsonObject> {
    let text = |about: &str| json!({"type": "string", "description": about});
    let truth = |about: &str| json!({"type": "boolean", "description": about});
    let mut properties = match tool {
        "exec" => json!({
            "session_id": text("The session."),
            "backend": text("What the box runs on."),
            "status": {"type": "string", "enum": ["completed", "timed_out"]},
            "exit_code": {"type": ["integer", "null"], "description": "128 + N for signal N; null after a timeout."},
            "stdout": text("What the command wrote; its beginning and its end when it was much."),
            "stderr": text("The same of its other stream."),
            "stdout_truncated": truth("Whether a part of stdout is missing."),
            "stderr_truncated": truth("Whether a part of stderr is missing."),
            "duration_ms": {"type": "integer"},
            "limits_hit": {"type": "array", "description": "Limits of the box that fired.", "items": {"type": "object"}},
            "denials": {"type": "array", "description": "What the network refused, and why.", "items": {"type": "object"}},
        }),
        "read" => json!({
            "content": text("The text, or the names in a directory."),
            "is_directory": truth("Whether it is one."),
            "truncated": truth("Whether a part is missing."),
        }),
        "write" | "edit" => json!({"path": text("The file.")}),
        "glob" | "grep" => json!({
            "matches": {"type": "array"},
            "total": {"type": "integer"},
            "truncated": truth("Whether there are more."),
        }),
        SESSION_LIST => json!({"sessions": {"type": "array", "items": {"type": "object"}}}),
        _ => json!({"session": text("The session."), "existed": truth("Whether there was a box to end.")}),
    };
    properties["ok"] = truth("Whether it did what was asked.");
    properties["error"] = text("What went wrong.");
    object(json!({"type": "object", "properties": properties, "required": ["ok"]}))
}

#[cfg(test)]
mod tests {
    use sandcrate_host::tools::native_definitions;

    use super::*;

    #[test]
    fn every_tool_says_what_it_does_and_nothing_that_is_not_here() {
        let tools = list(native_definitions());
        let names: Vec<_> = tools.iter().map(|tool| tool.name.as_ref()).collect();
        assert_eq!(names, ["exec", "read", "write", "edit", "glob", "grep", SESSION_LIST, SESSION_RESET]);
        for tool in &tools {
            let description = tool.description.as_deref().unwrap();
            assert!(!description.is_empty() && !description.contains("skill"), "{description}");
            let hints = tool.annotations.as_ref().unwrap();
            let looks = ["read", "glob", "grep", SESSION_LIST].contains(&tool.name.as_ref());
            assert_eq!(hints.read_only_hint, Some(looks), "{}", tool.name);
            assert_eq!(hints.destructive_hint, Some(!looks), "{}", tool.name);
            let repeats = !["exec", "edit"].contains(&tool.name.as_ref());
            assert_eq!(hints.idempotent_hint, Some(repeats), "{}", tool.name);
            assert_eq!(hints.open_world_hint, Some(tool.name == "exec"), "{}", tool.name);
            let schema = tool.output_schema.as_ref().unwrap();
            assert_eq!(schema["required"], json!(["ok"]), "{}", tool.name);
        }
    }
}
