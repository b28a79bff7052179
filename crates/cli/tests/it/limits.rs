//! Limits hold, and the person is told which one and how to raise it.

use crate::driver::run_shell;
use crate::skip::{Feature, skip_without};

#[test]
fn a_hit_memory_limit_is_named() {
    if skip_without(&[Feature::Box, Feature::Cgroups]) {
        return;
    }
    // `tail` keeps a line without an end in memory.
    let script = "head -c 200000000 /dev/zero | tail > /dev/null";
    let output = run_shell(&["-m", "64M"], script).run();
    assert_ne!(output.code, 0, "{output:?}");
    assert!(
        output.stderr.contains("the memory limit of 64M was hit") && output.stderr.contains("--memory"),
        "{output:?}"
    );
    let json = run_shell(&["-m", "64M", "-o", "json"], script).run().json();
    assert!(json["limits_hit"][0]["memory"]["oom_kills"].as_u64() >= Some(1), "{json}");
    let quiet = run_shell(&["-q", "-m", "64M"], script).run();
    assert!(!quiet.stderr.contains("sandcrate:"), "{quiet:?}");
}

#[test]
fn a_hit_process_limit_is_named() {
    if skip_without(&[Feature::Box, Feature::Cgroups]) {
        return;
    }
    let script = "i=0; while [ $i -lt 40 ]; do sleep 5 & i=$((i+1)); done; echo all";
    let output = run_shell(&["--pids-limit", "16"], script).run();
    assert!(!output.stdout.contains("all") || output.stderr.contains("fork"), "{output:?}");
    assert!(
        output.stderr.contains("the limit of 16 processes was hit") && output.stderr.contains("--pids-limit"),
        "{output:?}"
    );
    assert_eq!(run_shell(&["--pids-limit", "64"], script).run().ok(), "all\n");
}

#[test]
fn a_quota_is_hard_and_counts_files_too() {
    if skip_without(&[Feature::Box, Feature::Root, Feature::Program("mke2fs")]) {
        return;
    }
    let output = run_shell(&["--quota", "16M"], "head -c 40000000 /dev/zero > big; wc -c < big").run();
    let size: u64 = output.stdout.trim().parse().unwrap();
    assert!(size < 17 << 20 && output.stderr.contains("No space left"), "{output:?}");
    let script = "i=0; while [ $i -lt 20000 ] && echo > f$i; do i=$((i+1)); done 2>/dev/null; ls | wc -l";
    let files: u64 = run_shell(&["--quota", "16M"], script).run().stdout.trim().parse().unwrap();
    assert!((1000..8000).contains(&files), "{files} files in 16M");
}

#[test]
fn tmp_has_its_size() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let output =
        run_shell(&["--tmp-size", "8M"], "head -c 20000000 /dev/zero > /tmp/big; wc -c < /tmp/big").run();
    let size: u64 = output.stdout.trim().parse().unwrap();
    assert!(size <= 8 << 20 && output.stderr.contains("No space left"), "{output:?}");
}

#[test]
fn required_controls_are_there_or_the_box_does_not_start() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let record = run_shell(&["-o", "json"], "true").run().json();
    for line in record["enforcement"].as_array().unwrap() {
        let control = line["control"].as_str().unwrap();
        let output = run_shell(&["--require", control], "echo ran").run();
        if line["state"] == "enforced" {
            assert_eq!(output.stdout, "ran\n", "{control}: {output:?}");
        } else {
            assert_eq!((output.code, output.stdout.as_str()), (125, ""), "{control}: {output:?}");
            assert!(output.stderr.contains(control), "{control}: {output:?}");
        }
    }
}

#[test]
fn the_network_is_off_unless_the_hosts_is_asked_for() {
    if skip_without(&[Feature::Box, Feature::Program("bash")]) {
        return;
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let script = format!(
        "bash -c 'echo > /dev/tcp/127.0.0.1/{}' 2>/dev/null && echo reached",
        listener.local_addr().unwrap().port()
    );
    let output = run_shell(&[], &script).run();
    assert_eq!(output.stdout, "", "{output:?}");
    let output = run_shell(&["--network", "host"], &script).run();
    assert_eq!(output.stdout, "reached\n", "{output:?}");
    assert!(output.stderr.contains("warning: --network host"), "{output:?}");
    assert_eq!(run_shell(&["-q", "--network", "host"], "true").run().stderr, "");
}
