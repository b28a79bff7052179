//! The `box` section.

use sandcrate_host::{BoxConfig, Service};
use serde_json::{Value, json};

use crate::support::logged;

fn read(section: Value) -> BoxConfig {
    BoxConfig::from_section(&section).unwrap()
}

fn refused(section: Value) -> String {
    let error = BoxConfig::from_section(&section).unwrap_err();
    assert_eq!(error.class(), "BoxValidationError");
    error.message
}

#[test]
fn absent_null_and_empty_are_the_same() {
    let nulls = json!({
        "enabled": null, "backend": null, "runtime": null,
        "local": {
            "profile": null, "image": null, "host_root": null, "default_workspace": null, "skills_root": null,
            "allowed_mount_roots": null, "workspace_quota_mb": null,
        },
    });
    for section in [Value::Null, json!({}), nulls] {
        let config = BoxConfig { forwarded: Value::Null, ..read(section) };
        assert_eq!(config, BoxConfig { forwarded: Value::Null, ..BoxConfig::default() });
    }
    let config = BoxConfig::default();
    assert!(config.enabled && config.endpoint.is_none() && config.allowed_mount_roots.is_empty());
    assert_eq!(
        (&*config.profile.name, config.default_workspace, config.workspace_quota_mb),
        ("default", None, None)
    );
    assert!(config.skills_root.is_absolute() && config.skills_root.ends_with("skills"));
}

/// B9: what is neither yes nor no is refused by name, and decides nothing.
#[test]
fn b9_enabled_is_yes_or_no() {
    for yes in [json!(true), json!("TRUE "), json!("1"), json!(1), json!("yes"), json!("on")] {
        assert!(read(json!({"enabled": yes})).enabled, "{yes}");
    }
    for no in [
        json!(false),
        json!("false"),
        json!("0"),
        json!(0),
        json!("No"),
        json!("off"),
        json!(""),
        json!("  "),
    ] {
        assert!(!read(json!({"enabled": no})).enabled, "{no}");
    }
    assert_eq!(
        refused(json!({"enabled": "disabled"})),
        "box.enabled must be true or false, not \"disabled\""
    );
    for unclear in [json!("n"), json!(2), json!([]), json!({})] {
        assert!(refused(json!({"enabled": unclear})).starts_with("box.enabled must be true or false"));
    }
}

#[test]
fn paths_hang_below_the_host_root() {
    let local = |local: Value| read(json!({"local": local}));
    let config = local(json!({"host_root": "/r/../r2"}));
    assert_eq!(config.host_root.as_deref(), Some("/r2".as_ref()));
    assert_eq!(config.default_workspace.as_deref(), Some("/r2/default".as_ref()));
    assert_eq!(config.skills_root, std::path::Path::new("/r2/skills"));
    assert_eq!(config.allowed_mount_roots, [std::path::Path::new("/r2")]);
    let config = local(json!({"host_root": "/r2", "default_workspace": "w/x", "skills_root": "/s"}));
    assert_eq!(config.default_workspace.as_deref(), Some("/r2/w/x".as_ref()));
    assert_eq!(config.skills_root, std::path::Path::new("/s"));
    let relative = local(json!({"default_workspace": "w"}));
    assert_eq!(
        relative.default_workspace,
        Some(std::env::current_dir().unwrap().canonicalize().unwrap().join("w"))
    );
}

#[test]
fn roots_come_as_a_list_or_with_commas() {
    for roots in [json!(["/x1", " /x2 ", "", null]), json!(" /x1, ,/x2")] {
        let config = read(json!({"local": {"host_root": "/r", "allowed_mount_roots": roots}}));
        let expected = ["/x1", "/x2"].map(std::path::Path::new);
        assert_eq!(
            config.allowed_mount_roots, expected,
            "the host root is not added to a list that is there"
        );
    }
    assert!(refused(json!({"local": {"allowed_mount_roots": 5}})).contains("box.local.allowed_mount_roots"));
}

#[test]
fn a_quota_is_an_integer() {
    let quota = |quota: Value| read(json!({"local": {"workspace_quota_mb": quota}})).workspace_quota_mb;
    for (value, expected) in [
        (json!(32), Some(32)),
        (json!("32"), Some(32)),
        (json!(32.0), Some(32)),
        (json!(0), Some(0)),
        (json!(""), None),
    ] {
        assert_eq!(quota(value.clone()), expected, "{value}");
    }
    for (value, message) in [
        (json!("x"), "workspace_quota_mb must be an integer greater than or equal to 0"),
        (json!(1.5), "workspace_quota_mb must be an integer greater than or equal to 0"),
        (json!(-1), "workspace_quota_mb must be greater than or equal to 0"),
    ] {
        assert_eq!(refused(json!({"local": {"workspace_quota_mb": value}})), message);
    }
}

#[test]
fn the_runtime_is_told_all_but_how_it_is_reached() {
    let section = json!({
        "enabled": true, "backend": "local", "runtime": {"endpoint": " ws://x "}, "e2b": {"api_key": "k"},
        "local": {"host_root": "./data/box"}, "new": 1,
    });
    let config = read(section.clone());
    let mut expected = section;
    expected.as_object_mut().unwrap().remove("runtime");
    assert_eq!(config.forwarded, expected, "paths as they are");
    assert_eq!((config.endpoint.as_deref(), config.backend.as_deref()), (Some("ws://x"), Some("local")));
    assert_eq!(read(json!({"runtime": {"endpoint": "x"}})).forwarded, json!({}));
}

#[test]
fn old_keys_count_where_the_new_ones_are_silent() {
    let old = json!({"profile": "network_basic", "allowed_host_mount_roots": ["/x1"], "default_host_workspace": "/x1/w"});
    let config = read(old.clone());
    assert_eq!(config.profile.name, "network_basic");
    assert_eq!(config.default_workspace.as_deref(), Some("/x1/w".as_ref()));
    assert_eq!(config.allowed_mount_roots, [std::path::Path::new("/x1")]);
    let local =
        json!({"profile": "network_basic", "allowed_mount_roots": ["/x1"], "default_workspace": "/x1/w"});
    assert_eq!(config.forwarded, json!({"local": local}), "the runtime is told by the new names");
    let mut both = old;
    both["local"] = json!({"profile": "default"});
    assert_eq!(read(both).profile.name, "default");
}

#[test]
fn what_has_the_wrong_shape_is_named() {
    for (section, name) in [
        (json!([]), "box must be"),
        (json!({"local": "x"}), "box.local must be"),
        (json!({"runtime": 1}), "box.runtime must be"),
        (json!({"local": {"host_root": []}}), "box.local.host_root must be"),
        (json!({"runtime": {"endpoint": {}}}), "box.runtime.endpoint must be"),
    ] {
        assert!(refused(section.clone()).starts_with(name), "{section}");
    }
}

/// S10: values may be secrets; names are enough to find a mistake.
#[test]
fn s10_no_value_of_a_setting_is_logged() {
    let said = logged(|| {
        let mut config =
            json!({"box": {"enabled": true, "e2b": {"api_key": "file-secret"}, "runtime": {"endpoint": ""}}});
        let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        sandcrate_host::apply_environment(
            &mut config,
            [
                variable("BOX__E2B__API_KEY", "env-secret"),
                variable("BOX__RUNTIME__ENDPOINT", "ws://:url-secret@127.0.0.1:1"),
                variable("BOX__ENABLED__X", "lost-secret"),
            ],
        );
        assert_eq!(config["box"]["e2b"]["api_key"], "env-secret");
        let service = Service::builder().config(&config).build().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(service.initialize());
        assert!(!service.is_available());
        let reason = service.availability().borrow().reason.clone();
        assert!(!reason.contains("secret"), "{reason}");
    });
    assert!(!said.is_empty() && !said.contains("secret"), "{said}");
}
