//! MCP servers as people read them.

use std::fmt::Write;

use serde_json::Value;

use crate::client::table;

fn said(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), table::clean)
}

fn command(server: &Value) -> String {
    let args = server["args"].as_array().into_iter().flatten().map(said);
    std::iter::once(said(&server["command"])).chain(args).collect::<Vec<_>>().join(" ")
}

/// `status`, and the phase it failed in.
fn status(info: &Value) -> String {
    match info["error_phase"].as_str() {
        Some(phase) => format!("{} ({phase})", said(&info["status"])),
        None => said(&info["status"]),
    }
}

pub(super) fn rows(document: &Value) -> String {
    let servers = document["servers"].as_array().into_iter().flatten();
    let rows: Vec<_> = servers
        .map(|server| {
            let info = &server["runtime_info"];
            [
                said(&server["name"]),
                status(info),
                info["tool_count"].to_string(),
                said(&server["origin"]),
                table::shortened(&command(server)),
            ]
        })
        .collect();
    table::render(["NAME", "STATUS", "TOOLS", "ORIGIN", "COMMAND"], &rows)
}

pub(super) fn lines(server: &Value) -> String {
    let info = &server["runtime_info"];
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        // Messages hold output of other programs, which has lines.
        for (index, part) in value.lines().enumerate() {
            let name = if index == 0 { name } else { "" };
            // Writing to a string does not fail.
            let _ = writeln!(text, "{name:8}  {}", table::clean(part));
        }
    };
    line("name", &said(&server["name"]));
    line("command", &command(server));
    line("origin", &said(&server["origin"]));
    line("status", &status(info));
    if let Some(error) = info["error_message"].as_str() {
        line("error", error);
    }
    if let Some(doing) = server["doing"].as_str() {
        line("doing", doing);
    }
    for note in server["notes"].as_array().into_iter().flatten() {
        line("note", note.as_str().unwrap_or_default());
    }
    if let Some(session) = info["box_session_id"].as_str() {
        line("session", session);
    }
    for tool in info["tools"].as_array().into_iter().flatten() {
        let first = tool["description"].as_str().and_then(|text| text.lines().next()).unwrap_or_default();
        line("tool", format!("{}  {first}", said(&tool["name"])).trim_end());
    }
    text
}

pub(super) fn tested(name: &str, report: &Value) -> String {
    let info = &report["runtime_info"];
    if report["ok"] == Value::Bool(true) {
        return format!("{name}: connected, {} tools\n", info["tool_count"]);
    }
    let phase = info["error_phase"].as_str().unwrap_or("unknown phase");
    let message = info["error_message"].as_str().unwrap_or("it did not say why");
    let message: Vec<_> = message.lines().map(table::clean).collect();
    format!("{name}: failed ({phase}): {}\n", message.join("\n"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn server() -> Value {
        json!({"name": "time", "origin": "stored", "command": "uvx", "args": ["mcp-server-time"], "doing": null,
            "runtime_info": {"status": "error", "error_phase": "mcp_init", "error_message": "Failed after 4 attempts",
                "tool_count": 1, "box_session_id": "mcp-time",
                "tools": [{"name": "now", "description": "The time\nand more"}]}})
    }

    #[test]
    fn a_failed_server_says_where_it_failed() {
        let text = rows(&json!({"servers": [server()]}));
        assert!(text.contains("time  error (mcp_init)  1      stored  uvx mcp-server-time\n"), "{text}");
        let text = lines(&server());
        assert!(text.contains("error     Failed after 4 attempts\n"), "{text}");
        assert!(text.contains("tool      now  The time\n"), "{text}");
        let mut many = server();
        many["runtime_info"]["error_message"] = json!("exit code 1: first\nsecond\u{1b}[2J");
        many["notes"] = json!(["/data is not in the box"]);
        let text = lines(&many);
        assert!(
            text.contains("error     exit code 1: first\n          second\u{fffd}[2J\n"),
            "lines stay lines, and nothing else paints: {text}"
        );
        assert!(text.contains("note      /data is not in the box\n"), "{text}");
        let many = json!({"ok": false, "runtime_info": many["runtime_info"]});
        assert_eq!(tested("time", &many), "time: failed (mcp_init): exit code 1: first\nsecond\u{fffd}[2J\n");
        let failed = json!({"ok": false, "runtime_info": server()["runtime_info"]});
        assert_eq!(tested("time", &failed), "time: failed (mcp_init): Failed after 4 attempts\n");
        let fine = json!({"ok": true, "runtime_info": {"tool_count": 2}});
        assert_eq!(tested("time", &fine), "time: connected, 2 tools\n");
    }
}
