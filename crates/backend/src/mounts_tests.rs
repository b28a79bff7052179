//! Tests of the rules on mounts.

use proptest::prelude::*;

use super::*;
use crate::MountAccess;

fn refused(path: &str) -> bool {
    refused_source(Path::new(path), &[PathBuf::from("/srv/sandcrate/state")]).is_some()
}

fn mount(source: &str, target: &str) -> Mount {
    Mount::new(source, target, MountAccess::ReadOnly)
}

#[test]
fn system_trees_engines_and_own_state_are_refused_with_all_below() {
    for path in [
        "/",
        "/usr",
        "/usr/share/doc",
        "/bin",
        "/sbin/x",
        "/lib",
        "/lib64/x",
        "/libx32",
        "/etc",
        "/etc/ssh",
        "/proc/1",
        "/sys",
        "/dev/shm",
        "/boot",
        "/run",
        "/run/docker.sock",
        "/run/user/1000",
        "/var/run/x",
        "/var/lib/docker",
        "/var/lib/docker/overlay2",
        "/var/lib/containers/storage",
        "/var/lib/containerd",
        "/home/a/.local/share/containers/storage",
        "/home/a/.docker/run/docker.sock",
        "/opt/podman.sock",
        "/srv/sandcrate/state",
        "/srv/sandcrate/state/x/workspace",
        "relative",
        "",
        "/srv/../etc",
    ] {
        assert!(refused(path), "{path:?} must be refused");
    }
}

#[test]
fn wide_places_are_refused_themselves_and_left_to_the_configuration_below() {
    for bare in BARE {
        assert!(refused(bare), "{bare}");
        assert!(!refused(&format!("{bare}/project")), "{bare}/project");
    }
    for path in
        ["/opt/python3.12", "/root/.pyenv", "/home/a", "/data", "/tmp/x", "/usrlocal", "/srv/sandcrate2"]
    {
        assert!(!refused(path), "{path}");
    }
}

#[test]
fn a_parent_of_our_state_is_refused_because_it_would_show_it() {
    assert!(refused("/srv/sandcrate"));
    assert!(!refused("/srv/sandcrate/other"));
}

#[test]
fn targets_are_normalised() {
    for (given, normal) in [
        ("/workspace", "/workspace"),
        ("//workspace///a/./b/", "/workspace/a/b"),
        ("/tmp/x", "/tmp/x"),
        ("/home/box", "/home/box"),
        ("/data/…/ü", "/data/…/ü"),
        ("/library", "/library"),
    ] {
        assert_eq!(check_target(given).unwrap(), normal);
    }
}

#[test]
fn bad_targets_are_validation_errors_that_name_the_field() {
    let long = format!("/{}", "a/".repeat(2048));
    let name = format!("/data/{}", "n".repeat(256));
    for bad in [
        "",
        "data",
        "/",
        "//",
        "/./",
        "/tmp",
        "/tmp/",
        "/data/..",
        "/../etc",
        "/data/../../etc",
        "/a\0b",
        "/a\nb",
        "/a\u{7f}",
        "/a\u{85}",
        "/usr",
        "/usr/local",
        "/proc",
        "/proc/self",
        "/dev/shm",
        "/sys",
        "/bin",
        "/sbin/x",
        "/lib",
        "/lib64",
        "/lib32",
        "/etc/x",
        "/run",
        "//run/x",
        "/./etc",
        &long,
        &name,
    ] {
        let error = check_target(bad).unwrap_err();
        assert!(
            matches!(&error, BackendError::Invalid { field, .. } if field == "mount target"),
            "{bad:?}: {error}"
        );
        assert!(error.to_string().len() < 400, "a long target does not make a long message");
        assert!(!error.to_string().contains(char::is_control), "{bad:?} is escaped");
    }
}

#[test]
fn mounts_are_bounded_and_never_share_a_target() {
    let many: Vec<_> = (0..=MAX_MOUNTS).map(|n| mount("/data", &format!("/m{n}"))).collect();
    assert!(check_mounts(&many[1..]).is_ok());
    assert!(matches!(check_mounts(&many), Err(BackendError::LimitExceeded { .. })));
    let twice = [mount("/a", "/data"), mount("/b", "//data/")];
    assert!(check_mounts(&twice).unwrap_err().to_string().contains("/data"));
    assert!(check_mounts(&[mount("/a", "/data"), mount("/b", "/data/below")]).is_ok());
    for source in ["relative", "", "/a\0b"] {
        assert!(
            matches!(check_mounts(&[mount(source, "/data")]), Err(BackendError::Invalid { .. })),
            "{source:?}"
        );
    }
}

/// Paths made of the pieces that path rules trip over.
fn hostile_path() -> impl Strategy<Value = String> {
    let part = prop::sample::select(vec![
        "",
        ".",
        "..",
        "...",
        "etc",
        "usr",
        "tmp",
        "proc",
        "workspace",
        "lib64",
        "a b",
        "\0",
        "\n",
        "ü",
        "data",
    ]);
    (prop::collection::vec(part, 0..8), any::<bool>())
        .prop_map(|(parts, rooted)| format!("{}{}", if rooted { "/" } else { "" }, parts.join("/")))
}

proptest! {
    #[test]
    fn no_normalised_target_escapes(target in prop_oneof![hostile_path(), any::<String>()]) {
        let Ok(normal) = check_target(&target) else { return Ok(()) };
        prop_assert!(normal.starts_with('/') && !normal.ends_with('/'));
        prop_assert!(!normal.contains("//") && !normal.chars().any(char::is_control));
        prop_assert!(normal.len() <= target.len());
        // Resolved as the kernel would, nothing goes up and the place is not reserved.
        let parts: Vec<&str> = normal[1..].split('/').collect();
        prop_assert!(parts.iter().all(|part| !["", ".", ".."].contains(part)));
        prop_assert!(RESERVED_TREES.iter().all(|tree| !Path::new(&normal).starts_with(tree)));
        prop_assert!(normal != "/tmp");
        prop_assert_eq!(check_target(&normal).unwrap(), normal);
    }

    #[test]
    fn a_refused_tree_is_refused_at_every_depth(below in "[a-z]{1,8}(/[a-z]{1,8}){0,4}") {
        for tree in SYSTEM_TREES.iter().chain(&ENGINE_TREES) {
            let path = format!("{tree}/{below}");
            prop_assert!(refused(&path), "{}", path);
        }
    }
}
