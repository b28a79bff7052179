//! `sandcrate mcp serve` as a client on its pipes sees it, in real boxes; and its ends, which leave nothing.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::client::Server;
use crate::driver::{Call, Running, StateDir, sandcrate, until};
use crate::skip::{Feature, skip_without};

const ANSWER_TIME: Duration = Duration::from_secs(60);

/// A client that has opened the conversation.
struct Client {
    running: Running,
    stdin: Option<ChildStdin>,
    lines: mpsc::Receiver<Value>,
    next: u64,
}

fn follow(stdout: ChildStdout) -> mpsc::Receiver<Value> {
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let message = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error} in {line:?}"));
            if sender.send(message).is_err() {
                return;
            }
        }
    });
    lines
}

impl Client {
    fn start(flags: &[&str], state: &Path) -> Self {
        let args: Vec<&str> = ["mcp", "serve"].iter().chain(flags).copied().collect();
        Self::of(sandcrate(&args).env("SANDCRATE_STATE_DIR", state))
    }

    fn of(call: Call) -> Self {
        let mut running = call.start();
        let (stdin, stdout) = (running.child.stdin.take(), running.child.stdout.take().unwrap());
        let mut client = Self { running, stdin, lines: follow(stdout), next: 0 };
        let params = json!({
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"},
        });
        let opened = client.ask("initialize", params);
        assert_eq!(opened["result"]["serverInfo"]["name"], "sandcrate", "{opened}");
        client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        client
    }

    fn send(&mut self, message: &Value) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(format!("{message}\n").as_bytes()).unwrap();
        stdin.flush().unwrap();
    }

    #[expect(clippy::needless_pass_by_value, reason = "callers write it out")]
    fn request(&mut self, method: &str, params: Value) -> u64 {
        self.next += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": self.next, "method": method, "params": params}));
        self.next
    }

    fn answer(&mut self, id: u64) -> Value {
        loop {
            let message = self.lines.recv_timeout(ANSWER_TIME).expect("an answer in time");
            if message["id"] == id {
                return message;
            }
        }
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.request(method, params);
        self.answer(id)
    }

    #[expect(clippy::needless_pass_by_value, reason = "callers write it out")]
    fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let answer = self.ask("tools/call", json!({"name": tool, "arguments": arguments}));
        assert!(answer["result"].is_object(), "{answer}");
        answer["result"].clone()
    }

    fn exec(&mut self, command: &str) -> Value {
        self.call("exec", json!({"command": command}))["structuredContent"].clone()
    }

    /// Closes our end, and waits for its.
    fn leave(mut self) -> i32 {
        self.stdin = None;
        self.running.finish().code
    }
}

/// Processes of boxes whose storage is in this state directory.
fn processes(state: &Path) -> Vec<String> {
    let pids = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.file_name());
    let pids = pids.filter_map(|name| name.into_string().ok()).filter(|name| name.parse::<u32>().is_ok());
    let marker = state.to_string_lossy().into_owned();
    let shows = |pid: &String| {
        std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).is_ok_and(|mounts| mounts.contains(&marker))
    };
    pids.filter(shows).collect()
}

#[test]
fn a_client_works_in_its_box() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let state = StateDir::new();
    let mut client = Client::start(&[], state.path());
    let tools = client.ask("tools/list", json!({}))["result"]["tools"].clone();
    assert_eq!(tools.as_array().unwrap().len(), 8);
    let written = client.call("write", json!({"path": "/workspace/a/b.py", "content": "print(2**64)\n"}));
    assert_eq!((&written["isError"], &written["structuredContent"]["ok"]), (&json!(false), &json!(true)));
    let ran =
        client.call("exec", json!({"command": "python3 a/b.py; echo $WORD >&2", "env": {"WORD": "said"}}));
    assert_eq!(ran["content"][0]["text"], "18446744073709551616\n[stderr]\nsaid\n[exit code 0]");
    let facts = &ran["structuredContent"];
    assert_eq!(
        (&facts["ok"], &facts["exit_code"], &facts["backend"]),
        (&json!(true), &json!(0), &json!("native"))
    );
    let failed = client.call("exec", json!({"command": "exit 7"}));
    assert_eq!((&failed["isError"], &failed["structuredContent"]["exit_code"]), (&json!(true), &json!(7)));
    let found = client.call("grep", json!({"pattern": "2\\*\\*"}));
    assert_eq!(found["content"][0]["text"], "/workspace/a/b.py:1: print(2**64)\n");

    let listed = client.ask("resources/list", json!({}))["result"]["resources"].clone();
    assert_eq!(listed[0]["uri"], "sandcrate://mcp/workspace/a/b.py");
    let read = client.ask("resources/read", json!({"uri": listed[0]["uri"]}));
    assert_eq!(read["result"]["contents"][0]["text"], "print(2**64)\n");
    let outside = client.ask("resources/read", json!({"uri": "sandcrate://mcp/etc/passwd"}));
    assert_eq!(outside["error"]["code"], -32602);

    assert_eq!(client.exec("sleep 60 & ls /workspace")["stdout"], "a");
    let reset = client.call("session_reset", json!({}));
    assert_eq!(reset["structuredContent"]["existed"], true);
    assert_eq!(client.exec("ls /workspace; ps -e | grep -c sleep")["stdout"], "0", "all of it is gone");
    assert_eq!(client.leave(), 0);
    until("its box to go", || processes(state.path()).is_empty().then_some(()));
}

#[test]
fn bad_input_is_answered_and_the_conversation_goes_on() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let state = StateDir::new();
    let mut client = Client::start(&[], state.path());
    for (tool, arguments, word) in [
        ("exec", json!({}), "`command`"),
        ("exec", json!({"command": ""}), "must not be empty"),
        ("exec", json!({"command": "ls", "timeout_sec": 0}), "`timeout_sec`"),
        ("exec", json!({"command": "ls", "shell": "zsh"}), "`shell`"),
        ("exec", json!({"command": "ls", "workdir": "relative"}), "relative"),
        ("read", json!({"path": "/etc/passwd"}), "/workspace"),
        ("read", json!({"path": "/workspace/none"}), "not found"),
        ("edit", json!({"path": "/workspace/none", "old_string": "a", "new_string": "b"}), "not found"),
        ("grep", json!({"pattern": "("}), "regex"),
        ("session_list", json!({"all": true}), "`all`"),
    ] {
        let result = client.call(tool, arguments.clone());
        let text = result["content"][0]["text"].as_str().unwrap();
        assert_eq!(result["isError"], true, "{tool} {arguments}: {text}");
        assert!(text.contains(word), "{tool} {arguments}: {text}");
    }
    let unknown = client.ask("tools/call", json!({"name": "rm", "arguments": {}}));
    assert_eq!(unknown["error"]["code"], -32602);
    assert!(client.ask("tools/call", json!({"arguments": {}}))["error"]["code"].is_i64());
    assert_eq!(client.ask("tools/rename", json!({}))["error"]["code"], -32601);
    assert_eq!(client.ask("resources/list", json!({"cursor": "../x"}))["error"]["code"], -32602);
    assert_eq!(client.exec("echo on")["stdout"], "on");
    assert_eq!(client.leave(), 0);
}

#[test]
fn much_output_a_long_command_and_limits_are_told() {
    if skip_without(&[Feature::Box, Feature::Cgroups]) {
        return;
    }
    let state = StateDir::new();
    let mut client = Client::start(&["-m", "64M", "--pids-limit", "16"], state.path());
    let much = client.call("exec", json!({"command": "seq 100000"}));
    let facts = &much["structuredContent"];
    assert_eq!((&facts["stdout_truncated"], &facts["stderr_truncated"]), (&json!(true), &json!(false)));
    let stdout = facts["stdout"].as_str().unwrap();
    assert!(stdout.starts_with("1\n2\n") && stdout.ends_with("\n100000"), "beginning and end");
    assert_eq!(stdout.chars().count(), 4000);
    assert!(much["content"][0]["text"].as_str().unwrap().contains("write it to a file"));

    let late = client.call("exec", json!({"command": "echo first; sleep 60", "timeout_sec": 1}));
    assert_eq!((&late["isError"], &late["structuredContent"]["status"]), (&json!(true), &json!("timed_out")));
    assert_eq!(
        (&late["structuredContent"]["exit_code"], &late["structuredContent"]["stdout"]),
        (&Value::Null, &json!("first"))
    );
    assert!(late["content"][0]["text"].as_str().unwrap().contains("timeout_sec"));
    client.exec("echo kept > f");

    let greedy = client.call("exec", json!({"command": "python3 -c 'b = bytearray(200 << 20)'"}));
    let limits = greedy["structuredContent"]["limits_hit"].clone();
    assert_eq!(limits[0]["memory"]["limit_bytes"], 64 << 20, "{greedy}");
    assert!(greedy["content"][0]["text"].as_str().unwrap().contains("[limit hit: memory of 64 MiB"));
    assert_eq!(client.exec("cat f")["stdout"], "kept", "a limit does not cost the files");
    assert_eq!(client.leave(), 0);
}

#[test]
fn a_cancelled_call_ends_its_command_alone() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let state = StateDir::new();
    let mut client = Client::start(&[], state.path());
    client.exec("(setsid sleep 345 >/dev/null 2>&1 &)");
    let params = json!({
        "name": "exec", "arguments": {"command": "touch began; sleep 678"}, "_meta": {"progressToken": 9},
    });
    let id = client.request("tools/call", params);
    let word = loop {
        let message = client.lines.recv_timeout(ANSWER_TIME).expect("progress in time");
        if message["method"] == "notifications/progress" {
            break message;
        }
    };
    assert_eq!(word["params"]["progressToken"], 9);
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}));
    until("the command to end", || {
        let running = client.exec("ps -e -o args | grep -v grep")["stdout"].as_str().unwrap().to_owned();
        // Without a cgroup for each command nobody can say whose orphan the other one is, and it ends too.
        let alone = running.contains("sleep 345") || !rustix::process::geteuid().is_root();
        (!running.contains("sleep 678") && alone).then_some(())
    });
    assert_eq!(client.exec("ls")["stdout"], "began", "the session goes on");
    assert_eq!(client.leave(), 0);
}

#[test]
fn every_end_leaves_nothing() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let own = tempfile::tempdir().unwrap();
    for signal in [None, Some(Signal::TERM), Some(Signal::HUP), Some(Signal::KILL)] {
        let state = StateDir::new();
        let args = ["mcp", "serve"];
        let call = sandcrate(&args).env("SANDCRATE_STATE_DIR", state.path()).env("TMPDIR", own.path());
        let mut client = Client::of(call);
        client.exec("setsid sleep 300 >/dev/null 2>&1 &");
        assert!(!processes(state.path()).is_empty(), "a box is there");
        // One that is under way must not hold the end up.
        client.request(
            "tools/call",
            json!({"name": "exec", "arguments": {"command": "sleep 300", "timeout_sec": 100}}),
        );
        match signal {
            None => assert_eq!(client.leave(), 0),
            Some(signal) => {
                client.running.signal(signal);
                let code = client.running.finish().code;
                assert_eq!(code, if signal == Signal::KILL { 1009 } else { 0 }, "{signal:?}");
            }
        }
        until("every process to go", || processes(state.path()).is_empty().then_some(()));
        assert_eq!(
            std::fs::read_dir(own.path()).unwrap().count(),
            0,
            "{signal:?}: a private directory is left"
        );
        until("the next start to remove the files", || {
            sandcrate(&["run", "--", "true"]).env("SANDCRATE_STATE_DIR", state.path()).run().ok();
            let left = std::fs::read_dir(state.path().join("instances")).into_iter().flatten().count();
            (left == 0).then_some(())
        });
    }
}

#[test]
fn a_directory_is_worked_on_and_a_named_session_is_kept() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let (state, project) = (StateDir::new(), tempfile::tempdir().unwrap());
    std::fs::write(project.path().join("in.txt"), "mine\n").unwrap();
    let volume = format!("{}:/workspace", project.path().display());
    let mut client = Client::start(&["-v", &volume, "-e", "WORD=set"], state.path());
    let listed = client.ask("resources/list", json!({}))["result"]["resources"].clone();
    assert_eq!(listed[0]["name"], "in.txt", "before any call");
    assert_eq!(client.exec("cat in.txt; echo $WORD; echo out > out.txt")["stdout"], "mine\nset");
    client.call("session_reset", json!({}));
    assert_eq!(client.exec("cat in.txt")["stdout"], "mine", "the person's directory stays");
    assert_eq!(client.leave(), 0);
    assert_eq!(std::fs::read_to_string(project.path().join("out.txt")).unwrap(), "out\n");

    let mut first = Client::start(&["--session", "notes"], state.path());
    first.call("write", json!({"path": "/workspace/note", "content": "kept"}));
    let second =
        sandcrate(&["mcp", "serve", "--session", "notes"]).env("SANDCRATE_STATE_DIR", state.path()).run();
    assert_eq!(second.code, 125);
    assert!(second.stderr.contains("another server has it open"), "{}", second.stderr);
    assert_eq!(first.leave(), 0);
    let mut again = Client::start(&["--session", "notes"], state.path());
    assert_eq!(again.exec("cat note")["stdout"], "kept");
    assert_eq!(again.leave(), 0);
    let other = sandcrate(&["mcp", "serve", "--session", "notes", "-m", "1G"]);
    let other = other.env("SANDCRATE_STATE_DIR", state.path()).run();
    assert_eq!(other.code, 125);
    assert!(other.stderr.contains("memory_mb=512") && other.stderr.contains("the same"), "{}", other.stderr);
}

#[test]
fn the_boxes_of_a_server_are_reached_through_us() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let server = Server::start();
    let state = StateDir::new();
    let sessions =
        || server.run(&["session", "ls", "-o", "json"]).json()["sessions"].as_array().unwrap().len();
    let mut client = Client::start(&["--url", &server.url()], state.path());
    assert_eq!(client.exec("echo hi > a; cat a")["stdout"], "hi");
    assert_eq!(sessions(), 1);
    let id = client.request("tools/call", json!({"name": "exec", "arguments": {"command": "sleep 60"}}));
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}));
    assert_eq!(client.exec("echo on")["stdout"], "on", "it waits for nobody any more");
    assert_eq!(client.ask("tools/call", json!({"name": "rm"}))["error"]["code"], -32602);
    assert_eq!(client.leave(), 0);
    until("its box to go", || (sessions() == 0).then_some(()));
    let mut named = Client::start(&["--url", &server.url(), "--session", "demo"], state.path());
    assert_eq!(named.call("session_list", json!({}))["structuredContent"]["sessions"][0]["session"], "demo");
    assert_eq!(named.leave(), 0);

    let nobody = sandcrate(&["mcp", "serve", "--url", "unix:/nonexistent/s"]).run();
    assert_eq!(nobody.code, 125);
    assert!(nobody.stderr.contains("no server answers"), "{}", nobody.stderr);
}

#[test]
fn a_clients_configuration_is_printed_and_written() {
    let home = tempfile::tempdir().unwrap();
    let config = |args: &[&str]| {
        let args: Vec<&str> = ["mcp", "config"].iter().chain(args).copied().collect();
        sandcrate(&args).env("HOME", home.path()).env("XDG_CONFIG_HOME", "").dir(home.path()).run()
    };
    let printed = config(&["cursor", "--name", "box", "--", "-v", ".:/workspace"]);
    let entry = &printed.json()["mcpServers"]["box"];
    assert!(Path::new(entry["command"].as_str().unwrap()).is_absolute(), "{entry}");
    let here = home.path().canonicalize().unwrap();
    let volume = format!("{}:/workspace", here.display());
    assert_eq!(entry["args"], json!(["mcp", "serve", "-v", volume]), "a client starts it anywhere");
    let joined = config(&["cursor", "--", "--volume=.:/workspace", "-m", "1G"]).json();
    let joined = &joined["mcpServers"]["sandcrate"]["args"];
    assert_eq!(*joined, json!(["mcp", "serve", format!("--volume={volume}"), "-m", "1G"]));
    let shared = config(&["cursor", "--file", "mcp.json", "--", "-v", ".:/workspace"]).json();
    assert_eq!(shared["mcpServers"]["sandcrate"]["args"][3], ".:/workspace", "it is not one person's");
    assert!(printed.stderr.contains(".cursor/mcp.json"), "{}", printed.stderr);
    assert!(std::fs::read_dir(home.path()).unwrap().next().is_none(), "nothing is written without --write");
    assert_eq!(config(&["vscode"]).json()["servers"]["sandcrate"]["type"], "stdio");

    config(&["cursor", "--write"]).ok();
    let file = home.path().join(".cursor/mcp.json");
    let first = std::fs::read_to_string(&file).unwrap();
    let again = config(&["cursor", "--write"]);
    assert!(again.code == 0 && again.stderr.contains("has it already"), "{}", again.stderr);
    config(&["cursor", "--write", "--name", "other"]).ok();
    let both: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(both["mcpServers"].as_object().unwrap().len(), 2);
    assert_eq!(std::fs::read_to_string(home.path().join(".cursor/mcp.json.bak-1")).unwrap(), first);

    let bad = "{\n  \"mcpServers\": {},\n  // mine\n}\n";
    std::fs::write(home.path().join(".claude.json"), bad).unwrap();
    let refused = config(&["claude-code", "--write"]);
    assert_eq!(refused.code, 125);
    assert!(refused.stderr.contains("left alone: line 3"), "{}", refused.stderr);
    assert_eq!(std::fs::read_to_string(home.path().join(".claude.json")).unwrap(), bad);
    let project = config(&["claude-code", "--write", "--file", "p/.mcp.json"]);
    assert!(project.code == 0 && home.path().join("p/.mcp.json").is_file(), "{}", project.stderr);
    for (flags, words) in [
        (&["--memroy", "1G"][..], "unexpected argument '--memroy'"),
        (&["-m", "much"], "--memory"),
        (&["-v", "none:/workspace"], "does not exist"),
        (&["--network", "banana"], "banana"),
        (&["--url", "ftp://x"], "--url `ftp://x`"),
        (&["--url", "http://x:1", "-m", "1G"], "cannot be used with"),
    ] {
        let refused = config(&[&["cursor", "--write", "--name", "bad", "--"], flags].concat());
        assert_eq!(refused.code, 125, "{flags:?}");
        assert!(refused.stderr.contains(words), "{flags:?}: {}", refused.stderr);
        let as_served = sandcrate(&[&["mcp", "serve"], flags].concat()).dir(home.path()).run();
        assert_eq!(refused.stderr, as_served.stderr, "{flags:?}: the same words");
    }
    assert!(!std::fs::read_to_string(&file).unwrap().contains("bad"), "nothing of it is written");
    assert_eq!(config(&["emacs"]).code, 125);
    assert_eq!(config(&["cursor", "--name", " "]).code, 125);
}
