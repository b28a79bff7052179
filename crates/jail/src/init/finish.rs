//! The second phase: the session's own mounts, then everything init no longer needs is given up and looked for.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::symlink;

use rustix::fs::{CWD, Mode, OFlags, open};
use rustix::mount::{FsPickFlags, fsconfig_reconfigure, fsconfig_set_string, fspick};
use rustix::process::{DumpableBehavior, Resource, Rlimit as Bound, Signal, getrlimit, setrlimit};
use rustix::thread::CapabilitySet;
use sandcrate_protocol::{Control, Enforcement};
use sandcrate_sys::mount::{Reach, set_attributes};

use super::{Filters, own_root, path_walk, prepare::mount_terminals};
use crate::identity::{BOX_USER, INIT_USER, IdMapping, become_ids};
use crate::message::{Failure, Step};
use crate::mounts::{PLAIN_READ_ONLY, attach_on};
use crate::plan::{MountSource, NetworkMode, Plan, Rlimit, RootMode, USUAL_TMPFS_BYTES};
use crate::template::Template;
use crate::{landlock_rules, privileges};

pub(super) fn finish(
    plan: &Plan,
    mounts: Vec<OwnedFd>,
    run_directory: Option<&OwnedFd>,
    template: &Template,
    filters: &Filters,
) -> Result<Enforcement, Failure> {
    let mut record = Enforcement::new();
    let own_root = own_root::is_needed(plan);
    let handed = Handed::sort(plan, mounts)?;
    if let (true, Some(layer)) = (plan.layered, handed.overlays.first()) {
        own_root::take_layer(layer, plan)?;
    } else if own_root {
        own_root::take(template)?;
    }
    resize("/tmp", plan.tmp_bytes)?;
    resize("/dev/shm", plan.shm_bytes)?;
    if plan.user != BOX_USER {
        mount_terminals("/dev/pts", plan.user)?;
    }
    place_mounts(plan, handed)?;
    if own_root && plan.root == RootMode::ReadOnly {
        let root = open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).step("opening the root")?;
        set_attributes(root.as_fd(), Reach::One, PLAIN_READ_ONLY, None).step("making the root read-only")?;
    }
    set_rlimits(plan, &mut record)?;
    // Not before the mounts: a restricted process may not mount. Not after the drop: it needs no privilege, but
    // opens the places it names.
    let (state, by) = landlock_rules::restrict(&plan.writable, run_directory.map(AsFd::as_fd))?;
    record.record(Control::Landlock, state, by);
    let keep = kept_capabilities(plan.mapping);
    if !plan.mapping.is_rootless() {
        become_ids(INIT_USER, INIT_USER).step("becoming init's user")?;
    }
    privileges::drop_to(keep)?;
    // Cleared by every change of ids, so after the last one; the launcher's end is seen on the channel too.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).step("tying to the launcher")?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).step("closing to tracers")?;
    sandcrate_sys::seccomp::load(&filters.init).step("loading the seccomp filter")?;
    privileges::verify(keep)?;
    report(plan, template, &mut record);
    Ok(record)
}

/// What PID 1 needs to start commands as another user and to end them; nothing when it is the same user.
pub(super) fn kept_capabilities(mapping: IdMapping) -> CapabilitySet {
    match mapping {
        IdMapping::Range => CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::KILL,
        IdMapping::Single { .. } => CapabilitySet::empty(),
    }
}

fn resize(path: &str, bytes: u64) -> Result<(), Failure> {
    if bytes == USUAL_TMPFS_BYTES {
        return Ok(());
    }
    let resize = || {
        let context = fspick(CWD, path, FsPickFlags::FSPICK_CLOEXEC)?;
        fsconfig_set_string(&context, "size", bytes.to_string())?;
        fsconfig_reconfigure(&context)
    };
    resize().step_with(|| format!("sizing {path}"))
}

/// What the launcher handed in, each kind in the plan's order. They have their attributes already.
struct Handed {
    storages: Vec<OwnedFd>,
    overlays: Vec<OwnedFd>,
    requested: Vec<OwnedFd>,
}

impl Handed {
    fn sort(plan: &Plan, mut mounts: Vec<OwnedFd>) -> Result<Self, Failure> {
        let of =
            |kind: fn(&MountSource) -> bool| plan.mounts.iter().filter(|mount| kind(&mount.source)).count();
        let storages = of(|source| matches!(source, MountSource::Storage { .. }));
        let overlays = of(|source| matches!(source, MountSource::Overlay { .. }));
        if mounts.len() != plan.mounts.len() {
            return Err(Failure {
                step: "other mounts were handed in than planned".into(),
                errno: libc::EBADF,
            });
        }
        let requested = mounts.split_off(storages + overlays);
        let overlays = mounts.split_off(storages);
        Ok(Self { storages: mounts, overlays, requested })
    }
}

fn place_mounts(plan: &Plan, handed: Handed) -> Result<(), Failure> {
    let Handed { storages, overlays, requested } = handed;
    let mut storages = storages.into_iter();
    // The layer over the whole root is there already.
    for mount in plan.mounts.iter().filter(|mount| mount.target != "/") {
        let target = &mount.target;
        let next;
        let source = match &mount.source {
            MountSource::Storage { .. } => {
                next = storages.next();
                next.as_ref()
            }
            MountSource::Overlay { index } => overlays.get(*index),
            MountSource::Requested { index } => requested.get(*index),
        };
        let source = source.ok_or_else(|| Failure {
            step: format!("the mount of {target} was not handed in"),
            errno: libc::EBADF,
        })?;
        let place = path_walk::mount_point(target, mount.kind, plan.user)
            .step_with(|| format!("finding the mount target {target}"))?;
        attach_on(source, &place).step_with(|| format!("mounting {target}"))?;
    }
    if plan.root == RootMode::Writable && !plan.layered {
        furnish_var()?;
    }
    Ok(())
}

/// A writable root has an empty /var of its own.
fn furnish_var() -> Result<(), Failure> {
    for directory in ["/var/cache", "/var/lib", "/var/log", "/var/spool"] {
        match fs::create_dir(directory) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            other => other.step_with(|| format!("making {directory}"))?,
        }
    }
    for (link, target) in [("/var/tmp", "../tmp"), ("/var/run", "../run")] {
        match symlink(target, link) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            other => other.step_with(|| format!("linking {link}"))?,
        }
    }
    Ok(())
}

fn set_rlimits(plan: &Plan, record: &mut Enforcement) -> Result<(), Failure> {
    for limit in &plan.rlimits {
        let resource = match limit.resource {
            Rlimit::Core => Resource::Core,
            Rlimit::OpenFiles => Resource::Nofile,
            Rlimit::LockedMemory => Resource::Memlock,
            Rlimit::MessageQueues => Resource::Msgqueue,
            Rlimit::RealtimePriority => Resource::Rtprio,
            Rlimit::Nice => Resource::Nice,
            Rlimit::PendingSignals => Resource::Sigpending,
            Rlimit::Processes => Resource::Nproc,
            Rlimit::Data => Resource::Data,
        };
        // What we have may be less than what was asked for, and cannot be raised.
        let value = getrlimit(resource).maximum.map_or(limit.value, |most| most.min(limit.value));
        let bound = Bound { current: Some(value), maximum: Some(value) };
        setrlimit(resource, bound).step_with(|| format!("limiting {:?}", limit.resource))?;
    }
    record.enforced(
        Control::Rlimits,
        "open files, locked memory, message queues, pending signals bounded; no core dumps",
    );
    Ok(())
}

fn report(plan: &Plan, template: &Template, record: &mut Enforcement) {
    match plan.mapping {
        IdMapping::Range => record.enforced(
            Control::Identity,
            format!("user namespace: commands are box uid {}, host uid {}", plan.user, plan.mapping.host_uid(plan.user)),
        ),
        IdMapping::Single { uid, .. } => record.degraded(
            Control::Identity,
            format!("user namespace with one id: commands, init and files are host uid {uid}, supplementary groups stay; seccomp keeps commands off init"),
        ),
    }
    record.enforced(
        Control::Namespaces,
        "user, mount, pid, ipc, uts and cgroup namespaces of its own; nesting forbidden",
    );
    record.enforced(
        Control::Filesystem,
        match (plan.root, &plan.image) {
            (RootMode::ReadOnly, None) => "own root of the host's /usr, read-only, and a generated /etc; nosuid and nodev on every mount".to_owned(),
            (RootMode::Writable, None) => "own root; changes go to an overlay on the session's storage; nosuid and nodev on every mount".to_owned(),
            (RootMode::ReadOnly, Some(image)) => format!("own root of image `{image}`, read-only; nosuid and nodev on every mount"),
            (RootMode::Writable, Some(image)) => format!("own root of image `{image}`; changes go to an overlay on the session's storage; nosuid and nodev on every mount"),
        },
    );
    record.enforced(
        Control::ProcMasks,
        format!("own procfs, settings read-only, {} files covered", template.masks.len()),
    );
    record.enforced(
        Control::Capabilities,
        "none; bounding set empty, no_new_privs, secure bits locked, read back",
    );
    record
        .enforced(Control::Seccomp, "allow list; other calls get an error, foreign architectures are killed");
    record
        .enforced(Control::NoSetuid, "seccomp refuses every form of setting the bits; every mount is nosuid");
    match plan.network {
        NetworkMode::Off => record
            .enforced(Control::Network, "empty network namespace with loopback; unix and inet sockets only"),
        NetworkMode::Isolated => record.enforced(
            Control::Network,
            "own network namespace with loopback and one tun device; no raw sockets",
        ),
        NetworkMode::Host => record.absent(Control::Network, "the host's network, as asked for"),
    }
    let charged = plan.rlimits.iter().all(|limit| limit.resource != Rlimit::Data);
    let whose = if charged { "charged to the box's memory" } else { "beside the memory of its processes" };
    record.enforced(
        Control::Tmpfs,
        format!("/tmp {} MiB, /dev/shm {} MiB, {whose}", plan.tmp_bytes >> 20, plan.shm_bytes >> 20),
    );
}
