//! What a box may be asked to be.

use std::sync::Arc;

use sandcrate_host::{HostMounts, Service};
use sandcrate_protocol::{BoxSpec, MountMode};
use serde_json::{Value, json};

use crate::mock::MockClient;

fn read(more: Value) -> Result<BoxSpec, String> {
    let mut payload = json!({"session_id": "s", "cmd": "x"});
    payload.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let service = Service::builder().client(Arc::new(MockClient::default())).build().unwrap();
    service.build_spec(&payload, HostMounts::Trust).map_err(|error| error.message)
}

const NOT_MOUNTED: &str = "Value error, workdir must stay under mount_path when host_path is provided";

#[test]
fn test_box_spec_validates_resource_limits() {
    for (field, value, message) in [
        ("cpus", json!(0), "Value error, cpus must be greater than 0"),
        ("memory_mb", json!(10), "Value error, memory_mb must be at least 32"),
        ("pids_limit", json!(0), "Value error, pids_limit must be at least 1"),
        (
            "workspace_quota_mb",
            json!(-1),
            "Value error, workspace_quota_mb must be greater than or equal to 0",
        ),
    ] {
        assert_eq!(read(json!({field: value})).unwrap_err(), message);
    }
}

#[test]
fn test_none_mode_is_valid_enum() {
    assert_eq!(serde_json::to_value(MountMode::None).unwrap(), "none");
    assert_eq!(read(json!({"host_path_mode": "none"})).unwrap().host_path_mode, MountMode::None);
}

#[test]
fn test_spec_with_none_mode_skips_workdir_check() {
    let spec = read(json!({"host_path": "/h", "host_path_mode": "none", "workdir": "/opt"})).unwrap();
    assert_eq!(spec.workdir, "/opt");
}

#[test]
fn test_spec_with_rw_mode_requires_workspace_workdir() {
    let refused = read(json!({"host_path": "/h", "host_path_mode": "rw", "workdir": "/opt"}));
    assert_eq!(refused.unwrap_err(), NOT_MOUNTED);
}

#[test]
fn test_spec_with_ro_mode_requires_workspace_workdir() {
    let refused = read(json!({"host_path": "/h", "host_path_mode": "ro", "workdir": "/opt"}));
    assert_eq!(refused.unwrap_err(), NOT_MOUNTED);
}

#[test]
fn test_spec_with_custom_mount_path_allows_matching_workdir() {
    let spec = read(json!({"host_path": "/h", "mount_path": "/project", "workdir": "/project/src"})).unwrap();
    assert_eq!((spec.mount_path.as_str(), spec.workdir.as_str()), ("/project", "/project/src"));
    assert_eq!(read(json!({"host_path": "/h", "mount_path": "/project"})).unwrap().workdir, "/project");
}

#[test]
fn test_spec_with_custom_mount_path_rejects_outside_workdir() {
    let refused = read(json!({"host_path": "/h", "mount_path": "/project", "workdir": "/projects"}));
    assert_eq!(refused.unwrap_err(), NOT_MOUNTED);
}

/// The words of the reference, as callers see them.
#[test]
fn what_is_wrong_is_told_in_the_words_of_the_reference() {
    for (more, message) in [
        (json!({"cmd": 5}), "Input should be a valid string"),
        (json!({"memory_mb": {}}), "Input should be a valid integer"),
        (json!({"memory_mb": "x"}), "Input should be a valid integer, unable to parse string as an integer"),
        (json!({"memory_mb": 64.5}), "Input should be a valid integer, got a number with a fractional part"),
        (json!({"cpus": "inf"}), "Input should be a finite number"),
        (json!({"env": []}), "Input should be a valid dictionary"),
        (json!({"env": {"A": 1}}), "Input should be a valid string"),
        (json!({"network": "maybe"}), "Input should be 'off' or 'on'"),
        (json!({"host_path_mode": "x"}), "Input should be 'none', 'ro' or 'rw'"),
        (json!({"session_id": " "}), "Value error, session_id must not be empty"),
        (json!({"workdir": "x"}), "Value error, workdir must be an absolute path inside the sandbox"),
        (json!({"mount_path": "x"}), "Value error, workdir must be an absolute path inside the sandbox"),
        (
            json!({"workdir": "/w", "mount_path": "x"}),
            "Value error, mount_path must be an absolute path inside the sandbox",
        ),
        (json!({"host_path": "x"}), "Value error, host_path must be an absolute host path"),
    ] {
        assert_eq!(read(more.clone()).unwrap_err(), message, "{more}");
    }
    let service = Service::builder().client(Arc::new(MockClient::default())).build().unwrap();
    let error = service.build_spec(&json!({}), HostMounts::Check).unwrap_err();
    assert_eq!(error.message, "Field required");
}
