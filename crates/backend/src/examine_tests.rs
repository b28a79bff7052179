use super::*;
use crate::SessionId;

fn examination() -> Examination {
    Examination {
        spec: SessionSpec::new(SessionId::new("examined").unwrap()),
        workspace_bytes: 1000,
        workspace_inodes: 100,
        read_only: "/workspace/ro".to_owned(),
        ephemeral_bytes: 2000,
        hidden: vec!["/srv/data".into()],
    }
}

fn record() -> Enforcement {
    let mut record = Enforcement::new();
    for control in Control::ALL {
        record.enforced(control, "a test");
    }
    record
}

/// What a box says in which everything holds.
fn good() -> Vec<String> {
    let mut lines: Vec<String> = NAMESPACES.iter().map(|name| format!("ns {name} {name}:[1]")).collect();
    let rest =
        ["cgroup 0::/", "interface lo", "workspace 1000 /workspace", "files 99", "kept", "place 2000 /tmp"];
    lines.extend(rest.map(str::to_owned));
    lines.push("done".to_owned());
    lines
}

fn changed(from: &str, to: &str) -> Vec<String> {
    let lines: Vec<String> = good().iter().map(|line| line.replace(from, to)).collect();
    assert_ne!(lines, good(), "{from} is in no line");
    lines
}

fn broken(lines: &[String], record: &Enforcement) -> Vec<Promise> {
    let examined = judge(&examination(), record, lines);
    Promise::ALL.into_iter().filter(|promise| examined.broken(*promise).is_some()).collect()
}

#[test]
fn a_box_that_holds_is_found_to_hold() {
    assert_eq!(broken(&good(), &record()), []);
}

#[test]
fn each_promise_is_broken_by_what_breaks_it_and_by_nothing_else() {
    let own = std::fs::read_link("/proc/self/ns/net").unwrap();
    for (from, to, promise) in [
        ("cgroup 0::/", "cgroup 4:memory:/", Promise::CgroupV2),
        ("net:[1]", own.to_str().unwrap(), Promise::Namespaces),
        ("ns uts uts:[1]", "ns uts ", Promise::Namespaces),
        ("interface lo", "interface eth0", Promise::Network),
        ("workspace 1000", "workspace 1001", Promise::WorkspaceQuota),
        ("workspace 1000", "workspace 0", Promise::WorkspaceQuota),
        ("files 99", "files 101", Promise::InodeQuota),
        ("files 99", "files 0", Promise::InodeQuota),
        ("kept", "changed", Promise::ReadOnlyMounts),
        ("place 2000", "place 2001", Promise::EphemeralStorage),
        ("interface lo", "visible /srv/data", Promise::Mounts),
    ] {
        assert_eq!(broken(&changed(from, to), &record()), [promise], "{from} -> {to}");
    }
    for (control, promise) in [
        (Control::Cpu, Promise::CgroupV2),
        (Control::Namespaces, Promise::Namespaces),
        (Control::Filesystem, Promise::Mounts),
        (Control::Network, Promise::Network),
        (Control::Disk, Promise::EphemeralStorage),
        (Control::Tmpfs, Promise::EphemeralStorage),
    ] {
        let mut weaker = record();
        weaker.degraded(control, "counted");
        assert_eq!(broken(&good(), &weaker), [promise], "{control}");
    }
}

#[test]
fn a_script_that_was_cut_short_proves_nothing() {
    let mut lines = good();
    lines.pop();
    assert_eq!(broken(&lines, &record()), Promise::ALL);
    assert_eq!(broken(&[], &record()), Promise::ALL);
}
