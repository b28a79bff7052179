//! The maker: from an order to the nsjail of a session.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use sandcrate_sys::mount::{MountAttributes, Reach, set_attributes};
use sandcrate_sys::process::{Fork, SingleThreaded, exit_now, fork, unshare};

use super::{BLANK, BoxOrder, EMPTY, FILES, HOLDER, Nsjail, ROOT, SOURCES, join, next};
use crate::channel::Channel;
use crate::identity::{IdMapping, mount_map};
use crate::init::command::Never;
use crate::message::{Failure, InitReply, Step};
use crate::mounts::{PLAIN, PLAIN_READ_ONLY, attach, clone_at, clone_with, make_overlay, make_tmpfs};
use crate::plan::{Access, NodeKind};
use crate::userns::IdMap;
use crate::{remove_tree, template};

/// Everything the maker makes lies here, on a tmpfs that only its own mount namespace has. nsjail has its own
/// scratch directories there too, and so leaves none on the host.
const AREA: &str = "/tmp";
const STORE: &str = "/tmp/store";
const ETC: &str = "/tmp/etc";

pub(super) fn run() -> ! {
    let Ok(control) = sandcrate_sys::fd::take_stdin().map(Channel::from) else { exit_now(1) };
    let failure = match make(&control) {
        Err(failure) => failure,
        Ok(never) => match never {},
    };
    let _ = control.send(&InitReply::Failed { failure }, &[]);
    exit_now(1)
}

fn make(control: &Channel) -> Result<Never, Failure> {
    let proof = SingleThreaded::prove().step("counting threads")?;
    let Some((order, fds)) = control.recv::<BoxOrder>().step("reading the order")? else { exit_now(0) };
    let mut fds = fds.into_iter();
    let nsjail = Nsjail::take(&mut fds)?;
    // First of all: what a box costs is the box's, and what is in its cgroup can be ended with it.
    join(&mut fds, order.tasks)?;
    let proof = if order.unified { enter(&proof, &next(&mut fds)?)? } else { proof };
    rustix::process::umask(Mode::from_raw_mode(0o022));
    // Before the change of mount namespaces: only mounts of one's own can be cloned.
    let etc = clone_at(next(&mut fds)?.as_fd(), "", Reach::One).step("cloning /etc")?;
    let storage = clone_at(next(&mut fds)?.as_fd(), "", Reach::One).step("cloning the storage")?;
    let sources = order.sources.iter().map(|source| {
        let mount = clone_at(next(&mut fds)?.as_fd(), "", Reach::One);
        mount.step_with(|| format!("cloning {}", source.name))
    });
    let sources: Vec<OwnedFd> = sources.collect::<Result<_, _>>()?;
    unshare(&proof, libc::CLONE_NEWNS).step("leaving the host's mounts")?;
    let root = open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).step("opening the root")?;
    set_attributes(root.as_fd(), Reach::Tree, MountAttributes::default(), None)
        .step("keeping mounts to ourselves")?;
    lay_out_area()?;
    lay_out_storage(&storage)?;
    lay_out_sources(&proof, &order, sources)?;
    let (uids, gids) = IdMapping::Range.proc_maps(order.user);
    let idmap = IdMap::make(&proof, &uids, &gids).step("making an id map")?;
    let etc = lay_out_etc(&etc)?;
    template::build_one(ROOT, idmap.as_fd(), &etc, &order.places)?;
    // What becomes of this process waits for nobody it does not know.
    drop(idmap);
    nsjail.become_it(HOLDER)
}

/// Goes on as a child in the v2 cgroup: a move of this process itself would wait for the kernel, a clone does not.
/// The parent waits, so that whoever waits for it learns of the end.
fn enter(proof: &SingleThreaded, cgroup: &OwnedFd) -> Result<SingleThreaded, Failure> {
    match fork(proof, 0, Some(cgroup.as_fd())).step("entering the session's cgroup")? {
        Fork::Child(proof) => {
            let death = rustix::process::Signal::KILL;
            rustix::process::set_parent_process_death_signal(Some(death)).step("tying to the owner")?;
            Ok(proof)
        }
        Fork::Parent { pidfd, .. } => {
            let proof = SingleThreaded::prove().step("counting threads")?;
            let _ = sandcrate_sys::fd::close_all_but(&proof, &[pidfd.as_fd()]);
            let wait = rustix::process::WaitId::PidFd(pidfd.as_fd());
            let _ = rustix::process::waitid(wait, rustix::process::WaitIdOptions::EXITED);
            exit_now(0)
        }
    }
}

fn lay_out_area() -> Result<(), Failure> {
    let area = make_tmpfs(4 << 20, 4096, "1777", PLAIN).step("making the area")?;
    attach(&area, AREA).step("attaching the area")?;
    for directory in [ROOT, FILES, SOURCES, EMPTY, STORE, ETC] {
        fs::create_dir(directory).step_with(|| format!("making {directory}"))?;
    }
    fs::write(BLANK, "").step("making the blank file")
}

/// Private files are seen by an overlay over nothing: a bind mount would tell where on the host they lie.
fn lay_out_storage(storage: &OwnedFd) -> Result<(), Failure> {
    set_attributes(storage.as_fd(), Reach::One, PLAIN, None).step("protecting the storage")?;
    attach(storage, STORE).step("attaching the storage")?;
    let (files, work) = (format!("{STORE}/files"), format!("{STORE}/work"));
    // One that a volatile overlay has used is refused by the next.
    match remove_tree::remove(std::path::Path::new(&work)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => fs::create_dir(&work),
    }
    .step("making the storage's work directory anew")?;
    let seen = make_overlay(EMPTY, &files, &work, false)
        .or_else(|_| clone_with(&files, Reach::One, PLAIN))
        .step("mounting the storage")?;
    attach(&seen, FILES).step("attaching the session's files")
}

/// By an overlay too, for the same reason.
fn lay_out_etc(etc: &OwnedFd) -> Result<OwnedFd, Failure> {
    set_attributes(etc.as_fd(), Reach::One, PLAIN_READ_ONLY, None).step("protecting /etc")?;
    attach(etc, ETC).step("attaching /etc")?;
    let lower = format!("{ETC}:{EMPTY}");
    crate::mounts::make(c"overlay", [("source", "overlay"), ("lowerdir", lower.as_str())], PLAIN_READ_ONLY)
        .or_else(|_| clone_with(ETC, Reach::One, PLAIN_READ_ONLY))
        .step("mounting /etc")
}

/// Shown with their owner as the box's user.
fn lay_out_sources(proof: &SingleThreaded, order: &BoxOrder, mounts: Vec<OwnedFd>) -> Result<(), Failure> {
    let mut maps: Vec<((u32, u32), IdMap)> = Vec::new();
    for (index, (source, mount)) in order.sources.iter().zip(mounts).enumerate() {
        let known = maps.iter().position(|(owner, _)| *owner == source.owner);
        let known = match known {
            Some(known) => known,
            None => {
                let (uids, gids) =
                    (mount_map(source.owner.0, order.user), mount_map(source.owner.1, order.user));
                maps.push((source.owner, IdMap::make(proof, &uids, &gids).step("making an id map")?));
                maps.len() - 1
            }
        };
        let attributes = if source.access == Access::ReadOnly { PLAIN_READ_ONLY } else { PLAIN };
        set_attributes(mount.as_fd(), Reach::One, attributes, Some(maps[known].1.as_fd()))
            .step_with(|| format!("mapping the owner of {}", source.name))?;
        let place = format!("{SOURCES}/{index}");
        match source.kind {
            NodeKind::Directory => fs::create_dir(&place),
            NodeKind::File => fs::write(&place, ""),
        }
        .step_with(|| format!("making {place}"))?;
        attach(&mount, place.as_str()).step_with(|| format!("attaching {}", source.name))?;
    }
    Ok(())
}
