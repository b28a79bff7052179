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
        assert!(
            not_held.iter().all(|tried| tried["id"] == "NT-03"),
            "an attempt could not be made: {not_held:#?}"
        );
    }
}
