//! `sandcrate tool` and `sandcrate profile` against a server, in real boxes.

use crate::client::Server;
use crate::skip::{Feature, skip_without};

#[test]
fn the_tools_work_in_a_session_as_a_model_would_use_them() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let server = Server::start();
    let tool = |args: &[&str]| {
        let (verb, rest) = args.split_first().unwrap();
        let all: Vec<&str> = ["tool", verb, "-s", "demo"].iter().chain(rest).copied().collect();
        server.call(&all)
    };
    assert_eq!(tool(&["write", "/workspace/src/a.py"]).input("print('one')\n").run().ok(), "");
    assert_eq!(tool(&["read", "/workspace/src/a.py"]).run().ok(), "print('one')\n");
    assert_eq!(tool(&["read", "/workspace"]).run().ok(), "src\n");
    tool(&["edit", "/workspace/src/a.py", "--old", "one", "--new", "two"]).run().ok();
    let again = tool(&["edit", "/workspace/src/a.py", "--old", "one", "--new", "two"]).run();
    assert_eq!((again.code, again.stderr.as_str()), (1, "sandcrate: error: old_string not found in file.\n"));
    assert_eq!(tool(&["glob", "**/*.py"]).run().ok(), "/workspace/src/a.py\n");
    assert_eq!(
        tool(&["grep", "tw.", "--include", "*.py"]).run().ok(),
        "/workspace/src/a.py:1:print('two')\n"
    );
    let command = "cat src/a.py; echo \"$WORD\" >&2; exit 3";
    let done = tool(&["exec", "-e", "WORD=said", "-w", "/workspace", command]).run();
    assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (3, "print('two')\n", "said\n"));
    let failed = tool(&["exec", "-o", "json", "exit 3"]).run();
    assert_eq!((failed.code, &failed.json()["exit_code"]), (3, &3.into()), "its code in either format");
    let document = tool(&["exec", "-o", "json", "true"]).run().json();
    assert_eq!((&document["ok"], &document["session_id"]), (&true.into(), &"demo".into()));
}

#[test]
fn links_and_paths_lead_nowhere_else() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let server = Server::start();
    let run = |args: &[&str]| server.run(args);
    let script = "ln -s /etc/passwd link; ln -s / root; mkfifo pipe; echo mine > own";
    run(&["tool", "exec", "-s", "s", script]).ok();
    // S1, S3: a link is not followed, a pipe not waited for.
    for path in
        ["/workspace/link", "/workspace/root/etc/passwd", "/workspace/pipe", "/workspace/../etc/passwd"]
    {
        let refused = run(&["tool", "read", "-s", "s", path]);
        assert!(refused.code != 0 && !refused.stdout.contains("root:"), "{path}: {refused:?}");
    }
    assert_eq!(run(&["tool", "grep", "-s", "s", "root:|mine"]).ok(), "/workspace/own:1:mine\n");
    let written = run(&["tool", "write", "-s", "s", "/workspace/root/tmp/x", "y"]);
    assert_ne!(written.code, 0, "{written:?}");
}

#[test]
fn a_caller_has_a_session_of_its_own_and_a_command_that_hangs_costs_no_files() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let server = Server::start();
    let caller = ["--launcher-type", "group", "--launcher-id", "room"];
    let run = |args: &[&str]| {
        let all: Vec<&str> = ["tool"].iter().chain(args).chain(&caller).copied().collect();
        server.run(&all)
    };
    run(&["write", "/workspace/kept", "here"]).ok();
    let late = run(&["exec", "--timeout", "1s", "sleep 60"]);
    assert_eq!(late.code, 124, "{late:?}");
    assert_eq!(run(&["read", "/workspace/kept"]).ok(), "here");
    let sessions = server.run(&["session", "ls", "-o", "json"]).json();
    assert_eq!(sessions["sessions"][0]["session_id"], "group_room");
    let nobody = server.run(&["tool", "exec", "true"]);
    assert!(nobody.code == 125 && nobody.stderr.contains("session_id"), "{nobody:?}");
    let both = server.run(&["tool", "exec", "-s", "s", "--launcher-id", "x", "true"]);
    assert_eq!(both.code, 125, "{both:?}");
}

#[test]
fn schemas_and_profiles_are_listed() {
    let server = Server::start();
    let tools = server.run(&["tool", "ls", "--format", "openai"]).json();
    assert_eq!((tools.as_array().unwrap().len(), &tools[0]["function"]["name"]), (6, &"exec".into()));
    let table = server.run(&["profile", "ls"]).ok();
    assert!(table.contains("default *") && table.contains("offline_readonly"), "{table}");
    let shown = server.run(&["profile", "show", "offline_readonly"]).ok();
    assert!(shown.contains("network, host_path_mode, read_only_rootfs"), "{shown}");
    let missing = server.run(&["profile", "show", "none"]);
    assert!(missing.code == 125 && missing.stderr.contains("offline_readonly"), "{missing:?}");
}
