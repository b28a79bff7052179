//! Checks of what limits need: cgroups, and storage for quotas and a writable root.

use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::check::{Check, Fix};
use super::machine::Machine;
use crate::units::show_size;

/// Controllers that bound a box.
const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];

/// Below this the default of 1 GiB of private storage does not fit.
const WANTED_FREE_BYTES: u64 = 1 << 30;

/// How cgroups are mounted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Cgroups {
    /// Mount point of v2, and the controllers it has.
    v2: Option<(String, Vec<String>)>,
    /// Controllers of v1.
    v1: Vec<String>,
}

impl Cgroups {
    pub(super) fn of(machine: &Machine) -> Self {
        let mut found = Self::default();
        for mount in machine.mounts() {
            match mount.kind.as_str() {
                "cgroup2" if found.v2.is_none() => {
                    let text =
                        machine.text(&format!("{}/cgroup.controllers", mount.point)).unwrap_or_default();
                    found.v2 = Some((mount.point, text.split_whitespace().map(str::to_owned).collect()));
                }
                "cgroup" => {
                    let known = mount
                        .options
                        .split(',')
                        .filter(|option| !option.starts_with("name=") && *option != "rw");
                    found.v1.extend(known.map(str::to_owned));
                }
                _ => {}
            }
        }
        found
    }

    /// As an operator names it.
    pub(super) fn mode(&self) -> String {
        let list = |names: &[String]| {
            let known: Vec<_> =
                CONTROLLERS.iter().filter(|name| names.iter().any(|known| known == *name)).copied().collect();
            if known.is_empty() {
                "without controllers".to_owned()
            } else {
                format!("with {}", known.join(", "))
            }
        };
        match (&self.v2, self.v1.is_empty()) {
            (Some((_, v2)), true) => format!("v2 {}", list(v2)),
            (Some((_, v2)), false) => format!("hybrid: v1 {}; v2 {}", list(&self.v1), list(v2)),
            (None, false) => format!("v1 {}", list(&self.v1)),
            (None, true) => "none mounted".to_owned(),
        }
    }

    fn v2_has_all(&self) -> bool {
        self.v2
            .as_ref()
            .is_some_and(|(_, v2)| CONTROLLERS.iter().all(|name| v2.iter().any(|known| known == name)))
    }

    fn lacks(&self) -> Vec<&'static str> {
        let has = |name: &str| {
            self.v1.iter().chain(self.v2.iter().flat_map(|(_, v2)| v2)).any(|known| known == name)
        };
        CONTROLLERS.into_iter().filter(|name| !has(name)).collect()
    }
}

pub(super) fn all(machine: &Machine, state_dir: &Path, programs: &[PathBuf]) -> Vec<Check> {
    vec![
        cgroups(machine),
        quota_tools(machine, state_dir, programs),
        overlay(machine),
        state(machine, state_dir),
        nsjail(machine, programs),
    ]
}

fn cgroups(machine: &Machine) -> Check {
    const NAME: &str = "cgroups";
    const UNTIL: &str = "boxes run; memory and processes are bounded per process by rlimits only, CPU is not";
    let found = Cgroups::of(machine);
    let lacks = found.lacks();
    if !lacks.is_empty() {
        let detail = format!("{}: no {} controller", found.mode(), lacks.join(", "));
        let fix = match &machine.container {
            Some(_) => Fix::new(
                ["docker: run with `--privileged --cgroupns=host -v /sys/fs/cgroup:/sys/fs/cgroup`"],
                UNTIL,
            ),
            None => Fix::new(
                [
                    "mount -t cgroup2 none /sys/fs/cgroup   # where nothing is mounted",
                    "boot with `cgroup_enable=memory`   # where only memory is missing",
                ],
                UNTIL,
            ),
        };
        return Check::missing(NAME, detail, fix);
    }
    if machine.is_root() {
        return Check::ok(NAME, found.mode());
    }
    if let Some(own) = delegated(machine, &found) {
        return Check::ok(NAME, format!("{}, delegated at {own}", found.mode()));
    }
    // What v1 holds cannot be given to a user.
    if !found.v2_has_all() {
        let fix = Fix::new(
            [
                "run as root",
                "or have them in v2: boot with `systemd.unified_cgroup_hierarchy=1`, then run this report again",
            ],
            UNTIL,
        );
        return Check::weak(NAME, format!("{}: v1 cannot be delegated", found.mode()), fix);
    }
    let fix = Fix::new(
        [
            "systemd-run --user --scope -p Delegate=yes -- sandcrate run …",
            "for every login: mkdir -p /etc/systemd/system/user@.service.d",
            "  printf '[Service]\\nDelegate=cpu memory pids\\n' > /etc/systemd/system/user@.service.d/delegate.conf",
            "  systemctl daemon-reload   # and log in again",
        ],
        UNTIL,
    );
    Check::weak(NAME, format!("{}, none of it delegated to {}", found.mode(), machine.user), fix)
}

/// Our own v2 cgroup, when it belongs to us and hands the controllers down.
fn delegated(machine: &Machine, cgroups: &Cgroups) -> Option<String> {
    let (mount, _) = cgroups.v2.as_ref()?;
    let own = machine.text("proc/self/cgroup")?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    let dir = format!("{mount}{}", own.trim_end_matches('/'));
    let ours = machine.path(&dir).metadata().is_ok_and(|meta| meta.uid() == machine.uid);
    let controllers = machine.text(&format!("{dir}/cgroup.controllers"))?;
    let all = CONTROLLERS.iter().all(|name| controllers.split_whitespace().any(|known| known == *name));
    (ours && all).then_some(dir)
}

fn quota_tools(machine: &Machine, state_dir: &Path, programs: &[PathBuf]) -> Check {
    const NAME: &str = "disk quota";
    if !machine.is_root() {
        return Check::ok(NAME, "a hard quota lies in memory for ordinary users");
    }
    if has_project_quota(state_dir) {
        return Check::ok(NAME, "project quota on the file system of the state directory");
    }
    let has = |program: &str| programs.iter().any(|dir| dir.join(program).is_file());
    let until = "boxes run; a --quota is accounted instead of hard, and the box says so";
    if !has("mke2fs") {
        let fix = Fix::new([machine.install("e2fsprogs", "e2fsprogs")], until);
        return Check::weak(NAME, "mke2fs is not installed: no image for a hard quota", fix);
    }
    if !machine.path("dev/loop-control").exists() {
        let fix = Fix::new(
            ["modprobe loop", "docker: run this container with `--device /dev/loop-control`"],
            until,
        );
        return Check::weak(NAME, "no loop devices: no image for a hard quota", fix);
    }
    Check::ok(NAME, "mke2fs and loop devices are there")
}

fn has_project_quota(state_dir: &Path) -> bool {
    let existing = state_dir.ancestors().find(|dir| dir.is_dir());
    let directory = existing.and_then(|dir| std::fs::File::open(dir).ok());
    directory.is_some_and(|dir| sandcrate_sys::quota::usage(dir.as_fd(), 0).is_ok())
}

fn overlay(machine: &Machine) -> Check {
    let known = machine.text("proc/filesystems").unwrap_or_default();
    if known.lines().any(|line| line.split_whitespace().next_back() == Some("overlay")) {
        return Check::ok("overlayfs", "the kernel has it");
    }
    let fix = Fix::new(
        ["modprobe overlay", "echo overlay > /etc/modules-load.d/sandcrate.conf   # to keep it"],
        "boxes run; --writable-root does not",
    );
    Check::weak("overlayfs", "not loaded", fix)
}

/// Another backend than the native one, for who wants it: its absence is no flaw.
fn nsjail(machine: &Machine, programs: &[PathBuf]) -> Check {
    const NAME: &str = "nsjail";
    match programs.iter().map(|directory| directory.join(NAME)).find(|path| path.is_file()) {
        None => Check::ok(NAME, "not installed; the nsjail backend is not offered"),
        Some(path) if machine.is_root() => {
            Check::ok(NAME, format!("{}; runtime.backend = \"nsjail\" uses it", path.display()))
        }
        Some(path) => Check::ok(NAME, format!("{}; its backend is for root only", path.display())),
    }
}

fn state(machine: &Machine, state_dir: &Path) -> Check {
    const NAME: &str = "state directory";
    // What exists of it: the rest is made on first use.
    let Some(existing) = state_dir.ancestors().find(|dir| dir.exists()) else {
        let fix = Fix::new(["set SANDCRATE_STATE_DIR to an absolute path"], "no box can start");
        return Check::missing(NAME, format!("{} leads nowhere", state_dir.display()), fix);
    };
    let elsewhere =
        |until: &str| Fix::new(["set SANDCRATE_STATE_DIR to a directory of yours on a local disk"], until);
    if rustix::fs::access(existing, rustix::fs::Access::WRITE_OK).is_err() {
        return Check::missing(
            NAME,
            format!("{} is not writable for {}", existing.display(), machine.user),
            elsewhere("no box can start"),
        );
    }
    let Ok(facts) = rustix::fs::statfs(existing) else {
        return Check::missing(
            NAME,
            format!("{} cannot be examined", existing.display()),
            elsewhere("no box can start"),
        );
    };
    let (kind, fit) = file_system(facts.f_type as u64);
    let free = facts.f_bavail.saturating_mul(u64::try_from(facts.f_bsize).unwrap_or(0));
    let detail = format!("{} on {kind}, {} free", state_dir.display(), show_size(free));
    if let Some(problem) = fit {
        return Check::weak(
            NAME,
            format!("{detail}: {problem}"),
            elsewhere("boxes may start slowly, or with private files in the wrong ownership"),
        );
    }
    if free < WANTED_FREE_BYTES {
        return Check::weak(
            NAME,
            detail,
            Fix::new(
                ["free some space, or set SANDCRATE_STATE_DIR to another disk"],
                "boxes start; they may find the disk full",
            ),
        );
    }
    Check::ok(NAME, detail)
}

/// Name of a file system by its magic number, and what is wrong with it for private storage.
fn file_system(magic: u64) -> (&'static str, Option<&'static str>) {
    match magic & 0xffff_ffff {
        0xef53 => ("ext4", None),
        0x5846_5342 => ("xfs", None),
        0x9123_683e => ("btrfs", None),
        0xf2f5_2010 => ("f2fs", None),
        0x2fc1_2fc1 => ("zfs", None),
        0x0102_1994 => ("tmpfs", Some("files of boxes take the machine's memory")),
        0x794c_7630 => ("overlayfs", Some("no overlay for a writable root can lie on it")),
        0x6969 => ("nfs", Some("ids cannot be mapped on it")),
        0x0102_1997 => ("9p", Some("ids cannot be mapped on it")),
        0x6573_5546 => ("fuse", Some("ids may not be mappable on it")),
        _ => ("another file system", None),
    }
}
