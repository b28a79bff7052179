use clap::Parser;
use sandcrate_backend::{Network, Strictness};

use super::*;
use crate::args::{Cli, Verb};
use crate::failure::Shown;

fn planned(args: &[&str]) -> anyhow::Result<Plan> {
    let argv = ["sandcrate", "run"].iter().chain(args);
    let Verb::Run(run) = Cli::try_parse_from(argv)?.command else { panic!("not run") };
    let around = Surroundings { path: vec!["/usr/bin".into()], cwd: "/".into(), ..Surroundings::default() };
    plan(*run, &around, &[])
}

#[test]
fn the_defaults_are_those_that_users_depend_on() {
    let plan = planned(&["--", "true"]).unwrap();
    let limits = &plan.spec.limits;
    assert_eq!(plan.spec.network, Network::Off);
    assert_eq!(plan.spec.root, RootAccess::ReadOnly);
    assert_eq!(plan.spec.workdir, "/workspace");
    assert_eq!((limits.memory_bytes, limits.cpu_millis, limits.pids), (512 << 20, 1000, 128));
    assert_eq!(limits.tmp_bytes, 64 << 20);
    assert_eq!(limits.disk, DiskLimit::Accounted(1 << 30));
    assert_eq!(plan.request.timeout, Some(Duration::from_secs(30)));
    assert_eq!((plan.request.stdin, plan.request.pty, plan.input), (StdinMode::Closed, None, Input::None));
    assert!(plan.spec.mounts.is_empty() && plan.spec.env.is_empty());
    assert_eq!(plan.spec.strictness, Strictness::BestEffort);
}

#[test]
fn flags_land_in_the_spec() {
    let plan = planned(&[
        "-m",
        "1G",
        "-c",
        "1.5",
        "--pids-limit",
        "7",
        "--quota",
        "64M",
        "--tmp-size",
        "1M",
        "--timeout",
        "0",
        "--writable-root",
        "-w",
        "sub/dir",
        "-n",
        "mine",
        "--require",
        "memory,pids",
        "-i",
        "--",
        "cat",
        "-n",
    ])
    .unwrap();
    assert_eq!(plan.spec.limits.memory_bytes, 1 << 30);
    assert_eq!((plan.spec.limits.cpu_millis, plan.spec.limits.pids), (1500, 7));
    assert_eq!(plan.spec.limits.disk, DiskLimit::Hard(64 << 20));
    assert_eq!(plan.spec.limits.tmp_bytes, 1 << 20);
    assert_eq!(plan.request.timeout, None);
    assert_eq!(plan.spec.root, RootAccess::Writable);
    assert_eq!(plan.spec.workdir, "/workspace/sub/dir");
    assert_eq!(plan.spec.id.as_str(), "mine");
    assert!(matches!(&plan.spec.strictness, Strictness::Require(controls) if controls.len() == 2));
    assert_eq!((plan.request.stdin, plan.input), (StdinMode::Piped, Input::Ours));
    assert_eq!(plan.request.command, Command::Argv(vec!["cat".into(), "-n".into()]));
}

#[test]
fn every_refusal_names_the_flag() {
    for (args, words) in [
        (vec!["--network", "on", "--allow-net", "x.example"], vec!["--allow-net", "--network on"]),
        (vec!["--network", "host", "-p", "80:80"], vec!["--publish", "--network host"]),
        (vec!["-p", "nope"], vec!["--publish", "nope"]),
        (vec!["-m", "1M"], vec!["--memory", "at least 8M"]),
        (vec!["-w", "/a/../../x"], vec!["--workdir", "`..`"]),
        (vec!["-n", ""], vec!["--name", "empty"]),
        (vec!["-t", "-o", "json"], vec!["--tty", "--output json"]),
        (vec!["-m", "12Q"], vec!["--memory", "12Q", "512M"]),
        (vec!["--timeout", "soon"], vec!["--timeout", "soon", "30s"]),
        (vec!["-c", "0"], vec!["--cpus", "'0'", "0.01"]),
        (vec!["--pids-limit", "0"], vec!["--pids-limit", "0"]),
        (vec!["--require", "magic"], vec!["--require", "magic", "seccomp"]),
        (vec!["--network", "maybe"], vec!["--network maybe", "`off`"]),
    ] {
        let args: Vec<_> = args.into_iter().chain(["--", "true"]).collect();
        let shown = Shown::of(&planned(&args).unwrap_err());
        for word in words {
            assert!(shown.message.contains(word), "{args:?}: `{word}` is not in: {}", shown.message);
        }
    }
}

#[test]
fn a_program_below_a_volume_is_the_boxs_own() {
    let dir = tempfile::tempdir().unwrap();
    let real = dir.path().canonicalize().unwrap();
    let program = real.join("tool");
    std::fs::write(&program, "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let program = program.to_str().unwrap();

    let own = planned(&["--", program]).unwrap();
    assert_eq!(own.toolchain.len(), 1, "outside a volume its directory is added");
    assert_eq!(own.spec.mounts[0].access, MountAccess::ReadOnly);
    let volume = format!("{0}:{0}", real.display());
    let covered = planned(&["-v", &volume, "--", program]).unwrap();
    assert!(covered.toolchain.is_empty() && covered.spec.mounts.len() == 1);
}
