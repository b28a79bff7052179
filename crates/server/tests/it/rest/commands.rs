//! Commands by REST: collected, and as events.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use super::{Server, answer, ended, events, names};

async fn exec(server: &Server, body: Value) -> (u16, Value) {
    server.post("/v1/sessions/demo/exec", body).await
}

#[tokio::test]
async fn a_command_is_run_in_a_session_that_is_made_for_it() {
    let server = Server::start().await;
    let (status, result) = exec(&server, json!({"cmd": "both", "memory_mb": 64})).await;
    assert_eq!(status, 200, "{result}");
    assert_eq!(result["session_id"], "demo");
    assert_eq!(result["backend_name"], "fake");
    assert_eq!(result["status"], "completed");
    assert_eq!(result["exit_code"], 3);
    assert_eq!(result["stdout"], "  out \n", "byte for byte");
    assert_eq!(result["stderr"], "err\n");
    assert!(result["duration_ms"].is_u64());
    assert_eq!((&result["stdout_bytes"], &result["truncated"]), (&json!(7), &json!(false)));
    assert!(result.get("stdout_base64").is_none());
    for figure in ["wall_ms", "user_ms", "system_ms", "peak_memory_bytes", "peak_memory_scope"] {
        assert!(result["usage"].get(figure).is_some(), "{result}");
    }
    assert_eq!(result["limits_hit"], json!([]));
    let (_, session) = server.get("/v1/sessions/demo").await;
    assert_eq!(session["memory_mb"], 64);

    // What is left open fits the box that is there, what is given has to.
    assert_eq!(exec(&server, json!({"cmd": "hello"})).await.0, 200);
    assert_eq!(exec(&server, json!({"cmd": "hello", "memory_mb": 64})).await.0, 200);
    let (status, answer) = exec(&server, json!({"cmd": "hello", "memory_mb": 128})).await;
    assert_eq!((status, answer["error"]["field"].as_str()), (409, Some("memory_mb")), "{answer}");
}

#[tokio::test]
async fn a_command_has_its_own_environment_directory_and_time() {
    let server = Server::start().await;
    let (_, result) = exec(&server, json!({"cmd": "show", "env": {"A": "1"}, "workdir": "/tmp"})).await;
    assert_eq!(result["stdout"], r#"[("A", "1")] Some("/tmp") Some(30s)"#);
    let (_, result) = exec(&server, json!({"argv": ["show"], "timeout_sec": 5})).await;
    assert_eq!(result["stdout"], "[] None Some(5s)", "nothing is inherited from the command before");
}

#[tokio::test]
async fn output_that_is_no_text_comes_as_base64_too() {
    let server = Server::start().await;
    let (_, result) = exec(&server, json!({"cmd": "binary"})).await;
    assert_eq!(result["stdout_base64"], "//4AYQ==");
    assert_eq!(result["stdout"], "\u{fffd}\u{fffd}\0a");
    let (_, result) = exec(&server, json!({"cmd": "killed"})).await;
    assert_eq!((&result["exit_code"], &result["signal"]), (&json!(137), &json!(9)));
}

#[tokio::test]
async fn a_timeout_ends_the_command_and_not_the_session() {
    let server = Server::start().await;
    let (status, result) = exec(&server, json!({"cmd": "hang", "timeout_sec": 1})).await;
    assert_eq!((status, result["status"].as_str()), (200, Some("timed_out")));
    assert_eq!((&result["exit_code"], &result["stdout"]), (&Value::Null, &json!("up\n")));
    assert_eq!(server.get("/v1/sessions/demo").await.0, 200);
}

#[tokio::test]
async fn standard_input_is_given_with_the_request() {
    let server = Server::start().await;
    let (status, result) = exec(&server, json!({"cmd": "cat", "stdin": "a\nb"})).await;
    assert_eq!((status, result["stdout"].as_str()), (200, Some("a\nb")), "{result}");
    assert_eq!((&result["backend_name"], &result["exit_code"]), (&json!("fake"), &json!(0)));
    let (_, result) = exec(&server, json!({"cmd": "cat", "stdin": {"base64": "//4="}})).await;
    assert_eq!(result["stdout_base64"], "//4=");
    let (_, result) = exec(&server, json!({"cmd": "cat", "stdin": ""})).await;
    assert_eq!(result["stdout"], "");
}

#[tokio::test]
async fn what_cannot_be_run_is_refused() {
    let server = Server::start().await;
    for (body, field) in [
        (json!({}), "cmd"),
        (json!({"cmd": "  "}), "cmd"),
        (json!({"argv": []}), "argv"),
        (json!({"argv": "ls"}), "argv"),
        (json!({"cmd": "a", "argv": ["b"]}), "argv"),
        (json!({"cmd": "a", "timeout_sec": 0}), "timeout_sec"),
        (json!({"cmd": "a", "time_out": 1}), "time_out"),
        (json!({"cmd": "a", "stdin": 1}), "stdin"),
        (json!({"cmd": "a", "stdin": {"base64": "?"}}), "stdin"),
        (json!({"cmd": "a", "workdir": "x"}), "workdir"),
        (json!({"cmd": "a", "keep_stdin_open": true}), "keep_stdin_open"),
        (json!({"cmd": "a", "pty": {"rows": 0}}), "pty"),
    ] {
        let (status, answer) = exec(&server, body.clone()).await;
        assert_eq!((status, answer["error"]["code"].as_str()), (400, Some("validation_error")), "{body}");
        assert_eq!(answer["error"]["field"], field, "{body}: {answer}");
    }
    server.refused(Method::GET, "/v1/sessions/demo", None, 404, "session_not_found").await;
    let (status, answer) = exec(&server, json!({"argv": ["nowhere"]})).await;
    assert_eq!((status, answer["error"]["code"].as_str()), (422, Some("command_not_found")));
}

fn streamed(server: &Server, body: &Value) -> reqwest::RequestBuilder {
    server.request(Method::POST, "/v1/sessions/demo/exec").header("accept", "text/event-stream").json(body)
}

#[tokio::test]
async fn a_command_can_be_followed_as_it_runs() {
    let server = Server::start().await;
    let response = streamed(&server, &json!({"cmd": "both"})).send().await.unwrap();
    let seen = events(response, ended).await;
    assert_eq!(names(&seen), ["start", "stdout", "stderr", "exit"]);
    assert_eq!(seen[1].data, json!({"data": "  out \n"}));
    assert_eq!((&seen[3].data["exit_code"], &seen[3].data["timed_out"]), (&json!(3), &json!(false)));
    assert!(seen[3].data["usage"]["wall_ms"].is_f64());

    let response = streamed(&server, &json!({"cmd": "cat", "stdin": "in"})).send().await.unwrap();
    let seen = events(response, ended).await;
    assert_eq!((names(&seen), &seen[1].data), (vec!["start", "stdout", "exit"], &json!({"data": "in"})));

    let response = streamed(&server, &json!({"cmd": "nowhere"})).send().await.unwrap();
    let seen = events(response, ended).await;
    assert_eq!(names(&seen), ["start", "error"]);
    assert_eq!(seen[1].data["error"]["code"], "command_not_found");
}

#[tokio::test]
async fn a_code_point_is_never_cut_and_every_byte_comes_once() {
    let server = Server::start().await;
    let response = streamed(&server, &json!({"cmd": "euro"})).send().await.unwrap();
    let seen = events(response, ended).await;
    let given: Vec<_> = seen[1..4].iter().map(|event| event.data["data"].as_str().unwrap()).collect();
    assert_eq!(given, ["1", "e", "€2"]);
    // Whoever left after the second piece gets the third whole.
    let command = seen[0].data["command_id"].as_str().unwrap();
    let path = format!("/v1/sessions/demo/commands/{command}/events");
    let resume = server.request(Method::GET, &path).header("last-event-id", &seen[2].id);
    assert_eq!(events(resume.send().await.unwrap(), ended).await, seen[3..]);
}

#[tokio::test]
async fn a_client_that_comes_back_goes_on_where_it_stopped() {
    let server = Server::start().await;
    let response = streamed(&server, &json!({"cmd": "hang", "timeout_sec": 2})).send().await.unwrap();
    // The connection goes, the command does not.
    let seen = events(response, |seen| seen.len() == 2).await;
    let command = seen[0].data["command_id"].as_str().unwrap().to_owned();
    let (_, view) = server.get(&format!("/v1/sessions/demo/commands/{command}")).await;
    assert_eq!((&view["running"], &view["command_id"]), (&json!(true), &json!(command)));

    let path = format!("/v1/sessions/demo/commands/{command}/events");
    let resumed = server.request(Method::GET, &format!("{path}?after={}", seen[1].id)).send().await.unwrap();
    let rest = events(resumed, ended).await;
    assert_eq!((names(&rest), &rest[0].data["timed_out"]), (vec!["exit"], &json!(true)));
    let whole = server.request(Method::GET, &path).send().await.unwrap();
    assert_eq!(names(&events(whole, ended).await), ["stdout", "exit"]);
    // After the last there is nothing: a browser is told to stop asking.
    let after = server.request(Method::GET, &path).header("last-event-id", &rest[0].id);
    assert_eq!(after.send().await.unwrap().status(), 204);

    let bad = format!("{path}?after=yesterday");
    server.refused(Method::GET, &bad, None, 400, "validation_error").await;
}

/// The stream ended at once and empty, as if there were nothing to come.
#[tokio::test]
async fn an_id_ahead_of_what_runs_is_refused() {
    let server = Server::start().await;
    server.session("demo").await;
    let commands = "/v1/sessions/demo/commands";
    let (_, made) = server.post(commands, json!({"argv": ["cat"], "keep_stdin_open": true})).await;
    let path = format!("{commands}/{}/events", made["command_id"].as_str().unwrap());
    let message =
        server.refused(Method::GET, &format!("{path}?after=1"), None, 400, "validation_error").await;
    assert_eq!(message, "after is ahead of the newest event, which is 0");
    let ahead = server.request(Method::GET, &path).header("last-event-id", "5000");
    let (status, refused) = answer(ahead).await;
    assert_eq!((status, refused["error"]["field"].as_str()), (400, Some("Last-Event-ID")));

    server.post("/v1/sessions/demo/processes", json!({"command": "cat"})).await;
    let logs = "/v1/sessions/demo/processes/default/logs?follow=1&after=5000";
    let message = server.refused(Method::GET, logs, None, 400, "validation_error").await;
    assert!(message.starts_with("after is ahead of the newest event"), "{message}");
}

#[tokio::test]
async fn output_that_is_gone_is_told_as_a_gap() {
    let server = Server::start().await;
    server.session("demo").await;
    let (status, made) = server.post("/v1/sessions/demo/commands", json!({"cmd": "flood"})).await;
    assert_eq!(status, 201, "{made}");
    let command = made["command_id"].as_str().unwrap();
    let path = format!("/v1/sessions/demo/commands/{command}");
    while server.get(&path).await.1["running"] == true {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let response = server.request(Method::GET, &format!("{path}/events")).send().await.unwrap();
    let seen = events(response, ended).await;
    assert_eq!((seen[0].name.as_str(), names(&seen).last()), ("gap", Some(&"exit")));
    let kept: usize = seen.iter().filter_map(|event| event.data["data"].as_str()).map(str::len).sum();
    let gone = seen[0].data["bytes"].as_u64().unwrap();
    assert_eq!(gone + kept as u64, (1 << 20) + 4, "every byte is accounted for");
    // Resuming from before the gap tells it again; from after it does not.
    let resumed = server.request(Method::GET, &format!("{path}/events?after=1")).send().await.unwrap();
    assert_eq!(events(resumed, ended).await[0].data, json!({"bytes": gone - 1}));
    let after = server.request(Method::GET, &format!("{path}/events")).header("last-event-id", &seen[0].id);
    assert_eq!(events(after.send().await.unwrap(), ended).await, seen[1..]);
}

#[tokio::test]
async fn a_started_command_is_fed_signalled_and_killed() {
    let server = Server::start().await;
    server.session("demo").await;
    let commands = "/v1/sessions/demo/commands";
    let (status, made) = server.post(commands, json!({"argv": ["cat"], "keep_stdin_open": true})).await;
    assert_eq!(status, 201, "{made}");
    assert_eq!((&made["running"], &made["pty"], &made["exit"]), (&json!(true), &json!(false), &Value::Null));
    assert_eq!(made["command"], "cat");
    assert!(made["started_at"].as_str().unwrap().contains('T'), "{made}");
    let path = format!("{commands}/{}", made["command_id"].as_str().unwrap());
    let stdin = |eof: &str, data: &'static str| {
        server.request(Method::POST, &format!("{path}/stdin{eof}")).body(data)
    };
    assert_eq!(answer(stdin("", "one ")).await, (200, json!({"written_bytes": 4, "eof": false})));
    assert_eq!(answer(stdin("?eof=1", "two")).await, (200, json!({"written_bytes": 3, "eof": true})));
    let seen =
        events(server.request(Method::GET, &format!("{path}/events")).send().await.unwrap(), ended).await;
    let text: String = seen.iter().filter_map(|event| event.data["data"].as_str()).collect();
    assert_eq!(text, "one two");
    let (status, refused) = answer(stdin("", "late")).await;
    assert_eq!((status, refused["error"]["code"].as_str()), (409, Some("managed_process_conflict")));

    let (_, made) = server.post(commands, json!({"cmd": "hang"})).await;
    let path = format!("{commands}/{}", made["command_id"].as_str().unwrap());
    let sent = server.post(&format!("{path}/signal"), json!({"signal": "SIGINT"})).await;
    assert_eq!(sent, (200, json!({"signal": 2})));
    let seen =
        events(server.request(Method::GET, &format!("{path}/events")).send().await.unwrap(), ended).await;
    assert_eq!((&seen[1].data["signal"], &seen[1].data["exit_code"]), (&json!(2), &json!(130)));

    let (_, made) = server.post(commands, json!({"cmd": "stubborn"})).await;
    let id = made["command_id"].as_str().unwrap();
    let path = format!("{commands}/{id}");
    assert_eq!(server.delete(&path).await, (200, json!({"killed": id})));
    let seen =
        events(server.request(Method::GET, &format!("{path}/events")).send().await.unwrap(), ended).await;
    assert_eq!(seen.last().unwrap().data["signal"], 9);
    assert_eq!(server.delete(&path).await.0, 200, "one that ended is no error");
    let (_, list) = server.get(commands).await;
    assert_eq!(list["commands"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn commands_that_are_not_there_are_not_found() {
    let server = Server::start().await;
    server.session("demo").await;
    for (method, path, body) in [
        (Method::GET, "", None),
        (Method::DELETE, "", None),
        (Method::GET, "/events", None),
        (Method::POST, "/stdin", None),
        (Method::POST, "/signal", Some(json!({"signal": 15}))),
    ] {
        let here = format!("/v1/sessions/demo/commands/77{path}");
        server.refused(method.clone(), &here, body.clone(), 404, "managed_process_not_found").await;
        let nowhere = format!("/v1/sessions/none/commands/77{path}");
        server.refused(method, &nowhere, body, 404, "session_not_found").await;
    }
    server.refused(Method::GET, "/v1/sessions/none/commands", None, 404, "session_not_found").await;
    let start = Some(json!({"cmd": "hello"}));
    server.refused(Method::POST, "/v1/sessions/none/commands", start, 404, "session_not_found").await;
    let unknown = Some(json!({"cmd": "hello", "memory_mb": 512}));
    let message =
        server.refused(Method::POST, "/v1/sessions/demo/commands", unknown, 400, "validation_error").await;
    assert!(message.contains("memory_mb"), "{message}");
    let signal = Some(json!({"signal": "NOPE"}));
    server
        .refused(Method::POST, "/v1/sessions/demo/commands/1/signal", signal, 400, "validation_error")
        .await;
}
