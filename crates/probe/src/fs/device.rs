//! Device nodes: what `/dev` holds, and what can be made or found elsewhere.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use crate::report::{AttackResult, Report, Usage};
use crate::sys::{SysResult, close, cstring, lstat, open, stat, syscall};

/// Character devices that belong in a sandbox, with their numbers.
const EXPECTED_NODES: [(&str, (u32, u32)); 7] = [
    ("null", (1, 3)),
    ("zero", (1, 5)),
    ("full", (1, 7)),
    ("random", (1, 8)),
    ("urandom", (1, 9)),
    ("tty", (5, 0)),
    ("ptmx", (5, 2)),
];
const EXPECTED_OTHERS: [&str; 8] = ["pts", "shm", "mqueue", "fd", "stdin", "stdout", "stderr", "console"];
const DANGEROUS: [&str; 28] = [
    "mem",
    "kmem",
    "port",
    "kmsg",
    "fuse",
    "kvm",
    "vsock",
    "vhost-vsock",
    "vhost-net",
    "net/tun",
    "userfaultfd",
    "vda",
    "vdb",
    "sda",
    "nvme0n1",
    "dm-0",
    "loop0",
    "loop-control",
    "rtc0",
    "ptp0",
    "hpet",
    "cpu_dma_latency",
    "uinput",
    "tty0",
    "tty1",
    "ttyS0",
    "snapshot",
    "autofs",
];

/// FS-14: nothing in `/dev` beyond the allow list, and the null device is the null device.
pub(crate) fn dev(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    let entries = fs::read_dir("/dev").map_err(|error| Usage(format!("/dev cannot be listed: {error}")))?;
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        report.held();
        check_entry(&mut report, &name);
    }
    for (directory, devices_allowed) in [("/dev/pts", true), ("/dev/shm", false), ("/dev/mqueue", false)] {
        if !devices_allowed {
            open_devices_below(&mut report, Path::new(directory), 2);
        }
    }
    for name in DANGEROUS {
        report.must_not_open(&format!("/dev/{name}"), libc::O_PATH);
    }
    let path = cstring(format!("/dev/probe-{}", std::process::id()));
    report.must_fail("create a link in /dev", || {
        syscall!(libc::SYS_symlinkat, c"/nowhere", libc::AT_FDCWD, &path)?;
        syscall!(libc::SYS_unlinkat, libc::AT_FDCWD, &path, 0)
    });
    report.must_fail("rename /dev/null and back", || {
        syscall!(libc::SYS_rename, c"/dev/null", &path)?;
        syscall!(libc::SYS_rename, &path, c"/dev/null")
    });
    report.verdict("/dev holds the allow list only")
}

fn check_entry(report: &mut Report, name: &str) {
    let path = format!("/dev/{name}");
    let Ok(found) = lstat(&path) else { return };
    let kind = found.st_mode & libc::S_IFMT;
    let number = (libc::major(found.st_rdev), libc::minor(found.st_rdev));
    println!("attempt: {path} -> mode {:o} device {number:?}", found.st_mode);
    if kind == libc::S_IFBLK {
        report.breach(format!("{path} is a block device {number:?}"));
    } else if let Some((_, expected)) = EXPECTED_NODES.iter().find(|(node, _)| *node == name) {
        let link = kind == libc::S_IFLNK && name == "ptmx";
        if !link && (kind != libc::S_IFCHR || number != *expected) {
            report.breach(format!("{path} is not the device {expected:?}"));
        }
    } else if !EXPECTED_OTHERS.contains(&name) {
        report.breach(format!("{path} is not on the allow list"));
    } else if kind == libc::S_IFCHR && !(name == "console" && (136..144).contains(&number.0)) {
        report.breach(format!("{path} is a device {number:?}"));
    }
}

/// FS-13: making nodes for the backing disk, kernel memory and other devices.
pub(crate) fn mknod(arguments: &[String]) -> AttackResult {
    let directory = writable_directory(arguments)?;
    let mut report = Report::default();
    make_nodes(&mut report, &directory);
    report.verdict("no device node can be made")
}

/// FS-24: nodes made in, linked into or lying in the workspace.
pub(crate) fn workspace_dev(arguments: &[String]) -> AttackResult {
    let directory = writable_directory(arguments)?;
    let mut report = Report::default();
    make_nodes(&mut report, &directory);
    for device in ["/dev/null", "/dev/zero", "/dev/tty"] {
        let target = format!("{directory}/probe-linked-{}", std::process::id());
        let result = syscall!(libc::SYS_link, &cstring(device), &cstring(&target));
        if report.attempt(&format!("link({device} into {directory})"), result).succeeded() {
            try_open(&mut report, &target);
            let _ = fs::remove_file(&target);
        }
    }
    open_devices_below(&mut report, Path::new(&directory), 3);
    report.verdict("no usable device node in the workspace")
}

/// The directory of the first argument, proven writable so that a refusal means something.
pub(crate) fn writable_directory(arguments: &[String]) -> Result<String, Usage> {
    let [directory] = arguments else {
        return Err(Usage("needs one argument: a writable directory".into()));
    };
    let test = format!("{directory}/probe-writable-{}", std::process::id());
    fs::write(&test, b"x").map_err(|error| Usage(format!("{directory} is not writable: {error}")))?;
    let _ = fs::remove_file(test);
    Ok(directory.clone())
}

fn make_nodes(report: &mut Report, directory: &str) {
    let mut devices = vec![
        (libc::S_IFCHR, 1, 1),
        (libc::S_IFCHR, 1, 3),
        (libc::S_IFCHR, 1, 11),
        (libc::S_IFCHR, 10, 200),
        (libc::S_IFCHR, 10, 229),
        (libc::S_IFCHR, 10, 232),
        (libc::S_IFCHR, 10, 237),
        (libc::S_IFBLK, 7, 0),
        (libc::S_IFBLK, 8, 0),
        (libc::S_IFBLK, 253, 0),
        (libc::S_IFBLK, 254, 0),
        (libc::S_IFBLK, 259, 0),
    ];
    for path in ["/", "/usr", "/etc", directory] {
        if let Ok(found) = stat(path) {
            devices.push((libc::S_IFBLK, libc::major(found.st_dev), libc::minor(found.st_dev)));
        }
    }
    devices.sort_unstable();
    devices.dedup();
    for (kind, major, minor) in devices {
        let device = libc::makedev(major, minor);
        let path = format!("{directory}/probe-node-{}", std::process::id());
        let name = cstring(&path);
        let nested = |call: &dyn Fn() -> SysResult| {
            syscall!(libc::SYS_unshare, libc::CLONE_NEWUSER)?;
            call()
        };
        let plain = || syscall!(libc::SYS_mknod, &name, kind | 0o666, device);
        let at = || syscall!(libc::SYS_mknodat, libc::AT_FDCWD, &name, kind | 0o666, device);
        let high =
            || syscall!(libc::SYS_mknod, &name, u64::from(kind | 0o666) | 0xffff_ffff_0001_0000, device);
        let what = |form: &str| format!("{form}({} {major}:{minor})", node_letter(kind));
        for (form, outcome) in [
            (what("mknod"), report.must_fail(&what("mknod"), plain)),
            (what("mknodat"), report.must_fail(&what("mknodat"), at)),
            (what("mknod with high bits"), report.must_fail(&what("mknod with high bits"), high)),
            (what("mknod in a user namespace"), report.must_fail(&what("nested mknod"), || nested(&plain))),
        ] {
            if outcome.succeeded() {
                println!("attempt: {form} made a node");
                try_open(report, &path);
                let _ = fs::remove_file(&path);
            }
        }
    }
}

fn node_letter(kind: u32) -> char {
    if kind == libc::S_IFBLK { 'b' } else { 'c' }
}

fn try_open(report: &mut Report, path: &str) {
    for flags in [libc::O_RDONLY, libc::O_RDWR] {
        report.must_not_open(path, flags);
    }
}

/// Opens every device node found below `directory`; the host may have put one there.
fn open_devices_below(report: &mut Report, directory: &Path, depth: usize) {
    report.held();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let Ok(metadata) = entry.path().symlink_metadata() else { continue };
        let kind = metadata.file_type();
        if kind.is_dir() && depth > 0 {
            open_devices_below(report, &entry.path(), depth - 1);
        } else if kind.is_block_device() || kind.is_char_device() {
            println!("attempt: found node {} -> device {:#x}", entry.path().display(), metadata.rdev());
            let path = entry.path().display().to_string();
            let opened = open(&path, libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY);
            if report.attempt(&format!("open({path})"), opened).succeeded() {
                report.breach(format!("{path} opens"));
            }
            opened.map(close).unwrap_or_default();
        }
    }
}
