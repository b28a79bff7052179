//! LangBot's dialects since 4.10.7: instances, workspaces, generations.

use std::time::Duration;

use sandcrate_runtime::Placement;
use sandcrate_server::{Legacy, ServerConfig, serve_stdio};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use crate::support::{
    PATIENCE, Rpc, Server, TOKEN, close_frame, connect, next_text, refused, request, until,
};

const INSTANCE: &str = "x-langbot-instance-id";
const CONTROL_TOKEN: &str = "x-langbot-box-control-token";

async fn rpc(server: &Server) -> Rpc {
    Rpc(connect(request(server.url("/rpc/ws"), &[(INSTANCE, "i1")])).await.unwrap())
}

fn context(workspace: &str, generation: u64) -> Value {
    json!({"instance_uuid": "i1", "workspace_uuid": workspace, "placement_generation": generation})
}

async fn send(rpc: &mut Rpc, seq_id: i64, context: &Value, action: &str, data: Value) {
    let request = json!({"seq_id": seq_id, "action": action, "data": data, "context": context});
    rpc.send(request.to_string()).await;
}

async fn call(rpc: &mut Rpc, context: &Value, action: &str, data: Value) -> Value {
    send(rpc, 1, context, action, data).await;
    rpc.reply().await
}

async fn ok(rpc: &mut Rpc, context: &Value, action: &str, data: Value) -> Value {
    let mut reply = call(rpc, context, action, data).await;
    assert_eq!(reply["code"], 0, "{action}: {reply}");
    reply["data"].take()
}

async fn err(rpc: &mut Rpc, context: &Value, action: &str, data: Value) -> String {
    let reply = call(rpc, context, action, data).await;
    assert_eq!(reply["code"], 1, "{action}: {reply}");
    reply["message"].as_str().unwrap().to_owned()
}

async fn upgrade(server: &Server, headers: &[(&'static str, &str)]) -> u16 {
    server.upgrade("/rpc/ws", headers).await
}

#[tokio::test]
async fn the_first_handshake_decides_the_instance_for_good() {
    let server = Server::start().await;
    assert_eq!(upgrade(&server, &[(INSTANCE, "-bad-")]).await, 401);
    assert_eq!(upgrade(&server, &[(INSTANCE, "i1")]).await, 101);
    assert_eq!(upgrade(&server, &[(INSTANCE, "i2")]).await, 401);
    assert_eq!(upgrade(&server, &[(INSTANCE, "i1")]).await, 101);
    assert_eq!(upgrade(&server, &[]).await, 101, "the first dialect is open while nothing is configured");
    server.stop().await;
}

#[tokio::test]
async fn a_token_or_an_instance_closes_the_first_dialect_unless_the_operator_opens_it() {
    let pinned = ServerConfig { instance: Some("i1".parse().unwrap()), ..ServerConfig::default() };
    let server = Server::with(pinned.clone()).await;
    assert_eq!(upgrade(&server, &[]).await, 403);
    assert_eq!(upgrade(&server, &[(INSTANCE, "i2")]).await, 401);
    assert_eq!(upgrade(&server, &[(INSTANCE, "i1")]).await, 101);
    server.stop().await;

    let server = Server::with(ServerConfig { legacy: Some(Legacy::Loopback), ..pinned }).await;
    assert_eq!(upgrade(&server, &[]).await, 101);
    server.stop().await;

    let secret = ServerConfig { token: Some(TOKEN.parse().unwrap()), ..ServerConfig::default() };
    let open = ServerConfig { legacy: Some(Legacy::Loopback), ..secret.clone() };
    for (config, legacy) in [(secret, 401), (open, 101)] {
        let server = Server::with(config).await;
        assert_eq!(upgrade(&server, &[]).await, legacy);
        assert_eq!(upgrade(&server, &[(INSTANCE, "i1")]).await, 401, "whoever can send the token must");
        assert_eq!(upgrade(&server, &[(INSTANCE, "i1"), (CONTROL_TOKEN, "wrong")]).await, 401);
        assert_eq!(upgrade(&server, &[(INSTANCE, "i1"), (CONTROL_TOKEN, TOKEN)]).await, 101);
        server.stop().await;
    }
}

#[tokio::test]
async fn a_call_says_whom_it_is_for() {
    let server = Server::start().await;
    let mut rpc = rpc(&server).await;
    assert_eq!(rpc.ok("__ping", json!({})).await, json!({}));
    assert_eq!(rpc.ok("box_health", json!({})).await, json!({"name": "fake", "available": true}));
    let required = "PermissionError: Box tenant action requires a trusted Workspace context";
    for action in ["box_status", "box_get_sessions", "__cancel_action", "box_list_skills"] {
        assert_eq!(rpc.err(action, json!({})).await, required, "{action}");
    }
    let foreign = json!({"instance_uuid": "i2", "workspace_uuid": "w"});
    for action in ["box_status", "__ping"] {
        let message = err(&mut rpc, &foreign, action, json!({})).await;
        assert_eq!(message, "PermissionError: Box action context does not match the trusted instance");
    }
    let unknown = json!({"instance_uuid": "i1", "workspace_uuid": "w", "plan": 1});
    let message = err(&mut rpc, &unknown, "box_status", json!({})).await;
    assert_eq!(message, "ValidationError: context.plan is not known");
    assert_eq!(rpc.err("nope", json!({})).await, "ValueError: Action nope not found");
    let grant = rpc.err("box_upsert_sandbox_admission_grant", json!({})).await;
    assert_eq!(grant, "BoxAdmissionError: Sandbox admission enforcement is not enabled");
    // The first dialect has none of it.
    let mut first = server.rpc().await;
    let message = first.err("box_get_storage_analysis", json!({})).await;
    assert_eq!(message, "ValueError: Action box_get_storage_analysis not found");
    server.stop().await;
}

#[tokio::test]
async fn workspaces_have_sessions_of_their_own_under_their_own_names() {
    let server = Server::start().await;
    let mut rpc = rpc(&server).await;
    let (one, two) = (context("w1", 3), context("w2", 1));
    let session = ok(&mut rpc, &one, "box_create_session", json!({"session_id": "s"})).await;
    assert_eq!((&session["session_id"], &session["status"]), (&json!("s"), &json!("idle")));
    assert_eq!(session.as_object().unwrap().len(), 17, "{session}");
    let physical = Placement::new("i1", "w1", 3).physical("s").unwrap();
    assert_eq!(server.app.runtime.sessions()[0].info.session_id, physical);
    let spec = json!({"session_id": "s", "spec": {"process_id": "p", "command": "cat"}});
    let process = ok(&mut rpc, &one, "box_start_managed_process", spec).await;
    assert_eq!(process["session_id"], "s");
    let whole = ok(&mut rpc, &one, "box_get_session", json!({"session_id": "s"})).await;
    assert_eq!(whole["managed_processes"]["p"]["session_id"], "s");
    assert_eq!(whole["status"], "idle", "a process alone is no command");
    let done = ok(&mut rpc, &one, "box_exec", json!({"session_id": "s", "cmd": "echo hi"})).await;
    assert_eq!((&done["session_id"], &done["stdout"]), (&json!("s"), &json!("hi")));

    let missing = err(&mut rpc, &one, "box_get_session", json!({"session_id": "x"})).await;
    assert_eq!(missing, "BoxSessionNotFoundError: session x not found", "the caller's own id");
    let conflict = json!({"session_id": "s", "cmd": "echo", "memory_mb": 600});
    let conflict = err(&mut rpc, &one, "box_exec", conflict).await;
    assert_eq!(conflict, "BoxSessionConflictError: Box session s already exists with memory_mb=512");
    let mounts = json!({"session_id": "s", "cmd": "echo",
                        "extra_mounts": [{"host_path": "/tmp", "mount_path": "/workspace/x", "mode": "ro"}]});
    let mounts = err(&mut rpc, &one, "box_exec", mounts).await;
    assert!(mounts.starts_with("BoxSessionConflictError: Box mounts differ from"), "{mounts}");

    assert_eq!(ok(&mut rpc, &two, "box_get_sessions", json!({})).await, json!({"sessions": []}));
    let listed = ok(&mut rpc, &one, "box_get_sessions", json!({})).await;
    assert_eq!(listed["sessions"].as_array().unwrap().len(), 1);
    let status = ok(&mut rpc, &one, "box_status", json!({})).await;
    assert_eq!((&status["active_sessions"], &status["managed_processes"]), (&json!(1), &json!(1)));
    assert_eq!(ok(&mut rpc, &two, "box_status", json!({})).await["active_sessions"], 0);

    // Clients of the first dialect neither see nor reach them, and keep theirs at the other's shutdown.
    let mut first = server.rpc().await;
    first.ok("box_create_session", json!({"session_id": "s"})).await;
    assert_eq!(first.ok("box_get_sessions", json!({})).await["sessions"].as_array().unwrap().len(), 1);
    let reached = first.err("box_get_session", json!({"session_id": physical})).await;
    assert!(reached.starts_with("BoxValidationError: session_id is of the form"), "{reached}");
    rpc.ok("box_shutdown", json!({})).await;
    let left: Vec<String> =
        server.app.runtime.sessions().into_iter().map(|view| view.info.session_id).collect();
    assert_eq!(left, ["s"]);
    server.stop().await;
}

#[tokio::test]
async fn a_newer_generation_ends_the_older_and_answers_its_calls() {
    let server = Server::start().await;
    let mut rpc = rpc(&server).await;
    let (old, new) = (context("w", 1), context("w", 2));
    ok(&mut rpc, &old, "box_create_session", json!({"session_id": "kept", "persistent": true})).await;
    let other = context("other", 1);
    ok(&mut rpc, &other, "box_create_session", json!({"session_id": "s"})).await;
    send(&mut rpc, 7, &old, "box_exec", json!({"session_id": "s", "cmd": "hang", "timeout_sec": 300})).await;
    until("the command runs", || server.app.runtime.sessions().len() == 3).await;
    send(&mut rpc, 8, &new, "box_get_sessions", json!({})).await;
    let mut replies = [rpc.reply().await, rpc.reply().await];
    replies.sort_by_key(|reply| reply["seq_id"].as_i64());
    let stale = "PermissionError: Stale Box placement generation";
    assert_eq!((&replies[0]["code"], &replies[0]["message"]), (&json!(1), &json!(stale)));
    assert_eq!(replies[1]["data"], json!({"sessions": []}));
    let left = server.app.runtime.sessions();
    assert_eq!(left.len(), 1, "those of the older one are gone, those of others are not");
    assert_eq!(err(&mut rpc, &old, "box_status", json!({})).await, stale);
    assert_eq!(ok(&mut rpc, &new, "box_status", json!({})).await["capacity"]["used"], 0);
    server.stop().await;
}

#[tokio::test]
async fn a_relay_is_opened_for_the_placement_that_an_action_made_known() {
    let server = Server::start().await;
    let placement = Placement::new("i1", "w", 3);
    let path = format!("/v1/sessions/{}/managed-process/p/ws", placement.physical("s").unwrap());
    let headers = |instance, workspace, generation| {
        vec![
            (INSTANCE, instance),
            ("x-langbot-workspace-id", workspace),
            ("x-langbot-placement-generation", generation),
        ]
    };
    assert_eq!(server.upgrade(&path, &headers("i1", "w", "3")).await, 401, "nobody is known yet");
    let mut rpc = rpc(&server).await;
    let current = context("w", 3);
    ok(&mut rpc, &current, "box_create_session", json!({"session_id": "s"})).await;
    let spec = json!({"session_id": "s", "spec": {"process_id": "p", "command": "cat"}});
    ok(&mut rpc, &current, "box_start_managed_process", spec).await;
    for (wrong, why) in [
        (vec![(INSTANCE, "i1")], "no workspace"),
        (headers("i1", "w", "2"), "an older generation"),
        (headers("i1", "w", "4"), "one that no action made known"),
        (headers("i1", "w", "03"), "not canonical"),
        (headers("i1", "other", "3"), "another workspace"),
        (headers("zzz", "w", "3"), "another instance"),
    ] {
        assert_eq!(server.upgrade(&path, &wrong).await, 401, "{why}");
    }
    let missing = path.replace("/p/", "/nope/");
    let asked = request(server.url(&missing), &headers("i1", "w", "3"));
    assert_eq!(refused(connect(asked).await.unwrap_err()).0.as_u16(), 400);
    let mut relay = connect(request(server.url(&path), &headers("i1", "w", "3"))).await.unwrap();
    futures_util::SinkExt::send(&mut relay, tokio_tungstenite::tungstenite::Message::text("hello"))
        .await
        .unwrap();
    assert_eq!(next_text(&mut relay).await, "hello");
    ok(&mut rpc, &context("w", 4), "box_get_sessions", json!({})).await;
    assert_eq!(u16::from(close_frame(&mut relay).await.code), 1000, "it ends with its generation");
    server.stop().await;
}

#[tokio::test]
async fn a_busy_connection_says_so_and_still_answers_pings() {
    let server = Server::start().await;
    let mut rpc = rpc(&server).await;
    let workspace = context("w", 1);
    for number in 0..128 {
        let data = json!({"session_id": format!("s{number}"), "cmd": "hang", "timeout_sec": 300});
        send(&mut rpc, number, &workspace, "box_exec", data).await;
    }
    send(&mut rpc, 128, &workspace, "box_status", json!({})).await;
    let busy = rpc.reply().await;
    assert_eq!(busy["seq_id"], 128);
    assert_eq!(busy["message"], "Runtime connection is busy (max 128 concurrent actions)");
    rpc.request(129, "__ping", json!({})).await;
    assert_eq!(rpc.reply().await["seq_id"], 129);
    // The caller's own calls can be given up, and those of other workspaces cannot.
    for (whose, cancelled) in [(context("w2", 1), false), (workspace.clone(), true)] {
        send(&mut rpc, 130, &whose, "__cancel_action", json!({"seq_id": 5})).await;
        let mut replies = vec![rpc.reply().await];
        if cancelled {
            replies.push(rpc.reply().await);
            let ended = replies.iter().find(|reply| reply["seq_id"] == 5).unwrap();
            assert_eq!(ended["message"], "CancelledError: the action was cancelled");
        }
        let told = replies.iter().find(|reply| reply["seq_id"] == 130).unwrap();
        assert_eq!(told["data"], json!({"cancelled": cancelled}));
    }
    drop(rpc);
    server.stop().await;
}

#[tokio::test]
async fn limits_of_a_host_are_kept_and_shown() {
    let server = Server::start().await;
    let mut rpc = rpc(&server).await;
    for (limits, message) in [
        (json!({"max_sessions": 99999}), "ValueError: box.limits.max_sessions must be between 0 and 5000"),
        (json!({"max_sessions": true}), "ValueError: box.limits.max_sessions must be an integer"),
    ] {
        assert_eq!(rpc.err("box_init", json!({"limits": limits})).await, message);
    }
    rpc.ok("box_init", json!({"limits": {"max_sessions": 1, "max_managed_processes": 1}})).await;
    let (one, two) = (context("w1", 1), context("w2", 1));
    ok(&mut rpc, &one, "box_create_session", json!({"session_id": "s"})).await;
    let full = err(&mut rpc, &two, "box_create_session", json!({"session_id": "s"})).await;
    assert_eq!(full, "BoxCapacityExceededError: Box session capacity reached (1)");
    let status = ok(&mut rpc, &two, "box_status", json!({})).await;
    assert_eq!(status["capacity"], json!({"limit": 1, "used": 0, "remaining": 0}));
    assert_eq!(status["limits"]["max_sessions"], 1);
    let start = |id: &str| json!({"session_id": "s", "spec": {"process_id": id, "command": "cat"}});
    ok(&mut rpc, &one, "box_start_managed_process", start("a")).await;
    ok(&mut rpc, &one, "box_start_managed_process", start("a")).await;
    let full = err(&mut rpc, &one, "box_start_managed_process", start("b")).await;
    assert_eq!(full, "BoxCapacityExceededError: Box managed process capacity reached (1)");
    server.stop().await;
}

#[tokio::test]
async fn skills_of_workspaces_are_apart() {
    let server = Server::start().await;
    let mut rpc = rpc(&server).await;
    let (one, two) = (context("w1", 1), context("w2", 1));
    let skill = json!({"skill": {"name": "mine", "description": "d", "instructions": "i"}});
    ok(&mut rpc, &one, "box_create_skill", skill).await;
    let listed = ok(&mut rpc, &one, "box_list_skills", json!({})).await;
    assert_eq!(listed["skills"][0]["name"], "mine");
    let root = listed["skills"][0]["package_root"].as_str().unwrap();
    let name = Placement::new("i1", "w1", 1).workspace().to_owned();
    assert!(root.contains(&format!("/tenants/{name}/")), "{root}");
    assert_eq!(ok(&mut rpc, &two, "box_list_skills", json!({})).await, json!({"skills": []}));
    assert_eq!(server.rpc().await.ok("box_list_skills", json!({})).await, json!({"skills": []}));
    server.stop().await;
}

#[tokio::test]
async fn long_replies_come_whole() {
    let server = Server::start().await;
    let mut rpc = rpc(&server).await;
    let data = json!({"session_id": "s", "cmd": "fill 1048576"});
    send(&mut rpc, 1, &context("w", 1), "box_exec", data).await;
    let text = next_text(&mut rpc.0).await;
    let reply: Value = serde_json::from_str(&text).expect("one message");
    assert_eq!(reply["data"]["stdout"].as_str().unwrap().len(), 1 << 20);
    server.stop().await;
}

#[tokio::test]
async fn a_shared_volume_is_told_by_a_marker() {
    let server = Server::start().await;
    let mut rpc = rpc(&server).await;
    let host = tempfile::tempdir().unwrap();
    let name = format!(".langbot-box-volume-probe-{}", "a".repeat(32));
    let unknown = rpc.err("box_verify_shared_workspace", json!({"marker_name": name})).await;
    assert!(unknown.starts_with("BoxReadinessError: "), "{unknown}");
    rpc.ok("box_init", json!({"local": {"host_root": host.path()}})).await;
    std::fs::create_dir(host.path().join("default")).unwrap();
    std::fs::write(host.path().join("default").join(&name), "marker").unwrap();
    let probe = rpc.ok("box_verify_shared_workspace", json!({"marker_name": name})).await;
    assert_eq!((&probe["marker_name"], &probe["size"]), (&json!(name), &json!(6)));
    let wrong = rpc.err("box_verify_shared_workspace", json!({"marker_name": "../etc"})).await;
    assert_eq!(wrong, "BoxReadinessError: Invalid Box shared Workspace probe basename");
    server.stop().await;
}

#[tokio::test]
async fn a_parent_that_names_its_instance_speaks_the_newer_dialect_over_stdio() {
    let pinned = ServerConfig { instance: Some("i1".parse().unwrap()), ..ServerConfig::default() };
    let server = Server::with(pinned).await;
    let (mut input, theirs_in) = tokio::io::duplex(1 << 16);
    let (output, theirs_out) = tokio::io::duplex(1 << 16);
    let served = tokio::spawn(serve_stdio(server.app.clone(), theirs_in, theirs_out));
    let mut lines = BufReader::new(output).lines();
    let torn = "{\"type\": \"chunk_start\", \"total_size\": 9}\n{\"type\": \"chunk_end\"}\n";
    let plain = "{\"seq_id\": 2, \"action\": \"box_status\", \"data\": {}}\n";
    let whole = json!({"seq_id": 3, "action": "box_status", "data": {}, "context": context("w", 1)});
    for (sent, code) in [(torn.to_owned(), 1), (plain.to_owned(), 1), (format!("{whole}\n"), 0)] {
        input.write_all(sent.as_bytes()).await.unwrap();
        let line = tokio::time::timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().unwrap();
        let reply: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(reply["code"], code, "{reply}");
    }
    drop(input);
    tokio::time::timeout(Duration::from_secs(20), served).await.unwrap().unwrap().unwrap();
    server.stop().await;
}
