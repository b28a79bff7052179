//! The root template: everything that all boxes of one launcher have in common, mounted once.
//!
//! It is built in a mount namespace of the launcher's own, which afterwards holds nothing else but the host's
//! /proc (a new procfs can only be mounted where a full one is visible): a new box copies these few mounts,
//! however many the host has. Layout of that namespace:
//!
//! ```text
//! /proc           the host's
//! /template/usr   /usr of the host, read-only, shown with the box's own ids
//! /template/etc   generated
//! /template/dev   six nodes, links, mount points for pts and shm
//! /empty, /blank  an empty directory and an empty file, to mask others with
//! /resolv.conf    the host's, for boxes on the host's network
//! /root           where a new box builds its root
//! /instance       the storage of this instance's boxes
//! /disk           where the launcher has a disk image for a moment
//! ```

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use rustix::fs::CWD;
use sandcrate_sys::mount::{MountAttributes, Reach, set_attributes};

use crate::etc;
use crate::identity::HOST_BASE;
use crate::message::{Failure, Step};
use crate::mounts::{PLAIN, PLAIN_READ_ONLY, attach, clone_at, clone_with, enter_root, make_tmpfs};

/// The device nodes of a box.
pub(crate) const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// Name in the root, target.
type Links = Vec<(String, String)>;

/// What a box has to know to use the template.
#[derive(Debug, Clone)]
pub(crate) struct Template {
    /// Of a merged /usr.
    pub(crate) links: Links,
    /// Top-level directories besides usr, where /usr is not merged.
    pub(crate) system_directories: Vec<String>,
    /// Names below /proc to hide.
    pub(crate) masks: Vec<Mask>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mask {
    pub(crate) path: String,
    pub(crate) directory: bool,
}

/// Files of /proc that tell about the machine, or let it be changed, beyond what a program needs.
const HIDDEN: [&str; 38] = [
    "acpi",
    "asound",
    "buddyinfo",
    "bus",
    "cmdline",
    "config.gz",
    "diskstats",
    "driver",
    "dynamic_debug",
    "fb",
    "fs",
    "interrupts",
    "iomem",
    "ioports",
    "irq",
    "kallsyms",
    "kcore",
    "key-users",
    "keys",
    "kmsg",
    "kpagecgroup",
    "kpagecount",
    "kpageflags",
    "latency_stats",
    "misc",
    "modules",
    "pagetypeinfo",
    "partitions",
    "sched_debug",
    "schedstat",
    "scsi",
    "slabinfo",
    "softirqs",
    "sysrq-trigger",
    "timer_list",
    "timer_stats",
    "vmallocinfo",
    "zoneinfo",
];

/// Builds the template and makes it this process's root. `idmap` is a user namespace that maps ids on disk to
/// the box's, where the caller can use one.
pub(crate) fn build(idmap: Option<BorrowedFd<'_>>, instance: &Path) -> Result<Template, Failure> {
    let root = make_tmpfs(
        16 << 20,
        16384,
        "755",
        MountAttributes { no_suid: true, no_dev: true, ..Default::default() },
    )
    .step("making the template's tmpfs")?;
    // Any directory does: the mount namespace is ours alone.
    let base = "/tmp";
    // Cloned before the new root hides what lies at its place.
    let proc = clone_at(CWD, "/proc", Reach::Tree).step("cloning /proc")?;
    let usr = clone_system("/usr", idmap).step("cloning /usr")?;
    let storage = clone_with(instance, Reach::One, PLAIN).step("cloning the instance's directory")?;
    attach(&root, base).step("attaching the template")?;
    let at = |path: &str| format!("{base}/{path}");
    for directory in [
        "proc",
        "template",
        "template/usr",
        "template/etc",
        "template/dev",
        "empty",
        "root",
        "instance",
        "disk",
    ] {
        fs::create_dir(at(directory)).step_with(|| format!("making {directory}"))?;
    }
    fs::write(at("blank"), "").step("making the blank file")?;
    let resolver = fs::read("/etc/resolv.conf").unwrap_or_default();
    fs::write(at("resolv.conf"), resolver).step("copying the resolver's configuration")?;
    for mask in ["empty", "blank"] {
        let attributes = MountAttributes { no_exec: true, ..PLAIN_READ_ONLY };
        let cover = clone_with(at(mask), Reach::One, attributes).step("cloning a mask")?;
        attach(&cover, at(mask)).step("attaching a mask")?;
    }
    attach(&proc, at("proc")).step("attaching /proc")?;
    attach(&usr, at("template/usr")).step("attaching /usr")?;
    attach(&storage, at("instance")).step("attaching the instance's directory")?;
    let (links, system_directories) = system_entries(base, idmap)?;
    build_etc(&at("template/etc"), idmap)?;
    build_dev(&at("template/dev"))?;
    let masks = masks_of(Path::new("/proc"));
    enter_root(base).step("entering the template")?;
    Ok(Template { links, system_directories, masks })
}

/// A read-only copy of a system directory with all that is mounted below it, id-mapped where possible.
fn clone_system(path: &str, idmap: Option<BorrowedFd<'_>>) -> io::Result<OwnedFd> {
    if let Some(namespace) = idmap {
        let mount = clone_at(CWD, path, Reach::Tree)?;
        // A file system that cannot be id-mapped still serves, with files that belong to `nobody`.
        if set_attributes(mount.as_fd(), Reach::Tree, PLAIN_READ_ONLY, Some(namespace)).is_ok() {
            return Ok(mount);
        }
    }
    clone_with(path, Reach::Tree, PLAIN_READ_ONLY)
}

/// /bin, /lib and so on: links where /usr is merged, copies of the directories where it is not.
fn system_entries(base: &str, idmap: Option<BorrowedFd<'_>>) -> Result<(Links, Vec<String>), Failure> {
    let (mut links, mut directories) = (Vec::new(), Vec::new());
    for name in ["bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
        let path = format!("/{name}");
        if let Ok(target) = fs::read_link(&path) {
            links.push((name.to_owned(), target.to_string_lossy().into_owned()));
        } else if Path::new(&path).is_dir() {
            let mount = clone_system(&path, idmap).step_with(|| format!("cloning {path}"))?;
            let target = format!("{base}/template/{name}");
            fs::create_dir(&target).step_with(|| format!("making {target}"))?;
            attach(&mount, target).step_with(|| format!("attaching {path}"))?;
            directories.push(name.to_owned());
        }
    }
    Ok((links, directories))
}

/// /etc belongs to the box's root: by an id map, or where tmpfs has none, file by file.
fn build_etc(at: &str, idmap: Option<BorrowedFd<'_>>) -> Result<(), Failure> {
    let mut owner = None;
    if let Some(namespace) = idmap {
        let etc = clone_at(CWD, at, Reach::One).step("cloning /etc")?;
        match set_attributes(etc.as_fd(), Reach::One, PLAIN, Some(namespace)) {
            Ok(()) => {
                etc::generate(Path::new("/etc"), Path::new(at), None).step("generating /etc")?;
                return attach(&etc, at).step("attaching /etc");
            }
            Err(_) => owner = Some(HOST_BASE),
        }
    }
    etc::generate(Path::new("/etc"), Path::new(at), owner).step("generating /etc")
}

/// /dev: a tmpfs of mode 755. In a sticky world-writable one, `> /dev/null` by another user than the node's
/// owner is refused, because a shell opens with O_CREAT.
fn build_dev(base: &str) -> Result<(), Failure> {
    let attributes = MountAttributes { no_suid: true, no_dev: true, no_exec: true, read_only: false };
    let dev = make_tmpfs(64 << 10, 32, "755", attributes).step("making /dev")?;
    let nodes = DEVICES
        .iter()
        .map(|name| {
            let node = MountAttributes { no_suid: true, no_exec: true, ..Default::default() };
            clone_with(format!("/dev/{name}"), Reach::One, node).map(|mount| (*name, mount))
        })
        .collect::<io::Result<Vec<_>>>()
        .step("cloning the device nodes")?;
    attach(&dev, base).step("attaching /dev")?;
    for (name, mount) in &nodes {
        fs::write(format!("{base}/{name}"), "").step_with(|| format!("making /dev/{name}"))?;
        attach(mount, format!("{base}/{name}")).step_with(|| format!("attaching /dev/{name}"))?;
    }
    for directory in ["pts", "shm"] {
        fs::create_dir(format!("{base}/{directory}")).step_with(|| format!("making /dev/{directory}"))?;
    }
    for (link, target) in [
        ("ptmx", "pts/ptmx"),
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        symlink(target, format!("{base}/{link}")).step_with(|| format!("linking /dev/{link}"))?;
    }
    let read_only = MountAttributes { read_only: true, ..attributes };
    set_attributes(dev.as_fd(), Reach::One, read_only, None).step("making /dev read-only")
}

/// Those of the hidden names that exist here and that an ordinary user could open.
fn masks_of(proc: &Path) -> Vec<Mask> {
    HIDDEN
        .iter()
        .filter_map(|name| {
            let facts = fs::symlink_metadata(proc.join(name)).ok()?;
            let open_to_others = facts.permissions().mode() & 0o066 != 0 || facts.uid() != 0;
            (facts.is_dir() || open_to_others)
                .then(|| Mask { path: (*name).to_owned(), directory: facts.is_dir() })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_what_exists_and_others_could_open() {
        let proc = tempfile::tempdir().unwrap();
        for (name, mode) in [("keys", 0o444), ("kcore", 0o400), ("uptime", 0o444)] {
            let path = proc.path().join(name);
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }
        fs::create_dir(proc.path().join("acpi")).unwrap();
        let masks = masks_of(proc.path());
        let has = |name: &str| masks.iter().any(|mask| mask.path == name);
        assert!(has("keys") && has("acpi") && !has("uptime") && !has("scsi"));
        let root_owned = fs::metadata(proc.path()).unwrap().uid() == 0;
        assert_eq!(has("kcore"), !root_owned, "a file only root can read needs no mask: no box is root");
    }
}
