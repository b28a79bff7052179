//! The root template: everything that all boxes of one launcher have in common, mounted once.
//!
//! It is built in a mount namespace of the launcher's own, which afterwards holds nothing else but the host's
//! /proc (a new procfs can only be mounted where a full one is visible): a new box copies these few mounts,
//! however many the host has. Layout of that namespace:
//!
//! ```text
//! /proc           the host's
//! /template       the root of every box: a read-only tmpfs that belongs to the box's root, with a place for
//!                 everything that is mounted later; in it
//! /template/usr   /usr of the host, read-only, shown with the box's own ids
//! /template/etc   generated
//! /template/dev   six nodes, links, mount points for pts and shm
//! /empty, /blank  an empty directory and an empty file, to mask others with
//! /tun            /dev/net/tun, where the host has it
//! /resolv.conf    the host's, for boxes on the host's network
//! /root           where a new box has its copy of the template
//! /instance       the directory of this launcher on disk
//! /files          the storage of its boxes, on that, as boxes see it
//! /disk           where the launcher has a disk image for a moment
//! /images         roots of images that boxes are made of, see `launcher::images`
//! ```

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::Path;

use rustix::fs::CWD;
use rustix::process::{WaitId, WaitIdOptions, waitid};
use sandcrate_sys::mount::{MountAttributes, Reach, set_attributes};
use sandcrate_sys::process::{Fork, SingleThreaded, exit_now, fork};

use crate::channel::Channel;
use crate::etc;
use crate::identity::HOST_BASE;
use crate::message::{Failure, Step};
use crate::mounts::{
    PLAIN, PLAIN_READ_ONLY, attach, clone_at, clone_with, enter_root, make_overlay, make_tmpfs,
};
use crate::plan::NodeKind;

/// Directories of the launcher's on disk: one for each box, and what the overlay over them all needs.
pub(crate) const BOXES: &str = "/instance/boxes";
const WORK: &str = "/instance/work";
/// Where directories of the next boxes are made ahead of time.
pub(crate) const SPARE: &str = "/instance/spare";
/// The boxes' directories as boxes see them.
pub(crate) const FILES: &str = "/files";

/// The root of boxes that are made of no image.
pub(crate) const ROOT: &str = "/template";
/// Roots of images.
pub(crate) const IMAGES: &str = "/images";

/// The tun device's node; boxes do not see it.
pub(crate) const TUN: &str = "/tun";

/// The device nodes of a box.
pub(crate) const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// Name in the root, target.
type Links = Vec<(String, String)>;

/// Plain directories of a box's root: places to mount on, or to be found empty.
const DIRECTORIES: [&str; 19] = [
    "usr",
    "etc",
    "dev",
    "proc",
    "tmp",
    "workspace",
    "home",
    "home/box",
    "root",
    "run",
    "opt",
    "srv",
    "mnt",
    "media",
    "var",
    "var/cache",
    "var/lib",
    "var/log",
    "var/spool",
];
const LINKS: [(&str, &str); 2] = [("var/tmp", "../tmp"), ("var/run", "../run")];

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

/// The root of boxes, while it is in no tree and being filled.
#[derive(Debug)]
pub(crate) struct Draft {
    template: Template,
    root: OwnedFd,
    /// A child that fills it, while its parent may still have to wait for something. What it reads stays out of the
    /// memory that every box copies.
    filler: OwnedFd,
    /// Where it says how that went.
    result: Channel,
}

/// The root of boxes, full, and in no tree yet.
#[derive(Debug)]
pub(crate) struct FullRoot {
    template: Template,
    mount: OwnedFd,
}

impl Draft {
    pub(crate) fn make(proof: &SingleThreaded) -> Result<Self, Failure> {
        let (links, system_directories) = system_entries();
        let template = Template { links, system_directories, masks: Vec::new() };
        let root = make_root(PLAIN)?;
        let (result, told) = Channel::pair().step("starting to fill the root")?;
        match fork(proof, 0, None).step("starting to fill the root")? {
            Fork::Child(_) => {
                let filled = fill_root(&root, &template, &[]).and_then(|()| {
                    etc::generate(Path::new("/etc"), Path::new("etc")).step("generating /etc")
                });
                let _ = told.send(&filled, &[]);
                exit_now(0)
            }
            Fork::Parent { pidfd, .. } => {
                let template = Template { masks: masks_of(Path::new("/proc")), ..template };
                Ok(Self { template, root, filler: pidfd, result })
            }
        }
    }

    /// Waits until it is full and the child is gone.
    pub(crate) fn finish(self) -> Result<FullRoot, Failure> {
        let step = "filling the root";
        let told = self.result.recv::<Result<(), Failure>>();
        let wait = || waitid(WaitId::PidFd(self.filler.as_fd()), WaitIdOptions::EXITED);
        while wait().is_err_and(|error| error == rustix::io::Errno::INTR) {}
        match told.step(step)? {
            Some((filled, _)) => filled.map(|()| FullRoot { template: self.template, mount: self.root }),
            // Something has killed it.
            None => Err(Failure { step: step.into(), errno: libc::EINTR }),
        }
    }
}

/// Builds the template and makes it this process's root. `idmap` is a user namespace that maps ids on disk to
/// the box's, where the caller can use one.
pub(crate) fn build(
    root_of_boxes: FullRoot,
    idmap: Option<BorrowedFd<'_>>,
    instance: &Path,
) -> Result<Template, Failure> {
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
    let nodes = clone_devices()?;
    // A host without it can have boxes without an isolated network.
    let tun = clone_device("net/tun").ok();
    let storage = clone_with(instance, Reach::One, PLAIN).step("cloning the instance's directory")?;
    attach(&root, base).step("attaching the template")?;
    let at = |path: &str| format!("{base}/{path}");
    for directory in ["proc", "template", "empty", "root", "instance", "files", "disk", "kept", "images"] {
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
    if let Some(tun) = tun {
        fs::write(at("tun"), "").step("making a place for the tun device")?;
        attach(&tun, at("tun")).step("attaching the tun device")?;
    }
    attach(&proc, at("proc")).step("attaching /proc")?;
    attach(&storage, at("instance")).step("attaching the instance's directory")?;
    let FullRoot { template, mount } = root_of_boxes;
    let parts = RootParts { usr: &usr, nodes: &nodes, etc: None };
    attach_root(&mount, &template, &at("template"), idmap, &parts, PLAIN)?;
    enter_root(base).step("entering the template")?;
    Ok(template)
}

/// One overlay over nothing for the private files of all boxes: a plain bind mount of them would tell a box where
/// on the host its files lie. A kernel without overlays: the files are what counts.
pub(crate) fn mount_files(rootless: bool) -> Result<(), Failure> {
    for directory in [BOXES, WORK, SPARE] {
        fs::create_dir(directory).step_with(|| format!("making {directory}"))?;
    }
    let files = make_overlay("/empty", BOXES, WORK, rootless)
        .or_else(|_| clone_with(BOXES, Reach::One, PLAIN))
        .step("mounting the boxes' files")?;
    attach(&files, FILES).step("attaching the boxes' files")
}

/// What is mounted in a root.
struct RootParts<'a> {
    usr: &'a OwnedFd,
    nodes: &'a [(&'static str, OwnedFd)],
    /// One that was generated before; otherwise it is in the root.
    etc: Option<&'a OwnedFd>,
}

/// The root of every box, once, in no tree yet: a file system of its own, so that the mount table of a box names no
/// directory of ours.
fn make_root(attributes: MountAttributes) -> Result<OwnedFd, Failure> {
    make_tmpfs(16 << 20, 16384, "755", attributes).step("making the root")
}

/// Fills a root, but for /etc, while nobody else can see it: only a mount in no tree can still be shown with other ids.
/// From inside, where this process stays, as hundreds of ways there through /proc would take longer than what is done at
/// their ends.
fn fill_root(root: &OwnedFd, template: &Template, places: &[(String, NodeKind)]) -> Result<(), Failure> {
    rustix::process::fchdir(root).step("entering the root")?;
    template.lay_out(".")?;
    lay_out_dev("dev")?;
    for (path, kind) in places {
        make_place(&format!(".{path}"), *kind).step_with(|| format!("making a place for {path}"))?;
    }
    Ok(())
}

/// Puts a root where it belongs. What a box mounts in it is its own, the tree itself nobody can change.
fn attach_root(
    root: &OwnedFd,
    template: &Template,
    at: &str,
    idmap: Option<BorrowedFd<'_>>,
    parts: &RootParts<'_>,
    attributes: MountAttributes,
) -> Result<(), Failure> {
    let RootParts { usr, nodes, etc } = *parts;
    if let Some(namespace) = idmap
        && set_attributes(root.as_fd(), Reach::One, attributes, Some(namespace)).is_err()
    {
        // Before Linux 6.3, no tmpfs can be.
        give(Path::new(&format!("/proc/self/fd/{}", root.as_raw_fd())), HOST_BASE)
            .step("giving the root to the box's root")?;
    }
    attach(root, at).step("attaching the root")?;
    attach(usr, format!("{at}/usr")).step("attaching /usr")?;
    if let Some(etc) = etc {
        attach(etc, format!("{at}/etc")).step("attaching /etc")?;
    }
    for (name, node) in nodes {
        attach(node, format!("{at}/dev/{name}")).step_with(|| format!("attaching /dev/{name}"))?;
    }
    for name in &template.system_directories {
        let mount = clone_system(&format!("/{name}"), idmap).step_with(|| format!("cloning /{name}"))?;
        attach(&mount, format!("{at}/{name}")).step_with(|| format!("attaching /{name}"))?;
    }
    let attributes = MountAttributes { read_only: true, ..attributes };
    set_attributes(root.as_fd(), Reach::One, attributes, None).step("making the root read-only")
}

/// The root of one box alone, with an /etc that was generated before, and places for what will be mounted in it.
/// The mount of the root itself is neither nosuid nor nodev: these would be locked in the box's user namespace, and
/// nsjail since 3.5 makes the root read-only with a call that names no other flag, which the kernel then refuses.
/// Whoever makes the box sets both.
pub(crate) fn build_one(
    at: &str,
    idmap: BorrowedFd<'_>,
    etc: &OwnedFd,
    places: &[(String, NodeKind)],
) -> Result<(), Failure> {
    let usr = clone_system("/usr", Some(idmap)).step("cloning /usr")?;
    let nodes = clone_devices()?;
    let (links, system_directories) = system_entries();
    let template = Template { links, system_directories, masks: Vec::new() };
    let attributes = MountAttributes::default();
    let root = make_root(attributes)?;
    fill_root(&root, &template, places)?;
    rustix::process::chdir("/").step("leaving the root")?;
    let parts = RootParts { usr: &usr, nodes: &nodes, etc: Some(etc) };
    attach_root(&root, &template, at, Some(idmap), &parts, attributes)
}

/// Writes the /etc of boxes to a new directory, once for all of them.
pub fn generate_etc(directory: &Path) -> io::Result<()> {
    fs::create_dir(directory)?;
    etc::generate(Path::new("/etc"), directory)?;
    give(directory, HOST_BASE)?;
    open_to_all(directory)
}

/// Whatever the mask of whoever wrote it.
fn open_to_all(path: &Path) -> io::Result<()> {
    let kind = fs::symlink_metadata(path)?.file_type();
    if kind.is_symlink() {
        return Ok(());
    }
    fs::set_permissions(path, fs::Permissions::from_mode(if kind.is_dir() { 0o755 } else { 0o644 }))?;
    if kind.is_dir() {
        for entry in fs::read_dir(path)? {
            open_to_all(&entry?.path())?;
        }
    }
    Ok(())
}

/// Of the host's /proc, what boxes do not see: names below it, and which are directories.
pub fn hidden_in_proc() -> Vec<(String, NodeKind)> {
    let kind = |directory| if directory { NodeKind::Directory } else { NodeKind::File };
    masks_of(Path::new("/proc")).into_iter().map(|mask| (mask.path, kind(mask.directory))).collect()
}

fn make_place(path: &str, kind: NodeKind) -> io::Result<()> {
    if kind == NodeKind::Directory {
        return fs::create_dir_all(path);
    }
    fs::create_dir_all(Path::new(path).parent().unwrap_or(Path::new("/")))?;
    fs::write(path, "")
}

/// The tree is ours, made a moment ago in memory.
fn give(directory: &Path, owner: u32) -> io::Result<()> {
    lchown(directory, Some(owner), Some(owner))?;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        // The listing tells what it is: another look at each of hundreds would cost as much as the change.
        if entry.file_type()?.is_dir() {
            give(&entry.path(), owner)?;
        } else {
            lchown(entry.path(), Some(owner), Some(owner))?;
        }
    }
    Ok(())
}

impl Template {
    /// Makes the directories and links of a root, without what is in them.
    pub(crate) fn lay_out(&self, at: &str) -> Result<(), Failure> {
        let system = self.system_directories.iter().map(String::as_str);
        for directory in DIRECTORIES.into_iter().chain(system) {
            fs::create_dir(format!("{at}/{directory}")).step_with(|| format!("making /{directory}"))?;
        }
        let links = self.links.iter().map(|(link, target)| (link.as_str(), target.as_str()));
        for (link, target) in links.chain(LINKS) {
            symlink(target, format!("{at}/{link}")).step_with(|| format!("linking /{link}"))?;
        }
        Ok(())
    }
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

/// /bin, /lib and so on: links where /usr is merged, directories where it is not.
fn system_entries() -> (Links, Vec<String>) {
    let (mut links, mut directories) = (Vec::new(), Vec::new());
    for name in ["bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
        let path = format!("/{name}");
        if let Ok(target) = fs::read_link(&path) {
            links.push((name.to_owned(), target.to_string_lossy().into_owned()));
        } else if Path::new(&path).is_dir() {
            directories.push(name.to_owned());
        }
    }
    (links, directories)
}

/// The device nodes: the only mounts of the template on which devices are devices.
fn clone_devices() -> Result<Vec<(&'static str, OwnedFd)>, Failure> {
    let clone = |name: &'static str| clone_device(name).map(|mount| (name, mount));
    DEVICES.into_iter().map(clone).collect::<io::Result<Vec<_>>>().step("cloning the device nodes")
}

fn clone_device(name: &str) -> io::Result<OwnedFd> {
    let attributes = MountAttributes { no_suid: true, no_exec: true, ..Default::default() };
    clone_with(format!("/dev/{name}"), Reach::One, attributes)
}

/// /dev: of mode 755. In a sticky world-writable one, `> /dev/null` by another user than the node's owner is
/// refused, because a shell opens with O_CREAT.
fn lay_out_dev(base: &str) -> Result<(), Failure> {
    for name in DEVICES {
        fs::write(format!("{base}/{name}"), "").step_with(|| format!("making /dev/{name}"))?;
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
    Ok(())
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
