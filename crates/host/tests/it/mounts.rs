//! Which directories of the host a box is given.

use std::path::PathBuf;
use std::sync::Arc;

use sandcrate_host::{HostMounts, Service};
use serde_json::{Value, json};

use crate::mock::MockClient;
use crate::support::{Bench, path, query, service};

fn payload(host_path: &str) -> Value {
    json!({"session_id": "s", "cmd": "echo hi", "host_path": host_path})
}

fn over(local: Value) -> Service {
    let config = json!({"box": {"local": local}});
    Service::builder().config(&config).client(Arc::new(MockClient::default())).build().unwrap()
}

#[tokio::test]
async fn test_box_service_allows_host_mount_under_configured_root() {
    let bench = Bench::new().await;
    let root = bench.directory("root");
    let below = bench.directory("root/project");
    let service = bench.service(json!({"allowed_mount_roots": [path(&root)]})).await;
    let payload = payload(&path(&below));
    let result = service.execute_spec_payload(&payload, &query(1), HostMounts::Check).await.unwrap();
    assert_eq!(result["ok"], true);
    assert_eq!(bench.runtime.sessions()[0].info.host_path.as_deref(), Some(path(&below).as_str()));
}

#[tokio::test]
async fn test_box_service_rejects_host_mount_outside_allowed_roots() {
    let bench = Bench::new().await;
    let (root, outside) = (bench.directory("a"), bench.directory("ab"));
    let service = bench.service(json!({"allowed_mount_roots": [path(&root)]})).await;
    let payload = payload(&path(&outside));
    let error = service.execute_spec_payload(&payload, &query(1), HostMounts::Check).await.unwrap_err();
    assert_eq!(error.class(), "BoxValidationError");
    assert_eq!(error.message, format!("host_path is outside allowed_mount_roots: {}", path(&root)));
    assert_eq!(bench.backend.calls().start, 0);
}

#[tokio::test]
async fn test_box_service_uses_default_workspace_when_host_path_omitted() {
    let bench = Bench::new().await;
    let workspace = bench.directory("root/ws");
    std::os::unix::fs::symlink("ws", workspace.parent().unwrap().join("link")).unwrap();
    let client = Arc::new(MockClient::default());
    let root = path(workspace.parent().unwrap());
    let local = json!({"default_workspace": format!("{root}/link"), "allowed_mount_roots": [root]});
    let service = service(Arc::clone(&client) as _, &json!({"box": {"local": local}})).await;
    service.execute_tool(&json!({"command": "pwd"}), &query(1)).await.unwrap();
    assert_eq!(client.last_spec().host_path, Some(path(&workspace)), "with its links resolved");
}

#[test]
fn a_link_out_of_the_root_is_no_way_out() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path().canonicalize().unwrap();
    std::fs::create_dir_all(place.join("root")).unwrap();
    std::fs::create_dir_all(place.join("secret")).unwrap();
    std::os::unix::fs::symlink("../secret", place.join("root/link")).unwrap();
    let service = over(json!({"allowed_mount_roots": [path(&place.join("root"))]}));
    let refused =
        |host_path: &str| service.build_spec(&payload(host_path), HostMounts::Check).unwrap_err().message;
    assert!(
        refused(&path(&place.join("root/link"))).starts_with("host_path is outside allowed_mount_roots: ")
    );
    let none = "host_path must point to an existing directory on the host";
    assert_eq!(refused(&path(&place.join("root/none"))), none);
    std::fs::write(place.join("root/file"), "").unwrap();
    assert_eq!(refused(&path(&place.join("root/file"))), none);
}

#[test]
fn without_roots_nothing_is_mounted() {
    let error = over(json!({})).build_spec(&payload("/tmp"), HostMounts::Check).unwrap_err();
    assert_eq!(error.message, "host_path mounting is disabled because no allowed_mount_roots are configured");
    assert!(over(json!({})).build_spec(&payload("/tmp"), HostMounts::Trust).is_ok());
    // The path is checked even where it is not mounted.
    let mut unmounted = payload("/tmp");
    unmounted["host_path_mode"] = json!("none");
    assert!(over(json!({})).build_spec(&unmounted, HostMounts::Check).is_err());
}

#[test]
fn b8_the_root_of_all_matches_all_and_further_mounts_are_checked_too() {
    let service = over(json!({"allowed_mount_roots": ["/"]}));
    assert!(service.build_spec(&payload("/tmp"), HostMounts::Check).is_ok());
    let place = tempfile::tempdir().unwrap();
    let service = over(json!({"allowed_mount_roots": [place.path().to_str().unwrap()]}));
    let mut more = payload(place.path().to_str().unwrap());
    more["extra_mounts"] = json!([{"host_path": "/etc", "mount_path": "/x"}]);
    let error = service.build_spec(&more, HostMounts::Check).unwrap_err();
    assert!(error.message.starts_with("host_path is outside allowed_mount_roots"), "{error}");
}

/// B4 and B8: what is wrong with the default workspace is a state of the Box, not the end of the application.
#[tokio::test]
async fn b4_a_bad_default_workspace_leaves_the_box_unavailable_with_the_reason() {
    let bench = Bench::new().await;
    let (root, outside) = (path(&bench.directory("root")), path(&bench.directory("outside")));
    let file = format!("{root}/file");
    std::fs::write(&file, "").unwrap();
    let text = |roots: &str| format!("box.local.default_workspace is outside allowed_mount_roots: {roots}");
    for (local, message) in [
        (
            json!({"default_workspace": file, "allowed_mount_roots": [root]}),
            "box.local.default_workspace must point to a directory on the host".to_owned(),
        ),
        (
            json!({"default_workspace": format!("{root}/new")}),
            "box.local.default_workspace cannot be created because no allowed_mount_roots are configured"
                .to_owned(),
        ),
        (json!({"default_workspace": outside, "allowed_mount_roots": [root]}), text(&root)),
        (json!({"default_workspace": format!("{outside}/new"), "allowed_mount_roots": [root]}), text(&root)),
    ] {
        let service = bench.service(local.clone()).await;
        let status = service.status().await;
        assert_eq!((&status["available"], &status["enabled"]), (&json!(false), &json!(true)));
        assert_eq!(status["connector_error"], message.as_str());
        let disabled = json!({"box": {"enabled": false, "local": local}});
        let service = crate::support::service(bench.client(), &disabled).await;
        assert!(!service.is_available());
    }
}

/// S4: by choice, what one session writes is not another's.
#[test]
fn s4_sessions_can_have_workspaces_of_their_own() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().canonicalize().unwrap();
    let service = over(json!({"host_root": root, "workspace_per_session": true}));
    service.ensure_default_workspace().unwrap();
    let workspace = |session: &str| {
        let spec = service.build_spec(&json!({"session_id": session}), HostMounts::Check).unwrap();
        PathBuf::from(spec.host_path.unwrap())
    };
    let default = root.join("default");
    assert_eq!(workspace("person_a"), default.join("person_a"));
    assert_eq!(workspace(" person_a "), default.join("person_a"), "the id is trimmed");
    assert_eq!(workspace("../x"), default.join("%2E%2E%2Fx"));
    assert_eq!(workspace(".mcp"), default.join("%2Emcp"));
    assert!(workspace("room").is_dir());
    let long = service.build_spec(&json!({"session_id": "x".repeat(300)}), HostMounts::Check).unwrap_err();
    assert!(long.message.contains("session_id is too long"), "{long}");
    let named = json!({"session_id": "s", "host_path": default.display().to_string()});
    let spec = service.build_spec(&named, HostMounts::Check).unwrap();
    assert_eq!(spec.host_path.as_deref(), default.to_str(), "who names a directory has that");
}
