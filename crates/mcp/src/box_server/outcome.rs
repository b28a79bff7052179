//! The outcome of a call as a client gets it: a text for the model, the facts as structured content, and whether
//! it is an error.
//!
//! A failure that a model can do something about is a result that says what; nothing of it is a protocol error.

use rmcp::model::{CallToolResult, ContentBlock};
use sandcrate_host::{HostError, truncate};
use sandcrate_protocol::ErrorKind;
use serde_json::{Value, json};

/// Characters of a file, or of a list of matches, that a model is shown: ten times the output of a command.
pub(super) const SHOWN_CHARS: usize = 40_000;
/// Of denials and limits in the text; the structured content has all.
const SHOWN_NOTES: usize = 8;

/// The result of a tool that ran.
pub(super) fn result(tool: &str, mut value: Value) -> CallToolResult {
    let ok = value["ok"].as_bool().unwrap_or(true);
    let text = match (tool, value["error"].as_str()) {
        (_, Some(error)) => error.to_owned(),
        ("exec", None) => command(&value),
        ("read", None) => file(&mut value),
        ("glob" | "grep", None) => matches(&mut value),
        ("write" | "edit", None) => format!("wrote {}", value["path"].as_str().unwrap_or_default()),
        _ => value.to_string(),
    };
    with_facts(text, value, ok)
}

/// A text of ours with its facts.
pub(super) fn with_facts(text: String, facts: Value, ok: bool) -> CallToolResult {
    let content = vec![ContentBlock::text(text)];
    let mut result = if ok { CallToolResult::success(content) } else { CallToolResult::error(content) };
    result.structured_content = Some(facts);
    result
}

/// A call that failed before or beside the tool.
pub(super) fn failure(error: &HostError) -> CallToolResult {
    let text = match advice(error.kind) {
        "" => error.message.clone(),
        advice => format!("{}\n{advice}", error.message),
    };
    let mut facts = json!({"ok": false, "error": error.message, "kind": error.kind});
    if let Some(output) = &error.output {
        facts["stdout"] = json!(output.stdout);
        facts["stderr"] = json!(output.stderr);
    }
    with_facts(text, facts, false)
}

/// What to do about a failure, in a sentence to a model; empty where the message says it.
fn advice(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Validation => "Correct the arguments and call again.",
        ErrorKind::Denied | ErrorKind::Admission => {
            "This is forbidden here and will be again; do without, or ask the user to change the policy."
        }
        ErrorKind::SessionNotFound => "The box ended; call again to start with a new one, without its files.",
        ErrorKind::SessionConflict | ErrorKind::ProcessConflict => {
            "Use session_reset, or ask the user for another session name."
        }
        ErrorKind::LimitExceeded | ErrorKind::CapacityExceeded => {
            "Wait for other calls to end, or free what is not needed, then call again."
        }
        ErrorKind::Timeout => {
            "Do less in one call, or start the work in the background and look at it later."
        }
        ErrorKind::Unenforceable
        | ErrorKind::BackendUnavailable
        | ErrorKind::RuntimeUnavailable
        | ErrorKind::Readiness => {
            "No box can be had at the moment; tell the user to run `sandcrate doctor` on that machine."
        }
        ErrorKind::ImageUnavailable => "Ask the user to import the image: `sandcrate image import`.",
        ErrorKind::Internal => "Call again once; if it fails again, use session_reset or tell the user.",
        ErrorKind::FileNotFound => "Look for it with glob, or with `ls` by exec.",
        _ => "",
    }
}

/// Streams first, as a terminal shows them; then how it ended, which a model reads last.
fn command(value: &Value) -> String {
    let stream = |name: &str| value[name].as_str().unwrap_or_default();
    let mut parts = Vec::new();
    if !stream("stdout").is_empty() {
        parts.push(stream("stdout").to_owned());
    }
    if !stream("stderr").is_empty() {
        parts.push(format!("[stderr]\n{}", stream("stderr")));
    }
    match value["exit_code"].as_i64() {
        Some(code) => parts.push(format!("[exit code {code}]")),
        None => parts.push(
            "[timed out: the command was ended; give it a larger timeout_sec, or run it in the background]"
                .to_owned(),
        ),
    }
    if value["stdout_truncated"] == true || value["stderr_truncated"] == true {
        parts.push(
            "[output was cut in the middle; write it to a file under /workspace and read parts of it]"
                .to_owned(),
        );
    }
    for limit in value["limits_hit"].as_array().into_iter().flatten().take(SHOWN_NOTES) {
        parts.push(format!("[limit hit: {}]", limit_text(limit)));
    }
    let denials = value["denials"].as_array().map(Vec::as_slice).unwrap_or_default();
    for denial in denials.iter().take(SHOWN_NOTES) {
        let word = |name: &str| denial[name].as_str().unwrap_or_default();
        parts.push(format!("[network refused: {} by `{}`; {}]", word("target"), word("rule"), word("hint")));
    }
    if denials.len() > SHOWN_NOTES {
        parts.push(format!("[{} more were refused]", denials.len() - SHOWN_NOTES));
    }
    parts.join("\n")
}

fn limit_text(limit: &Value) -> String {
    let mega = |bytes: &Value| bytes.as_u64().unwrap_or_default() >> 20;
    if let Some(memory) = limit.get("memory") {
        return format!(
            "memory of {} MiB, {} processes killed; use less at a time",
            mega(&memory["limit_bytes"]),
            memory["oom_kills"]
        );
    }
    if let Some(pids) = limit.get("pids") {
        return format!("{} processes, {} refused; start fewer at a time", pids["limit"], pids["refused"]);
    }
    if let Some(disk) = limit.get("disk") {
        return format!(
            "disk of {} MiB, {} used; remove files",
            mega(&disk["limit_bytes"]),
            mega(&disk["used_bytes"])
        );
    }
    limit.to_string()
}

fn file(value: &mut Value) -> String {
    let (text, cut) = truncate(value["content"].as_str().unwrap_or_default(), SHOWN_CHARS);
    value["truncated"] = cut.into();
    if cut {
        value["content"] = json!(text);
        return format!("{text}\n[cut in the middle; use exec with sed -n or tail to see another part]");
    }
    text
}

/// One match a line, as `grep -n` and `find` write them.
fn matches(value: &mut Value) -> String {
    let Some(found) = value["matches"].as_array_mut() else { return value.to_string() };
    let line = |found: &Value| match found.as_str() {
        Some(path) => path.to_owned(),
        None => format!(
            "{}:{}: {}",
            found["file"].as_str().unwrap_or_default(),
            found["line"],
            found["content"].as_str().unwrap_or_default()
        ),
    };
    let (mut text, mut kept) = (String::new(), 0);
    for line in found.iter().map(line) {
        if text.len() + line.len() > SHOWN_CHARS {
            break;
        }
        text.push_str(&line);
        text.push('\n');
        kept += 1;
    }
    let left_out = found.len() - kept;
    found.truncate(kept);
    if left_out > 0 {
        value["truncated"] = true.into();
    }
    if value["truncated"] == true {
        text.push_str("[there are more; narrow the pattern or the path]");
    }
    if text.is_empty() { "no matches".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(result: &CallToolResult) -> &str {
        &result.content[0].as_text().unwrap().text
    }

    fn run(change: impl FnOnce(&mut Value)) -> CallToolResult {
        let mut value = json!({
            "ok": true, "status": "completed", "exit_code": 0, "stdout": "hi", "stderr": "",
            "stdout_truncated": false, "stderr_truncated": false, "limits_hit": [], "denials": [],
        });
        change(&mut value);
        result("exec", value)
    }

    #[test]
    fn a_command_shows_its_streams_and_its_end() {
        let fine = run(|_| {});
        assert_eq!((text(&fine), fine.is_error), ("hi\n[exit code 0]", Some(false)));
        assert_eq!(fine.structured_content.as_ref().unwrap()["exit_code"], 0);
        let failed = run(|value| {
            value["ok"] = false.into();
            value["exit_code"] = 2.into();
            value["stderr"] = "no".into();
        });
        assert_eq!((text(&failed), failed.is_error), ("hi\n[stderr]\nno\n[exit code 2]", Some(true)));
        let late = run(|value| {
            value["ok"] = false.into();
            value["exit_code"] = Value::Null;
            value["status"] = "timed_out".into();
        });
        assert!(text(&late).contains("timeout_sec"), "{}", text(&late));
    }

    #[test]
    fn limits_and_denials_are_told_with_what_to_do() {
        let shown = run(|value| {
            value["stdout_truncated"] = true.into();
            value["limits_hit"] = json!([
                {"memory": {"oom_kills": 1, "limit_bytes": 512 << 20, "tmpfs_bytes": null}},
                {"pids": {"refused": 3, "limit": 128}},
                {"disk": {"used_bytes": 2 << 20, "limit_bytes": 1 << 20}},
            ]);
            let denial = json!({"target": "tcp 10.0.0.1:80", "rule": "never: private", "hint": "ask"});
            value["denials"] = Value::Array(vec![denial; 9]);
        });
        let text = text(&shown);
        for word in [
            "cut in the middle",
            "memory of 512 MiB, 1 processes killed",
            "128 processes, 3 refused",
            "disk of 1 MiB, 2 used",
            "tcp 10.0.0.1:80 by `never: private`; ask",
            "1 more were refused",
        ] {
            assert!(text.contains(word), "`{word}` is not in {text}");
        }
    }

    #[test]
    fn a_failure_says_what_to_do_and_is_an_error() {
        for kind in ErrorKind::ALL {
            let shown = failure(&HostError::new(kind, "it broke"));
            assert_eq!(shown.is_error, Some(true));
            assert!(text(&shown).starts_with("it broke"));
            assert_eq!(shown.structured_content.unwrap()["ok"], false);
        }
        let shown = failure(&HostError::invalid("argument `path` of `read` is required"));
        assert!(text(&shown).contains("`path`") && text(&shown).contains("Correct the arguments"));
        let soft = result("read", json!({"ok": false, "error": "File not found: /workspace/x"}));
        assert_eq!((text(&soft), soft.is_error), ("File not found: /workspace/x", Some(true)));
    }

    #[test]
    fn a_long_file_and_many_matches_are_cut_for_a_model() {
        let long = result("read", json!({"ok": true, "content": "x".repeat(SHOWN_CHARS + 1)}));
        let facts = long.structured_content.as_ref().unwrap();
        assert_eq!(facts["truncated"], true);
        assert_eq!(facts["content"].as_str().unwrap().chars().count(), SHOWN_CHARS);
        assert!(text(&long).contains("characters truncated") && text(&long).contains("sed -n"));
        let line = json!({"file": "/workspace/a", "line": 3, "content": "y".repeat(500)});
        let many = result("grep", json!({"ok": true, "matches": vec![line; 200], "truncated": false}));
        assert!(text(&many).len() < SHOWN_CHARS + 100);
        assert!(text(&many).starts_with("/workspace/a:3: yyy") && text(&many).contains("there are more"));
        let none = result("glob", json!({"ok": true, "matches": [], "truncated": false}));
        assert_eq!(text(&none), "no matches");
        let paths = result("glob", json!({"ok": true, "matches": ["/workspace/a"], "truncated": false}));
        assert_eq!(text(&paths), "/workspace/a\n");
    }
}
