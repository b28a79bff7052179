//! Managed processes against a server: start, ps, logs, attach, stop.

use std::io::Write;

use rustix::process::Signal;

use crate::client::Server;
use crate::driver::until;
use crate::skip::{Feature, skip_without};

fn server() -> Server {
    let server = Server::start();
    server.run(&["session", "create", "s"]).ok();
    server
}

#[test]
fn a_process_is_started_listed_read_and_stopped() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let server = server();
    let script = "for n in 1 2 3; do echo out$n; echo err$n >&2; done; sleep 0.3; echo $A $PWD; sleep 60";
    let args = ["start", "s", "--id", "web", "-e", "A=b", "-w", "/tmp", "--", "sh", "-c", script];
    assert_eq!(server.run(&args).ok(), "web\n");
    until("its last line", || server.run(&["logs", "s", "web"]).ok().contains("b /tmp").then_some(()));
    let logs = server.run(&["logs", "s", "web"]);
    assert_eq!(
        (logs.stdout.as_str(), logs.stderr.as_str()),
        ("out1\nout2\nout3\nb /tmp\n", "err1\nerr2\nerr3\n")
    );
    assert_eq!(server.run(&["logs", "--tail", "1", "s", "web"]).ok(), "b /tmp\n");
    let document = server.run(&["logs", "-o", "json", "s", "web"]).json();
    assert_eq!(document["stderr"], "err1\nerr2\nerr3\n");

    let table = server.run(&["ps"]).ok();
    let row = table.lines().find(|line| line.contains("web")).unwrap();
    assert!(row.contains("process") && row.contains("running") && row.contains("sh -c"), "{table}");
    let listed = server.run(&["ps", "-o", "json", "s"]).json();
    assert_eq!(listed["processes"][0]["process_id"], "web");
    let sessions = server.run(&["session", "ls"]).ok();
    assert!(sessions.lines().nth(1).unwrap().ends_with('1'), "{sessions}");

    assert_eq!(server.run(&["stop", "s", "web"]).ok(), "web\n");
    assert_eq!(server.run(&["stop", "s", "web"]).code, 125);
    assert!(!server.run(&["ps", "--all"]).ok().contains("web"));
}

#[test]
fn logs_follow_to_the_end() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let server = server();
    server.run(&["start", "s", "--", "sh", "-c", "echo a; echo b; read x; echo $x; exit 4"]).ok();
    until("two lines", || server.run(&["logs", "s"]).ok().contains("b\n").then_some(()));
    let mut following = server.call(&["logs", "-f", "--tail", "1", "s"]).start();
    assert_eq!(following.wait_for("b\n"), "b\n");
    let output = server.call(&["attach", "s"]).input("last words\n").run();
    assert_eq!(output.code, 4, "{output:?}");
    assert_eq!(following.finish().ok(), "last words\n");
}

#[test]
fn lines_go_both_ways_and_ctrl_c_detaches() {
    if skip_without(&[Feature::Box, Feature::Interrupts]) {
        return;
    }
    let server = server();
    server.run(&["start", "s", "--", "cat"]).ok();
    let mut attached = server.call(&["attach", "s"]).start();
    let stdin = attached.child.stdin.as_mut().unwrap();
    stdin.write_all("one\nzwei ä\n".as_bytes()).unwrap();
    assert_eq!(attached.wait_for("ä\n"), "one\nzwei ä\n");
    let busy = server.run(&["attach", "s"]);
    assert!(busy.code == 125 && busy.stderr.contains("attached elsewhere"), "{busy:?}");
    attached.signal(Signal::INT);
    let output = attached.finish();
    assert_eq!(output.code, 130, "{output:?}");
    assert!(output.stderr.contains("goes on"), "{output:?}");
    assert!(server.run(&["ps", "s"]).ok().contains("running"));

    let mut attached = server.call(&["attach", "--wait", "s"]).start();
    attached.child.stdin.as_mut().unwrap().write_all(b"again\n").unwrap();
    attached.wait_for("again\n");
    server.run(&["stop", "s", "default"]).ok();
    let output = attached.finish();
    assert_eq!(output.code, 143, "SIGTERM is how a process is stopped: {output:?}");
}
