//! The checks on fake trees, and the verdict.

use std::os::unix::fs::MetadataExt;

use super::*;

/// A machine made of files.
struct Fake(tempfile::TempDir);

impl Fake {
    /// A healthy Debian with cgroup v2.
    fn healthy() -> Self {
        let fake = Self(tempfile::tempdir().unwrap());
        for (path, text) in [
            ("etc/os-release", "PRETTY_NAME=\"Debian GNU/Linux 12\"\nID=debian\n"),
            ("etc/passwd", "root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\n"),
            ("proc/meminfo", "MemTotal:        2048 kB\n"),
            ("proc/self/status", "CapEff:\t000001ffffffffff\nSeccomp:\t0\n"),
            ("proc/self/cgroup", "0::/user.slice\n"),
            ("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"),
            ("proc/sys/user/max_user_namespaces", "15000\n"),
            ("proc/sys/kernel/seccomp/actions_avail", "kill_process errno allow\n"),
            ("proc/sys/kernel/core_pattern", "core\n"),
            ("proc/filesystems", "nodev\tproc\nnodev\toverlay\n"),
            ("sys/kernel/security/lsm", "lockdown,landlock\n"),
            ("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n"),
            ("dev/loop-control", ""),
            ("dev/net/tun", ""),
            ("sbin/mke2fs", ""),
        ] {
            fake.put(path, text);
        }
        fake
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn remove(&self, path: &str) {
        std::fs::remove_file(self.0.path().join(path)).unwrap();
    }

    fn machine(&self, uid: u32) -> Machine {
        Machine::read(self.0.path(), uid, "6.1.0-18-amd64", "x86_64")
    }

    fn checks(&self, machine: &Machine) -> Vec<Check> {
        let mut checks = kernel_checks::all(machine);
        checks.extend(resource_checks::all(machine, self.0.path(), &[self.0.path().join("sbin")]));
        // The disk under the tests is none of the fake machine's.
        checks.retain(|check| check.name != "state directory");
        checks
    }

    /// State, detail and fix of one check.
    fn check(&self, uid: u32, name: &str) -> (CheckState, String) {
        let checks = self.checks(&self.machine(uid));
        let check =
            checks.into_iter().find(|check| check.name == name).unwrap_or_else(|| panic!("no check {name}"));
        let fix =
            check.fix.map_or_else(String::new, |fix| format!("{}\n{}", fix.steps.join("\n"), fix.until_then));
        (check.state, format!("{}\n{fix}", check.detail))
    }
}

#[test]
fn a_healthy_machine_has_nothing_to_fix_for_root() {
    let fake = Fake::healthy();
    let machine = fake.machine(0);
    for check in fake.checks(&machine) {
        assert_eq!((check.state, &check.fix), (CheckState::Ok, &None), "{}: {}", check.name, check.detail);
    }
    assert_eq!((machine.user.as_str(), machine.memory_bytes), ("root", 2 << 20));
    assert_eq!(machine.kernel_version(), (6, 1));
    assert_eq!(Cgroups::of(&machine).mode(), "v2 with memory, pids, cpu");
}

#[test]
fn each_fault_is_found_and_its_fix_is_exact() {
    type Fault = fn(&Fake);
    let cases: [(u32, &str, CheckState, &[&str], Fault); 15] = [
        (0, "user namespaces", CheckState::Missing, &["sysctl -w user.max_user_namespaces="], |fake| {
            fake.put("proc/sys/user/max_user_namespaces", "0");
        }),
        (1000, "user namespaces", CheckState::Missing, &["kernel.unprivileged_userns_clone=1"], |fake| {
            fake.put("proc/sys/kernel/unprivileged_userns_clone", "0");
        }),
        (0, "user namespaces", CheckState::Ok, &["allowed"], |fake| {
            fake.put("proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1");
        }),
        (1000, "user namespaces", CheckState::Missing, &["/etc/apparmor.d/sandcrate", "userns,"], |fake| {
            fake.put("proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1");
        }),
        (0, "seccomp filters", CheckState::Missing, &["CONFIG_SECCOMP_FILTER"], |fake| {
            fake.put("proc/sys/kernel/seccomp/actions_avail", "kill_process");
        }),
        (0, "landlock", CheckState::Weak, &["lsm=landlock,lockdown,yama"], |fake| {
            fake.put("sys/kernel/security/lsm", "lockdown,yama");
        }),
        (0, "/proc", CheckState::Weak, &["/proc/kcore", "systempaths=unconfined"], |fake| {
            fake.put("proc/self/mountinfo", "40 23 0:5 /null /proc/kcore rw - devtmpfs none rw\n");
        }),
        (0, "privileges", CheckState::Missing, &["CAP_SYS_ADMIN", "--privileged"], |fake| {
            fake.put("proc/self/status", "CapEff:\t00000000a80425fb\n");
        }),
        (0, "outer seccomp filter", CheckState::Weak, &["seccomp=unconfined"], |fake| {
            fake.put("proc/self/status", "CapEff:\t000001ffffffffff\nSeccomp:\t2\n");
        }),
        (0, "core dumps", CheckState::Weak, &["/usr/share/apport/apport"], |fake| {
            fake.put("proc/sys/kernel/core_pattern", "|/usr/share/apport/apport %p");
        }),
        (0, "disk quota", CheckState::Weak, &["apt-get install -y e2fsprogs"], |fake| {
            fake.remove("sbin/mke2fs")
        }),
        (0, "disk quota", CheckState::Weak, &["modprobe loop"], |fake| fake.remove("dev/loop-control")),
        (
            0,
            "tun device",
            CheckState::Weak,
            &["modprobe tun", "mknod -m 666 /dev/net/tun c 10 200"],
            |fake| {
                fake.remove("dev/net/tun");
            },
        ),
        (1000, "tun device", CheckState::Weak, &["chmod 666 /dev/net/tun"], |_| {}),
        (0, "overlayfs", CheckState::Weak, &["modprobe overlay", "--writable-root"], |fake| {
            fake.put("proc/filesystems", "nodev\tproc\n");
        }),
    ];
    for (uid, name, state, words, fault) in cases {
        let fake = Fake::healthy();
        fault(&fake);
        let (found, text) = fake.check(uid, name);
        assert_eq!(found, state, "{name}: {text}");
        for word in words {
            assert!(text.contains(word), "{name}: `{word}` is not in: {text}");
        }
    }
}

#[test]
fn cgroups_of_every_kind_are_told_apart() {
    let fake = Fake::healthy();
    let v1 = |name: &str| format!("31 23 0:27 / /sys/fs/cgroup/{name} rw - cgroup cgroup rw,{name}\n");
    let hybrid =
        format!("{}{}{}30 23 0:26 / /unified rw - cgroup2 none rw\n", v1("memory"), v1("pids"), v1("cpu"));
    fake.put("proc/self/mountinfo", &hybrid);
    fake.put("unified/cgroup.controllers", "");
    assert_eq!(
        Cgroups::of(&fake.machine(0)).mode(),
        "hybrid: v1 with memory, pids, cpu; v2 without controllers"
    );
    assert_eq!(fake.check(0, "cgroups").0, CheckState::Ok);

    fake.put("proc/self/mountinfo", &v1("memory"));
    let (state, text) = fake.check(0, "cgroups");
    assert!(state == CheckState::Missing && text.contains("no pids, cpu controller"), "{text}");
    fake.put("proc/self/mountinfo", "");
    assert!(fake.check(0, "cgroups").1.contains("none mounted"));
}

#[test]
fn an_ordinary_user_needs_a_delegated_cgroup() {
    let fake = Fake::healthy();
    let me = std::fs::metadata(fake.0.path()).unwrap().uid();
    let somebody_else = me + 1000;
    let (state, text) = fake.check(somebody_else, "cgroups");
    assert!(
        state == CheckState::Weak && text.contains("systemd-run --user --scope -p Delegate=yes"),
        "{text}"
    );
    if me != 0 {
        fake.put("sys/fs/cgroup/user.slice/cgroup.controllers", "cpu memory pids");
        assert_eq!(fake.check(me, "cgroups").0, CheckState::Ok);
    }
}

#[test]
fn old_kernels_and_containers_are_recognised() {
    let fake = Fake::healthy();
    fake.put(".dockerenv", "");
    let machine = Machine::read(fake.0.path(), 0, "5.13.0", "x86_64");
    assert_eq!(machine.container.as_deref(), Some("docker"));
    assert_eq!(kernel_checks::all(&machine)[0].state, CheckState::Weak);
    let old = Machine::read(fake.0.path(), 0, "5.10.0-28-amd64", "x86_64");
    assert_eq!(kernel_checks::all(&old)[0].state, CheckState::Missing);
}

#[test]
fn the_verdict_says_what_counts() {
    let checks = [Check::ok("kernel", "6.1")];
    assert_eq!(verdict(true, &checks, None), (true, "boxes run here with every control in force".to_owned()));
    assert!(!verdict(false, &checks, None).0);
    let tried = |verdict| {
        [Tried {
            id: "FS-06".into(),
            name: "mount".into(),
            what: String::new(),
            verdict,
            detail: String::new(),
        }]
    };
    let (ok, text) = verdict(true, &checks, Some(&tried(Verdict::Broken)));
    assert!(!ok && text.contains("DO NOT HOLD: FS-06"), "{text}");
    assert!(verdict(true, &checks, Some(&tried(Verdict::Held))).0);
}
