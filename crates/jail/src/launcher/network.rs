//! Network namespaces made ahead of time: making one takes the kernel longer than all the rest of a clone.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sandcrate_sys::process::{Fork, SingleThreaded, exit_now, unshare};

use crate::identity::IdMapping;
use crate::message::{Failure, Step};
use crate::plan::NetworkMode;

/// An empty network for the next box that wants one, its loopback up. It belongs to the launcher's user namespace,
/// so nobody in the box may configure it; a box that makes a device of its own needs one of its own.
#[derive(Debug)]
pub(super) struct SpareNetwork {
    /// Where the launcher is when it does nothing of this. An ordinary user's launcher could not come back to it.
    host: Option<OwnedFd>,
    spare: Option<OwnedFd>,
}

impl SpareNetwork {
    pub(super) fn new(mapping: IdMapping) -> Result<Self, Failure> {
        let host = (!mapping.is_rootless()).then(current).transpose()?;
        Ok(Self { host, spare: None })
    }

    /// Makes one. What cannot be made now is made, and reported, with the next box.
    pub(super) fn stock(&mut self, proof: &SingleThreaded) {
        let Some(host) = self.host.as_ref().filter(|_| self.spare.is_none()) else { return };
        if unshare(proof, libc::CLONE_NEWNET).is_err() {
            return;
        }
        let raised = sandcrate_sys::loopback::bring_up().is_ok();
        self.spare = current().ok().filter(|_| raised);
        go_back(host);
    }

    /// Forks by `clone`, in the spare namespace if there is one for such a box, and tells it whether that is so.
    pub(super) fn within(
        &mut self,
        network: NetworkMode,
        clone: impl FnOnce(bool) -> Result<Fork, Failure>,
    ) -> Result<Fork, Failure> {
        let wanted = network == NetworkMode::Off;
        let (Some(host), Some(spare)) = (&self.host, self.spare.take_if(|_| wanted)) else {
            return clone(false);
        };
        enter(&spare).step("entering the box's network namespace")?;
        let cloned = clone(true);
        // The child stays, and may not leave.
        if !matches!(cloned, Ok(Fork::Child(_))) {
            go_back(host);
        }
        cloned
    }
}

fn current() -> Result<OwnedFd, Failure> {
    open("/proc/self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .step("opening the network namespace")
}

fn enter(namespace: &OwnedFd) -> rustix::io::Result<()> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
}

/// A launcher that is lost in a box's network would give it to a box that asks for the host's: better none.
fn go_back(host: &OwnedFd) {
    if enter(host).is_err() {
        exit_now(1);
    }
}
