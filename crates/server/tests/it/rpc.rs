//! LangBot's first dialect, over WebSocket and stdio.

use std::time::{Duration, Instant};

use futures_util::SinkExt;
use sandcrate_server::{App, serve_stdio};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio_tungstenite::tungstenite::Message;

use crate::support::{PATIENCE, Server, close_frame, next_text};

#[tokio::test]
async fn replies_are_those_of_the_reference_byte_for_byte() {
    let server = Server::start().await;
    let mut rpc = server.rpc().await;
    for (sent, reply) in [
        (
            r#"{"seq_id": 77, "action": "__ping", "data": {}}"#,
            r#"{"seq_id": 77, "code": 0, "message": "success", "data": {}, "chunk_status": "continue"}"#,
        ),
        (
            r#"{"seq_id": "é", "action": "nope", "data": {}}"#,
            r#"{"seq_id": "\u00e9", "code": 1, "message": "ValueError: Action nope not found", "data": {}, "chunk_status": "continue"}"#,
        ),
        (
            r#"{"seq_id": 1, "action": "box_get_session", "data": {"session_id": "x"}}"#,
            r#"{"seq_id": 1, "code": 1, "message": "BoxSessionNotFoundError: session x not found", "data": {}, "chunk_status": "continue"}"#,
        ),
        (
            r#"{"action": "box_health", "data": {}}"#,
            r#"{"seq_id": -1, "code": 0, "message": "success", "data": {"name": "fake", "available": true}, "chunk_status": "continue"}"#,
        ),
    ] {
        rpc.send(sent).await;
        assert_eq!(next_text(&mut rpc.0).await, reply);
    }
    server.stop().await;
}

#[tokio::test]
async fn sessions_and_commands_have_the_shapes_of_the_wire() {
    let server = Server::start().await;
    let mut rpc = server.rpc().await;
    assert_eq!(rpc.ok("box_init", json!({"backend": "local"})).await, json!({"initialized": true}));

    let session = rpc.ok("box_create_session", json!({"session_id": " s1 "})).await;
    assert_eq!(session["session_id"], "s1");
    assert_eq!(session["backend_name"], "fake");
    assert_eq!(session["cpus"], json!(1.0));
    assert!(session["created_at"].as_str().unwrap().ends_with('Z'));
    assert_eq!(session.as_object().unwrap().len(), 16, "{session}");

    let result = rpc.ok("box_exec", json!({"session_id": "s1", "cmd": " echo  hi "})).await;
    let duration = result["duration_ms"].as_u64().unwrap();
    assert_eq!(
        result,
        json!({"session_id": "s1", "backend_name": "fake", "status": "completed", "exit_code": 0,
               "stdout": "hi", "stderr": "", "duration_ms": duration})
    );
    let failed = rpc.ok("box_exec", json!({"session_id": "s1", "cmd": "exit 3"})).await;
    assert_eq!(failed["exit_code"], 3);

    let status = rpc.ok("box_status", json!({})).await;
    assert_eq!(
        status,
        json!({"backend": {"name": "fake", "available": true}, "active_sessions": 1, "managed_processes": 0,
               "session_ttl_sec": 300})
    );
    let all = rpc.ok("box_get_sessions", json!({})).await;
    assert_eq!(all["sessions"].as_array().unwrap().len(), 1);
    assert_eq!(all["sessions"][0].as_object().unwrap().len(), 16, "without processes");

    assert_eq!(rpc.ok("box_delete_session", json!({"session_id": "s1"})).await, json!({"deleted": "s1"}));
    let gone = rpc.err("box_get_session", json!({"session_id": "s1"})).await;
    assert_eq!(gone, "BoxSessionNotFoundError: session s1 not found");
    server.stop().await;
}

/// L16: the id of a spec is trimmed, so the reference made sessions that its other actions did not find.
#[tokio::test]
async fn ids_are_trimmed_by_every_action() {
    let server = Server::start().await;
    let mut rpc = server.rpc().await;
    rpc.ok("box_create_session", json!({"session_id": "s1"})).await;
    let spec = json!({"command": "cat"});
    rpc.ok("box_start_managed_process", json!({"session_id": "\ts1 ", "spec": spec})).await;
    for action in
        ["box_get_session", "box_get_managed_process", "box_stop_managed_process", "box_delete_session"]
    {
        rpc.ok(action, json!({"session_id": " s1\n"})).await;
    }
    server.stop().await;
}

#[tokio::test]
async fn processes_show_with_their_session() {
    let server = Server::start().await;
    let mut rpc = server.rpc().await;
    rpc.ok("box_create_session", json!({"session_id": "s"})).await;
    let bare = rpc.ok("box_get_session", json!({"session_id": "s"})).await;
    assert!(bare.get("managed_processes").is_none() && bare.get("managed_process").is_none());

    let spec = json!({"process_id": "p", "command": "cat", "env": {"B": "1", "A": "2"}});
    let info = rpc.ok("box_start_managed_process", json!({"session_id": "s", "spec": spec})).await;
    assert_eq!((&info["status"], &info["env_keys"]), (&json!("running"), &json!(["A", "B"])));
    let one = rpc.ok("box_get_session", json!({"session_id": "s"})).await;
    assert_eq!(one["managed_processes"]["p"]["command"], "cat");
    assert!(one.get("managed_process").is_none());

    rpc.ok("box_start_managed_process", json!({"session_id": "s", "spec": {"command": "cat"}})).await;
    let both = rpc.ok("box_get_session", json!({"session_id": "s"})).await;
    assert_eq!(both["managed_process"]["process_id"], "default");
    assert_eq!(both["managed_processes"].as_object().unwrap().len(), 2);

    let stopped = rpc.ok("box_stop_managed_process", json!({"session_id": "s", "process_id": "p"})).await;
    assert_eq!(stopped, json!({"stopped": "p"}));
    let gone = rpc.err("box_get_managed_process", json!({"session_id": "s", "process_id": "p"})).await;
    assert_eq!(gone, "BoxManagedProcessNotFoundError: session s has no managed process with process_id=p");
    server.stop().await;
}

#[tokio::test]
async fn what_is_wrong_is_named() {
    let server = Server::start().await;
    let mut rpc = server.rpc().await;
    for (action, data, message) in [
        ("box_exec", json!({"session_id": "s", "cmd": "  "}), "BoxValidationError: cmd must not be empty"),
        ("box_get_session", json!({}), "KeyError: 'session_id'"),
        ("box_start_managed_process", json!({"session_id": "s"}), "KeyError: 'spec'"),
        ("box_get_skill", json!({}), "KeyError: 'name'"),
        ("box_delete_skill", json!({}), "BoxValidationError: 'name'"),
        ("__file_chunk", json!({}), "KeyError: 'file_key'"),
        ("__heartbeat", json!({}), "ValueError: Action __heartbeat not found"),
        ("box_init", json!([]), "BoxValidationError: config must be an object"),
    ] {
        assert_eq!(rpc.err(action, data).await, message);
    }
    let invalid = rpc.err("box_exec", json!({"cmd": "x", "timeout_sec": 0})).await;
    assert!(invalid.starts_with("BoxValidationError: 2 validation errors for BoxSpec"), "{invalid}");
    server.stop().await;
}

#[tokio::test]
async fn the_shutdown_action_ends_sessions_and_not_the_server() {
    let server = Server::start().await;
    let mut rpc = server.rpc().await;
    rpc.ok("box_create_session", json!({"session_id": "s"})).await;
    assert_eq!(rpc.ok("box_shutdown", json!({})).await, json!({}));
    assert_eq!(rpc.ok("box_get_sessions", json!({})).await, json!({"sessions": []}));
    rpc.ok("box_create_session", json!({"session_id": "s"})).await;
    server.stop().await;
}

#[tokio::test]
async fn files_of_a_box_are_reached_and_their_faults_have_a_kind() {
    let server = Server::start().await;
    let mut rpc = server.rpc().await;
    let spec = json!({"session_id": "s"});
    let with = |more: serde_json::Value| {
        let mut data = json!({"spec": spec, "path": "/workspace/a/b.txt"});
        data.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        data
    };
    assert_eq!(rpc.ok("box_file_stat", with(json!({}))).await, json!({"entry": null}));
    assert_eq!(server.backend.sessions().len(), 1, "the session is made from the spec");
    assert_eq!(rpc.ok("box_file_write", with(json!({"data": "aGVs"}))).await, json!({}));
    assert_eq!(rpc.ok("box_file_write", with(json!({"data": "bG8=", "append": true}))).await, json!({}));
    let entry = rpc.ok("box_file_stat", with(json!({}))).await["entry"].clone();
    assert_eq!(
        (&entry["name"], &entry["kind"], &entry["size"]),
        (&json!("b.txt"), &json!("file"), &json!(5))
    );
    let read = rpc.ok("box_file_read", with(json!({"offset": 1, "limit": 3}))).await;
    assert_eq!(read, json!({"data": "ZWxs", "size": 5}));
    let listed = rpc.ok("box_file_list", with(json!({"path": "/workspace/a"}))).await;
    assert_eq!(listed["entries"].as_array().unwrap().len(), 1);
    let none = with(json!({"path": "/none"}));
    let request = json!({"seq_id": 1, "action": "box_file_read", "data": none, "error_kind": true});
    rpc.send(request.to_string()).await;
    let missing = rpc.reply().await;
    assert_eq!(missing["data"], json!({"kind": "file_not_found"}), "{missing}");
    let words = rpc.err("box_file_read", none).await;
    assert_eq!(missing["message"], words.as_str(), "who does not ask is told the words alone");
    let wrong = rpc.err("box_file_write", with(json!({"data": "?"}))).await;
    assert_eq!(wrong, "BoxValidationError: data must be base64");
    assert_eq!(rpc.err("box_file_stat", json!({"path": "/"})).await, "KeyError: 'spec'");
    server.stop().await;
}

#[tokio::test]
async fn replies_come_in_order_of_completion() {
    let server = Server::start().await;
    let mut rpc = server.rpc().await;
    rpc.request(1, "box_exec", json!({"session_id": "s", "cmd": "wait 300"})).await;
    rpc.request(2, "__ping", json!({})).await;
    assert_eq!(rpc.reply().await["seq_id"], 2);
    assert_eq!(rpc.reply().await["data"]["stdout"], "waited");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_of_a_session_run_in_the_order_of_arrival_and_can_be_cancelled_at_once() {
    let server = Server::start().await;
    let mut rpc = server.rpc().await;
    for number in 0..60 {
        rpc.request(number, "box_exec", json!({"session_id": "s", "cmd": "turn"})).await;
    }
    for _ in 0..60 {
        let reply = rpc.reply().await;
        assert_eq!(reply["data"]["stdout"], reply["seq_id"].to_string(), "{reply}");
    }
    for number in (100..160).step_by(2) {
        rpc.request(number, "box_exec", json!({"session_id": "s", "cmd": "hang"})).await;
        rpc.request(number + 1, "__cancel_action", json!({"seq_id": number})).await;
        for _ in 0..2 {
            let reply = rpc.reply().await;
            let cancelled = reply["seq_id"] == number || reply["data"]["cancelled"] == true;
            assert!(cancelled, "{reply}");
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn a_timeout_ends_the_session_and_says_so() {
    let server = Server::start().await;
    let mut rpc = server.rpc().await;
    let result = rpc.ok("box_exec", json!({"session_id": "s", "cmd": "hang", "timeout_sec": 1})).await;
    assert_eq!((&result["status"], &result["exit_code"]), (&json!("timed_out"), &Value::Null));
    assert_eq!(result["stderr"], "Command timed out after 1 seconds.");
    rpc.err("box_get_session", json!({"session_id": "s"})).await;
    server.stop().await;
}

#[tokio::test]
async fn work_goes_on_when_its_client_leaves() {
    let server = Server::start().await;
    let mut first = server.rpc().await;
    first.request(1, "box_exec", json!({"session_id": "s", "cmd": "wait 600"})).await;
    super::support::until("the command runs", || server.backend.calls().exec == 1).await;
    let begin = Instant::now();
    drop(first);
    // Queued behind the first: it would run at once if that had been cancelled.
    let mut second = server.rpc().await;
    second.ok("box_exec", json!({"session_id": "s", "cmd": "echo x"})).await;
    assert!(begin.elapsed() >= Duration::from_millis(400), "the first was cancelled");
    server.stop().await;
}

/// T1: clients cut a request over 65,536 bytes into messages of that size; the reference answered none.
#[tokio::test]
async fn t1_a_request_in_pieces_is_answered() {
    let server = Server::start().await;
    let mut rpc = server.rpc().await;
    let text = json!({"seq_id": 5, "action": "__ping", "data": {"padding": "x".repeat(200_000)}}).to_string();
    for piece in text.as_bytes().chunks(65_536) {
        rpc.send(String::from_utf8(piece.to_vec()).unwrap()).await;
    }
    assert_eq!(rpc.reply().await["seq_id"], 5);
    server.stop().await;
}

/// T2: a reply over 1 MiB killed the client's connection.
#[tokio::test]
async fn t2_long_replies_come_in_pieces_that_do_not_interleave() {
    let server = Server::start().await;
    let mut rpc = server.rpc().await;
    for number in 0..4 {
        let data = json!({"session_id": format!("s{number}"), "cmd": "fill 1048576"});
        rpc.request(number, "box_exec", data).await;
        rpc.request(100 + number, "__ping", json!({})).await;
    }
    let (mut replies, mut text, mut pieces) = (0, String::new(), 0);
    while replies < 8 {
        let piece = next_text(&mut rpc.0).await;
        assert!(piece.len() <= 512 << 10, "{}", piece.len());
        text.push_str(&piece);
        pieces += 1;
        if let Ok(reply) = serde_json::from_str::<Value>(&text) {
            if reply["seq_id"].as_i64().unwrap() < 100 {
                assert_eq!(reply["data"]["stdout"].as_str().unwrap().len(), 1 << 20);
                assert!(pieces > 2);
            }
            (text, pieces) = (String::new(), 0);
            replies += 1;
        }
    }
    server.stop().await;
}

/// T3: the reference closed the connection over 4 MiB.
#[tokio::test]
async fn t3_a_message_of_15_mib_is_answered() {
    let server = Server::start().await;
    let mut rpc = server.rpc().await;
    let reply = rpc.call("__ping", json!({"padding": "x".repeat(15 << 20)})).await;
    assert_eq!(reply["code"], 0);
    server.stop().await;
}

/// T4: malformed frames got no reply, so their caller waited for its timeout.
#[tokio::test]
async fn t4_malformed_frames_are_answered_and_the_connection_stays() {
    let server = Server::start().await;
    let mut rpc = server.rpc().await;
    for (sent, seq_id) in [
        ("", -1),
        ("hello", -1),
        ("{\"seq_id\":1,", 1),
        ("[1,2]", -1),
        ("5", -1),
        ("{}", -1),
        ("\u{feff}{}", -1),
        ("{\"seq_id\": 4, \"action\": \"__ping\"}", 4),
        ("{\"seq_id\": 5, \"action\": [], \"data\": {}}", 5),
        ("{\"seq_id\": 6, \"action\": null, \"data\": {}}", 6),
    ] {
        rpc.send(sent).await;
        let reply = rpc.reply().await;
        assert_eq!((&reply["code"], &reply["seq_id"]), (&json!(1), &json!(seq_id)), "{sent:?}: {reply}");
    }
    rpc.ok("__ping", json!({})).await;
    server.stop().await;
}

/// T6: a binary frame ended the connection.
#[tokio::test]
async fn t6_a_binary_frame_is_answered_and_the_connection_stays() {
    let server = Server::start().await;
    let mut rpc = server.rpc().await;
    rpc.0.send(Message::binary(b"{}".to_vec())).await.unwrap();
    let reply = rpc.reply().await;
    assert_eq!((&reply["seq_id"], &reply["code"]), (&json!(-1), &json!(1)));
    rpc.ok("__ping", json!({})).await;
    server.stop().await;
}

#[tokio::test]
async fn a_stopping_server_answers_what_runs_and_says_goodbye() {
    let server = Server::start().await;
    let mut rpc = server.rpc().await;
    rpc.request(1, "box_exec", json!({"session_id": "s", "cmd": "wait 300"})).await;
    super::support::until("the command runs", || server.backend.calls().exec == 1).await;
    let stopping = tokio::spawn(server.stop());
    assert_eq!(rpc.reply().await["data"]["stdout"], "waited");
    assert_eq!(u16::from(close_frame(&mut rpc.0).await.code), 1001);
    stopping.await.unwrap();
}

struct Stdio {
    input: tokio::io::DuplexStream,
    output: BufReader<tokio::io::DuplexStream>,
    served: tokio::task::JoinHandle<Result<(), sandcrate_server::StdioError>>,
}

impl Stdio {
    fn start(app: App) -> Self {
        let (input, theirs_in) = tokio::io::duplex(1 << 16);
        let (output, theirs_out) = tokio::io::duplex(1 << 16);
        let served = tokio::spawn(serve_stdio(app, theirs_in, theirs_out));
        Self { input, output: BufReader::new(output), served }
    }

    async fn line(&mut self) -> Value {
        let mut line = String::new();
        tokio::time::timeout(PATIENCE, self.output.read_line(&mut line)).await.unwrap().unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stdio_answers_lines_and_ends_with_its_input() {
    let server = Server::start().await;
    let mut stdio = Stdio::start(server.app.clone());
    stdio
        .input
        .write_all(b"\r\nnoise\n{\"seq_id\": 1, \"action\": \"__ping\", \"data\": {}}\r\n")
        .await
        .unwrap();
    assert_eq!(stdio.line().await["seq_id"], 1);
    stdio
        .input
        .write_all(b"{\"seq_id\": 2, \"action\": \"box_exec\", \"data\": {\"session_id\": \"s\", \"cmd\": \"fill 20000\"}}\n")
        .await
        .unwrap();
    assert_eq!(stdio.line().await["type"], "chunk_start");
    let mut text = String::new();
    loop {
        let line = stdio.line().await;
        match line["type"].as_str().unwrap() {
            "chunk_data" => text.push_str(line["data"].as_str().unwrap()),
            end => break assert_eq!(end, "chunk_end"),
        }
    }
    let reply: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(reply["data"]["stdout"].as_str().unwrap().len(), 20_000);
    // What was asked before the end is answered after it; the end stops the server.
    let last = "{\"seq_id\": 3, \"action\": \"box_exec\", \"data\": {\"session_id\": \"s\", \"cmd\": \"wait 100\"}}\n";
    stdio.input.write_all(last.as_bytes()).await.unwrap();
    stdio.input.shutdown().await.unwrap();
    assert_eq!(stdio.line().await["data"]["stdout"], "waited");
    tokio::time::timeout(PATIENCE, stdio.served).await.unwrap().unwrap().unwrap();
    assert!(server.app.shutdown.is_cancelled());
    server.stop().await;
}

/// T5: one line that was too long or not UTF-8 ended the whole reference server.
#[tokio::test]
async fn t5_a_bad_line_is_answered_and_the_next_one_served() {
    let server = Server::start().await;
    let mut stdio = Stdio::start(server.app.clone());
    let mut sent = b"{\"seq_id\": \xff}\n{".to_vec();
    sent.extend(std::iter::repeat_n(b'x', 2 << 20));
    sent.extend_from_slice(b"}\n{\"seq_id\": 9, \"action\": \"__ping\", \"data\": {}}\n");
    let (mut input, output) = (stdio.input, &mut stdio.output);
    let writing = tokio::spawn(async move {
        input.write_all(&sent).await.unwrap();
        input
    });
    let mut replies = Vec::new();
    for _ in 0..3 {
        let mut line = String::new();
        tokio::time::timeout(PATIENCE, output.read_line(&mut line)).await.unwrap().unwrap();
        replies.push(serde_json::from_str::<Value>(&line).unwrap());
    }
    assert_eq!((&replies[0]["code"], &replies[1]["code"]), (&json!(1), &json!(1)));
    assert_eq!((&replies[2]["seq_id"], &replies[2]["code"]), (&json!(9), &json!(0)));
    drop(writing.await.unwrap());
    let mut rest = Vec::new();
    output.read_to_end(&mut rest).await.unwrap();
    assert!(rest.is_empty());
    stdio.served.await.unwrap().unwrap();
    server.stop().await;
}
