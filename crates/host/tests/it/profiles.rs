//! Presets, and what a caller can change about them.

use std::sync::Arc;

use sandcrate_host::{HostMounts, Service};
use sandcrate_protocol::{BoxProfile, BoxSpec, DEFAULT_IMAGE, MountMode, NetworkMode};
use serde_json::{Value, json};

use crate::mock::MockClient;
use crate::support::{query, service};

fn over(local: Value) -> Service {
    let config = json!({"box": {"local": local}});
    Service::builder().config(&config).client(Arc::new(MockClient::default())).build().unwrap()
}

fn spec(profile: &str, more: Value) -> Result<BoxSpec, String> {
    let mut payload = json!({"session_id": "s", "cmd": "x"});
    payload.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let service = over(json!({"profile": profile}));
    service.build_spec(&payload, HostMounts::Check).map_err(|error| error.message)
}

#[tokio::test]
async fn test_profile_default_provides_defaults() {
    let client = Arc::new(MockClient::default());
    let service = service(Arc::clone(&client) as _, &json!({})).await;
    service.execute_tool(&json!({"command": "x"}), &query(1)).await.unwrap();
    let spec = client.last_spec();
    assert_eq!((spec.network, spec.image.as_str(), spec.timeout_sec), (NetworkMode::Off, DEFAULT_IMAGE, 30));
}

#[test]
fn test_profile_unlocked_field_can_be_overridden() {
    let spec = spec("default", json!({"timeout_sec": 60, "network": "on"})).unwrap();
    assert_eq!((spec.timeout_sec, spec.network), (60, NetworkMode::On));
}

#[test]
fn test_profile_locked_field_cannot_be_overridden() {
    let spec = spec("offline_readonly", json!({"network": "on", "host_path_mode": "rw"})).unwrap();
    assert_eq!((spec.network, spec.host_path_mode), (NetworkMode::Off, MountMode::Ro));
}

#[test]
fn test_profile_timeout_clamped_to_max() {
    assert_eq!(spec("default", json!({"timeout_sec": 999})).unwrap().timeout_sec, 120);
}

#[test]
fn test_profile_timeout_clamped_for_coercible_inputs() {
    for asked in [json!("999"), json!(999.0)] {
        assert_eq!(spec("default", json!({"timeout_sec": asked})).unwrap().timeout_sec, 120);
    }
}

/// What a lenient reader takes for an integer, and what it does not.
#[test]
fn timeouts_are_read_as_leniently_as_the_reference_reads_them() {
    for (asked, seconds) in [
        (json!("1_000"), 120),
        (json!(1e30), 120),
        (json!(" 45 "), 45),
        (json!("+45"), 45),
        (json!("45.0"), 45),
        (json!(true), 1),
    ] {
        assert_eq!(spec("default", json!({"timeout_sec": asked})).unwrap().timeout_sec, seconds, "{asked}");
    }
    let unparsable = "Input should be a valid integer, unable to parse string as an integer";
    for (asked, message) in [
        (json!("45.5"), unparsable),
        (json!("1e2"), unparsable),
        (json!("0x10"), unparsable),
        (json!("abc"), unparsable),
        (json!(""), unparsable),
        (json!(45.5), "Input should be a valid integer, got a number with a fractional part"),
        (json!(null), "Input should be a valid integer"),
        (json!([]), "Input should be a valid integer"),
        (json!(0), "Value error, timeout_sec must be greater than 0"),
        (json!(-5), "Value error, timeout_sec must be greater than 0"),
    ] {
        assert_eq!(spec("default", json!({"timeout_sec": asked})).unwrap_err(), message, "{asked}");
    }
}

#[test]
fn test_unknown_profile_raises_error() {
    let config = json!({"box": {"local": {"profile": "nope"}}});
    let error = Service::builder().config(&config).build().unwrap_err();
    assert_eq!(
        error.message,
        "unknown box profile 'nope', available profiles: default, network_basic, network_extended, offline_readonly"
    );
    assert_eq!(error.class(), "BoxValidationError");
}

#[test]
fn test_builtin_profiles_are_consistent() {
    let named = |name: &str| BoxProfile::named(name).unwrap();
    let names: Vec<&str> = BoxProfile::builtin().iter().map(|profile| &*profile.name).collect();
    assert_eq!(names, ["default", "network_basic", "network_extended", "offline_readonly"]);
    for profile in BoxProfile::builtin() {
        assert!(profile.timeout_sec <= profile.max_timeout_sec && profile.image == DEFAULT_IMAGE);
    }
    let (default, basic, extended) = (named("default"), named("network_basic"), named("network_extended"));
    assert_eq!(
        (default.network, basic.network, extended.network),
        (NetworkMode::Off, NetworkMode::On, NetworkMode::On)
    );
    assert!(extended.cpus > basic.cpus && extended.memory_mb > basic.memory_mb);
    let offline = named("offline_readonly");
    assert_eq!(*offline.locked, ["network", "host_path_mode", "read_only_rootfs"]);
    assert!(offline.cpus < default.cpus && offline.memory_mb < default.memory_mb);
}

#[test]
fn test_profile_default_applies_resource_limits() {
    let spec = spec("default", json!({})).unwrap();
    assert_eq!((spec.cpus, spec.memory_mb, spec.pids_limit, spec.read_only_rootfs), (1.0, 512, 128, true));
}

#[test]
fn test_box_service_applies_workspace_quota_from_config() {
    let payload = json!({"session_id": "s", "cmd": "x"});
    for configured in [json!(32), json!("32"), json!(32.0)] {
        let spec = over(json!({"workspace_quota_mb": configured})).build_spec(&payload, HostMounts::Check);
        assert_eq!(spec.unwrap().workspace_quota_mb, 32);
    }
    let own = json!({"session_id": "s", "cmd": "x", "workspace_quota_mb": 5});
    let spec = over(json!({"workspace_quota_mb": 32})).build_spec(&own, HostMounts::Check).unwrap();
    assert_eq!(spec.workspace_quota_mb, 5);
}

#[test]
fn test_profile_offline_readonly_locks_read_only_rootfs() {
    assert!(spec("offline_readonly", json!({"read_only_rootfs": false})).unwrap().read_only_rootfs);
}

#[test]
fn test_profile_network_extended_has_relaxed_limits() {
    let spec = spec("network_extended", json!({})).unwrap();
    assert_eq!((spec.network, spec.cpus, spec.memory_mb), (NetworkMode::On, 2.0, 1024));
    assert!(!spec.read_only_rootfs);
}

#[test]
fn the_callers_image_wins_over_the_configured_one_and_that_over_the_profiles() {
    let service = over(json!({"image": " own:1 "}));
    let image = |payload: Value| service.build_spec(&payload, HostMounts::Check).unwrap().image;
    assert_eq!(image(json!({"session_id": "s"})), "own:1");
    assert_eq!(image(json!({"session_id": "s", "image": "mine"})), "mine");
    assert_eq!(image(json!({"session_id": "s", "image": ""})), "");
}

/// An explicit null is no silence, except where the configuration speaks for the caller.
#[test]
fn a_null_is_refused_where_the_profile_would_have_spoken() {
    let refused = spec("default", json!({"network": null})).unwrap_err();
    assert_eq!(refused, "Input should be 'off' or 'on'");
}

#[tokio::test]
async fn an_agent_chooses_nothing_but_its_command_and_its_surroundings() {
    let client = Arc::new(MockClient::default());
    let service = service(Arc::clone(&client) as _, &json!({})).await;
    let parameters = json!({
        "command": "x", "workdir": "/tmp", "timeout_sec": 9, "env": {"A": "b"}, "image": "evil", "network": "on",
        "session_id": "other", "host_path": "/", "extra_mounts": [{"host_path": "/", "mount_path": "/x"}],
        "cpus": 64, "read_only_rootfs": false, "description": "why",
    });
    service.execute_tool(&parameters, &query(5)).await.unwrap();
    let mut expected = BoxSpec::new("query_5");
    expected.cmd = "x".to_owned();
    expected.workdir = "/tmp".to_owned();
    expected.timeout_sec = 9;
    expected.env.insert("A".to_owned(), "b".to_owned());
    assert_eq!(client.last_spec(), expected);
    let error = service.execute_tool(&json!({}), &query(5)).await.unwrap_err();
    assert_eq!(error.message, "command is required");
}
