//! What the network helper gives up before it looks at the first packet.
//!
//! It reads what hostile programs send, so it has nothing but its channel: no files (an empty root of its own, and
//! Landlock behind it), no privileges, an id that nobody else has where it was started by root, and system calls
//! for sockets of the internet families only. It stays in the network namespace of the host: that is its work.
//! Everything is looked at afterwards; whoever is told of an error here must not serve.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::process::{
    DumpableBehavior, Resource, Rlimit as Bound, Signal, getrlimit, getuid, set_dumpable_behavior, setrlimit,
};
use rustix::thread::{CapabilitiesSecureBits, CapabilitySet, set_capabilities_secure_bits};
use sandcrate_protocol::State;
use sandcrate_sys::process::{SingleThreaded, unshare};

use crate::identity::{HELPER_ID, IdMapping, become_ids};
use crate::message::{Failure, Step};
use crate::mounts::{PLAIN_READ_ONLY, attach, enter_root, make_tmpfs};
use crate::seccomp::network_helper_filter;
use crate::{landlock_rules, privileges, userns};

/// Confines this process, which has one thread and keeps `channel` alone. Returns what holds it, read back.
///
/// # Errors
/// The step that failed. The process is then neither what it was nor confined: it must end.
pub fn confine_network_helper(channel: BorrowedFd<'_>) -> Result<String, Failure> {
    // Compiled before files are out of reach.
    let filter = network_helper_filter().map_err(|error| Failure {
        step: format!("compiling the helper's seccomp policy ({error})"),
        errno: libc::EINVAL,
    })?;
    let proof = SingleThreaded::prove().step("looking for threads")?;
    close_everything(&proof, channel)?;
    // Ctrl-C at a terminal is for the daemon.
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"sandcrate-net");
    let mapping = IdMapping::for_this_user();
    leave_the_files(&proof, mapping)?;
    bound_resources()?;
    if mapping == IdMapping::Range {
        // Leaving root's id must not cost the capabilities that dropping them for good needs.
        set_capabilities_secure_bits(CapabilitiesSecureBits::NO_SETUID_FIXUP).step("keeping capabilities")?;
        rustix::thread::set_thread_groups(&[]).step("leaving supplementary groups")?;
        become_ids(HELPER_ID, HELPER_ID).step("becoming the helper's user")?;
    }
    privileges::drop_to(CapabilitySet::empty())?;
    // Cleared by every change of ids, so after the last one. The thread that started us lives as long as we do.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).step("tying to the daemon")?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).step("closing to tracers")?;
    verify(mapping)?;
    let landlock = landlock_rules::restrict_to_nothing()?;
    sandcrate_sys::seccomp::load(&filter).step("loading the seccomp filter")?;
    verify_filter()?;
    let user = match mapping {
        IdMapping::Range => format!("uid {HELPER_ID} of its own"),
        IdMapping::Single { .. } => "a user namespace of its own".to_owned(),
    };
    let landlock = match landlock {
        State::Enforced => ", Landlock",
        State::Degraded => ", Landlock of an older kernel",
        State::Absent => "",
    };
    Ok(format!("no privileges, {user}, empty root{landlock}, seccomp"))
}

fn close_everything(proof: &SingleThreaded, channel: BorrowedFd<'_>) -> Result<(), Failure> {
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).step("opening /dev/null")?;
    // The daemon's log, or a terminal: nothing that comes from a box is ever to be written there.
    rustix::stdio::dup2_stdout(&null)
        .and_then(|()| rustix::stdio::dup2_stderr(&null))
        .step("leaving the daemon's log")?;
    drop(null);
    sandcrate_sys::fd::close_all_but(proof, &[channel]).step("closing descriptors")
}

/// Into an empty, read-only root.
fn leave_the_files(proof: &SingleThreaded, mapping: IdMapping) -> Result<(), Failure> {
    const APART: libc::c_int =
        libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS | libc::CLONE_NEWCGROUP;
    if let IdMapping::Single { uid, gid } = mapping {
        userns::enter_own(proof, uid, gid, APART)?;
    } else {
        unshare(proof, APART).step("making namespaces")?;
    }
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .step("making mounts private")?;
    let root = make_tmpfs(4096, 2, "555", PLAIN_READ_ONLY).step("making an empty root")?;
    // Any directory does: the mount namespace is ours alone.
    attach(&root, "/tmp").step("attaching the empty root")?;
    enter_root("/tmp").step("entering the empty root")
}

fn bound_resources() -> Result<(), Failure> {
    // Each connection is one.
    let most = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Bound { current: most, maximum: most }).step("raising open files")?;
    let none = Bound { current: Some(0), maximum: Some(0) };
    for resource in [Resource::Core, Resource::Fsize, Resource::Nproc, Resource::Memlock, Resource::Msgqueue]
    {
        setrlimit(resource, none).step("bounding resources")?;
    }
    Ok(())
}

fn verify(mapping: IdMapping) -> Result<(), Failure> {
    privileges::verify(CapabilitySet::empty())?;
    let failed = |what: &str| Failure { step: format!("{what} not as set"), errno: libc::EPERM };
    if mapping == IdMapping::Range && getuid().as_raw() != HELPER_ID {
        return Err(failed("the helper's user"));
    }
    if rustix::process::dumpable_behavior() != Ok(DumpableBehavior::NotDumpable) {
        return Err(failed("dumpable"));
    }
    let entries = std::fs::read_dir("/").step("looking at the root")?.count();
    if entries != 0 {
        return Err(failed("the empty root"));
    }
    Ok(())
}

/// The filter is believed when it refuses.
fn verify_filter() -> Result<(), Failure> {
    let opened = open("/", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let unix = socket(AddressFamily::UNIX, SocketType::STREAM, None);
    let inet = socket(AddressFamily::INET, SocketType::STREAM, None);
    // Landlock would say EACCES: EPERM is the filter's word.
    if opened.err() != Some(Errno::PERM) || unix.err() != Some(Errno::AFNOSUPPORT) {
        return Err(Failure { step: "the seccomp filter does not hold".into(), errno: libc::EPERM });
    }
    inet.map(drop).step("making a socket behind the filter")
}

impl From<Failure> for io::Error {
    fn from(failure: Failure) -> Self {
        Self::other(failure.to_string())
    }
}
