//! `sandcrate box`: in the place of LangBot's own runtime.

use std::io::Write;
use std::net::TcpListener;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::driver::{Running, StateDir, read_until, sandcrate};
use crate::server::Server;
use crate::skip::{Feature, skip_without};

/// `sandcrate box -s`, as LangBot starts it.
fn child(state: &StateDir, port: &str) -> Running {
    let args = ["box", "-s", "--ws-control-port", port];
    sandcrate(&args).env("SANDCRATE_STATE_DIR", state.path()).start()
}

fn call(child: &mut Running, action: &str, data: &Value) -> Value {
    let request = json!({"seq_id": 7, "action": action, "data": data});
    writeln!(child.child.stdin.as_mut().unwrap(), "{request}").unwrap();
    let reply: Value = serde_json::from_str(&child.wait_for("\n")).unwrap();
    assert_eq!((&reply["seq_id"], &reply["code"]), (&json!(7), &json!(0)), "{reply}");
    reply["data"].clone()
}

#[test]
fn over_stdio_until_the_end_of_input() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let state = StateDir::new();
    let mut child = child(&state, "0");
    call(&mut child, "__ping", &json!({}));
    let result = call(&mut child, "box_exec", &json!({"session_id": "s", "cmd": "echo hello"}));
    assert_eq!(result["stdout"], "hello", "{result}");
    drop(child.child.stdin.take());
    let output = child.finish();
    assert_eq!((output.code, output.stdout.as_str()), (0, ""), "{output:?}");
    assert!(output.stderr.contains("listening on http://127.0.0.1:"), "{output:?}");
    assert_eq!(std::fs::read_dir(state.path().join("instances")).unwrap().count(), 0);
}

#[test]
fn a_signal_ends_the_child_though_its_input_is_open() {
    let state = StateDir::new();
    let mut child = child(&state, "0");
    call(&mut child, "__ping", &json!({}));
    child.signal(Signal::TERM);
    let output = child.finish();
    assert_eq!(output.code, 0, "{output:?}");
}

#[test]
fn a_taken_relay_port_is_only_a_warning_over_stdio() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let state = StateDir::new();
    let mut child = child(&state, &port);
    call(&mut child, "__ping", &json!({}));
    read_until(child.child.stderr.as_mut().unwrap(), &format!("warning: cannot listen on 127.0.0.1:{port}"));
    call(&mut child, "__ping", &json!({}));
    drop(child.child.stdin.take());
    assert_eq!(child.finish().code, 0);
}

#[test]
fn without_a_token_it_binds_loopback_and_says_why() {
    let state = StateDir::new();
    let args = ["box", "--host", "0.0.0.0", "--ws-control-port", "0"];
    let narrowed = Server::start(sandcrate(&args).env("SANDCRATE_STATE_DIR", state.path()));
    assert!(narrowed.address.starts_with("127.0.0.1:"), "{}", narrowed.said);
    for word in ["warning", "0.0.0.0", "SANDCRATE_TOKEN", "SANDCRATE__SERVER__LEGACY"] {
        assert!(narrowed.said.contains(word), "`{word}` is not in: {}", narrowed.said);
    }
    assert_eq!(narrowed.get("/healthz").0, 200);
    drop(narrowed);
    let state = StateDir::new();
    let open = sandcrate(&args).env("SANDCRATE_STATE_DIR", state.path());
    let open = Server::start(open.env("SANDCRATE__SERVER__LEGACY", "127.0.0.0/8"));
    assert!(open.address.starts_with("0.0.0.0:") && !open.said.contains("warning"), "{}", open.said);
}

#[test]
fn it_waits_for_a_predecessor_that_is_ending() {
    let state = StateDir::new();
    let mut first = child(&state, "0");
    call(&mut first, "__ping", &json!({}));
    let mut second = child(&state, "0");
    std::thread::sleep(Duration::from_millis(300));
    drop(first.child.stdin.take());
    assert_eq!(first.finish().code, 0);
    call(&mut second, "__ping", &json!({}));
    let output = child(&state, "0").finish();
    assert_eq!(output.code, 125, "not for one that stays: {output:?}");
    assert!(output.stderr.contains("in use"), "{output:?}");
    assert!(output.wall < Duration::from_secs(15), "{output:?}");
}

#[test]
fn the_options_are_those_of_the_reference() {
    let help = sandcrate(&["box", "--help"]).run().ok();
    let options: Vec<_> = help
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with('-'))
        .filter_map(|line| line.split([',', ' ']).find(|word| word.starts_with("--")))
        .collect();
    assert_eq!(options, ["--host", "--stdio-control", "--ws-control-port", "--help"], "{help}");
    assert!(help.contains("-s, --stdio-control"), "{help}");
}
