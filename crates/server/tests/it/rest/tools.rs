//! The agent's tools by REST: whose session they work in, what they answer, what is refused.

use std::sync::Arc;

use sandcrate_backend::fake::FakeBackend;
use sandcrate_protocol::BoxProfile;
use sandcrate_server::{ServerConfig, ToolsConfig};
use serde_json::{Value, json};

use super::{Server, script};

async fn with(tools: ToolsConfig) -> Server {
    let config = ServerConfig { tools, insecure_no_auth: true, ..ServerConfig::default() };
    Server::with(Arc::new(FakeBackend::new(script)), config).await
}

async fn call(server: &Server, tool: &str, arguments: Value) -> (u16, Value) {
    server.post(&format!("/v1/tools/{tool}"), json!({"session_id": "s", "arguments": arguments})).await
}

#[tokio::test]
async fn the_schemas_come_in_the_shape_that_is_asked_for() {
    let server = Server::start().await;
    let names = |listed: &Value, path: &str| -> Vec<String> {
        let tools = listed["tools"].as_array().unwrap();
        tools.iter().map(|tool| tool.pointer(path).unwrap().as_str().unwrap().to_owned()).collect()
    };
    let all = ["exec", "read", "write", "edit", "glob", "grep"];
    for (query, path) in [("", "/name"), ("?format=openai", "/function/name"), ("?format=anthropic", "/name")]
    {
        let (status, listed) = server.get(&format!("/v1/tools{query}")).await;
        assert_eq!((status, names(&listed, path)), (200, all.map(str::to_owned).to_vec()), "{query}");
    }
    let (status, refused) = server.get("/v1/tools?format=xml").await;
    assert_eq!((status, &refused["error"]["field"]), (400, &json!("query")), "{refused}");
}

#[tokio::test]
async fn a_file_is_written_read_edited_and_found() {
    let server = Server::start().await;
    let written =
        call(&server, "write", json!({"path": "/workspace/a/b.txt", "content": "one\ntwo\n"})).await;
    assert_eq!(written, (200, json!({"ok": true, "path": "/workspace/a/b.txt"})));
    let edit = json!({"path": "/workspace/a/b.txt", "old_string": "two", "new_string": "three"});
    assert_eq!(call(&server, "edit", edit.clone()).await.1["ok"], true);
    let again = call(&server, "edit", edit).await;
    assert_eq!(again, (200, json!({"ok": false, "error": "old_string not found in file."})));
    let read = call(&server, "read", json!({"path": "/workspace/a/b.txt"})).await;
    assert_eq!(read, (200, json!({"ok": true, "content": "one\nthree\n"})));
    let (_, found) = call(&server, "glob", json!({"pattern": "**/*.txt"})).await;
    assert_eq!((&found["matches"], &found["total"]), (&json!(["/workspace/a/b.txt"]), &json!(1)));
    let (_, found) = call(&server, "grep", json!({"pattern": "^th"})).await;
    let line = json!([{"file": "/workspace/a/b.txt", "line": 2, "content": "three"}]);
    assert_eq!(found["matches"], line);
}

#[tokio::test]
async fn a_command_is_a_result_whatever_its_end() {
    let server = Server::start().await;
    let (status, result) = call(&server, "exec", json!({"command": "both"})).await;
    assert_eq!((status, &result["ok"], &result["exit_code"]), (200, &json!(false), &json!(3)));
    let (_, result) = call(&server, "exec", json!({"command": "flood"})).await;
    let shown = result["stdout"].as_str().unwrap();
    assert_eq!((shown.chars().count(), &result["stdout_truncated"]), (4000, &json!(true)));
    assert!(shown.starts_with("xxx") && shown.contains(" characters truncated] ..."));
    let (_, result) = call(&server, "exec", json!({"command": "hang", "timeout_sec": 1})).await;
    assert_eq!((&result["status"], &result["exit_code"]), (&json!("timed_out"), &Value::Null));
    // The session is there still: a model does not lose its files with a command that took too long.
    assert_eq!(server.get("/v1/sessions/s").await.0, 200);
}

#[tokio::test]
async fn callers_get_sessions_by_the_template() {
    let tools = ToolsConfig {
        session_template: "{launcher_type}_{launcher_id}_{conversation_id}".to_owned(),
        ..ToolsConfig::default()
    };
    let server = with(tools).await;
    let exec = |caller: Value| json!({"caller": caller, "arguments": {"command": "hello"}});
    for (caller, session) in [
        (json!({"launcher_type": "group", "launcher_id": "r1", "conversation_id": "c"}), "group_r1_c"),
        (json!({"launcher_type": "person", "launcher_id": "p"}), "person_p_unknown"),
        (json!({"query_id": "7"}), "query_7_unknown"),
    ] {
        let (status, result) = server.post("/v1/tools/exec", exec(caller)).await;
        assert_eq!((status, &result["session_id"]), (200, &json!(session)), "{result}");
    }
    assert_eq!(server.get("/v1/sessions").await.1["sessions"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn a_session_that_is_there_is_worked_in_as_it_is() {
    let server = Server::start().await;
    let (status, made) = server.post("/v1/sessions/s", json!({"memory_mb": 777, "cpus": 0.5})).await;
    assert_eq!(status, 201, "{made}");
    let (status, result) = call(&server, "exec", json!({"command": "hello"})).await;
    assert_eq!((status, &result["stdout"]), (200, &json!("hello")), "{result}");
    assert_eq!(call(&server, "write", json!({"path": "/workspace/f", "content": "x"})).await.0, 200);
    assert_eq!(server.get("/v1/sessions/s").await.1["memory_mb"], 777);
}

#[tokio::test]
async fn what_is_wrong_is_named() {
    let server = Server::start().await;
    let arguments = json!({"command": "hello"});
    for (body, field) in [
        (json!({"arguments": arguments}), "caller"),
        (json!({"arguments": arguments, "session_id": " "}), "session_id"),
        (json!({"arguments": arguments, "session_id": "s", "caller": {}}), "caller"),
        (json!({"arguments": arguments, "session": "s"}), "session"),
        (json!({"arguments": [], "session_id": "s"}), "arguments"),
    ] {
        let (status, refused) = server.post("/v1/tools/exec", body).await;
        assert_eq!((status, &refused["error"]["field"]), (400, &json!(field)), "{refused}");
    }
    for (tool, arguments, words) in [
        ("exec", json!({}), "command"),
        ("read", json!({"path": "/etc/passwd"}), "Path must be under /workspace."),
        ("read", json!({"path": "/workspacex"}), "Path must be under /workspace."),
        ("read", json!({"path": "/workspace/../etc/passwd"}), "escapes the workspace boundary"),
        (
            "write",
            json!({"path": "/workspace/.skills/none/x", "content": ""}),
            "Skill \"none\" is not available",
        ),
        ("glob", json!({"pattern": "../*"}), ".."),
    ] {
        let (status, refused) = call(&server, tool, arguments).await;
        let said = refused["error"]["message"].as_str().or(refused["error"].as_str()).unwrap_or_default();
        assert!(said.contains(words), "{tool} {status}: {refused}");
    }
    let (status, refused) = call(&server, "shell", json!({})).await;
    assert_eq!((status, &refused["error"]["code"]), (404, &json!("tool_not_found")));
    assert!(refused["error"]["message"].as_str().unwrap().contains("exec, read"), "{refused}");
}

#[tokio::test]
async fn denied_tools_are_neither_listed_nor_called() {
    let deny = vec!["exec".to_owned(), "write".to_owned()];
    let tools = ToolsConfig { deny, ..ToolsConfig::default() };
    let server = with(tools).await;
    let (_, listed) = server.get("/v1/tools").await;
    assert_eq!(listed["tools"].as_array().unwrap().len(), 4);
    assert_eq!(call(&server, "exec", json!({"command": "hello"})).await.0, 404);
}

#[tokio::test]
async fn failures_are_remembered_and_profiles_told() {
    let big = BoxProfile { memory_mb: 4096, locked: vec!["network".into()].into(), ..BoxProfile::default() };
    let tools = ToolsConfig {
        profile: "big".to_owned(),
        profiles: [("big".to_owned(), big)].into(),
        ..ToolsConfig::default()
    };
    let server = with(tools).await;
    let (status, _) = call(&server, "exec", json!({"command": "hello", "workdir": "relative"})).await;
    assert_eq!(status, 400);
    let (_, errors) = server.get("/v1/errors").await;
    assert_eq!(
        (&errors["errors"][0]["type"], &errors["errors"][0]["query_id"]),
        (&json!("BoxValidationError"), &json!("s"))
    );
    let (_, result) = call(&server, "exec", json!({"command": "hello"})).await;
    assert_eq!(result["ok"], true);
    assert_eq!(server.get("/v1/sessions/s").await.1["memory_mb"], 4096, "the operator's profile");
    let (_, listed) = server.get("/v1/profiles").await;
    assert_eq!((listed["profiles"].as_array().unwrap().len(), &listed["tools"]), (5, &json!("big")));
    let (_, shown) = server.get("/v1/profiles/big").await;
    assert_eq!((&shown["memory_mb"], &shown["locked"]), (&json!(4096), &json!(["network"])));
    assert_eq!(server.get("/v1/profiles/none").await.0, 404);
}
