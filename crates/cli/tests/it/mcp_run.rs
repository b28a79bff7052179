//! `sandcrate mcp run` with small servers of our own: no registry is asked for anything.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::cleanup::{processes_with, token};
use crate::driver::{Call, Output, Running, StateDir, sandcrate, until};
use crate::server::{Server, serve};
use crate::skip::{Feature, skip_without};

/// Answers every request: `eval` with what a Python expression gives, the rest with their own parameters.
const SERVER: &str = r#"
import json, sys, os, socket, signal, time
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    result = message.get("params")
    if message["method"] == "eval":
        try:
            result = {"ok": repr(eval(result))}
        except BaseException as error:
            result = {"error": type(error).__name__}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"#;

/// A project with a server, a cache of its own, and a place for more.
struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place =
            Self { directory: tempfile::Builder::new().prefix("sandcrate-mcp-test-").tempdir().unwrap() };
        place.write("project/server.py", SERVER);
        place
    }

    fn path(&self, below: &str) -> PathBuf {
        self.directory.path().join(below)
    }

    fn write(&self, below: &str, text: &str) {
        let path = self.path(below);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn call(&self, flags: &[&str], command: &[&str]) -> Call {
        let args: Vec<&str> = [&["mcp", "run"], flags, &["--"], command].concat();
        let project = self.path("project");
        sandcrate(&args).env("XDG_CACHE_HOME", self.path("cache")).dir(&project)
    }

    fn server(&self, flags: &[&str]) -> Talk {
        Talk::new(self.call(flags, &["python3", "server.py"]).start())
    }

    fn cached(&self, what: &str) -> usize {
        fs::read_dir(self.path("cache/sandcrate/mcp").join(what)).map_or(0, Iterator::count)
    }
}

/// A conversation with a server.
struct Talk {
    running: Running,
    next: u64,
}

impl Talk {
    fn new(running: Running) -> Self {
        Self { running, next: 0 }
    }

    fn send(&mut self, text: &str) {
        self.running.child.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    fn ask(&mut self, method: &str, params: &Value) -> Value {
        self.next += 1;
        let request = json!({"jsonrpc": "2.0", "id": self.next, "method": method, "params": params});
        self.send(&format!("{request}\n"));
        loop {
            let line = self.running.wait_for("\n");
            let answer: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
            if answer.get("method").is_none() {
                assert_eq!(answer["id"], self.next, "{line}");
                return answer["result"].clone();
            }
        }
    }

    /// What a Python expression gives in the box, or the name of its exception.
    fn eval(&mut self, expression: &str) -> String {
        let result = self.ask("eval", &json!(expression));
        result["ok"].as_str().or(result["error"].as_str()).unwrap().to_owned()
    }

    fn end(mut self) -> Output {
        drop(self.running.child.stdin.take());
        self.running.finish()
    }
}

#[test]
fn a_server_speaks_through_its_box_and_ends_with_its_client() {
    if skip_without(&[Feature::Box, Feature::Program("python3")]) {
        return;
    }
    let place = Place::new();
    let mut talk = place.server(&[]);
    assert_eq!(talk.ask("initialize", &json!({"a": [1, "ü", null]})), json!({"a": [1, "ü", null]}));
    for number in 0..50 {
        assert_eq!(talk.ask("x", &json!(number)), number);
    }
    assert_eq!(
        talk.eval("open(os.path.expanduser('~/.cache-probe'), 'w').write('x')"),
        "1",
        "HOME is writable"
    );
    let run = "os.makedirs('/tmp/t') or open('/tmp/t/x', 'w').write('#!/bin/sh\\nexit 7') and os.chmod('/tmp/t/x', 0o755) or os.system('/tmp/t/x') >> 8";
    assert_eq!(talk.eval(run), "7", "programs in /tmp run");
    assert_eq!(talk.eval("os.getcwd()"), "'/workspace/.mcp/server/workspace'");
    let output = talk.end();
    assert_eq!((output.code, output.stdout.as_str()), (0, ""), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn the_project_is_read_only_unless_it_is_asked_for_otherwise() {
    if skip_without(&[Feature::Box, Feature::Program("python3")]) {
        return;
    }
    let place = Place::new();
    let write = "open('made', 'w').write('x')";
    assert_eq!(place.server(&[]).eval(write), "OSError");
    let mut copy = place.server(&["--project-mode", "copy"]);
    assert_eq!(copy.eval(write), "1");
    assert_eq!(place.cached("staging"), 2);
    assert_eq!(copy.end().code, 0);
    assert_eq!(place.cached("staging"), 0, "the copy goes with the server");
    assert!(!place.path("project/made").exists());
    assert_eq!(place.server(&["--project-mode", "rw"]).eval(write), "1");
    assert!(place.path("project/made").exists());
}

#[test]
fn our_exit_code_is_the_servers() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let place = Place::new();
    let ended = place.call(&[], &["sh", "-c", "echo said; echo lost >&2; exit 7"]).run();
    assert_eq!((ended.code, ended.stdout.as_str()), (7, "said\n"), "{ended:?}");
    assert!(ended.stderr.contains("lost"), "{ended:?}");
    assert_eq!(place.call(&[], &["sh", "-c", "kill -9 $$"]).run().code, 137);
    let missing = place.call(&[], &["no-such-server-here"]).run();
    assert!(missing.code == 127 && missing.stderr.contains("no-such-server-here"), "{missing:?}");
    // Bytes are passed on as they are: no newline at the end, no UTF-8, a line longer than any buffer.
    let odd = place
        .call(&[], &["sh", "-c", "printf 'a\\r\\n\\n'; head -c 300000 /dev/zero | tr '\\0' x; printf end"])
        .run();
    assert_eq!(odd.stdout, format!("a\r\n\n{}end", "x".repeat(300_000)));
}

#[test]
fn a_server_that_does_not_want_to_end_is_ended() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let place = Place::new();
    let polite = "trap 'exit 5' TERM; echo ready; while :; do sleep 0.1; done";
    let mut talk = Talk::new(place.call(&[], &["sh", "-c", polite]).start());
    talk.running.wait_for("ready\n");
    assert_eq!(talk.end().code, 5, "SIGTERM comes after end of file");
    let deaf = "trap '' TERM; echo ready; while :; do sleep 0.1; done";
    let mut talk = Talk::new(place.call(&[], &["sh", "-c", deaf]).start());
    talk.running.wait_for("ready\n");
    assert_eq!(talk.end().code, 137, "and then SIGKILL");
}

#[test]
fn variables_are_passed_on_by_name_or_all_but_the_hosts() {
    if skip_without(&[Feature::Box, Feature::Program("python3")]) {
        return;
    }
    let place = Place::new();
    let with = |flags: &[&str]| {
        let call = place.call(flags, &["python3", "server.py"]);
        let call =
            call.env("API_TOKEN", "s3cret").env("SSH_AUTH_SOCK", "/run/agent").env("PIP_INDEX_URL", "x");
        let mut talk = Talk::new(call.start());
        let seen = talk
            .eval("[os.environ.get(name) for name in ('API_TOKEN', 'SSH_AUTH_SOCK', 'PIP_INDEX_URL', 'A')]");
        (seen, talk.end().stderr)
    };
    assert_eq!(with(&[]).0, "[None, None, None, None]");
    assert_eq!(with(&["-e", "API_TOKEN", "-e", "A=1"]).0, "['s3cret', None, None, '1']");
    let (seen, stderr) = with(&["--env-from-client", "-e", "A=2"]);
    assert_eq!(seen, "['s3cret', None, None, '2']");
    let told = stderr.lines().find(|line| line.contains("not passed on")).unwrap();
    for name in ["SSH_AUTH_SOCK", "PIP_INDEX_URL", "PATH", "HOME"] {
        assert!(told.split(' ').any(|word| word == name), "{name}: {told}");
    }
    assert!(!told.contains("/run/agent") && !told.contains("API_TOKEN"), "names alone: {told}");
    let (_, stderr) = with(&["--env-from-client", "-q"]);
    assert!(stderr.is_empty(), "{stderr}");
}

#[test]
fn a_malicious_server_reaches_nothing() {
    if skip_without(&[Feature::Box, Feature::Program("python3")]) {
        return;
    }
    let place = Place::new();
    place.write("secret", "the host's");
    place.write("cache/sandcrate/mcp/environments/other/x", "another server's");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut other = place.server(&["--project-mode", "copy"]);
    other.eval("1");
    let staged = fs::read_dir(place.path("cache/sandcrate/mcp/staging")).unwrap().flatten();
    let staged = staged.map(|entry| entry.path()).find(|path| path.is_dir()).unwrap();

    let mut talk = place.server(&["--pids-limit", "40"]);
    for path in [
        place.path("secret"),
        place.path("cache/sandcrate/mcp/environments/other/x"),
        staged.join("server.py"),
    ] {
        let seen = talk.eval(&format!("open('{}').read()", path.display()));
        assert_eq!(seen, "FileNotFoundError", "{}", path.display());
    }
    assert_eq!(talk.eval("open('/proc/1/environ').read()"), "PermissionError");
    assert!(matches!(&*talk.eval("open('/etc/shadow').read()"), "FileNotFoundError" | "PermissionError"));
    assert_eq!(
        talk.eval(&format!("socket.create_connection(('127.0.0.1', {port}), 2)")),
        "ConnectionRefusedError"
    );
    assert_eq!(talk.eval("socket.create_connection(('192.0.2.1', 80), 2)"), "OSError");
    // Forks until the box has no more: the server itself goes on.
    let bomb = "[subprocess.Popen(['sleep', '100']) for _ in range(100)]";
    talk.eval("exec('import subprocess', globals())");
    assert!(matches!(&*talk.eval(bomb), "BlockingIOError" | "OSError"));
    assert_eq!(talk.ask("still", &json!(1)), 1);
    assert_eq!(other.ask("still", &json!(2)), 2);
    let environment = talk.eval("open('/opt/sandcrate/env/x', 'w')");
    assert!(matches!(&*environment, "FileNotFoundError" | "PermissionError" | "OSError"), "{environment}");
}

#[test]
fn a_flood_is_passed_on_whole() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let place = Place::new();
    let ended = place.call(&[], &["sh", "-c", "yes 0123456789 | head -n 1000000"]).run();
    assert_eq!((ended.code, ended.stdout.len()), (0, 11_000_000));
}

/// A package and a project that asks for it, without any index.
fn with_package(place: &Place) {
    let make = r#"
import sys, zipfile
with zipfile.ZipFile(sys.argv[1] + "/tiny_thing-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("tiny_thing.py", "ANSWER = 42\n")
    wheel.writestr("tiny_thing-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-thing\nVersion: 1.0\n")
    wheel.writestr("tiny_thing-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr("tiny_thing-1.0.dist-info/RECORD", "")
"#;
    let project = place.path("project");
    let made = std::process::Command::new("python3").args(["-c", make]).arg(&project).status().unwrap();
    assert!(made.success());
    place.write("project/requirements.txt", "--no-index\n--find-links .\ntiny-thing==1.0\n");
}

#[test]
fn what_a_project_needs_is_installed_once() {
    if skip_without(&[Feature::Box, Feature::Program("python3")]) {
        return;
    }
    let place = Place::new();
    with_package(&place);
    let flags = ["--install-network", "off", "-e", "API_TOKEN=s3cret"];
    // Two at the same time: one of them installs.
    let (mut one, mut other) = (place.server(&flags), place.server(&flags));
    for talk in [&mut one, &mut other] {
        assert_eq!(talk.eval("__import__('tiny_thing').ANSWER"), "42");
    }
    let (one, other) = (one.end(), other.end());
    let installs = [&one, &other].iter().filter(|output| output.stderr.contains("installed")).count();
    assert_eq!(installs, 1, "{one:?} {other:?}");
    assert_eq!((place.cached("environments"), place.cached("building")), (1, 0));
    let mut again = place.server(&flags);
    assert_eq!(again.eval("__import__('tiny_thing').ANSWER"), "42");
    assert_eq!(
        again.eval("open(__import__('tiny_thing').__file__, 'a')"),
        "OSError",
        "environments are read-only"
    );
    let again = again.end();
    assert!(!again.stderr.contains("install"), "{again:?}");
    let mut anew = place.server(&[&flags[..], &["--reinstall"]].concat());
    assert_eq!(anew.eval("1"), "1");
    assert!(anew.end().stderr.contains("installed"));
    assert_eq!((place.cached("environments"), place.cached("building")), (1, 0));
}

#[test]
fn a_client_that_waits_hears_of_the_install_and_a_failed_one_names_its_phase() {
    if skip_without(&[Feature::Box, Feature::Program("python3")]) {
        return;
    }
    let place = Place::new();
    with_package(&place);
    let mut talk = place.server(&["--install-network", "off"]);
    let first: Value = serde_json::from_str(&talk.running.wait_for("\n")).unwrap();
    assert_eq!(first["method"], "notifications/message", "{first}");
    assert_eq!(talk.ask("x", &json!(1)), 1);
    place.write("project/requirements.txt", "--no-index\n--find-links .\nno-such-thing==9\n");
    let failed = place.call(&["--install-network", "off"], &["python3", "server.py"]).start();
    let failed = Talk::new(failed).running.finish();
    assert_eq!(failed.code, 125, "{failed:?}");
    assert!(failed.stderr.contains("(dep_install)") && failed.stderr.contains("no-such-thing"), "{failed:?}");
    assert!(!failed.stderr.contains("--install-network"), "it was not the network: {failed:?}");
    assert_eq!(place.cached("building"), 0);
}

#[test]
fn a_client_of_a_server_that_cannot_start_is_answered() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let place = Place::new();
    let initialize = json!({"jsonrpc": "2.0", "id": 5, "method": "initialize", "params": {}});
    let mut talk = Talk::new(place.call(&["--project", "/no/such"], &["cat"]).start());
    talk.send(&format!("{initialize}\n"));
    let answer: Value = serde_json::from_str(&talk.running.wait_for("\n")).unwrap();
    assert_eq!(answer["id"], 5, "{answer}");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("(staging)") && message.contains("/no/such"), "{message}");
    let ended = talk.running.finish();
    assert_eq!(ended.code, 125, "{ended:?}");
    assert!(ended.stderr.contains("(staging)"), "{ended:?}");
}

#[test]
fn a_path_that_the_box_does_not_have_is_told_with_the_flag_that_shows_it() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let place = Place::new();
    place.write("data/x", "");
    let data = place.path("data").canonicalize().unwrap();
    let data = data.to_str().unwrap();
    let command = ["sh", "-c", "test -e \"$0\"", data];
    let project = ["--project", "."];
    let missing = place.call(&project, &command).run();
    let flag = format!("{data}:{data}:ro");
    assert!(
        missing.code == 1 && missing.stderr.contains(&format!("-v {flag} shows it there")),
        "{missing:?}"
    );
    let there = place.call(&[&project[..], &["-v", &flag]].concat(), &command).run();
    assert!(there.code == 0 && there.stderr.is_empty(), "{there:?}");
}

#[test]
fn mistakes_are_named_before_anything_starts() {
    let place = Place::new();
    for (flags, command, words) in [
        (&["--install-network", "maybe"][..], &["cat"][..], &["--install-network maybe"][..]),
        (&["-p", "1:2"], &["cat"], &["--publish"]),
        (&["-v", "/etc:/x"], &["cat"], &["--volume", "belongs to the host's system"]),
        (&["-m", "1M"], &["cat"], &["--memory"]),
        (&["--url", "unix:/x"], &["cat"], &["--url unix:/x"]),
    ] {
        let output = place.call(flags, command).run();
        assert_eq!(output.code, 125, "{output:?}");
        for word in words {
            assert!(output.stderr.contains(word), "{word}: {output:?}");
        }
        assert!(output.stdout.is_empty());
    }
    if skip_without(&[Feature::Box]) {
        return;
    }
    for (flags, command, words) in [
        (&[][..], &["npx", "--call", "x"][..], &["(staging)", "`--call`"][..]),
        (&["--project", "/no/such"], &["cat"], &["(staging)", "/no/such"]),
    ] {
        let output = Talk::new(place.call(flags, command).start()).running.finish();
        assert_eq!(output.code, 125, "{output:?}");
        for word in words {
            assert!(output.stderr.contains(word), "{word}: {output:?}");
        }
    }
}

#[test]
fn signals_and_sudden_death_leave_nothing() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let place = Place::new();
    let state = StateDir::new();
    for (number, signal, code) in
        [(901, Signal::TERM, 143), (902, Signal::INT, 130), (903, Signal::KILL, 1009)]
    {
        let token = token(number);
        let script = format!("trap '' TERM; (setsid sleep {token} &); echo ready; sleep {token}");
        let mut running =
            place.call(&[], &["sh", "-c", &script]).env("SANDCRATE_STATE_DIR", state.path()).start();
        running.wait_for("ready\n");
        until("the sleepers", || (processes_with(&token).len() >= 2).then_some(()));
        let began = Instant::now();
        running.signal(signal);
        assert_eq!(running.finish().code, code);
        assert!(began.elapsed() < Duration::from_secs(5), "{signal:?}");
        until("the sleepers to go", || processes_with(&token).is_empty().then_some(()));
    }
    // What a killed one left on the disk goes with the next.
    until("the files to go", || {
        let ended = place.call(&[], &["true"]).env("SANDCRATE_STATE_DIR", state.path()).run();
        assert_eq!(ended.code, 0, "{ended:?}");
        let left = |below: &str| fs::read_dir(state.path().join(below)).map_or(0, Iterator::count);
        (left("mcp") == 0 && left("instances") == 0).then_some(())
    });
}

#[test]
fn a_running_server_makes_the_box_for_url() {
    if skip_without(&[Feature::Box, Feature::Program("python3")]) {
        return;
    }
    let place = Place::new();
    let roots = place.directory.path().canonicalize().unwrap();
    place.write("sandcrate.toml", &format!("[mounts]\nroots = [\"{}\"]\n", roots.display()));
    let config = place.path("sandcrate.toml");
    let state = StateDir::new();
    let serving = Server::start(serve(&["--config", config.to_str().unwrap()], state.path()));
    let url = format!("http://{}", serving.address);
    // A toolchain outside /usr would need a root of its own.
    let call =
        place.call(&["--url", &url], &["python3", "server.py"]).env("PATH", "/usr/local/bin:/usr/bin:/bin");
    let mut talk = Talk::new(call.start());
    assert_eq!(talk.ask("x", &json!("over the relay")), "over the relay");
    let output = talk.end();
    assert_eq!(output.code, 0, "{output:?}");
    until("the session to go", || {
        let (status, body) = serving.get("/v1/sessions");
        assert_eq!(status, 200, "{body}");
        body["sessions"].as_array().unwrap().is_empty().then_some(())
    });
}
