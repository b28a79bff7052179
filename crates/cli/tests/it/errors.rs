//! What is refused: before anything starts, by name, with 125.

use crate::driver::{run_shell, sandcrate};

#[test]
fn every_refusal_names_the_flag_the_value_and_the_way_out() {
    let cases: [(&[&str], &[&str]); 18] = [
        (&["-m", "12Q"], &["--memory", "12Q", "512M"]),
        (&["-m", "0"], &["--memory", "more than 0"]),
        (&["-m", "1k"], &["--memory", "at least 8M"]),
        (&["-c", "none"], &["--cpus", "none", "1.5"]),
        (&["--pids-limit", "-1"], &["--pids-limit"]),
        (&["--quota", "lots"], &["--quota", "lots", "512M"]),
        (&["--tmp-size", "1e9"], &["--tmp-size", "1e9"]),
        (&["--timeout", "soon"], &["--timeout", "soon", "30s"]),
        (&["--network", "lan"], &["--network lan", "`off`, `on`, `host`"]),
        (&["--allow-net", "*"], &["--allow-net *", "`public`"]),
        (&["-p", "web"], &["--publish", "HOST:BOX"]),
        (&["-w", "../../etc"], &["--workdir", "`..`"]),
        (&["-e", "=x"], &["--env", "empty"]),
        (&["-e", "A\nB=x"], &["--env", "A\\nB", "newline"]),
        (&["--env-file", "/no/such/file"], &["--env-file", "/no/such/file", "exist"]),
        (&["-n", "two\nlines"], &["--name", "control characters"]),
        (&["--require", "magic"], &["--require", "magic", "seccomp"]),
        (&["--read-only", "--writable-root"], &["--read-only", "--writable-root"]),
    ];
    for (flags, words) in cases {
        let output = run_shell(flags, "echo must not run").run();
        assert_eq!((output.code, output.stdout.as_str()), (125, ""), "{flags:?}: {output:?}");
        for word in words {
            assert!(output.stderr.contains(word), "{flags:?}: `{word}` is not in: {}", output.stderr);
        }
        let flags: Vec<_> = ["-o", "json"].iter().chain(flags).copied().collect();
        let output = run_shell(&flags, "echo must not run").run();
        let json = output.json();
        assert_eq!(
            (output.code, &json["ok"], &json["exit_code"]),
            (125, &false.into(), &125.into()),
            "{flags:?}"
        );
        for word in words {
            let error = format!("{} {}", json["error"]["message"].as_str().unwrap(), json["error"]["hint"]);
            assert!(error.contains(word), "{flags:?}: `{word}` is not in: {error}");
        }
    }
}

#[test]
fn mounts_that_are_refused_name_the_path_and_the_rule() {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/etc", dir.path().join("link")).unwrap();
    let cases = [
        ("./missing:/x", vec!["missing", "does not exist"]),
        ("/:/x", vec!["`/`", "root"]),
        ("/etc:/x", vec!["`/etc`", "system"]),
        ("/usr/share:/x:ro", vec!["`/usr/share`", "system"]),
        ("/proc/self:/x", vec!["/proc", "system"]),
        ("/root:/x", vec!["/root", "too wide"]),
        ("./link:/x", vec!["link", "/etc"]),
        (".:/", vec!["root"]),
        (".:/proc", vec!["/proc", "reserved"]),
        (".:/dev/shm", vec!["/dev/shm", "reserved"]),
        (".:/usr/lib", vec!["/usr/lib", "reserved"]),
        (".:/tmp", vec!["/tmp"]),
        (".:/a/../etc", vec!["`..`"]),
        (".", vec!["SRC:DST"]),
        (".:relative", vec!["absolute"]),
    ];
    for (volume, words) in cases {
        let output = run_shell(&["-v", volume], "echo must not run").dir(dir.path()).run();
        assert_eq!((output.code, output.stdout.as_str()), (125, ""), "{volume}: {output:?}");
        for word in words {
            assert!(output.stderr.contains(word), "{volume}: `{word}` is not in: {}", output.stderr);
        }
    }
}

#[test]
fn our_own_state_is_no_mount_source() {
    let state = tempfile::tempdir().unwrap();
    let volume = format!("{}:/x", state.path().display());
    let output =
        sandcrate(&["run", "-v", &volume, "--", "true"]).env("SANDCRATE_STATE_DIR", state.path()).run();
    assert_eq!(output.code, 125, "{output:?}");
    assert!(output.stderr.contains("Sandcrate's own state"), "{output:?}");
}

#[test]
fn an_unusable_state_directory_is_a_typed_error() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let output =
        sandcrate(&["run", "-o", "json", "--", "true"]).env("SANDCRATE_STATE_DIR", file.path()).run();
    let json = output.json();
    assert_eq!(output.code, 125, "{output:?}");
    assert!(json["error"]["message"].as_str().unwrap().contains(&*file.path().to_string_lossy()), "{json}");
}

#[test]
fn a_value_of_a_variable_never_appears_in_an_error() {
    let output = run_shell(&["-e", "BAD\nKEY=hunter2"], "true").run();
    assert!(!output.stderr.contains("hunter2"), "{output:?}");
}
