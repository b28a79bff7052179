//! `process.Process` as the SDKs call it.

use serde_json::{Value, json};

use super::{LONG, Server, encoded, envelope};
use crate::support::PATIENCE;

#[tokio::test]
async fn a_command_tells_its_output_and_its_end() {
    let server = Server::start().await;
    let made = server.sandbox().await;
    let mut stream = server.run(&made, "both").await;
    assert_eq!(stream.pid().await, 1);
    assert_eq!(stream.event().await, json!({"data": {"stdout": encoded("out")}}));
    assert_eq!(stream.event().await, json!({"data": {"stderr": encoded("err")}}));
    let end = &stream.event().await["end"];
    assert_eq!((&end["exitCode"], &end["exited"]), (&json!(0), &json!(true)));
    assert_eq!((&end["status"], &end["error"]), (&json!("exit status 0"), &Value::Null));
    assert_eq!(stream.next().await, (true, json!({})));
    let (_, ended, _) = server.run(&made, "fail").await.rest().await;
    assert_eq!((&ended["exitCode"], &ended["error"]), (&json!(9), &json!("exit status 9")));
    let (_, ended, _) = server.run(&made, "signalled").await.rest().await;
    assert_eq!((&ended["exitCode"], &ended["exited"]), (&json!(-1), &json!(false)));
    server.stop().await;
}

#[tokio::test]
async fn a_command_has_e2bs_home_and_everybodys_variables() {
    let server = Server::start().await;
    let envs = json!({"SHARED": "of the sandbox", "OWN": "no"});
    let made = server.make(json!({"templateID": "base", "timeout": LONG, "envVars": envs})).await;
    let start = async |script: &str, more: Value| {
        let mut process = json!({"cmd": "/bin/bash", "args": ["-l", "-c", script]});
        process.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let stream = server.open(&made, "process.Process/Start", &json!({"process": process}), &[]).await;
        stream.rest().await.0
    };
    assert_eq!(start("vars", json!({"envs": {"OWN": "yes"}})).await, "/home/user true of the sandbox yes");
    assert_eq!(start("where", json!({})).await, "/home/user");
    assert_eq!(start("where", json!({"cwd": "sub"})).await, "/home/user/sub");
    assert_eq!(start("where", json!({"cwd": "/tmp"})).await, "/tmp");
    let (status, told) = super::answer(server.envd(&made, reqwest::Method::GET, "/envs")).await;
    assert_eq!((status, told), (200, envs));
    server.stop().await;
}

#[tokio::test]
async fn a_command_outlives_its_client_and_is_found_again() {
    let server = Server::start().await;
    let made = server.sandbox().await;
    let mut stream = server.run(&made, "say and hang").await;
    let pid = stream.pid().await;
    stream.event().await;
    drop(stream);
    let (_, listed) = server.call(&made, "process.Process/List", json!({})).await;
    assert_eq!(
        (&listed["processes"][0]["pid"], listed["processes"].as_array().unwrap().len()),
        (&json!(pid), 1)
    );
    assert_eq!(listed["processes"][0]["config"]["args"], json!(["-l", "-c", "say and hang"]));
    let select = json!({"process": {"pid": pid}});
    let mut again = server.open(&made, "process.Process/Connect", &select, &[]).await;
    assert_eq!(again.pid().await, pid);
    let signal = |name: &str| json!({"process": {"pid": pid}, "signal": name});
    let unsaid = server.call(&made, "process.Process/SendSignal", signal("SIGNAL_UNSPECIFIED")).await;
    assert_eq!((unsaid.0, &unsaid.1["code"]), (400, &json!("invalid_argument")));
    let killed = server.call(&made, "process.Process/SendSignal", signal("SIGNAL_SIGKILL")).await;
    assert_eq!(killed, (200, json!({})));
    // What was written before it came back was for whoever listened then.
    let (written, ended, _) = again.rest().await;
    assert_eq!((written.as_str(), &ended["exitCode"]), ("", &json!(-1)));
    let gone = server.call(&made, "process.Process/SendSignal", signal("SIGNAL_SIGKILL")).await;
    assert_eq!((gone.0, &gone.1["code"]), (404, &json!("not_found")));
    let mut gone = server.open(&made, "process.Process/Connect", &select, &[]).await;
    let (last, end) = gone.next().await;
    assert_eq!((last, &end["error"]["code"]), (true, &json!("not_found")));
    server.stop().await;
}

#[tokio::test]
async fn input_arrives_by_pieces_and_as_a_stream() {
    let server = Server::start().await;
    let made = server.sandbox().await;
    let process = json!({"cmd": "/bin/bash", "args": ["-l", "-c", "cat"]});
    let start = json!({"process": process, "stdin": true, "tag": "cat"});
    let mut stream = server.open(&made, "process.Process/Start", &start, &[]).await;
    let pid = stream.pid().await;
    let select = json!({"tag": "cat"});
    let send = |input: Value| {
        server.call(&made, "process.Process/SendInput", json!({"process": select, "input": input}))
    };
    assert_eq!(send(json!({"stdin": encoded("one ")})).await, (200, json!({})));
    assert_eq!(send(json!({"pty": encoded("x")})).await.1["code"], "invalid_argument");
    let mut body = envelope(&json!({"start": {"process": {"pid": pid}}}));
    body.extend(envelope(&json!({"data": {"input": {"stdin": encoded("two ")}}})));
    body.extend(envelope(&json!({"keepalive": {}})));
    body.extend(envelope(&json!({"data": {"input": {"stdin": encoded("three")}}})));
    let sent = server
        .envd(&made, reqwest::Method::POST, "/process.Process/StreamInput")
        .header("content-type", "application/connect+json")
        .body(body)
        .send()
        .await
        .unwrap();
    assert_eq!(&sent.bytes().await.unwrap()[..], b"\0\0\0\0\x02{}\x02\0\0\0\x02{}");
    let closed = server.call(&made, "process.Process/CloseStdin", json!({"process": {"pid": pid}})).await;
    assert_eq!(closed, (200, json!({})));
    let (written, ended, _) = stream.rest().await;
    assert_eq!((written.as_str(), &ended["exited"]), ("one two three", &json!(true)));
    // One that was started without says so.
    let mut deaf = server.run(&made, "hang").await;
    let process = json!({"pid": deaf.pid().await});
    let input = json!({"process": process, "input": {"stdin": encoded("x")}});
    let refused = server.call(&made, "process.Process/SendInput", input).await;
    assert_eq!((refused.0, &refused.1["code"]), (400, &json!("failed_precondition")));
    server.stop().await;
}

#[tokio::test]
async fn a_terminal_is_one() {
    let server = Server::start().await;
    let made = server.sandbox().await;
    let process = json!({"cmd": "/bin/bash", "args": ["-i", "-l"], "envs": {"TERM": "xterm-256color"}});
    let start = json!({"process": process, "pty": {"size": {"cols": 80, "rows": 24}}});
    let mut stream = server.open(&made, "process.Process/Start", &start, &[]).await;
    let pid = stream.pid().await;
    assert_eq!(stream.event().await, json!({"data": {"pty": encoded("$ ")}}));
    let resize = |rows: u32| json!({"process": {"pid": pid}, "pty": {"size": {"cols": 120, "rows": rows}}});
    assert_eq!(server.call(&made, "process.Process/Update", resize(40)).await, (200, json!({})));
    assert_eq!(server.call(&made, "process.Process/Update", resize(0)).await.0, 400);
    let input = json!({"process": {"pid": pid}, "input": {"pty": encoded("hi")}});
    assert_eq!(server.call(&made, "process.Process/SendInput", input).await.0, 200);
    assert_eq!(stream.event().await, json!({"data": {"pty": encoded("hi")}}));
    server.stop().await;
}

#[tokio::test]
async fn a_silent_stream_shows_that_it_lives() {
    let server = Server::start().await;
    let made = server.sandbox().await;
    let process = json!({"cmd": "/bin/bash", "args": ["-l", "-c", "hang"]});
    let every = [("keepalive-ping-interval", "1")];
    let mut stream = server.open(&made, "process.Process/Start", &json!({"process": process}), &every).await;
    stream.pid().await;
    for _ in 0..2 {
        assert_eq!(stream.event().await, json!({"keepalive": {}}));
    }
    server.stop().await;
}

#[tokio::test]
async fn the_time_of_a_start_is_the_commands_and_that_of_a_connect_is_the_streams() {
    let server = Server::start().await;
    let made = server.sandbox().await;
    let process = json!({"cmd": "/bin/bash", "args": ["-l", "-c", "hang"]});
    let start = json!({"process": process});
    let short = [("connect-timeout-ms", "150")];
    let mut stream = server.open(&made, "process.Process/Start", &start, &short).await;
    stream.pid().await;
    let (_, _, end) = stream.rest().await;
    assert_eq!(end["error"]["code"], "deadline_exceeded");
    assert_eq!(server.call(&made, "process.Process/List", json!({})).await.1, json!({"processes": []}));
    let mut stream = server.open(&made, "process.Process/Start", &start, &[]).await;
    let pid = stream.pid().await;
    let select = json!({"process": {"pid": pid}});
    let mut again = server.open(&made, "process.Process/Connect", &select, &short).await;
    again.pid().await;
    assert_eq!(again.rest().await.2["error"]["code"], "deadline_exceeded");
    let (_, listed) = server.call(&made, "process.Process/List", json!({})).await;
    assert_eq!(listed["processes"][0]["pid"], pid, "it goes on");
    server.stop().await;
}

#[tokio::test]
async fn what_is_no_call_is_refused() {
    let server = Server::start().await;
    let made = server.sandbox().await;
    let post = |path: &str, kind: &str, body: Vec<u8>| {
        server.envd(&made, reqwest::Method::POST, path).header("content-type", kind).body(body)
    };
    let stream_error = async |request: reqwest::RequestBuilder| -> Value {
        let response = tokio::time::timeout(PATIENCE, request.send()).await.unwrap().unwrap();
        assert_eq!(response.status(), 200);
        let body = response.bytes().await.unwrap();
        assert_eq!(body[0], 2, "the first message is the last");
        let end: Value = serde_json::from_slice(&body[5..]).unwrap();
        end["error"]["code"].clone()
    };
    let start = "/process.Process/Start";
    let stream = "application/connect+json";
    for (kind, body, code) in [
        ("application/proto", vec![0; 5], "unimplemented"),
        (stream, Vec::new(), "invalid_argument"),
        (stream, vec![1, 0, 0, 0, 2, b'{', b'}'], "invalid_argument"),
        (stream, vec![0, 255, 255, 255, 255], "invalid_argument"),
        (stream, envelope(&json!({"process": {"cmd": ""}})), "invalid_argument"),
        (stream, envelope(&json!({"process": 7})), "invalid_argument"),
    ] {
        assert_eq!(stream_error(post(start, kind, body.clone())).await, code, "{kind} {body:?}");
    }
    // A user that the box does not have: `root`, as the SDKs write it.
    let body = envelope(&json!({"process": {"cmd": "/bin/bash", "args": ["-l", "-c", "hello"]}}));
    let root = post(start, stream, body.clone()).header("authorization", "Basic cm9vdDo=");
    assert_eq!(stream_error(root).await, "invalid_argument");
    let user = post(start, stream, body).header("authorization", "Basic dXNlcjo=").send().await.unwrap();
    assert_eq!(user.bytes().await.unwrap()[0], 0);
    let (status, body) = server.call(&made, "process.Process/Nothing", json!({})).await;
    assert_eq!((status, &body["code"]), (404, &json!(404)));
    let bad = post("/process.Process/List", "application/json", b"{".to_vec());
    assert_eq!(super::answer(bad).await.1["code"], "invalid_argument");
    server.stop().await;
}
