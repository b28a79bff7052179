//! The mounts and limits of one session: sources cloned where the host's paths mean something, id-mapped so that
//! their owner is the box's user; storage; overlays for a writable root.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, CWD, FlockOperation, Gid, Mode, OFlags, ResolveFlags, Uid, chownat, mkdirat, open, openat2,
    rename, statat,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sandcrate_sys::mount::{Reach, set_attributes};
use sandcrate_sys::{loopdev, quota};

use super::{Launcher, images};
use crate::identity::mount_map;
use crate::message::{Failure, FurnishOrder, SourceMount, Step, StorageSource};
use crate::mounts::{
    PLAIN, PLAIN_READ_ONLY, attach, clone_at, clone_with, detach, make, make_overlay, make_tmpfs,
};
use crate::plan::{Access, OVERLAID, RootMode};
use crate::remove_tree;
use crate::template::{BOXES, FILES, ROOT, SPARE};
use crate::userns::IdMap;

/// See `template`.
const DISK: &str = "/disk";
const KEPT: &str = "/kept";

/// Directories made ahead of time, as the latest box wanted them: most boxes want the same. For as many boxes as wanted
/// them in a row: a crowd that comes at once is likely to come again, and would wait for a file system that makes one
/// directory after the other.
#[derive(Debug, Default)]
pub(super) struct SpareFiles {
    user: u32,
    directories: Vec<String>,
    wanted_in_a_row: usize,
    /// The numbers of those that are there.
    made: Vec<u64>,
    /// Of those that another kind of box wanted.
    useless: Vec<u64>,
    next: u64,
}

impl Launcher {
    /// Detached mounts in the order of the reply: directories of the storage, overlays, sources.
    pub(super) fn furnish(
        &mut self,
        box_id: u64,
        order: &FurnishOrder,
        fds: Vec<OwnedFd>,
    ) -> Result<Vec<OwnedFd>, Failure> {
        if let Some(cgroup) = self.open_cgroup(box_id) {
            let limited = cgroup.and_then(|cgroup| cgroup.set_limits(&order.limits));
            limited.map_err(|error| Failure {
                step: format!("setting limits ({error})"),
                errno: libc::EINVAL,
            })?;
        }
        let overlaid = self.overlaid(box_id, order)?;
        let mut handed = fds.into_iter();
        let kept = match &order.kept {
            Some(path) => Some(self.kept_directory(path, &handed.next().ok_or_else(missing)?)?),
            None => None,
        };
        let mut mounts = match order.storage {
            StorageSource::Directory | StorageSource::ProjectDirectory { .. } if kept.is_some() => {
                self.lay_out_kept(kept.as_ref(), order, &overlaid)?
            }
            StorageSource::Directory | StorageSource::ProjectDirectory { .. } => {
                let name = &order.storage_name;
                self.lay_out(&format!("{BOXES}/{name}"), &format!("{FILES}/{name}"), order, &overlaid)?
            }
            StorageSource::Image => {
                let image = handed.next().ok_or_else(missing)?;
                let disk = self.among_host_mounts(|| mount_image(image.as_fd()))?;
                self.lay_out_disk(&disk, order, &overlaid)?
            }
            StorageSource::Memory { bytes, inodes } => {
                let disk = make_tmpfs(bytes, inodes, "755", PLAIN).step("making the storage in memory")?;
                self.lay_out_disk(&disk, order, &overlaid)?
            }
        };
        for source in &order.sources {
            let fd = handed.next().ok_or_else(missing)?;
            mounts.push(self.source(source, fd.as_fd(), order.user)?);
        }
        Ok(mounts)
    }

    /// Names and lower layers of the overlays that the box gets.
    fn overlaid(&self, box_id: u64, order: &FurnishOrder) -> Result<Vec<(&'static str, String)>, Failure> {
        let image = self.boxes.get(&box_id).and_then(|record| record.image);
        match (image, order.layered, order.root) {
            (Some(image), true, _) => Ok(vec![("root", images::layer_of(image))]),
            (None, false, RootMode::Writable) => {
                Ok(OVERLAID.iter().map(|name| (*name, format!("{ROOT}/{name}"))).collect())
            }
            (_, false, RootMode::ReadOnly) => Ok(Vec::new()),
            _ => Err(Failure { step: "the plan is not for this box's root".into(), errno: libc::EINVAL }),
        }
    }

    /// Runs `work` where the host's paths and mounts are.
    pub(super) fn among_host_mounts<T>(
        &self,
        work: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let enter = |namespace: &OwnedFd| {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))
                .step("changing the mount namespace")
        };
        enter(&self.host_mounts)?;
        let result = work();
        enter(&self.own_mounts)?;
        result
    }

    /// A directory of the host that holds the files of one session for longer than its box.
    fn kept_directory(&self, path: &std::path::Path, fd: &OwnedFd) -> Result<OwnedFd, Failure> {
        let mount = self.among_host_mounts(|| self.clone_checked(path, fd.as_fd()))?;
        set_attributes(mount.as_fd(), Reach::One, PLAIN, None).step("protecting the kept storage")?;
        Ok(mount)
    }

    /// As for every other box by an overlay over nothing, but over this directory alone.
    fn lay_out_kept(
        &mut self,
        kept: Option<&OwnedFd>,
        order: &FurnishOrder,
        overlaid: &[(&str, String)],
    ) -> Result<Vec<OwnedFd>, Failure> {
        attach(kept.ok_or_else(missing)?, KEPT).step("attaching the kept storage")?;
        let (files, work) = (format!("{KEPT}/box"), format!("{KEPT}/work"));
        let laid_out = (|| {
            self.make_owned(&files, 0)?;
            fresh(&work)?;
            let seen = make_overlay("/empty", &files, &work, self.mapping.is_rootless())
                .or_else(|_| clone_with(&files, Reach::One, PLAIN))
                .step("mounting the kept files")?;
            attach(&seen, DISK).step("attaching the kept files")?;
            let mounts = self.lay_out(&files, DISK, order, overlaid);
            detach(DISK).step("detaching the kept files")?;
            mounts
        })();
        detach(KEPT).step("detaching the kept storage")?;
        laid_out
    }

    /// A file system for one session.
    fn lay_out_disk(
        &mut self,
        disk: &OwnedFd,
        order: &FurnishOrder,
        overlaid: &[(&str, String)],
    ) -> Result<Vec<OwnedFd>, Failure> {
        attach(disk, DISK).step("attaching the disk")?;
        let mounts = self.lay_out(DISK, DISK, order, overlaid);
        detach(DISK).step("detaching the disk")?;
        mounts
    }

    /// The directories of the storage as the box sees them, then the overlays of a writable root. `base` is where
    /// the storage is, `seen` the same place as boxes see it: nothing there has been looked at before.
    fn lay_out(
        &mut self,
        base: &str,
        seen: &str,
        order: &FurnishOrder,
        overlaid: &[(&str, String)],
    ) -> Result<Vec<OwnedFd>, Failure> {
        if let StorageSource::ProjectDirectory { project, bytes, inodes } = order.storage {
            let directory = open(base, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .step("opening the storage")?;
            // First of all: what is made from here on is counted.
            quota::set_project(directory.as_fd(), project).step("setting the storage's project")?;
            quota::set_limit(directory.as_fd(), project, bytes, inodes)
                .step("setting the storage's quota")?;
        }
        let files = format!("{base}/files");
        if !self.take_spare_files(&files, order) {
            self.make_files(&files, &order.directories, order.user)?;
        }
        let seen = |directory: &String| clone_at(CWD, format!("{seen}/files/{directory}"), Reach::One);
        let cloned = order.directories.iter().map(seen).collect::<Result<Vec<_>, _>>();
        let mut mounts = cloned.step("laying out the storage")?;
        for (name, lower) in overlaid {
            let (upper, work) = (format!("{base}/upper-{name}"), format!("{base}/work-{name}"));
            self.make_owned(&upper, 0)?;
            if order.kept.is_some() {
                fresh(&work)?;
            }
            self.make_owned(&work, 0)?;
            let overlay = make_overlay(lower, &upper, &work, self.mapping.is_rootless());
            mounts.push(overlay.step_with(|| format!("laying an overlay over {lower}"))?);
        }
        Ok(mounts)
    }

    fn make_files(&self, files: &str, directories: &[String], user: u32) -> Result<(), Failure> {
        self.make_owned(files, user)?;
        directories.iter().try_for_each(|directory| self.make_owned(&format!("{files}/{directory}"), user))
    }

    /// True when directories made ahead of time are what this box wants, and are its own now. Nobody has seen
    /// them before. Not for a box with a project: its directories must be made in it.
    fn take_spare_files(&mut self, files: &str, order: &FurnishOrder) -> bool {
        if order.storage != StorageSource::Directory || order.kept.is_some() {
            return false;
        }
        let spare = &mut self.spare_files;
        if (spare.user, &spare.directories) != (order.user, &order.directories) {
            (spare.user, spare.directories) = (order.user, order.directories.clone());
            spare.wanted_in_a_row = 0;
            spare.useless.append(&mut spare.made);
        }
        spare.wanted_in_a_row += 1;
        let Some(number) = spare.made.pop() else { return false };
        let taken = rename(format!("{SPARE}/{number}"), files).is_ok();
        if !taken {
            // A session that comes back has its own.
            spare.useless.push(number);
        }
        taken
    }

    /// Makes directories for the next box, and for so many more, like the latest; removes so many that no box wants.
    /// What cannot be made now is tried again, and reported, when it is needed.
    pub(super) fn stock_files(&mut self, more: usize) {
        let useless = &mut self.spare_files.useless;
        // More than one box makes useless, or they would become more as long as boxes come.
        for number in useless.drain(useless.len().saturating_sub(more.max(2))..) {
            // What cannot be removed goes with the instance's directory.
            let _ = remove_tree::remove(std::path::Path::new(&format!("{SPARE}/{number}")));
        }
        let enough = (self.spare_files.made.len() + more).max(1);
        while self.spare_files.made.len() < enough && self.has_fewer_than_wanted() {
            let spare = &self.spare_files;
            let number = spare.next;
            let made = self.make_files(&format!("{SPARE}/{number}"), &spare.directories, spare.user);
            let spare = &mut self.spare_files;
            spare.next += 1;
            if made.is_err() {
                spare.useless.push(number);
                spare.wanted_in_a_row = 0;
                return;
            }
            spare.made.push(number);
        }
    }

    /// Whether there is work left for [`Self::stock_files`].
    pub(super) fn has_files_to_stock(&self) -> bool {
        !self.spare_files.useless.is_empty() || self.has_fewer_than_wanted()
    }

    fn has_fewer_than_wanted(&self) -> bool {
        self.spare_files.made.len() < self.spare_files.wanted_in_a_row.min(self.boxes_ahead)
    }

    /// Makes a directory of the storage for a user of the box.
    fn make_owned(&self, path: &str, user: u32) -> Result<(), Failure> {
        match mkdirat(CWD, path, Mode::from_raw_mode(0o755)) {
            // A session that comes back.
            Err(rustix::io::Errno::EXIST) => return Ok(()),
            other => other.step_with(|| format!("making {path}"))?,
        }
        if self.mapping.is_rootless() {
            return Ok(());
        }
        let (uid, gid) =
            (Uid::from_raw(self.mapping.host_uid(user)), Gid::from_raw(self.mapping.host_gid(user)));
        chownat(CWD, path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
            .step_with(|| format!("giving {path} to the box"))
    }

    /// Clones what the daemon has opened. An ordinary user's launcher has mounts of its own, so it has to find
    /// the path again, and looks whether it is still the same thing.
    pub(super) fn clone_checked(
        &self,
        path: &std::path::Path,
        fd: BorrowedFd<'_>,
    ) -> Result<OwnedFd, Failure> {
        let name = path.display();
        if !self.mapping.is_rootless() {
            return clone_at(fd, "", Reach::One).step_with(|| format!("cloning {name}"));
        }
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let again = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
            .step_with(|| format!("finding {name} again"))?;
        let (was, is) = (statat(fd, "", AtFlags::EMPTY_PATH), statat(&again, "", AtFlags::EMPTY_PATH));
        match (was, is) {
            (Ok(was), Ok(is)) if (was.st_dev, was.st_ino) == (is.st_dev, is.st_ino) => {}
            _ => {
                return Err(Failure {
                    step: format!("{name} has changed since it was checked"),
                    errno: libc::ESTALE,
                });
            }
        }
        match clone_at(again.as_fd(), "", Reach::One) {
            // What is mounted below must come along: an ordinary user may not uncover what a mount hides.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                clone_at(again.as_fd(), "", Reach::Tree).step_with(|| format!("cloning {name}"))
            }
            other => other.step_with(|| format!("cloning {name}")),
        }
    }

    fn source(&mut self, source: &SourceMount, fd: BorrowedFd<'_>, user: u32) -> Result<OwnedFd, Failure> {
        let mount = self.among_host_mounts(|| self.clone_checked(&source.path, fd))?;
        let attributes = if source.access == Access::ReadOnly { PLAIN_READ_ONLY } else { PLAIN };
        if self.mapping.is_rootless() {
            set_attributes(mount.as_fd(), Reach::Tree, attributes, None)
                .step_with(|| format!("protecting {}", source.path.display()))?;
            return Ok(mount);
        }
        let key = (source.owner.0, source.owner.1, user);
        if !self.idmaps.contains_key(&key) {
            let (uids, gids) = (mount_map(source.owner.0, user), mount_map(source.owner.1, user));
            let namespace = IdMap::make(&self.proof, &uids, &gids).step("making an id map")?;
            // A bound on open files: sessions rarely have more than a few kinds of owners.
            if self.idmaps.len() >= 64 {
                self.idmaps.clear();
            }
            self.idmaps.insert(key, namespace);
        }
        let idmap = self.idmaps.get(&key).map(AsFd::as_fd);
        set_attributes(mount.as_fd(), Reach::One, attributes, idmap)
            .step_with(|| format!("mapping the owner of {}", source.path.display()))?;
        Ok(mount)
    }
}

/// Makes the directory an overlay works in; one that a volatile overlay has used is refused by the next.
fn fresh(work: &str) -> Result<(), Failure> {
    match remove_tree::remove(std::path::Path::new(work)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => std::fs::create_dir(work),
    }
    .step_with(|| format!("making {work} anew"))
}

fn missing() -> Failure {
    Failure { step: "a descriptor was not handed in".into(), errno: libc::EBADF }
}

/// The file system in an image file, on a loop device that ends with the mount.
fn mount_image(image: BorrowedFd<'_>) -> Result<OwnedFd, Failure> {
    rustix::fs::flock(image, FlockOperation::NonBlockingLockShared).step("locking the disk image")?;
    let device = loopdev::attach(image).step("attaching a loop device")?;
    make(c"ext4", [("source", device.path.as_str())], PLAIN).step("mounting the disk image")
}
