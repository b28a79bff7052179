//! `sandcrate session` against a server.

use crate::client::Server;
use crate::driver::until;
use crate::skip::{Feature, skip_without};

#[test]
fn a_session_is_made_listed_shown_and_removed() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let server = Server::start();
    let create = [
        "session", "create", "one", "--memory", "128M", "--cpus", "0.5", "--ttl", "10m", "--label", "user=42",
    ];
    assert_eq!(server.run(&create).ok(), "one\n");
    assert_eq!(server.run(&create).ok(), "one\n", "the same again is the same session");
    let made_up = server.run(&["session", "create"]).ok();
    assert!(made_up.trim().len() > 4, "{made_up}");

    let table = server.run(&["session", "ls"]).ok();
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["ID", "STATE", "BACKEND", "AGE", "IDLE", "PROCESSES"]);
    assert_eq!((rows[1][0], rows[1][1], rows[1][2], rows[1][5]), ("one", "idle", "native", "0"));
    assert_eq!(server.run(&["session", "ls", "-q", "--label", "user=42"]).ok(), "one\n");
    let listed = server.run(&["session", "ls", "-o", "json"]).json();
    assert_eq!(listed["sessions"].as_array().unwrap().len(), 2);

    let shown = server.run(&["session", "show", "one"]).ok();
    for words in
        ["id          one", "memory      128M", "cpus        0.5", "user=42", "ttl         10m", "seccomp"]
    {
        assert!(shown.contains(words), "`{words}` is not in {shown}");
    }
    let document = server.run(&["session", "show", "one", "-o", "json"]).json();
    assert_eq!((&document["memory_mb"], &document["ttl_sec"]), (&128.into(), &600.into()));

    let output = server.run(&["session", "rm", "nobody", "one"]);
    assert_eq!((output.code, output.stdout.as_str()), (125, "one\n"), "{output:?}");
    assert!(output.stderr.contains("nobody") && output.stderr.contains("session_not_found"), "{output:?}");
    assert_eq!(server.run(&["session", "rm", "--all"]).ok(), made_up);
    assert_eq!(server.run(&["session", "ls", "-q"]).ok(), "");
}

#[test]
fn variables_of_a_session_are_those_of_its_commands_and_processes() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let server = Server::start();
    server.run(&["session", "create", "s", "-e", "A=of-session", "-e", "B=of-session"]).ok();
    let print = "echo $A $B";
    assert_eq!(server.run(&["exec", "s", "--", "sh", "-c", print]).ok(), "of-session of-session\n");
    let own = ["exec", "-e", "B=own", "s", "--", "sh", "-c", print];
    assert_eq!(server.run(&own).ok(), "of-session own\n");
    server.run(&["start", "s", "-e", "B=own", "--", "sh", "-c", print]).ok();
    until("its line", || (server.run(&["logs", "s"]).ok() == "of-session own\n").then_some(()));
}

#[test]
fn a_directory_of_the_host_is_mounted() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("f"), "host\n").unwrap();
    let root = dir.path().to_str().unwrap();
    let server = Server::start();
    let output = server.call(&["session", "create", "s", "-v", ".:/data:ro"]).dir(dir.path()).run();
    if output.code != 0 {
        // Which roots a server allows is its configuration; a refusal names the path.
        assert!(output.stderr.contains(root), "{output:?}");
        return;
    }
    assert_eq!(server.shell("cat /data/f; touch /data/x 2>/dev/null || echo ro").ok(), "host\nro\n");
}

#[test]
fn what_the_server_refuses_is_shown_in_its_words() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let server = Server::start();
    server.run(&["session", "create", "s"]).ok();
    for (args, words) in [
        (&["session", "show", "none"][..], &["session_not_found", "session ls"][..]),
        (&["session", "create", "x", "--memory", "1M"], &["memory_mb", "validation_error"]),
        (&["session", "create", "s", "--memory", "64M"], &["session_conflict"]),
        (&["logs", "s", "none"], &["managed_process_not_found", "ps --all"]),
        (&["stop", "s", "none"], &["managed_process_not_found"]),
        (&["attach", "s", "none"], &["none"]),
        (&["start", "none", "--", "cat"], &["session_not_found"]),
    ] {
        let output = server.run(args);
        assert_eq!((output.code, output.stdout.as_str()), (125, ""), "{args:?}: {output:?}");
        for word in words {
            assert!(output.stderr.contains(word), "{args:?}: `{word}` is not in {output:?}");
        }
    }
    let document = server.run(&["session", "show", "none", "-o", "json"]).json();
    assert_eq!(document["error"]["code"], "session_not_found");
}
