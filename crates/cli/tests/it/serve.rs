//! `sandcrate serve`: ready, refused, ended.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::cleanup::{cgroups_of, processes_with, token};
use crate::driver::{StateDir, until};
use crate::server::{Server, get_unix, serve};
use crate::skip::{Feature, skip_without};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Boxes and sockets that a server left in its state directory.
fn left_in(state: &Path) -> Vec<String> {
    let instances = std::fs::read_dir(state.join("instances")).into_iter().flatten().flatten();
    let sockets = std::fs::read_dir(state).into_iter().flatten().flatten();
    let sockets = sockets.filter(|entry| entry.path().extension().is_some_and(|kind| kind == "sock"));
    instances.chain(sockets).map(|entry| entry.path().display().to_string()).collect()
}

#[test]
fn a_server_answers_over_tcp_and_its_socket() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let state = StateDir::new();
    let socket = state.path().join("mine.sock");
    let server = Server::start(serve(&["--listen", &format!("unix:{}", socket.display())], state.path()));
    let (status, alive) = server.get("/healthz");
    assert_eq!((status, &alive["status"], &alive["live"]), (200, &json!("ok"), &json!(true)));
    let (status, ready) = server.get("/readyz");
    assert_eq!((status, &ready["status"], &ready["ready"]), (200, &json!("ready"), &json!(true)));
    assert_eq!((&ready["mode"], &ready["checks"]), (&json!("standard"), &json!({"backend_available": true})));
    let result = server.exec("demo", "echo hello; echo oh >&2; exit 3");
    assert_eq!((&result["stdout"], &result["stderr"]), (&json!("hello\n"), &json!("oh\n")), "{result}");
    assert_eq!(result["exit_code"], 3, "{result}");
    assert_eq!(get_unix(&socket, "/v1/sessions").0, 200);
    assert_eq!(socket.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    server.running.signal(Signal::TERM);
    assert_eq!(server.running.finish().code, 0);
    assert_eq!(left_in(state.path()), [""; 0]);
}

#[test]
fn a_socket_that_a_dead_server_left_is_replaced() {
    let state = StateDir::new();
    let socket = state.path().join("mine.sock");
    let listen = format!("unix:{}", socket.display());
    let first = Server::start(serve(&["--listen", &listen], state.path()));
    first.running.signal(Signal::KILL);
    assert_eq!(first.running.finish().code, 1009);
    assert!(socket.exists(), "nobody was there to remove it");
    let second = Server::start(serve(&["--listen", &listen], state.path()));
    until("the socket to answer", || (get_unix(&socket, "/healthz").0 == 200).then_some(()));
    // And one that is in use is not.
    let other = StateDir::new();
    let output = serve(&["--listen", &listen], other.path()).run();
    assert_eq!(output.code, 125, "{output:?}");
    assert!(output.stderr.contains(&listen) && output.stderr.contains("another server"), "{output:?}");
    drop(second);
}

#[test]
fn a_port_that_is_taken_is_named_with_the_way_out() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let state = StateDir::new();
    let output = serve(&["--listen", &address], state.path()).run();
    assert_eq!((output.code, output.stdout.as_str()), (125, ""), "{output:?}");
    for word in [address.as_str(), "in use", "--listen", "ss -ltnp"] {
        assert!(output.stderr.contains(word), "`{word}` is not in: {}", output.stderr);
    }
    assert_eq!(left_in(state.path()), [""; 0]);
}

#[test]
fn a_bad_file_is_refused_before_anything_starts() {
    let state = StateDir::new();
    let file = state.path().join("c.toml");
    for (text, words) in [
        ("[server]\nlisen = []\n", ["c.toml:2", "server.lisen", "`listen`"]),
        ("[limits]\nsessions = \"many\"\n", ["c.toml:2", "limits.sessions", "many"]),
    ] {
        std::fs::write(&file, text).unwrap();
        let output = serve(&["--config", &file.display().to_string()], state.path()).run();
        assert_eq!((output.code, output.stdout.as_str()), (125, ""), "{output:?}");
        for word in words {
            assert!(output.stderr.contains(word), "`{word}` is not in: {}", output.stderr);
        }
        assert!(!output.stderr.contains("listening") && !state.path().join("instances").exists());
    }
}

#[test]
fn an_address_of_the_network_needs_a_token_and_then_asks_for_it() {
    let state = StateDir::new();
    let refused = serve(&["--listen", "0.0.0.0:0"], state.path()).run();
    assert_eq!(refused.code, 125, "{refused:?}");
    for word in ["0.0.0.0:0", "--listen", "SANDCRATE_TOKEN", "--insecure-no-auth"] {
        assert!(refused.stderr.contains(word), "`{word}` is not in: {}", refused.stderr);
    }
    let file = state.path().join("token");
    std::fs::write(&file, TOKEN).unwrap();
    let flags = ["--listen", "0.0.0.0:0", "--token-file", &file.display().to_string()];
    let server = Server::start(serve(&flags, state.path()));
    assert!(server.said.contains("chmod 600"), "{}", server.said);
    assert_eq!(server.get("/v1/sessions").0, 401);
    let bearer = format!("Authorization: Bearer {TOKEN}\r\n");
    assert_eq!(server.request("GET", "/v1/sessions", &bearer, "").0, 200);
    assert_eq!(server.get("/healthz").0, 200);
}

#[test]
fn both_signals_end_sessions_and_leave_nothing() {
    if skip_without(&[Feature::Box, Feature::Interrupts]) {
        return;
    }
    for (number, signal) in [(31, Signal::TERM), (32, Signal::INT)] {
        let (state, token) = (StateDir::new(), token(number));
        let server = Server::start(serve(&[], state.path()));
        server.exec("demo", &format!("touch left; (setsid sleep {token} >/dev/null 2>&1 &)"));
        let sleepers = until("the sleeper", || Some(processes_with(&token)).filter(|found| found.len() == 1));
        let cgroups: Vec<_> = sleepers.into_iter().flat_map(cgroups_of).collect();
        server.running.signal(signal);
        let output = server.running.finish();
        assert_eq!((output.code, output.stdout.as_str()), (0, ""), "{output:?}");
        assert_eq!(processes_with(&token), [0; 0]);
        assert!(cgroups.iter().all(|dir| !dir.exists()), "{cgroups:?}");
        assert_eq!(left_in(state.path()), [""; 0]);
    }
}

#[test]
fn a_second_signal_does_not_wait_for_the_command() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let (state, token) = (StateDir::new(), token(33));
    let server = Server::start(serve(&[], state.path()).env("SANDCRATE__SERVER__SHUTDOWN_GRACE_MS", "60000"));
    let body = json!({"cmd": format!("sleep {token}"), "timeout_sec": 100});
    let busy = {
        let address = server.address.clone();
        std::thread::spawn(move || {
            // The answer may never come.
            let stream = std::net::TcpStream::connect(address).unwrap();
            let body = body.to_string();
            let head =
                "POST /v1/sessions/demo/exec HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json";
            let request = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            std::io::Write::write_all(&mut &stream, request.as_bytes()).unwrap();
            let _ = std::io::Read::read_to_end(&mut &stream, &mut Vec::new());
        })
    };
    until("the command", || (!processes_with(&token).is_empty()).then_some(()));
    server.running.signal(Signal::TERM);
    std::thread::sleep(Duration::from_millis(300));
    server.running.signal(Signal::TERM);
    let output = server.running.finish();
    assert_eq!(output.code, 143, "{output:?}");
    assert!(output.wall < Duration::from_secs(30), "{output:?}");
    until("the processes to go", || processes_with(&token).is_empty().then_some(()));
    busy.join().unwrap();
}

#[test]
fn a_second_server_on_the_same_state_says_so() {
    let state = StateDir::new();
    let first = Server::start(serve(&[], state.path()));
    let output = serve(&[], state.path()).run();
    assert_eq!(output.code, 125, "{output:?}");
    let path = state.path().display().to_string();
    for word in [path.as_str(), "in use", "--state-dir"] {
        assert!(output.stderr.contains(word), "`{word}` is not in: {}", output.stderr);
    }
    assert_eq!(first.get("/healthz").0, 200);
}

#[test]
fn a_persistent_session_survives_kill_9() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let state = StateDir::new();
    let first = Server::start(serve(&[], state.path()));
    let (status, body) = first.exec_with("kept", &json!({"cmd": "echo mine > file", "persistent": true}));
    assert_eq!(status, 200, "{body}");
    first.running.signal(Signal::KILL);
    assert_eq!(first.running.finish().code, 1009);
    let second = Server::start(serve(&[], state.path()));
    assert_eq!(second.exec("kept", "cat file")["stdout"], "mine\n");
}

#[test]
fn the_json_log_is_one_object_a_line() {
    let state = StateDir::new();
    let server = Server::start(serve(&["--log-format", "json"], state.path()));
    assert_eq!(server.get("/readyz").0, 200);
    server.running.signal(Signal::TERM);
    let said = server.said.clone();
    let output = server.running.finish();
    let lines: Vec<Value> = (said + &output.stderr)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    assert!(lines.iter().all(|line| line["level"].is_string() && line["timestamp"].is_string()), "{lines:?}");
    // Beside it a backend is looked for, and may be found first.
    let is_ready =
        |line: &Value| line["message"].as_str().unwrap().starts_with("listening on http://127.0.0.1:");
    assert_eq!(lines.iter().filter(|line| is_ready(line)).count(), 1, "{lines:?}");
}

#[test]
fn langbots_configuration_is_taken_and_garbage_is_a_warning() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let (state, data) = (StateDir::new(), tempfile::tempdir().unwrap());
    let garbage = serve(&[], state.path()).env("LANGBOT_BOX_CONFIG", "{\"e2b\": {\"api_key\": \"hunter2\"");
    let server = Server::start(garbage);
    assert!(server.said.contains("warning: LANGBOT_BOX_CONFIG"), "{}", server.said);
    assert!(!server.said.contains("hunter2"), "{}", server.said);
    let mount = json!({"cmd": "cat f", "host_path": data.path().join("sub")});
    assert_eq!(server.exec_with("demo", &mount).0, 403, "no root is known");
    drop(server);

    std::fs::create_dir(data.path().join("sub")).unwrap();
    std::fs::write(data.path().join("sub/f"), "shared\n").unwrap();
    let (state, roots) = (StateDir::new(), json!({"local": {"host_root": "."}}).to_string());
    let server = Server::start(serve(&[], state.path()).env("LANGBOT_BOX_CONFIG", roots).dir(data.path()));
    let (status, result) = server.exec_with("demo", &mount);
    assert_eq!((status, &result["stdout"]), (200, &json!("shared\n")), "{result}");
}

#[test]
fn the_hint_is_one_line_to_paste() {
    let state = StateDir::new();
    let mut server = Server::start(serve(&[], state.path()).env("SANDCRATE_HINT", "1"));
    let stderr = server.running.child.stderr.as_mut().unwrap();
    let said = crate::driver::read_until(stderr, "Ctrl-C");
    let line = said.lines().find(|line| line.contains(" exec demo ")).unwrap_or_else(|| panic!("{said}"));
    assert!(line.contains(&format!("SANDCRATE_URL=http://{}", server.address)), "{line}");
    drop(server);
    let quiet = Server::start(serve(&[], StateDir::new().path()));
    quiet.running.signal(Signal::TERM);
    assert!(!quiet.running.finish().stderr.contains("Paste"), "not where nobody reads it");
}

#[test]
fn b9_rest_gives_output_byte_for_byte() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let state = StateDir::new();
    let server = Server::start(serve(&[], state.path()));
    let result = server.exec("demo", "printf '  x \\n\\n'; printf '\\t' >&2");
    assert_eq!((result["stdout"].as_str(), result["stderr"].as_str()), (Some("  x \n\n"), Some("\t")));
}

#[test]
fn l8_two_servers_on_one_machine_do_not_touch_each_other() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let (first_state, second_state) = (StateDir::new(), StateDir::new());
    let first = Server::start(serve(&[], first_state.path()));
    first.exec("same", "echo first > file");
    let second = Server::start(serve(&[], second_state.path()));
    second.exec("same", "echo second > file");
    second.running.signal(Signal::KILL);
    second.running.finish();
    // Sweeps what the killed one left.
    let third = Server::start(serve(&[], second_state.path()));
    assert_eq!(
        third.exec("same", "cat file 2>&1 || true")["stdout"],
        "cat: file: No such file or directory\n"
    );
    assert_eq!(first.exec("same", "cat file")["stdout"], "first\n");
}

#[test]
fn s16_secrets_of_commands_do_not_reach_the_log() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let state = StateDir::new();
    let server = Server::start(serve(&[], state.path()).env("SANDCRATE_LOG", "info"));
    let (status, _) =
        server.exec_with("demo", &json!({"cmd": "echo hunter2-cmd >&2", "env": {"KEY": "hunter2-env"}}));
    assert_eq!(status, 200);
    let process =
        json!({"command": "sh", "args": ["-c", "echo hunter2-err >&2"], "env": {"KEY": "hunter2-env"}});
    let (status, body) =
        server.request("POST", "/v1/sessions/demo/managed-process", "", &process.to_string());
    assert_eq!(status, 201, "{body}");
    until("the process to end", || {
        (server.get("/v1/sessions/demo/managed-process").1["status"] == "exited").then_some(())
    });
    server.running.signal(Signal::TERM);
    let ended = server.running.finish();
    assert!(ended.stderr.contains("stopping"), "the log is there: {}", ended.stderr);
    assert!(!ended.stderr.contains("hunter2"), "{}", ended.stderr);
}
