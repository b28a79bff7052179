//! `sandcrate exec` against a server.

use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;

use crate::client::{Proxy, Server};
use crate::driver::until;
use crate::skip::{Feature, skip_without};
use crate::terminal::{Terminal, resize};

#[test]
fn streams_stay_apart_and_the_exit_code_is_the_command_s() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let server = Server::start();
    let output = server.shell("echo out; echo err >&2; exit 7");
    assert_eq!((output.code, output.stdout.as_str(), output.stderr.as_str()), (7, "out\n", "err\n"));
    let output = server.run(&["exec", "-e", "A=b c", "-w", "/tmp", "s", "--", "sh", "-c", "echo $A $PWD"]);
    assert_eq!(output.ok(), "b c /tmp\n");
    assert_eq!(server.shell("kill -9 $$").code, 137);
    let output = server.run(&["exec", "s", "--", "no-such-program"]);
    assert_eq!(output.code, 127, "{output:?}");
    let output = server.run(&["exec", "--timeout", "1s", "s", "--", "sleep", "60"]);
    assert_eq!(output.code, 124, "{output:?}");
    assert!(output.stderr.contains("time limit of 1s"), "{output:?}");
    let output = server.run(&["exec", "--no-create", "none", "--", "true"]);
    assert!(output.code == 125 && output.stderr.contains("session_not_found"), "{output:?}");
}

#[test]
fn output_comes_live_and_byte_by_byte() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let server = Server::start();
    let mut running =
        server.call(&["exec", "-i", "s", "--", "sh", "-c", "echo ready; read x; echo got $x"]).start();
    running.wait_for("ready\n");
    std::io::Write::write_all(running.child.stdin.as_mut().unwrap(), b"line\n").unwrap();
    assert_eq!(running.finish().ok(), "got line\n");

    let dir = tempfile::tempdir().unwrap();
    let (out, copy) = (dir.path().join("out"), dir.path().join("copy"));
    let script = "head -c 3000000 /dev/urandom > r; cat r";
    let file = Stdio::from(std::fs::File::create(&out).unwrap());
    let running =
        server.call(&["exec", "s", "--", "sh", "-c", script]).start_on(Stdio::null(), file, Stdio::inherit());
    assert_eq!(running.finish().code, 0);
    server.run(&["cp", "s:/workspace/r", copy.to_str().unwrap()]).ok();
    assert!(
        std::fs::read(out).unwrap() == std::fs::read(copy).unwrap(),
        "3 MB of noise came through changed"
    );
}

#[test]
fn standard_input_of_any_length_arrives() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let server = Server::start();
    let output = server.call(&["exec", "-i", "s", "--", "wc", "-c"]).input(vec![0; 5 << 20]).run();
    assert_eq!(output.ok().trim(), (5 << 20).to_string());
    let output = server.call(&["exec", "s", "--", "wc", "-c"]).input("ignored").run();
    assert_eq!(output.ok().trim(), "0");
    // A command that does not read must not keep us.
    let output = server.call(&["exec", "-i", "s", "--", "true"]).input(vec![0; 5 << 20]).run();
    assert_eq!(output.code, 0, "{output:?}");
}

#[test]
fn the_document_has_the_whole_result() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let server = Server::start();
    let script = "printf 'a\\377'; echo err >&2; exit 3";
    let output = server.run(&["exec", "-o", "json", "s", "--", "sh", "-c", script]);
    let document = output.json();
    assert_eq!((output.code, output.stderr.as_str()), (3, ""), "{output:?}");
    for (key, value) in
        [("status", "exited"), ("stdout_base64", "Yf8="), ("stderr", "err\n"), ("session_id", "s")]
    {
        assert_eq!(document[key], value, "{document:#}");
    }
    assert_eq!((&document["exit_code"], &document["stdout_bytes"]), (&3.into(), &2.into()));
    assert!(document["usage"]["wall_ms"].is_number(), "{document:#}");
    let output = server.run(&["exec", "-t", "-o", "json", "s", "--", "true"]);
    assert!(output.code == 125 && output.stderr.is_empty() && output.stdout.contains("--tty"), "{output:?}");
}

#[test]
fn a_detached_command_goes_on() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let server = Server::start();
    let id = server.run(&["exec", "-d", "s", "--", "sh", "-c", "echo out; echo err >&2; sleep 60"]).ok();
    let id = id.trim();
    until("the command to be listed and to write", || {
        let table = server.run(&["ps", "s"]).ok();
        let listed = table.lines().any(|line| line.contains(id) && line.contains("running"));
        let logs = server.run(&["logs", "s", id]);
        (listed && logs.stdout == "out\n" && logs.stderr == "err\n").then_some(())
    });
    assert_eq!(server.run(&["stop", "s", id]).ok(), format!("{id}\n"));
    let logs = server.run(&["logs", "-f", "s", id]);
    assert_eq!((logs.code, logs.stdout.as_str()), (0, "out\n"), "a stopped command's log ends");
    assert!(!server.run(&["ps", "s"]).ok().contains(id));
    assert!(server.run(&["ps", "--all", "s"]).ok().contains(id));
}

#[test]
fn ctrl_c_kills_the_command() {
    if skip_without(&[Feature::Box, Feature::Interrupts]) {
        return;
    }
    let server = Server::start();
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut running =
            server.call(&["exec", "s", "--", "sh", "-c", "trap '' INT TERM; echo ready; sleep 60"]).start();
        running.wait_for("ready\n");
        running.signal(signal);
        let output = running.finish();
        assert_eq!((output.code, output.stderr.as_str()), (code, ""), "{output:?}");
        assert!(output.wall < Duration::from_secs(20), "{output:?}");
        until("the command to be gone", || {
            (!server.run(&["ps", "s"]).ok().contains("running")).then_some(())
        });
    }
}

#[test]
fn a_dropped_connection_is_resumed_without_a_gap_or_a_repetition() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let script = "for n in 1 2 3 4 5 6 7 8 9; do echo $n; echo e$n >&2; sleep 0.2; done; exit 6";
    let mut running = server.call(&["exec", "--url", &proxy.url, "s", "--", "sh", "-c", script]).start();
    running.wait_for("3\n");
    assert!(proxy.cut() > 0);
    running.wait_for("6\n");
    assert!(proxy.cut() > 0);
    let output = running.finish();
    assert_eq!((output.code, output.stdout.as_str()), (6, "7\n8\n9\n"), "{output:?}");
    assert_eq!(output.stderr, "e1\ne2\ne3\ne4\ne5\ne6\ne7\ne8\ne9\n");
}

#[test]
fn a_server_that_dies_is_told_clearly() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    for flags in [&[][..], &["-t"]] {
        let server = Server::start();
        let args: Vec<&str> = ["exec"]
            .iter()
            .chain(flags)
            .chain(&["s", "--", "sh", "-c", "echo ready; sleep 60"])
            .copied()
            .collect();
        let mut running = server.call(&args).start();
        running.wait_for("ready");
        server.running.signal(Signal::KILL);
        let output = running.finish();
        assert_eq!(output.code, 125, "{flags:?}: {output:?}");
        let told = output.stderr.contains("no server answers") || output.stderr.contains("was lost");
        assert!(told && output.stderr.contains(&server.url()), "{flags:?}: {output:?}");
        assert!(output.wall < Duration::from_secs(30), "{output:?}");
    }
}

#[test]
fn a_reader_that_goes_away_ends_the_command() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let server = Server::start();
    let mut running = server.call(&["exec", "s", "--", "yes"]).start();
    running.wait_for("y\n");
    drop(running.child.stdout.take());
    assert_eq!(running.finish().code, 141);
    until("the command to be gone", || (!server.run(&["ps", "s"]).ok().contains("running")).then_some(()));
}

#[test]
fn a_terminal_has_our_size_and_gives_our_keys() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let server = Server::start();
    let script = "test -t 0 -a -t 1 && echo term=$TERM a=$A; stty size; read x; echo got=$x; exit 5";
    let mut terminal =
        Terminal::start_call(server.call(&["exec", "-it", "-e", "A=b c", "s", "--", "sh", "-c", script]));
    terminal.expect("term=vt100 a=b c");
    terminal.expect("33 77");
    assert!(terminal.is_raw(), "keys go to the program as they are");
    terminal.keys("hello\r");
    terminal.expect("got=hello");
    let code = until("the end", || terminal.running.child.try_wait().unwrap()).code();
    assert_eq!(code, Some(5));
    assert!(!terminal.is_raw(), "the terminal is as it was");
}

#[test]
fn a_resize_and_ctrl_c_reach_the_program_on_its_terminal() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let server = Server::start();
    let script =
        "trap 'stty size' WINCH; trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.1; done";
    let mut terminal = Terminal::start_call(server.call(&["exec", "-it", "s", "--", "sh", "-c", script]));
    terminal.expect("ready");
    resize(&terminal.master, 44, 99);
    // The kernel tells the foreground of a controlling terminal; ours is none.
    terminal.running.signal(Signal::WINCH);
    terminal.expect("44 99");
    terminal.keys("\x03");
    terminal.expect("caught");
    assert_eq!(until("the end", || terminal.running.child.try_wait().unwrap()).code(), Some(9));
}

#[test]
fn a_terminal_with_a_time_limit_ends_in_time() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let server = Server::start();
    let output = server.run(&["exec", "-t", "--timeout", "1s", "s", "--", "sleep", "60"]);
    assert_eq!(output.code, 124, "{output:?}");
    until("the command to be gone", || (!server.run(&["ps", "s"]).ok().contains("running")).then_some(()));
}
