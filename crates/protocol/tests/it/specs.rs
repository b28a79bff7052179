//! Specs as the reference reads them.
//!
//! Both recordings are from the reference's models; `spec-edges` has values at the edges of each rule.

use sandcrate_protocol::{BoxSpec, InvalidSpec, ProcessSpec};
use serde_json::{Value, json};

use crate::cases;

const COERCION: &str = include_str!("../fixtures/spec-coercion.jsonl");
const EDGES: &str = include_str!("../fixtures/spec-edges.jsonl");

fn read(model: &str, input: &Value) -> Result<Value, InvalidSpec> {
    match model {
        "BoxSpec" => BoxSpec::from_json(input).map(|spec| serde_json::to_value(spec).unwrap()),
        "BoxManagedProcessSpec" => {
            ProcessSpec::from_json(input).map(|spec| serde_json::to_value(spec).unwrap())
        }
        model => panic!("unknown model {model}"),
    }
}

/// The text without the documentation links and without the values that we do not show.
fn comparable(text: &str, ours: &str) -> (String, String) {
    let lines = |text: &str| -> Vec<String> {
        text.lines()
            .filter(|line| !line.starts_with("    For further information"))
            .map(str::to_owned)
            .collect()
    };
    let (mut theirs, mut ours) = (lines(text), lines(ours));
    for (their, our) in theirs.iter_mut().zip(&mut ours) {
        let unseen = ["input_value={...}", "input_value=[...]", "input_value=..."];
        if unseen.iter().any(|value| our.contains(&format!("{value}, input_type"))) {
            for line in [their, our] {
                let (start, end) =
                    (line.find(", input_value=").unwrap(), line.rfind(", input_type=").unwrap());
                line.replace_range(start..end, "");
            }
        }
    }
    (theirs.join("\n"), ours.join("\n"))
}

#[test]
fn specs_are_read_as_the_reference_reads_them() {
    let mut count = 0;
    for case in cases(COERCION).into_iter().chain(cases(EDGES)) {
        let model = case["model"].as_str().unwrap();
        let mut input = case["input"].clone();
        if input["cpus"] == "<Infinity>" {
            // JSON has no such number; the string says the same.
            input["cpus"] = json!("Infinity");
        }
        let result = read(model, &input);
        count += 1;
        if let Some(bounded) = beyond_our_bounds(&case) {
            let refused = result.unwrap_err();
            assert!(
                refused.issues().iter().any(|issue| issue.message.contains(bounded)),
                "{input}: {refused}"
            );
            continue;
        }
        match (case.get("ok"), case.get("error").and_then(Value::as_str)) {
            (Some(expected), None) => {
                let ours = result.unwrap_or_else(|error| panic!("{input}: {error}"));
                // The order of the fields too.
                assert_eq!(ours.to_string(), expected.to_string(), "{input}");
            }
            (None, Some(expected)) => {
                let ours = result.expect_err(&input.to_string()).to_string();
                let (theirs, ours) = comparable(expected, &ours);
                assert_eq!(ours, theirs, "{input}");
            }
            _ => panic!("neither accepted nor refused: {case}"),
        }
    }
    assert_eq!(count, 58 + 234);
}

/// What the reference accepts, or refuses for the size of its integers, and we refuse in words of our own.
fn beyond_our_bounds(case: &Value) -> Option<&'static str> {
    let input = &case["input"];
    if case["ok"]["cpus"] == "<Infinity>" {
        return Some("Input should be a finite number");
    }
    let timeout = input["timeout_sec"].as_f64()?;
    (timeout.fract() == 0.0 && timeout > 2_592_000.0).then_some("timeout_sec must be at most 2592000")
}

#[test]
fn what_no_machine_can_serve_is_refused() {
    for (field, value, message) in [
        ("timeout_sec", json!(2_592_001), "timeout_sec must be at most 2592000"),
        ("timeout_sec", json!("9".repeat(5000)), "timeout_sec must be at most 2592000"),
        ("timeout_sec", json!(u64::MAX), "timeout_sec must be at most 2592000"),
        ("timeout_sec", json!(format!("-{}", "9".repeat(5000))), "timeout_sec must be greater than 0"),
        ("memory_mb", json!(16_777_217), "memory_mb must be at most 16777216"),
        ("workspace_quota_mb", json!(1e300), "workspace_quota_mb must be at most 16777216"),
        ("pids_limit", json!(4_194_305), "pids_limit must be at most 4194304"),
        ("cpus", json!(8192.5), "cpus must be at most 8192"),
        ("cpus", json!("nan"), "Input should be a finite number"),
        ("cpus", json!("-inf"), "Input should be a finite number"),
        ("session_id", json!("x".repeat(257)), "session_id must have at most 256 characters"),
        ("session_id", json!("a\nb"), "session_id must not contain control characters"),
        ("session_id", json!("a\0b"), "session_id must not contain NUL characters"),
        ("cmd", json!("a\0b"), "cmd must not contain NUL characters"),
        ("image", json!("a\0b"), "image must not contain NUL characters"),
        ("workdir", json!("/a\0b"), "workdir must not contain NUL characters"),
        ("host_path", json!(format!("/{}", "x".repeat(4095))), "host_path must have at most 4095 bytes"),
        ("env", json!({"A": "a\0b"}), "env values must not contain NUL characters"),
        ("env", json!({"A=B": "x"}), "env names must not be empty or contain '=' or NUL characters"),
        ("env", json!({"": "x"}), "env names must not be empty or contain '=' or NUL characters"),
        ("extra_mounts", json!(vec![0; 4097]), "extra_mounts must have at most 4096 items"),
    ] {
        let mut input = json!({"session_id": "s"});
        input[field] = value;
        let refused = BoxSpec::from_json(&input).expect_err(message);
        let [issue] = refused.issues() else { panic!("{refused}") };
        assert!(issue.message.ends_with(message), "{refused}");
        assert!(issue.location == field || issue.location.starts_with("env."), "{refused}");
        assert!(refused.to_string().len() < 300, "{refused}");
    }
    let accepted = json!({"session_id": "好".repeat(256), "timeout_sec": 2_592_000, "cpus": 8192});
    assert!(BoxSpec::from_json(&accepted).is_ok());
}

#[test]
fn all_that_is_wrong_is_said_at_once_and_secrets_are_not() {
    let input = json!({"cmd": 5, "env": {"TOKEN": ["hunter2"], "B": 1}, "extra_mounts": [{"mode": "x"}, 7]});
    let refused = BoxSpec::from_json(&input).unwrap_err();
    let issues: Vec<_> = refused.issues().iter().map(|issue| (issue.location.as_str(), issue.rule)).collect();
    assert_eq!(
        issues,
        [
            ("cmd", "string_type"),
            ("session_id", "missing"),
            ("env.B", "string_type"),
            ("env.TOKEN", "string_type"),
            ("extra_mounts.0.host_path", "missing"),
            ("extra_mounts.0.mount_path", "missing"),
            ("extra_mounts.0.mode", "enum"),
            ("extra_mounts.1", "model_type"),
        ]
    );
    assert!(!refused.to_string().contains("hunter2"), "{refused}");
    let shown = serde_json::to_value(&refused.issues()[1]).unwrap();
    assert_eq!(shown, json!({"location": "session_id", "message": "Field required", "type": "missing"}));
}

#[test]
fn serde_does_not_go_round_the_rules() {
    let spec = BoxSpec::new("s");
    let text = serde_json::to_string(&spec).unwrap();
    assert_eq!(serde_json::from_str::<BoxSpec>(&text).unwrap(), spec);
    let error = serde_json::from_str::<BoxSpec>(r#"{"session_id": " "}"#).unwrap_err();
    assert!(error.to_string().contains("session_id must not be empty"), "{error}");
    assert!(serde_json::from_str::<ProcessSpec>(r#"{"command": ""}"#).is_err());
}

#[test]
fn mounts_named_by_their_content_go_to_their_place_and_nothing_else_does() {
    let digest = "a".repeat(64);
    let mount = |path: &str, mode: &str, content: Value, manifest: Value| {
        json!({"session_id": "s", "extra_mounts": [{"host_path": "/h", "mount_path": path, "mode": mode,
               "content_digest": content, "manifest_path": manifest}]})
    };
    let (place, named) = (format!("/opt/langbot-artifacts/{digest}"), json!(format!("sha256:{digest}")));
    let good = BoxSpec::from_json(&mount(&place, "ro", named.clone(), json!("/m"))).unwrap();
    assert!(good.extra_mounts[0].is_artifact());
    assert!(
        !BoxSpec::from_json(&mount("/x", "rw", Value::Null, Value::Null)).unwrap().extra_mounts[0]
            .is_artifact()
    );
    for bad in [
        mount(&place, "rw", named.clone(), json!("/m")),
        mount(&place, "ro", named.clone(), Value::Null),
        mount(&place, "ro", Value::Null, Value::Null),
        mount("/opt/langbot-artifacts", "ro", Value::Null, Value::Null),
        mount("/workspace/x", "ro", named.clone(), json!("/m")),
        mount(&place, "ro", json!(format!("sha256:{}", "A".repeat(64))), json!("/m")),
    ] {
        let error = BoxSpec::from_json(&bad).unwrap_err().to_string();
        assert!(error.contains("extra_mounts.0\n  Value error, Artifact paths require"), "{error}");
    }
    let error = BoxSpec::from_json(&mount("/workspace/../x", "ro", Value::Null, Value::Null)).unwrap_err();
    assert!(error.to_string().contains("mount_path must be normalized"), "{error}");
}
