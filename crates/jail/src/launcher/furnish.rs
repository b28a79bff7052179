//! The mounts and limits of one session: sources cloned where the host's paths mean something, id-mapped so that
//! their owner is the box's user; storage; overlays for a writable root.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, CWD, FlockOperation, Gid, Mode, OFlags, ResolveFlags, Uid, chownat, mkdirat, openat, openat2, statat,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sandcrate_sys::mount::{Reach, set_attributes};
use sandcrate_sys::{loopdev, quota};

use super::Launcher;
use crate::identity::mount_map;
use crate::message::{Failure, FurnishOrder, SourceMount, Step, StorageSource};
use crate::mounts::{PLAIN, PLAIN_READ_ONLY, attach, clone_at, detach, make};
use crate::plan::{Access, OVERLAID, RootMode};
use crate::userns;

/// The private files, and what their overlay needs beside them.
const FILES: &str = "files";
const FILES_WORK: &str = "work-files";

impl Launcher {
    /// Detached mounts in the order of the reply: storage, overlays, sources.
    pub(super) fn furnish(&mut self, box_id: u64, order: &FurnishOrder, fds: Vec<OwnedFd>) -> Result<Vec<OwnedFd>, Failure> {
        if let Some(cgroup) = self.boxes.get(&box_id).and_then(|record| record.cgroup.as_ref()) {
            cgroup
                .set_limits(&order.limits)
                .map_err(|error| Failure { step: format!("setting limits ({error})"), errno: libc::EINVAL })?;
        }
        let mut handed = fds.into_iter();
        let mut mounts = Vec::new();
        if order.storage != StorageSource::Memory {
            let fd = handed.next().ok_or_else(missing)?;
            let storage = self.storage(order, fd.as_fd())?;
            mounts = self.layers(&storage, order)?;
        }
        for source in &order.sources {
            let fd = handed.next().ok_or_else(missing)?;
            mounts.push(self.source(source, fd.as_fd(), order.user)?);
        }
        Ok(mounts)
    }

    /// Runs `work` where the host's paths and mounts are.
    fn among_host_mounts<T>(&self, work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        let enter = |namespace: &OwnedFd| {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount)).step("changing the mount namespace")
        };
        enter(&self.host_mounts)?;
        let result = work();
        enter(&self.own_mounts)?;
        result
    }

    fn storage(&self, order: &FurnishOrder, fd: BorrowedFd<'_>) -> Result<OwnedFd, Failure> {
        let mount = self.among_host_mounts(|| match order.storage {
            StorageSource::Image => mount_image(fd),
            _ => self.clone_checked(&order.storage_path, fd),
        })?;
        if let StorageSource::ProjectDirectory { project, bytes, inodes } = order.storage {
            let directory = openat(&mount, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .step("opening the storage")?;
            quota::set_project(directory.as_fd(), project).step("setting the storage's project")?;
            quota::set_limit(directory.as_fd(), project, bytes, inodes).step("setting the storage's quota")?;
        }
        set_attributes(mount.as_fd(), Reach::One, PLAIN, None).step("protecting the storage")?;
        self.make_owned(&mount, FILES, self.mapping.host_uid(order.user), self.mapping.host_gid(order.user))?;
        self.make_owned(&mount, FILES_WORK, 0, 0)?;
        let id = order.user;
        for directory in &order.directories {
            let name = format!("{FILES}/{directory}");
            self.make_owned(&mount, &name, self.mapping.host_uid(id), self.mapping.host_gid(id))?;
        }
        if order.root == RootMode::Writable {
            for name in OVERLAID {
                self.make_owned(&mount, &format!("upper-{name}"), self.mapping.host_uid(0), self.mapping.host_gid(0))?;
                self.make_owned(&mount, &format!("work-{name}"), 0, 0)?;
            }
        }
        Ok(mount)
    }

    fn make_owned(&self, at: &OwnedFd, name: &str, uid: u32, gid: u32) -> Result<(), Failure> {
        match mkdirat(at, name, Mode::from_raw_mode(0o755)) {
            // A session that comes back.
            Err(rustix::io::Errno::EXIST) => return Ok(()),
            other => other.step(format!("making {name}"))?,
        }
        if self.mapping.is_rootless() {
            return Ok(());
        }
        chownat(at, name, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)), AtFlags::SYMLINK_NOFOLLOW)
            .step(format!("giving {name} to the box"))
    }

    /// The storage as the box sees it, and the overlays of a writable root. The storage is seen through an overlay
    /// over nothing, because a plain bind mount would tell the box where on the host its files lie.
    fn layers(&self, storage: &OwnedFd, order: &FurnishOrder) -> Result<Vec<OwnedFd>, Failure> {
        attach(storage, "/disk").step("attaching the storage")?;
        let rootless = self.mapping.is_rootless();
        let result = (|| {
            let (files, work) = (format!("/disk/{FILES}"), format!("/disk/{FILES_WORK}"));
            let seen = match order.storage {
                StorageSource::Image => clone_at(CWD, files, Reach::One),
                _ => overlay("/empty", &files, &work, rootless)
                    // A kernel without overlays: the files are what counts.
                    .or_else(|_| clone_at(CWD, files, Reach::One)),
            };
            let mut mounts = vec![seen.step("laying out the storage")?];
            if order.root == RootMode::Writable {
                for name in OVERLAID {
                    let (lower, upper, work) = (format!("/template/{name}"), format!("/disk/upper-{name}"), format!("/disk/work-{name}"));
                    mounts.push(overlay(&lower, &upper, &work, rootless).step(format!("laying an overlay over /{name}"))?);
                }
            }
            Ok(mounts)
        })();
        detach("/disk").step("detaching the storage")?;
        result
    }

    /// Clones what the daemon has opened. An ordinary user's launcher has mounts of its own, so it has to find
    /// the path again, and looks whether it is still the same thing.
    fn clone_checked(&self, path: &std::path::Path, fd: BorrowedFd<'_>) -> Result<OwnedFd, Failure> {
        let name = path.display();
        if !self.mapping.is_rootless() {
            return clone_at(fd, "", Reach::One).step(format!("cloning {name}"));
        }
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let again = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS).step(format!("finding {name} again"))?;
        let (was, is) = (statat(fd, "", AtFlags::EMPTY_PATH), statat(&again, "", AtFlags::EMPTY_PATH));
        match (was, is) {
            (Ok(was), Ok(is)) if (was.st_dev, was.st_ino) == (is.st_dev, is.st_ino) => {}
            _ => return Err(Failure { step: format!("{name} has changed since it was checked"), errno: libc::ESTALE }),
        }
        match clone_at(again.as_fd(), "", Reach::One) {
            // What is mounted below must come along: an ordinary user may not uncover what a mount hides.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                clone_at(again.as_fd(), "", Reach::Tree).step(format!("cloning {name}"))
            }
            other => other.step(format!("cloning {name}")),
        }
    }

    fn source(&mut self, source: &SourceMount, fd: BorrowedFd<'_>, user: u32) -> Result<OwnedFd, Failure> {
        let mount = self.among_host_mounts(|| self.clone_checked(&source.path, fd))?;
        let attributes = if source.access == Access::ReadOnly { PLAIN_READ_ONLY } else { PLAIN };
        if self.mapping.is_rootless() {
            set_attributes(mount.as_fd(), Reach::Tree, attributes, None).step(format!("protecting {}", source.path.display()))?;
            return Ok(mount);
        }
        let key = (source.owner.0, source.owner.1, user);
        if !self.idmaps.contains_key(&key) {
            let (uids, gids) = (mount_map(source.owner.0, user), mount_map(source.owner.1, user));
            let namespace = userns::make(&self.proof, &uids, &gids).step("making an id map")?;
            // A bound on open files: sessions rarely have more than a few kinds of owners.
            if self.idmaps.len() >= 64 {
                self.idmaps.clear();
            }
            self.idmaps.insert(key, namespace);
        }
        let idmap = self.idmaps.get(&key).map(AsFd::as_fd);
        set_attributes(mount.as_fd(), Reach::One, attributes, idmap)
            .step(format!("mapping the owner of {}", source.path.display()))?;
        Ok(mount)
    }
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

/// An overlay, detached. `lower` and what lies on the storage are paths of the launcher's own mount namespace:
/// an overlay takes its layers only from there.
fn overlay(lower: &str, upper: &str, work: &str, rootless: bool) -> std::io::Result<OwnedFd> {
    let mut options = vec![("source", "overlay"), ("lowerdir", lower), ("upperdir", upper), ("workdir", work)];
    if rootless {
        options.push(("userxattr", ""));
    } else {
        // Without it, renaming a directory of the template fails with EXDEV.
        options.push(("redirect_dir", "on"));
    }
    make(c"overlay", options, PLAIN)
}
