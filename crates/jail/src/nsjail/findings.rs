//! What nsjail really did, read back from inside.

use std::fs;
use std::io;

use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::process::{Resource, getrlimit};
use sandcrate_protocol::{Control, Enforcement};

use crate::identity::{BOX_USER, HOST_BASE, ID_COUNT, INIT_USER};
use crate::message::{Failure, Step};

/// Fails unless this process is `user`, has no capability and can gain none, and is under a filter. Nothing of the
/// box's runs before this was looked at.
pub(super) fn verify(user: u32) -> Result<(), Failure> {
    let status = fs::read_to_string("/proc/self/status").step("reading what nsjail left")?;
    match left(&status, user) {
        None => Ok(()),
        Some(what) => Err(io::Error::from_raw_os_error(libc::EPERM))
            .step_with(|| format!("nsjail did not confine the process: {what}")),
    }
}

/// What is not as it was asked for.
fn left(status: &str, user: u32) -> Option<String> {
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map_or("", str::trim)
    };
    for ids in ["Uid", "Gid"] {
        let as_asked = field(ids).split_ascii_whitespace().all(|id| id.parse() == Ok(user));
        if !as_asked || field(ids).is_empty() {
            return Some(format!("{ids} is {}, not {user}", field(ids)));
        }
    }
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        if u64::from_str_radix(field(set), 16) != Ok(0) {
            return Some(format!("{set} is {}", field(set)));
        }
    }
    for (name, wanted) in [("NoNewPrivs", "1"), ("Seccomp", "2"), ("Groups", "")] {
        if field(name) != wanted {
            return Some(format!("{name} is {:?}", field(name)));
        }
    }
    None
}

/// The record of a box whose PID 1 has been verified.
pub(super) fn look_around() -> Enforcement {
    let mut record = Enforcement::new();
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    match outside(&map) {
        Some((base, count)) if base == HOST_BASE && count == ID_COUNT => record.enforced(
            Control::Identity,
            format!("user namespace with {ID_COUNT} host ids from {HOST_BASE:#x}; commands are {BOX_USER}, PID 1 is {INIT_USER}"),
        ),
        _ => record.absent(Control::Identity, format!("the id map is {map:?}")),
    }
    record.enforced(
        Control::Namespaces,
        "process, mount, IPC, host name and cgroup namespaces of the session, by nsjail; its commands share them",
    );
    record.enforced(
        Control::Capabilities,
        "none, bounding set empty, no_new_privs; read back before every command",
    );
    record.enforced(
        Control::Seccomp,
        "the command policy as kafel text in nsjail's configuration; looked for before every command",
    );
    record.absent(Control::Landlock, "nsjail has none");
    let root = statvfs("/").map_or(StatVfsMountFlags::empty(), |facts| facts.f_flag);
    match root.contains(StatVfsMountFlags::NOSUID | StatVfsMountFlags::NODEV) {
        true => {
            record.enforced(Control::NoSetuid, "the seccomp policy refuses the bits; every mount is nosuid")
        }
        false => record.degraded(Control::NoSetuid, "the root is not mounted nosuid and nodev"),
    }
    files(&mut record);
    network(&fs::read_to_string("/proc/net/dev").unwrap_or_default(), &mut record);
    record
}

/// The lowest host id behind the map, and how many ids follow it without a gap.
fn outside(map: &str) -> Option<(u32, u32)> {
    let mut ranges = Vec::new();
    for line in map.lines() {
        let numbers: Vec<u32> = line.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect();
        ranges.push((*numbers.get(1)?, *numbers.get(2)?));
    }
    ranges.sort_unstable();
    let base = ranges.first()?.0;
    let end = ranges.iter().try_fold(base, |end, (start, count)| (*start == end).then_some(end + count))?;
    Some((base, end - base))
}

fn files(record: &mut Enforcement) {
    let read_only =
        |point: &str| statvfs(point).is_ok_and(|facts| facts.f_flag.contains(StatVfsMountFlags::RDONLY));
    match read_only("/") && read_only("/usr") {
        true => record.enforced(
            Control::Filesystem,
            "a root of its own, read-only, with the host's /usr; private storage and the requested mounts",
        ),
        false => record.absent(Control::Filesystem, "the root or /usr can be written"),
    }
    match read_only("/proc/sys") {
        true => {
            record.enforced(Control::ProcMasks, "own procfs, settings read-only, tell-tale files covered")
        }
        false => record.degraded(Control::ProcMasks, "kernel settings are not read-only"),
    }
    let sizes =
        ["/tmp", "/dev/shm"].map(|point| statvfs(point).map_or(0, |facts| facts.f_blocks * facts.f_frsize));
    record.enforced(
        Control::Tmpfs,
        format!("/tmp {} MiB, /dev/shm {} MiB, charged to the box's memory", sizes[0] >> 20, sizes[1] >> 20),
    );
    let most = |resource| getrlimit(resource).maximum;
    match (most(Resource::Nofile), most(Resource::Core)) {
        (Some(files), Some(0)) => {
            record.enforced(Control::Rlimits, format!("{files} open files; no core dumps"))
        }
        (files, core) => {
            record.degraded(Control::Rlimits, format!("open files {files:?}, core dumps {core:?}"))
        }
    }
}

fn network(devices: &str, record: &mut Enforcement) {
    let names: Vec<&str> = devices.lines().filter_map(|line| Some(line.split_once(':')?.0.trim())).collect();
    match names.as_slice() {
        ["lo"] | [] => record.enforced(Control::Network, "empty network namespace with loopback"),
        _ => record.absent(Control::Network, format!("the box has {}", names.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "Name:\tx\nUid:\t1000\t1000\t1000\t1000\nGid:\t1000\t1000\t1000\t1000\nGroups:\t \nNoNewPrivs:\t1\n\
                        CapInh:\t0000000000000000\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n\
                        CapBnd:\t0000000000000000\nCapAmb:\t0000000000000000\nSeccomp:\t2\n";

    #[test]
    fn a_process_that_was_not_confined_is_told() {
        assert_eq!(left(GOOD, 1000), None);
        assert!(left(GOOD, 0).is_some_and(|what| what.contains("Uid")));
        for (good, bad, named) in [
            ("Uid:\t1000\t1000", "Uid:\t1000\t0", "Uid"),
            ("Groups:\t ", "Groups:\t0 27", "Groups"),
            ("NoNewPrivs:\t1", "NoNewPrivs:\t0", "NoNewPrivs"),
            ("CapBnd:\t0000000000000000", "CapBnd:\t000001ffffffffff", "CapBnd"),
            ("Seccomp:\t2", "Seccomp:\t0", "Seccomp"),
            ("Seccomp:\t2\n", "", "Seccomp"),
            ("CapEff:\t0000000000000000\n", "", "CapEff"),
        ] {
            let what = left(&GOOD.replace(good, bad), 1000);
            assert!(what.as_ref().is_some_and(|what| what.contains(named)), "{bad:?} gives {what:?}");
        }
    }

    #[test]
    fn a_range_in_pieces_is_one_range() {
        assert_eq!(outside("65533 65633 1\n0 100 65533\n65534 65634 2\n"), Some((100, 65536)));
        assert_eq!(outside("0 0 1\n5 7 1\n"), None);
        assert_eq!(outside(""), None);
    }
}
