//! What flags of `mcp serve` mean.

use clap::Parser;
use sandcrate_protocol::MountMode;

use super::*;
use crate::failure::Shown;

#[derive(Debug, Parser)]
struct Parsed {
    #[command(flatten)]
    args: ServeArgs,
}

fn planned(flags: &[&str], cwd: &Path) -> anyhow::Result<Plan> {
    plan(&Parsed::try_parse_from(["x"].iter().chain(flags))?.args, cwd, |_| Some("caller's".into()))
}

#[test]
fn without_flags_a_box_is_private_and_has_the_defaults() {
    let plan = planned(&[], Path::new("/")).unwrap();
    let spec = &plan.blueprint.spec;
    assert_eq!((spec.memory_mb, spec.cpus, spec.pids_limit, spec.timeout_sec), (512, 1.0, 128, 30));
    assert_eq!((plan.session.as_str(), plan.kept.is_none(), spec.persistent), ("mcp", true, false));
    assert_eq!(plan.blueprint.options.network(spec).to_string(), "off");
    assert_eq!(plan.runtime.mount_roots, Some(Vec::new()));
}

#[test]
fn every_flag_reaches_its_field() {
    let dir = tempfile::tempdir().unwrap();
    let cwd = dir.path().canonicalize().unwrap();
    std::fs::create_dir(cwd.join("data")).unwrap();
    let flags = [
        "-v",
        ".:/workspace:ro",
        "-v",
        "data:/data",
        "-m",
        "1G",
        "-c",
        "1.5",
        "--pids-limit",
        "64",
        "--quota",
        "10M",
        "--timeout",
        "5m",
        "--allow-net",
        "10.0.0.1:80",
        "-e",
        "A=b",
        "-e",
        "HOME2",
        "--writable-root",
        "--session",
        "notes",
    ];
    let plan = planned(&flags, &cwd).unwrap();
    let spec = &plan.blueprint.spec;
    assert_eq!((spec.memory_mb, spec.cpus, spec.pids_limit, spec.workspace_quota_mb), (1024, 1.5, 64, 10));
    assert_eq!((spec.host_path.as_deref(), spec.host_path_mode), (cwd.to_str(), MountMode::Ro));
    assert_eq!((spec.extra_mounts[0].mount_path.as_str(), spec.read_only_rootfs), ("/data", false));
    assert_eq!((spec.env["A"].as_str(), spec.env["HOME2"].as_str()), ("b", "caller's"));
    assert_eq!((spec.timeout_sec, plan.blueprint.max_timeout_sec), (300, 300));
    assert_eq!(plan.runtime.mount_roots.as_deref(), Some(&[cwd.clone(), cwd.join("data")][..]));
    assert_eq!(plan.runtime.network.grants.allow, ["10.0.0.1:80".parse().unwrap()]);
    assert!(plan.kept.unwrap().ends_with("mcp/notes") && spec.persistent);
}

#[test]
fn what_cannot_be_is_refused_by_its_flag() {
    let dir = tempfile::tempdir().unwrap();
    for (flags, word) in [
        (&["--session", "../x"][..], "--session `../x`"),
        (&["--session", ".x"], "--session"),
        (&["--profile", "huge"], "--profile huge"),
        (&["-v", "/etc:/x"], "/etc"),
        (&["-v", "none:/x"], "does not exist"),
        (&["-m", "1M"], "memory_mb"),
        (&["--timeout", "0"], "--timeout"),
        (&["--network", "sometimes"], "--network sometimes"),
        (&["--profile", "offline_readonly", "--network", "on"], "--network: the profile offline_readonly"),
    ] {
        let shown = Shown::of(&planned(flags, dir.path()).unwrap_err());
        assert!(shown.message.contains(word), "{flags:?}: {}", shown.message);
        assert_eq!(shown.exit_code(), 125, "{flags:?}");
    }
}

#[test]
fn the_boxes_of_a_server_are_the_servers_to_describe() {
    for flags in
        [["-m", "1G"], ["-v", ".:/x"], ["--network", "on"], ["--profile", "default"], ["--allow-net", "a.b"]]
    {
        let argv = ["x", "--url", "http://127.0.0.1:1"].into_iter().chain(flags);
        assert!(Parsed::try_parse_from(argv).is_err(), "{flags:?}");
    }
    assert!(Parsed::try_parse_from(["x", "--url", "http://127.0.0.1:1", "--session", "a b"]).is_ok());
    assert!(Parsed::try_parse_from(["x", "--token-file", "t"]).is_err(), "a token for nobody");
}
