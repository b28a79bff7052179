//! The logic on fake hosts: directories of plain files below a temporary root.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::process::{Pid, getpid};
use tempfile::TempDir;

use super::*;

const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/mem\\040ory rw - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
";
const UNIFIED: &str = "30 23 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";

struct FakeHost(TempDir);

impl FakeHost {
    fn new(mountinfo: &str, own: &str, release: &str) -> Self {
        let host = Self(TempDir::new().unwrap());
        host.file("proc/self/mountinfo", mountinfo);
        host.file("proc/self/cgroup", own);
        host.file("proc/sys/kernel/osrelease", release);
        host
    }

    fn hybrid() -> Self {
        let own = "8:pids:/gone\n4:memory:/api/x\n1:cpu,cpuacct:/\n0::/\n";
        let host = Self::new(HYBRID, own, "6.18.4-fc\n");
        for (dir, limit) in [
            ("cpu,cpuacct", "cpu.cfs_quota_us"),
            ("mem ory/api/x", "memory.limit_in_bytes"),
            ("pids", "pids.max"),
        ] {
            host.file(&format!("sys/fs/cgroup/{dir}/sandcrate-t/{limit}"), "");
        }
        host.file("sys/fs/cgroup/unified/cgroup.controllers", "hugetlb\n");
        host.file("sys/fs/cgroup/unified/sandcrate-t/cgroup.kill", "");
        host
    }

    /// A unified host where `own` holds `procs`, and the kernel's files are where they would be.
    fn unified(own: &str, procs: &str) -> Self {
        let host = Self::new(UNIFIED, &format!("0::/{own}\n"), "5.13.0\n");
        let root = "sys/fs/cgroup".to_owned();
        let own = format!("{root}/{own}").trim_end_matches('/').to_owned();
        let base = own.trim_end_matches("/sandcrate-t.daemon").to_owned();
        for dir in [&root, &base, &own, &format!("{root}/sandcrate-t"), &format!("{base}/sandcrate-t")] {
            host.file(&format!("{dir}/cgroup.controllers"), "cpuset cpu io memory pids\n");
            host.file(&format!("{dir}/cgroup.subtree_control"), "\n");
            host.file(&format!("{dir}/cgroup.procs"), "");
            for file in ["memory.max", "pids.max", "cpu.max", "cgroup.freeze"] {
                host.file(&format!("{dir}/{file}"), "");
            }
            if dir != &root {
                host.file(&format!("{dir}/cgroup.type"), "domain\n");
            }
        }
        host.file(&format!("{own}/cgroup.procs"), procs);
        host.file(&format!("{base}/sandcrate-t.daemon/cgroup.procs"), "");
        host
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn file(&self, path: &str, text: &str) {
        fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        fs::write(self.path(path), text).unwrap();
    }

    fn text(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    fn probe(&self) -> Discovery {
        Discovery::probe(self.0.path()).unwrap()
    }

    fn open(&self, below: Option<&str>) -> Parent {
        let placement = Placement { instance: "t", below, daemon: Pid::from_raw(1) };
        Parent::open(&self.probe(), &placement).unwrap()
    }
}

fn enforced(by: &str) -> Control {
    Control::Enforced { by: by.to_owned() }
}

#[test]
fn a_bound_for_one_command_needs_memory_and_is_handed_down_once() {
    let host = FakeHost::unified("", "");
    let made = host.open(None).create("box-1", None).unwrap();
    let dir = "sys/fs/cgroup/sandcrate-t/box-1";
    for (file, text) in [
        ("memory.max", ""),
        ("cgroup.procs", ""),
        ("cgroup.subtree_control", ""),
        ("run/cgroup.subtree_control", ""),
    ] {
        host.file(&format!("{dir}/{file}"), text);
    }
    let confined = made.confine(1 << 20).unwrap();
    assert!(confined.tasks.is_none() && confined.usage.is_none(), "the command's own cgroup takes it");
    assert_eq!(host.text(&format!("{dir}/cgroup.subtree_control")), "+memory");
    assert_eq!(host.text(&format!("{dir}/run/cgroup.subtree_control")), "+memory");
    assert!(host.path(&format!("{dir}/init")).is_dir());
    // As the kernel shows it afterwards.
    host.file(&format!("{dir}/run/cgroup.subtree_control"), "memory\n");
    host.file(&format!("{dir}/cgroup.subtree_control"), "untouched");
    made.confine(1 << 20).unwrap();
    assert_eq!(host.text(&format!("{dir}/cgroup.subtree_control")), "untouched");

    let bare = FakeHost::new("", "", "6.18.4\n").open(None).create("box-1", None).unwrap();
    assert!(matches!(bare.confine(1 << 20), Err(CgroupError::NoMemory)));
}

fn why(control: &Control) -> &str {
    match control {
        Control::Missing { why, .. } => why,
        Control::Enforced { by } => panic!("enforced by {by}"),
    }
}

#[test]
fn hybrid_host_is_described() {
    let host = FakeHost::hybrid();
    let v1 = |mount: &str, own: Option<&str>, controller| Hierarchy {
        version: Version::V1,
        mount: host.path("sys/fs/cgroup").join(mount),
        own: own.map(PathBuf::from),
        controllers: vec![controller],
        writable: true,
    };
    let expected = Discovery {
        mode: Mode::Hybrid,
        v1: vec![
            v1("cpu,cpuacct", Some(""), Controller::Cpu),
            v1("mem ory", Some("api/x"), Controller::Memory),
            v1("pids", None, Controller::Pids),
        ],
        v2: Some(Hierarchy {
            version: Version::V2,
            mount: host.path("sys/fs/cgroup/unified"),
            own: Some("".into()),
            controllers: vec![],
            writable: true,
        }),
        cgroup_kill: true,
    };
    assert_eq!(host.probe(), expected);
}

#[test]
fn facts_can_be_serialized() {
    fn serializable<T: serde::Serialize>() {}
    serializable::<Discovery>();
    serializable::<Report>();
    serializable::<Limits>();
}

#[test]
fn mode_follows_the_mounts() {
    let unified = FakeHost::unified("", "").probe();
    assert_eq!((unified.mode, unified.cgroup_kill), (Mode::Unified, false), "5.13 has no kill");
    assert_eq!(unified.v2.unwrap().controllers, Controller::ALL);

    let none = FakeHost::new("23 1 0:1 / / rw - ext4 /dev/vda rw\n", "0::/\n", "6.1.0");
    assert_eq!(none.probe().mode, Mode::None);
    let report = none.open(None).report().clone();
    assert!(why(&report.memory).contains("no cgroup hierarchy"));
    assert!(!report.kill.is_enforced() && !report.freeze.is_enforced());

    let legacy: String = HYBRID.lines().take(4).map(|line| format!("{line}\n")).collect();
    let host = FakeHost::hybrid();
    host.file("proc/self/mountinfo", &legacy);
    assert_eq!(host.probe().mode, Mode::Legacy);
    assert_eq!(host.open(None).report().kill, enforced("SIGKILL to every listed process"));
}

#[test]
fn own_cgroup_is_found_below_a_container_mount() {
    let mountinfo = UNIFIED.replace("0:27 /", "0:27 /docker/abc");
    for (own, expected) in [("/docker/abc/x", Some("x")), ("/../..", None), ("/docker/abcd", None)] {
        let host = FakeHost::new(&mountinfo, &format!("0::{own}\n"), "6.1.0");
        host.file("sys/fs/cgroup/cgroup.controllers", "");
        host.file("sys/fs/cgroup/x/cgroup.procs", "");
        assert_eq!(host.probe().v2.unwrap().own, expected.map(PathBuf::from), "{own}");
    }
}

#[test]
fn hybrid_parent_says_what_enforces() {
    let host = FakeHost::hybrid();
    let report = host.open(None).report().clone();
    assert_eq!(report.memory, enforced("cgroup v1 memory"));
    assert_eq!(report.pids, enforced("cgroup v1 pids"));
    assert_eq!(report.cpu, enforced("cgroup v1 cpu"));
    assert_eq!(report.kill, enforced("cgroup v2"));
    assert!(why(&report.freeze).contains("cgroup v2"));
}

#[test]
fn hierarchy_without_the_asked_parent_is_left_out() {
    let report = FakeHost::hybrid().open(Some("/api/x")).report().clone();
    assert_eq!(report.memory, enforced("cgroup v1 memory"));
    assert!(why(&report.pids).contains("pids/api/x`: No such file"), "{report:?}");
}

#[test]
fn daemon_leaves_its_delegated_cgroup_before_enabling() {
    let host = FakeHost::unified("app.slice/s.scope", &format!("1\n{}\n", getpid()));
    let report = host.open(None).report().clone();
    assert_eq!((report.memory, report.cpu), (enforced("cgroup v2"), enforced("cgroup v2")));
    let base = "sys/fs/cgroup/app.slice/s.scope";
    // A plain file keeps the last write only.
    assert_eq!(host.text(&format!("{base}/sandcrate-t.daemon/cgroup.procs")), getpid().to_string());
    assert_eq!(host.text(&format!("{base}/cgroup.subtree_control")), "+cpu");
    assert_eq!(host.text(&format!("{base}/sandcrate-t/cgroup.subtree_control")), "+cpu");
    assert_eq!(host.text("sys/fs/cgroup/cgroup.subtree_control"), "\n");
}

#[test]
fn restarted_launcher_uses_the_parent_of_its_leaf() {
    let host = FakeHost::unified("s.scope/sandcrate-t.daemon", &format!("{}\n", getpid()));
    assert_eq!(host.open(None).report().memory, enforced("cgroup v2"));
    assert_eq!(host.text("sys/fs/cgroup/s.scope/cgroup.subtree_control"), "+cpu");
    assert!(!host.path("sys/fs/cgroup/s.scope/sandcrate-t.daemon/sandcrate-t").exists());
}

#[test]
fn strangers_are_never_moved() {
    let host = FakeHost::unified("s.scope", &format!("{}\n77\n", getpid()));
    let report = host.open(Some("s.scope")).report().clone();
    assert!(why(&report.memory).contains("also holds process 77"), "{report:?}");
    assert_eq!(report.freeze, enforced("cgroup v2"), "a cgroup without controllers still freezes");
    assert_eq!(host.text("sys/fs/cgroup/s.scope/sandcrate-t.daemon/cgroup.procs"), "");

    // Root has another place to go.
    if rustix::process::geteuid().is_root() {
        assert_eq!(host.open(None).report().memory, enforced("cgroup v2"));
        assert_eq!(host.text("sys/fs/cgroup/cgroup.subtree_control"), "+cpu");
    }
}

#[test]
fn controller_that_is_not_delegated_is_named() {
    let host = FakeHost::unified("s.scope", "");
    host.file("sys/fs/cgroup/s.scope/cgroup.controllers", "memory pids\n");
    host.file("sys/fs/cgroup/s.scope/sandcrate-t/cgroup.controllers", "memory pids\n");
    let report = host.open(Some("s.scope")).report().clone();
    assert!(report.memory.is_enforced() && report.pids.is_enforced());
    assert!(why(&report.cpu).contains("s.scope` does not offer it"), "{report:?}");
}

#[test]
fn failed_creation_leaves_nothing_of_its_own() {
    let host = FakeHost::hybrid();
    let parent = host.open(None);
    let taken = host.path("sys/fs/cgroup/pids/sandcrate-t/b1");
    fs::create_dir(&taken).unwrap();
    let error = parent.create("b1", None).unwrap_err();
    assert!(matches!(&error, CgroupError::Create { path, .. } if *path == taken), "{error:?}");
    assert!(taken.exists(), "it was there before");
    assert!(!host.path("sys/fs/cgroup/cpu,cpuacct/sandcrate-t/b1").exists());

    fs::remove_dir(&taken).unwrap();
    let made = parent.create("b1", None).unwrap();
    assert!(host.path("sys/fs/cgroup/unified/sandcrate-t/b1/run").exists());
    made.remove().unwrap();
    assert!(!host.path("sys/fs/cgroup/unified/sandcrate-t/b1").exists());
}

#[test]
fn v2_limits_are_written() {
    let host = FakeHost::unified("", "");
    let made = host.open(None).create("b1", None).unwrap();
    let dir = "sys/fs/cgroup/sandcrate-t/b1";
    let files = ["memory.max", "memory.swap.max", "memory.oom.group", "pids.max", "cpu.max"];
    let written = |limits: &Limits| {
        made.set_limits(limits).unwrap();
        files.map(|file| host.text(&format!("{dir}/{file}")))
    };
    files.iter().for_each(|file| host.file(&format!("{dir}/{file}"), ""));
    let limits = Limits { memory_bytes: Some(1 << 26), pids: Some(10), cpu_millis: Some(1500) };
    assert_eq!(written(&limits), ["67108864", "0", "0", "12", "150000 100000"]);
    assert_eq!(written(&Limits::default()), ["max", "max", "0", "max", "max 100000"]);
    let least = Limits { cpu_millis: Some(1), ..Limits::default() };
    assert_eq!(written(&least)[4], "1000 100000");
}

#[test]
fn v1_limits_are_written() {
    let host = FakeHost::hybrid();
    let made = host.open(None).create("b1", None).unwrap();
    let memory = "sys/fs/cgroup/mem ory/api/x/sandcrate-t/b1";
    let cpu = "sys/fs/cgroup/cpu,cpuacct/sandcrate-t/b1";
    for file in ["memory.limit_in_bytes", "memory.swappiness"] {
        host.file(&format!("{memory}/{file}"), "");
    }
    host.file("sys/fs/cgroup/pids/sandcrate-t/b1/pids.max", "");
    host.file(&format!("{cpu}/cpu.cfs_period_us"), "");
    host.file(&format!("{cpu}/cpu.cfs_quota_us"), "");
    let limits = Limits { memory_bytes: Some(4096), pids: Some(1), cpu_millis: Some(250) };
    made.set_limits(&limits).unwrap();
    assert_eq!(host.text(&format!("{memory}/memory.limit_in_bytes")), "4096");
    assert_eq!(host.text(&format!("{memory}/memory.swappiness")), "0");
    assert_eq!(host.text("sys/fs/cgroup/pids/sandcrate-t/b1/pids.max"), "3");
    assert_eq!(host.text(&format!("{cpu}/cpu.cfs_quota_us")), "25000");
}

#[test]
fn usage_is_read_from_v2_files() {
    let host = FakeHost::unified("", "");
    let dir = "sys/fs/cgroup/b1";
    for (file, text) in [
        ("memory.peak", "4096\n"),
        ("memory.current", "1024\n"),
        ("memory.stat", "anon 5\nshmem 77\nshmem_thp 9\n"),
        ("memory.events", "low 0\noom 3\noom_kill 2\noom_group_kill 0\n"),
        ("pids.events", "max 8\n"),
    ] {
        host.file(&format!("{dir}/{file}"), text);
    }
    let reader = UsageReader::new(vec![OwnedFd::from(fs::File::open(host.path(dir)).unwrap())]);
    assert_eq!(reader.peak_memory_bytes(), Some(4096));
    assert_eq!(reader.current_memory_bytes(), Some(1024));
    assert_eq!(reader.tmpfs_bytes(), Some(77));
    assert_eq!(reader.oom_kills(), Some(2));
    assert_eq!(reader.pids_refused(), Some(8));

    let nothing = UsageReader::new(vec![]);
    assert_eq!((nothing.peak_memory_bytes(), nothing.oom_kills()), (None, None));
    assert!(!nothing.reset_peak());
}

#[test]
fn wrong_names_are_refused() {
    let host = FakeHost::hybrid();
    let found = host.probe();
    for instance in ["", "A", "a/b", "..", "a.daemon", &"x".repeat(65)] {
        let placement = Placement { instance, below: None, daemon: None };
        assert!(matches!(Parent::open(&found, &placement), Err(CgroupError::Name { .. })), "{instance}");
        assert!(matches!(sweep(&found, instance), Err(CgroupError::Name { .. })), "{instance}");
    }
    let placement = Placement { instance: "t", below: Some("a/../b"), daemon: None };
    assert!(matches!(Parent::open(&found, &placement), Err(CgroupError::ParentPath { .. })));
    assert!(matches!(host.open(None).create("a b", None), Err(CgroupError::Name { .. })));
}
