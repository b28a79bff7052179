//! What holds the box, as seen from inside: read back, not taken from what the engine was asked for.

use std::fs;

use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::process::{Resource, getrlimit};
use sandcrate_protocol::{Control, Enforcement};

/// What tells about the host, or changes it.
const SECRETS: [&str; 6] = [
    "/proc/kcore",
    "/proc/keys",
    "/proc/timer_list",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/sysrq-trigger",
];

pub(super) fn look_around() -> Enforcement {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let (status, mounts) = (read("/proc/self/status"), read("/proc/self/mountinfo"));
    let mut record = Enforcement::new();
    privileges(&status, &read("/proc/self/uid_map"), &mut record);
    files(&mounts, &mut record);
    limits(&mut record);
    network(fs::read_to_string("/proc/net/dev").ok().as_deref(), &mut record);
    record.absent(Control::Landlock, "container engines have none");
    record.enforced(
        Control::CommandKill,
        "every command has a keeper that its orphans fall to; the tree below it is stopped, then killed",
    );
    record.enforced(
        Control::Cleanup,
        "the box's init ends with its owner's connection, and all with it; the engine removes the container",
    );
    record
}

fn privileges(status: &str, uid_map: &str, record: &mut Enforcement) {
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map_or("", str::trim)
    };
    let sets = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];
    let none = sets.iter().all(|set| u64::from_str_radix(field(set), 16) == Ok(0));
    let held = field("NoNewPrivs") == "1";
    match none && held {
        true => record.enforced(Control::Capabilities, "none; bounding set empty, no_new_privs, read back"),
        false => record.degraded(
            Control::Capabilities,
            format!("bounding set {}, no_new_privs {}", field("CapBnd"), field("NoNewPrivs")),
        ),
    }
    match held {
        true => record.degraded(
            Control::NoSetuid,
            "setuid files mean nothing in the box, but one can be made on a shared directory",
        ),
        false => record.absent(Control::NoSetuid, "no_new_privs is not set"),
    }
    match field("Seccomp") {
        "2" => record.enforced(Control::Seccomp, "the engine's own profile"),
        other => record.absent(Control::Seccomp, format!("no filter is loaded (mode {other})")),
    }
    // "0 0 4294967295" is the host's own map.
    let mapped = uid_map.split_ascii_whitespace().nth(1).is_some_and(|outside| outside != "0");
    record.degraded(
        Control::Identity,
        match mapped {
            true => "user namespace of the engine; commands have the id of the box's init",
            false => "no user namespace: commands have an id of the host, and that of the box's init, without capabilities",
        },
    );
}

fn files(mounts: &str, record: &mut Enforcement) {
    let mount =
        |point: &str| mounts.lines().rev().find(|line| line.split_ascii_whitespace().nth(4) == Some(point));
    let read_only =
        |point: &str| statvfs(point).is_ok_and(|facts| facts.f_flag.contains(StatVfsMountFlags::RDONLY));
    record.enforced(
        Control::Filesystem,
        match read_only("/") {
            true => "the image as root, read-only; private storage and the requested mounts",
            false => "the image as root, changes go to the container's own layer; private storage and the requested mounts",
        },
    );
    // Which of them there are depends on the kernel.
    let there: Vec<&str> = SECRETS.into_iter().filter(|path| fs::symlink_metadata(path).is_ok()).collect();
    let bare: Vec<&str> = there.iter().copied().filter(|path| mount(path).is_none()).collect();
    match bare.is_empty() && read_only("/proc/sys") {
        true => record.enforced(
            Control::ProcMasks,
            format!("own procfs, settings read-only, {} files covered by the engine", there.len()),
        ),
        false => record.degraded(
            Control::ProcMasks,
            format!(
                "settings {}, not covered: {}",
                if read_only("/proc/sys") { "read-only" } else { "writable" },
                bare.join(", ")
            ),
        ),
    }
    let sizes = ["/tmp", "/dev/shm"].map(|point| {
        let tmpfs = mount(point).is_some_and(|line| line.contains(" - tmpfs "));
        statvfs(point).ok().filter(|_| tmpfs).map(|facts| facts.f_blocks * facts.f_frsize)
    });
    match sizes {
        [Some(tmp), Some(shm)] => record.enforced(
            Control::Tmpfs,
            format!("/tmp {} MiB, /dev/shm {} MiB, charged to the box's memory", tmp >> 20, shm >> 20),
        ),
        _ => record.absent(Control::Tmpfs, "/tmp or /dev/shm is no tmpfs"),
    }
}

fn limits(record: &mut Enforcement) {
    let most = |resource| getrlimit(resource).maximum;
    match (most(Resource::Nofile), most(Resource::Core)) {
        (Some(files), Some(0)) => {
            record.enforced(Control::Rlimits, format!("{files} open files; no core dumps"));
        }
        (files, core) => {
            record.degraded(Control::Rlimits, format!("open files {files:?}, core dumps {core:?}"));
        }
    }
}

fn network(devices: Option<&str>, record: &mut Enforcement) {
    let Some(devices) = devices else {
        return record.absent(Control::Network, "the box's network devices cannot be read");
    };
    let names: Vec<&str> = devices.lines().filter_map(|line| Some(line.split_once(':')?.0.trim())).collect();
    match names.as_slice() {
        // Every namespace has a loopback device: a list without one is none.
        [] => record.absent(Control::Network, "the list of the box's network devices is empty"),
        ["lo"] => record.enforced(Control::Network, "empty network namespace with loopback"),
        _ => record.absent(Control::Network, format!("reaches what {} reach", names.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_list_with_nothing_but_loopback_is_an_empty_network() {
        let header = "Inter-|   Receive\n face |bytes\n";
        for (devices, holds) in [
            (Some(format!("{header}    lo: 0 0\n")), true),
            (Some(format!("{header}    lo: 0 0\n  eth0: 1 1\n")), false),
            (Some(header.to_owned()), false),
            (None, false),
        ] {
            let mut record = Enforcement::new();
            network(devices.as_deref(), &mut record);
            assert_eq!(record.holds(Control::Network), holds, "{devices:?}");
        }
    }
}
