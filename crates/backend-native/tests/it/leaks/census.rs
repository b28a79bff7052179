//! What one backend has on the host, counted twice and compared.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sandcrate_backend::conformance::Check;

use crate::attacks::stage::{ensure, eventually};
use crate::host_state;

/// Threads and timers of the runtime open a few more under load and keep them.
const DESCRIPTOR_TOLERANCE: usize = 8;
/// Allocators keep what a burst needed; a leak of a kilobyte per box would be 2 MB.
const RESIDENT_TOLERANCE: u64 = 3 << 20;

/// Longer than the launcher waits before it prepares for the next box.
pub(super) const REST: Duration = Duration::from_millis(50);

/// Everything that could be left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Census {
    /// Below this process: the launcher and the pool's boxes. Zombies count.
    processes: usize,
    cgroups: usize,
    /// Of the host, which is this process's namespace, and of the launcher.
    mounts: [usize; 2],
    loop_devices: usize,
    storages: usize,
    descriptors: [usize; 2],
    resident: [u64; 2],
}

impl Census {
    pub(super) fn take(scratch: &Path) -> Result<Self, String> {
        let own = std::process::id();
        let launcher = launcher()?;
        Ok(Self {
            processes: host_state::descendants(own)?.len(),
            cgroups: instance_cgroups(scratch)?.len(),
            mounts: [host_state::mounts(own)?.len(), host_state::mounts(launcher)?.len()],
            loop_devices: host_state::loop_devices_of(scratch)?.len(),
            storages: host_state::storage_directories(&scratch.join("state"))?.len(),
            // An ordinary user's launcher is closed to its own user: it has a user namespace of its own.
            descriptors: [host_state::descriptors(own)?, host_state::descriptors(launcher).unwrap_or(0)],
            resident: [host_state::resident_bytes(own)?, host_state::resident_bytes(launcher)?],
        })
    }

    /// Counts are equal, descriptors and memory as good as.
    fn is_no_more_than(&self, before: &Self) -> bool {
        let exact = |census: &Self| {
            (census.processes, census.cgroups, census.mounts, census.loop_devices, census.storages)
        };
        let descriptors = self.descriptors.iter().zip(before.descriptors);
        let resident = self.resident.iter().zip(before.resident);
        exact(self) == exact(before)
            && descriptors.into_iter().all(|(now, then)| *now <= then + DESCRIPTOR_TOLERANCE)
            && resident.into_iter().all(|(now, then)| *now <= then + RESIDENT_TOLERANCE)
    }
}

/// The one direct child of this process.
pub(super) fn launcher() -> Result<u32, String> {
    let children = host_state::children(std::process::id())?;
    match children[..] {
        [launcher] => Ok(launcher),
        _ => Err(format!("expected one child, the launcher; there are {children:?}")),
    }
}

/// Takes a census when the pool is full and everything is quiet.
pub(super) async fn settled(scratch: &Path, pool: usize) -> Result<Census, String> {
    let full = || async {
        let earlier = Census::take(scratch)?;
        // The launcher makes cgroups for the next box once nothing else is asked of it.
        tokio::time::sleep(REST).await;
        let census = Census::take(scratch)?;
        let full = census.processes == 1 + pool && census.storages == 0;
        Ok((full && census.cgroups == earlier.cgroups).then_some(census))
    };
    eventually("the launcher and the pool are all there is", full).await
}

/// Waits until there is no more than before; says what is too much when it does not come to that.
pub(super) async fn back_to(before: &Census, scratch: &Path) -> Check {
    let same = || async { Ok(Census::take(scratch)?.is_no_more_than(before).then_some(())) };
    let back = eventually("nothing is left", same).await;
    back.map_err(|error| format!("{error}\nbefore {before:?}\nafter  {:?}", Census::take(scratch)))
}

pub(super) fn instance_cgroups(scratch: &Path) -> Result<Vec<PathBuf>, String> {
    let instances = host_state::instances(&scratch.join("state"))?;
    let names = instances.iter().filter_map(|path| path.file_name()?.to_str());
    Ok(names.flat_map(host_state::cgroups_of).collect())
}

/// After the backend and its process: no directory, no mount, no loop device, no process that names the scratch
/// directory. Its cgroups were looked at before the instance's name was gone.
pub(super) fn nothing_left(scratch: &Path) -> Check {
    let instances = host_state::instances(&scratch.join("state"))?;
    ensure!(instances.is_empty(), "instances are left: {instances:?}");
    let name = scratch.display().to_string();
    let mounts = host_state::mounts(std::process::id())?;
    ensure!(!mounts.iter().any(|line| line.contains(&name)), "a mount of {name} is left");
    let loops = host_state::loop_devices_of(scratch)?;
    ensure!(loops.is_empty(), "loop devices are left: {loops:?}");
    let processes = host_state::processes_with(&name)?;
    ensure!(processes.is_empty(), "processes are left: {processes:?}");
    Ok(())
}
