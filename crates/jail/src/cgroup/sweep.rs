//! Ends what a dead instance left behind.
//!
//! The whole of each hierarchy is searched: the instance may have run in another cgroup than ours,
//! for one in another login session.

use std::io;
use std::os::fd::AsFd;

use super::dir::{Dir, subdirs};
use super::kill::kill_all;
use super::parent::{daemon_leaf, directory};
use super::{CgroupError, Discovery, check_name};

/// Deep enough for user.slice/user-1000.slice/user@1000.service/app.slice/x.scope and some more.
const SEARCH_DEPTH: usize = 10;

/// Kills and removes every cgroup of `instance` that belongs to our user; returns how many.
///
/// The instance must be dead (its lock held by the caller) and its name unique on the host: that
/// of an instance in a privileged container would be found as well.
pub fn sweep(found: &Discovery, instance: &str) -> Result<usize, CgroupError> {
    check_name("instance", instance)?;
    let mut sweep = Sweep { name: directory(instance), leaf: daemon_leaf(instance), removed: 0 };
    let mut result = Ok(());
    for hierarchy in found.v2.iter().chain(&found.v1) {
        // One that fails does not spare the others.
        let swept = Dir::open(&hierarchy.mount).and_then(|root| sweep.below(&root, SEARCH_DEPTH));
        result = result.and(swept);
    }
    result.map(|()| sweep.removed)
}

struct Sweep {
    name: String,
    leaf: String,
    removed: usize,
}

impl Sweep {
    fn below(&mut self, dir: &Dir, depth: usize) -> Result<(), CgroupError> {
        // Others come and go while we look: what cannot be listed or opened is not ours.
        let children = subdirs(dir.as_fd()).unwrap_or_default();
        let mut result = Ok(());
        for child in children {
            let Ok(found) = dir.sub(&child) else { continue };
            let swept = match depth {
                _ if child == self.name && is_ours(&found) => self.end(dir, &found),
                _ if child == self.leaf && is_ours(&found) => self.drop_leaf(dir),
                0 => Ok(()),
                _ => self.below(&found, depth - 1),
            };
            result = result.and(swept);
        }
        result
    }

    fn end(&mut self, base: &Dir, dir: &Dir) -> Result<(), CgroupError> {
        let path = dir.path().to_owned();
        kill_all(dir.as_fd()).map_err(|source| CgroupError::Kill { path, source })?;
        base.remove(&self.name)?;
        self.removed += 1;
        Ok(())
    }

    /// The daemon's leaf held no box. It stays while a daemon, perhaps the new one, is in it.
    fn drop_leaf(&mut self, base: &Dir) -> Result<(), CgroupError> {
        match base.try_remove(&self.leaf) {
            Err(error) if error.kind() != io::ErrorKind::ResourceBusy => {
                Err(CgroupError::Remove { path: base.path().join(&self.leaf), source: error })
            }
            _ => Ok(()),
        }
    }
}

/// Another user's instance may bear the same name.
fn is_ours(dir: &Dir) -> bool {
    rustix::fs::fstat(dir).is_ok_and(|stat| stat.st_uid == rustix::process::geteuid().as_raw())
}
