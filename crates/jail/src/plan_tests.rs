use super::*;

fn spec() -> JailSpec {
    JailSpec {
        mapping: IdMapping::Range,
        network: NetworkMode::Off,
        interface: None,
        root: RootMode::ReadOnly,
        image: None,
        memory_bytes: 512 << 20,
        pids: 128,
        pids_counted: true,
        tmp_bytes: 64 << 20,
        open_files: 1024,
        data_bytes: None,
        mounts: Vec::new(),
        workspace: "/workspace".to_owned(),
    }
}

fn mount(target: &str, access: Access) -> RequestedMount {
    RequestedMount { target: target.to_owned(), access, kind: NodeKind::Directory }
}

fn targets(plan: &Plan) -> Vec<&str> {
    plan.mounts.iter().map(|mount| mount.target.as_str()).collect()
}

#[test]
fn the_default_box_has_a_private_workspace_and_home_and_nothing_else() {
    let plan = Plan::new(&spec()).unwrap();
    assert_eq!(targets(&plan), ["/workspace", "/home/box"]);
    assert_eq!(plan.storage_directories().collect::<Vec<_>>(), ["workspace", "home"]);
    assert_eq!(plan.user, 1000);
    assert_eq!(plan.writable, ["/tmp", "/dev", "/proc", "/workspace", "/home/box"]);
}

#[test]
fn a_mount_on_the_workspace_replaces_the_private_one() {
    let plan =
        Plan::new(&JailSpec { mounts: vec![mount("/workspace", Access::ReadOnly)], ..spec() }).unwrap();
    assert_eq!(plan.storage_directories().collect::<Vec<_>>(), ["home"]);
    assert!(
        !plan.writable.contains(&"/workspace".to_owned()),
        "a read-only mount is not writable for Landlock"
    );
}

#[test]
fn a_target_behind_the_roots_own_link_is_found() {
    let mounts = vec![mount("/var/tmp/tool", Access::ReadOnly), mount("/var/tmpfile", Access::ReadOnly)];
    let plan = Plan::new(&JailSpec { mounts, ..spec() }).unwrap();
    assert!(targets(&plan).contains(&"/tmp/tool") && targets(&plan).contains(&"/var/tmpfile"));
}

#[test]
fn parents_are_mounted_before_what_lies_below_them() {
    let mounts = vec![
        mount("/workspace/a/b", Access::ReadWrite),
        mount("/data", Access::ReadWrite),
        mount("/workspace/a", Access::ReadWrite),
    ];
    let plan = Plan::new(&JailSpec { mounts, root: RootMode::Writable, ..spec() }).unwrap();
    let order = targets(&plan);
    let at = |target: &str| order.iter().position(|known| *known == target).unwrap();
    assert!(at("/workspace") < at("/workspace/a") && at("/workspace/a") < at("/workspace/a/b"));
    assert!(at("/usr") < at("/workspace"));
}

#[test]
fn a_writable_root_is_the_roots_of_a_box_made_by_root() {
    let plan = Plan::new(&JailSpec { root: RootMode::Writable, ..spec() }).unwrap();
    assert_eq!((plan.user, plan.home.as_str()), (0, "/root"));
    assert_eq!(plan.writable, ["/"]);
    let rootless =
        JailSpec { root: RootMode::Writable, mapping: IdMapping::Single { uid: 1, gid: 1 }, ..spec() };
    assert_eq!(Plan::new(&rootless), Err(PlanError::RootlessWritableRoot));
}

#[test]
fn memory_backed_directories_take_at_most_half_of_the_memory() {
    for memory_bytes in [6 << 20, 32 << 20, 128 << 20, 512 << 20, 64 << 30] {
        let plan = Plan::new(&JailSpec { memory_bytes, tmp_bytes: 1 << 40, ..spec() }).unwrap();
        assert!(plan.tmp_bytes + plan.shm_bytes <= memory_bytes / 2, "{memory_bytes}");
        assert!(plan.tmp_bytes > 0 && plan.shm_bytes > 0);
    }
    assert_eq!(Plan::new(&spec()).unwrap().tmp_bytes, 64 << 20, "the default fits unchanged");
}

#[test]
fn limits_without_room_for_a_shell_are_refused() {
    assert_eq!(Plan::new(&JailSpec { memory_bytes: 1 << 20, ..spec() }), Err(PlanError::TooLittleMemory));
    assert_eq!(Plan::new(&JailSpec { pids: 1, ..spec() }), Err(PlanError::TooFewProcesses));
}

#[test]
fn a_plan_prints_every_decision() {
    let text = Plan::new(&JailSpec { data_bytes: Some(9), ..spec() }).unwrap().to_string();
    for line in [
        "network   Off",
        "mount     /workspace <- Storage",
        "rlimit    Core = 0",
        "rlimit    Data = 9",
        "landlock  write below /tmp",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
}

#[test]
fn a_box_of_an_image_has_a_layer_of_its_own_only_where_it_needs_one() {
    let of_image = || JailSpec { image: Some("busybox".to_owned()), ..spec() };
    let inside = vec![mount("/workspace/a", Access::ReadWrite)];
    for plain in [of_image(), JailSpec { mounts: inside, ..of_image() }] {
        let plan = Plan::new(&plain).unwrap();
        assert!(!plan.layered && !targets(&plan).contains(&"/"));
    }
    let outside = vec![mount("/workspaces", Access::ReadWrite)];
    for layered in [
        JailSpec { root: RootMode::Writable, ..of_image() },
        JailSpec { mounts: outside, ..of_image() },
        JailSpec { workspace: "/project".to_owned(), ..of_image() },
    ] {
        let plan = Plan::new(&layered).unwrap();
        assert!(plan.layered);
        assert_eq!(targets(&plan)[0], "/", "before everything that lies on it");
        assert!(!targets(&plan).contains(&"/usr") && !targets(&plan).contains(&"/var"));
        assert_eq!(plan.writable.contains(&"/".to_owned()), layered.root == RootMode::Writable);
    }
}
