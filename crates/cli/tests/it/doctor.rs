//! `sandcrate doctor` on the machine that the tests run on.

use crate::driver::sandcrate;
use crate::skip::{Feature, skip_without};

#[test]
fn the_report_is_one_to_paste_into_a_ticket() {
    let output = sandcrate(&["doctor"]).run();
    for word in ["sandcrate 0.", "kernel", "distribution", "user", "cgroups", "verdict:"] {
        assert!(output.stdout.contains(word), "`{word}`: {output:?}");
    }
    assert!(!output.stdout.contains('\x1b'), "no colours without a terminal");
    let runs = output.stdout.contains("verdict: boxes run here");
    assert_eq!(output.code, i32::from(!runs), "{output:?}");
    // Each problem has a numbered fix.
    let problems =
        output.stdout.lines().filter(|line| line.starts_with("weak") || line.starts_with("MISSING")).count();
    assert_eq!(
        output.stdout.lines().filter(|line| line.trim_start().starts_with("until then:")).count(),
        problems,
        "{}",
        output.stdout
    );
}

#[test]
fn json_has_the_same_facts() {
    let output = sandcrate(&["doctor", "-o", "json"]).run();
    let json = output.json();
    assert_eq!(json["ok"].as_bool(), Some(output.code == 0));
    assert!(json["machine"]["kernel"].as_str().is_some_and(|kernel| !kernel.is_empty()), "{json}");
    for check in json["checks"].as_array().unwrap() {
        let state = check["state"].as_str().unwrap();
        assert!(["ok", "weak", "missing"].contains(&state), "{check}");
        assert_eq!(state != "ok", check["fix"].is_object(), "what is not right has a fix: {check}");
    }
}

#[test]
fn every_control_of_a_box_has_a_line() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let json = sandcrate(&["doctor", "-o", "json"]).run().json();
    let names: Vec<_> =
        json["checks"].as_array().unwrap().iter().filter_map(|check| check["name"].as_str()).collect();
    for control in ["identity", "seccomp", "memory", "disk", "command-kill", "cleanup"] {
        assert!(names.contains(&format!("box {control}").as_str()), "{control}: {names:?}");
    }
    assert!(json["box"]["cold_ms"].as_f64().is_some_and(|time| time > 0.0), "{json}");
}

#[test]
fn no_attempt_breaks_out() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let output = sandcrate(&["doctor", "--attack", "-o", "json"]).run();
    let json = output.json();
    let attacks = json["attacks"].as_array().unwrap();
    assert!(attacks.len() > 50, "{json}");
    let not_held: Vec<_> = attacks.iter().filter(|tried| tried["verdict"] != "held").collect();
    let broken: Vec<_> = not_held.iter().filter(|tried| tried["verdict"] == "broken").collect();
    assert!(broken.is_empty() && output.code == 0, "{broken:#?}");
    if rustix::process::geteuid().is_root() {
        assert!(not_held.iter().all(|tried| tried["id"] == "NT-03"), "could not be made: {not_held:#?}");
    }
}

/// An attempt that cannot fail to be held proves nothing: outside a box they succeed. Only harmless ones.
#[test]
fn attempts_outside_a_box_are_seen_to_succeed() {
    let canary = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(canary.path(), "canary").unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let bait = serde_json::json!({
        "canary": canary.path(), "token": "canary", "port4": listener.local_addr().unwrap().port(), "port6": null,
        "abstract_socket": "none", "uid": 0, "memory_bytes": 1 << 20, "pids": 1, "cpu_millis": 1000,
        "tmp_bytes": 1 << 20, "disk_bytes": 1 << 20, "open_files": 16,
    });
    for name in [
        "host file",
        "host over IPv4",
        "open files",
        "threads",
        "processes",
        "foreign processes",
        "mount table",
    ] {
        let output = sandcrate(&["__attack", name, &bait.to_string()]).run();
        assert_eq!(output.json()["verdict"], "broken", "{name}: {output:?}");
    }
}
