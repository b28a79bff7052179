//! `sandcrate run`: exit codes, streams, environment, the JSON document.

use std::time::Duration;

use crate::driver::{run_shell, sandcrate};
use crate::skip::{Feature, skip_without};

#[test]
fn the_exit_code_is_the_commands() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    for (script, code) in
        [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -9 $$", 137), ("kill -15 $$", 143)]
    {
        let output = run_shell(&[], script).run();
        assert_eq!(output.code, code, "{script}: {output:?}");
        assert!(output.stderr.is_empty(), "{script}: {output:?}");
    }
}

#[test]
fn not_found_and_not_executable_are_told_apart() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    for (program, code) in [
        ("no-such-program", 127),
        ("/no/such/program", 127),
        ("./none.sh", 127),
        ("/etc/passwd", 126),
        ("/usr", 126),
    ] {
        let output = sandcrate(&["run", "--", program]).run();
        assert_eq!(output.code, code, "{output:?}");
        assert!(output.stderr.contains(program), "the message names the program: {output:?}");
    }
}

#[test]
fn streams_stay_apart_and_arguments_arrive_as_they_are() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let output = run_shell(&[], "echo to out; echo to err >&2").run();
    assert_eq!((output.stdout.as_str(), output.stderr.as_str()), ("to out\n", "to err\n"));
    let odd = ["run", "--", "printf", "[%s]", "", "a b", "$HOME", "--", "-x", "ü\n"];
    assert_eq!(sandcrate(&odd).run().ok(), "[][a b][$HOME][--][-x][ü\n]");
}

#[test]
fn output_is_live() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    // The command waits for an answer to what it wrote: without live streams this would not end.
    let mut running = run_shell(&["-i"], "echo ready; read answer; echo got $answer").start();
    running.wait_for("ready\n");
    std::io::Write::write_all(running.child.stdin.as_mut().unwrap(), b"me\n").unwrap();
    assert_eq!(running.finish().ok(), "got me\n");
}

#[test]
fn stdin_is_passed_only_when_asked_for() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    assert_eq!(sandcrate(&["run", "-i", "--", "cat"]).input("text\n").run().ok(), "text\n");
    assert_eq!(sandcrate(&["run", "--", "cat"]).input("text\n").run().ok(), "", "end of file at once");
    let large = "0123456789abcde\n".repeat(256 << 10);
    assert!(
        sandcrate(&["run", "-i", "--", "cat"]).input(large.clone()).run().ok() == large,
        "4 MiB both ways"
    );
    let unread = sandcrate(&["run", "-i", "--", "true"]).input(large).run();
    assert_eq!(unread.code, 0, "input that nobody reads is no error");
}

#[test]
fn large_output_arrives_whole() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let output = sandcrate(&["run", "--", "head", "-c", "50000000", "/dev/zero"]).run();
    assert_eq!((output.code, output.stdout.len()), (0, 50_000_000), "{}", output.stderr);
}

#[test]
fn the_environment_is_small_and_explicit() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let names = |flags: &[&str]| {
        let args: Vec<_> = ["run"].iter().chain(flags).chain(&["--", "env"]).copied().collect();
        let text = sandcrate(&args).env("CALLERS_SECRET", "s3cret").env("PASSED", "caller's").run().ok();
        let mut names: Vec<_> =
            text.lines().filter_map(|line| line.split('=').next().map(str::to_owned)).collect();
        names.sort();
        (names, text)
    };
    assert_eq!(names(&[]).0, ["HOME", "LANG", "PATH"]);
    let (found, text) = names(&["-e", "A=x=y z", "-e", "PASSED", "-e", "NOT_SET", "-e", "HOME=/tmp"]);
    assert_eq!(found, ["A", "HOME", "LANG", "PASSED", "PATH"]);
    assert!(
        text.contains("A=x=y z\n") && text.contains("PASSED=caller's\n") && text.contains("HOME=/tmp\n"),
        "{text}"
    );
    assert!(!text.contains("s3cret"));
}

/// What a process could have written something to, by the name of the place; nothing where we may not look.
fn writable_memory(pid: &str) -> Vec<(String, Vec<u8>)> {
    let Ok(memory) = std::fs::File::open(format!("/proc/{pid}/mem")) else { return Vec::new() };
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let places = maps.lines().filter(|line| line.contains(" rw-p "));
    let read = |line: &str| {
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
        let mut bytes = vec![0; usize::try_from(end - start).ok()?];
        std::os::unix::fs::FileExt::read_exact_at(&memory, &mut bytes, start).ok()?;
        Some((line.to_owned(), bytes))
    };
    places.filter_map(read).collect()
}

/// The launcher is a copy of `sandcrate run`, and a box's PID 1 a copy of the launcher.
#[test]
fn launcher_and_box_keep_none_of_our_arguments_and_variables() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let mut running =
        run_shell(&["-i", "-e", "FLAG=secret-flag"], "echo ready; read x; tr '\\0' ' ' </proc/1/cmdline")
            .env("TOKEN", "secret-variable")
            .start();
    running.wait_for("ready\n");
    let pid = running.child.id();
    let launchers = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    assert_eq!(launchers.split_whitespace().count(), 1, "one child: {launchers:?}");
    let launcher = launchers.trim();
    for file in ["cmdline", "environ"] {
        match std::fs::read(format!("/proc/{launcher}/{file}")) {
            Ok(text) => assert!(!String::from_utf8_lossy(&text).contains("secret"), "{file}: {text:?}"),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{file}"),
        }
    }
    // Of the command's own variables the launcher has never heard.
    for (place, memory) in writable_memory(launcher) {
        let found = memory.windows(7).any(|window| window == b"secret-");
        assert!(!found, "{place} of the launcher has a copy");
    }
    std::io::Write::write_all(running.child.stdin.as_mut().unwrap(), b"\n").unwrap();
    assert_eq!(running.finish().ok().trim(), "sandcrate-launcher");
}

#[test]
fn ten_thousand_variables_work() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let lines: String = (0..10_000).map(|number| format!("VARIABLE_{number}=value {number}\n")).collect();
    let file = dir.path().join("variables");
    std::fs::write(&file, lines).unwrap();
    let text = sandcrate(&["run", "--env-file", file.to_str().unwrap(), "--", "env"]).run().ok();
    assert_eq!(text.lines().filter(|line| line.starts_with("VARIABLE_")).count(), 10_000);
}

#[test]
fn a_long_command_works_or_names_the_limit() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    // As stdin of a shell: any length.
    let script = format!("echo start\n: {}\necho end\n", "x".repeat(3_000_000));
    assert_eq!(sandcrate(&["run", "-i", "--", "sh"]).input(script).run().ok(), "start\nend\n");
    // As arguments: what the kernel takes for us, the box takes too.
    let mut args = vec!["run".to_owned(), "--".to_owned(), "printf".to_owned(), "%.1s".to_owned()];
    args.extend((0..10).map(|_| "y".repeat(100_000)));
    assert_eq!(sandcrate(&args).run().ok(), "y".repeat(10));
    // Beyond what an execve of the box can carry: a typed error.
    args.extend((0..8).map(|_| "z".repeat(100_000)));
    let output = sandcrate(&args).run();
    assert_eq!(output.code, 125, "{}", output.stderr);
    assert!(output.stderr.contains("exceeds the limit of"), "{}", output.stderr);
}

#[test]
fn the_workdir_is_made_and_relative_ones_lie_in_workspace() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    for (flag, expected) in
        [("/workspace", "/workspace"), ("/tmp/made/here", "/tmp/made/here"), ("sub", "/workspace/sub")]
    {
        assert_eq!(run_shell(&["-w", flag], "pwd; touch x").run().ok(), format!("{expected}\n"));
    }
}

#[test]
fn a_timeout_ends_everything_and_says_so() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let stubborn = "trap '' TERM INT HUP; (setsid sleep 60 &) ; echo on; sleep 60";
    let output = run_shell(&["--timeout", "700ms"], stubborn).run();
    assert_eq!((output.code, output.stdout.as_str()), (124, "on\n"), "{output:?}");
    assert!(
        output.stderr.contains("time limit of 700ms") && output.stderr.contains("--timeout"),
        "{output:?}"
    );
    assert!(output.wall < Duration::from_secs(10), "{output:?}");
    let quiet = run_shell(&["-q", "--timeout", "0.2"], "sleep 60").run();
    assert_eq!((quiet.code, quiet.stderr.as_str()), (124, ""), "{quiet:?}");
}

#[test]
fn a_background_child_does_not_hold_the_end_back() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let output = run_shell(&[], "sleep 60 & echo done").run();
    assert_eq!((output.code, output.stdout.as_str()), (0, "done\n"), "{output:?}");
    assert!(output.wall < Duration::from_secs(20), "{output:?}");
}

#[test]
fn json_tells_everything_about_a_run() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let flags = ["-o", "json", "-n", "my box", "-w", "sub"];
    let output = run_shell(&flags, "echo out; echo err >&2; printf '\\377' ; exit 3").run();
    let json = output.json();
    assert_eq!(output.code, 3);
    assert!(output.stderr.is_empty(), "nothing is streamed: {output:?}");
    assert_eq!(
        (&json["ok"], &json["status"], &json["exit_code"]),
        (&false.into(), &"exited".into(), &3.into())
    );
    assert_eq!(json["stdout"], "out\n\u{fffd}");
    assert_eq!(json["stdout_base64"], "b3V0Cv8=");
    assert_eq!((&json["stderr"], json.get("stderr_base64")), (&"err\n".into(), None));
    assert_eq!(
        (&json["stdout_bytes"], &json["stderr_bytes"], &json["dropped_bytes"]),
        (&5.into(), &4.into(), &0.into())
    );
    assert!(json["usage"]["wall_ms"].as_f64().unwrap() > 0.0, "{json}");
    assert_eq!(
        (&json["limits_hit"], &json["error"], &json["timed_out"]),
        (&serde_json::json!([]), &().into(), &false.into())
    );
    let session = &json["session"];
    assert_eq!((&session["name"], &session["workdir"]), (&"my box".into(), &"/workspace/sub".into()));
    assert_eq!((&session["root"], &session["network"]), (&"read_only".into(), &"off".into()));
    let controls: Vec<_> = json["enforcement"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| line["control"].as_str().unwrap())
        .collect();
    for control in ["seccomp", "memory", "network", "cleanup"] {
        assert!(controls.contains(&control), "{controls:?}");
    }
}

#[test]
fn json_of_a_timeout_a_signal_and_a_flood() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let output = run_shell(&["-o", "json", "--timeout", "300ms"], "echo on; sleep 60").run();
    let json = output.json();
    assert_eq!((output.code, &json["status"], &json["timed_out"]), (124, &"timed_out".into(), &true.into()));
    assert_eq!((&json["stdout"], &json["exit_code"]), (&"on\n".into(), &124.into()));
    let json = run_shell(&["-o", "json"], "kill -9 $$").run().json();
    assert_eq!(
        (&json["status"], &json["signal"], &json["exit_code"]),
        (&"signaled".into(), &9.into(), &137.into())
    );
    let json = run_shell(&["-o", "json"], "head -c 3000000 /dev/zero | tr '\\0' x").run().json();
    assert_eq!((json["stdout"].as_str().unwrap().len(), &json["stdout_bytes"]), (1 << 20, &3_000_000.into()));
    let output = sandcrate(&["run", "-o", "json", "--", "no-such-program"]).run();
    let json = output.json();
    assert_eq!(
        (output.code, &json["status"], &json["error"]["kind"]),
        (127, &"failed".into(), &"command_not_found".into())
    );
}

#[test]
fn the_box_is_a_comfortable_place() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let script = "set -e; test \"$(id -un)\" = box; echo x > /dev/null; cd; touch file; test -w /workspace; \
                  test \"$(hostname 2>/dev/null || cat /proc/sys/kernel/hostname)\" != ''; echo y > /tmp/y; \
                  echo z > /dev/shm/z; ! touch /usr/x 2>/dev/null; ! touch /etc/x 2>/dev/null; \
                  head -c 4 /dev/urandom | wc -c; echo via > /dev/stderr; exec 3< /dev/fd/0";
    let output = run_shell(&[], script).run();
    assert_eq!((output.code, output.stdout.trim()), (0, "4"), "{output:?}");
}

#[test]
fn a_writable_root_takes_changes_and_forgets_them() {
    if skip_without(&[Feature::Box, Feature::Root]) {
        return;
    }
    let script = "set -e; id -u; touch /usr/local/x /etc/y /opt/z; rm /usr/bin/env; ! test -e /usr/bin/env; echo changed";
    assert_eq!(run_shell(&["--writable-root"], script).run().ok(), "0\nchanged\n");
    assert!(!std::path::Path::new("/usr/local/x").exists() && std::path::Path::new("/usr/bin/env").exists());
}
