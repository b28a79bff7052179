//! What an idle box costs that is nothing but namespaces, mounts, cgroups and a process: the kernel's own price, which
//! nobody who has the same boundary can go below.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::Pid;
use sandcrate_jail::cgroup::{BoxCgroup, Discovery, Limits, Parent, Placement};

use crate::floor::{Floor, WarmInit};
use crate::memory::{Memory, descendants};

/// Until what is freed later (RCU) is freed.
const SETTLE: Duration = Duration::from_secs(3);
/// Until the processes of boxes have left their cgroups.
const PATIENCE: Duration = Duration::from_secs(30);
/// Joining a v1 cgroup waits for all processors, for several at the price of one.
const JOINERS: usize = 8;

/// MiB for each of so many idle floors, in cgroups as our own boxes have.
pub(crate) fn each_mib(floor: &Floor, count: u32) -> anyhow::Result<f64> {
    let me = std::process::id();
    let name = format!("bench-{me}");
    let found = Discovery::probe(Path::new("/"))?;
    let parent = Parent::open(&found, &Placement { instance: &name, below: None, daemon: None })?;
    let known: HashSet<u32> = descendants(me)?.into_iter().collect();
    std::thread::sleep(SETTLE);
    let before = Memory::of(me)?;
    let inits = (0..count).map(|_| floor.warm_init()).collect::<std::io::Result<Vec<WarmInit>>>()?;
    let pids: Vec<u32> = descendants(me)?.into_iter().filter(|pid| !known.contains(pid)).collect();
    let cgroups = join(&parent, &pids)?;
    std::thread::sleep(SETTLE);
    let after = Memory::of(me)?;
    drop(inits);
    remove(&parent, &cgroups)?;
    Ok((after.counted() - before.counted()) / f64::from(count))
}

fn join(parent: &Parent, pids: &[u32]) -> anyhow::Result<Vec<BoxCgroup>> {
    let limits = Limits { memory_bytes: Some(512 << 20), pids: Some(128), cpu_millis: Some(1000) };
    let one = |pid: u32| {
        let cgroup = parent.create(&format!("box-{pid}"), None)?;
        cgroup.set_limits(&limits)?;
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("a process without an id")?;
        cgroup.join_pid(pid)?;
        anyhow::Ok(cgroup)
    };
    let share = pids.len().div_ceil(JOINERS).max(1);
    std::thread::scope(|scope| {
        let joiners: Vec<_> = pids
            .chunks(share)
            .map(|some| {
                scope.spawn(move || some.iter().map(|pid| one(*pid)).collect::<anyhow::Result<Vec<_>>>())
            })
            .collect();
        let joined = joiners.into_iter().map(|joiner| {
            joiner.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a thread that joins cgroups has panicked")))
        });
        Ok(joined.collect::<anyhow::Result<Vec<_>>>()?.into_iter().flatten().collect())
    })
}

fn remove(parent: &Parent, cgroups: &[BoxCgroup]) -> anyhow::Result<()> {
    let until = Instant::now() + PATIENCE;
    for cgroup in cgroups {
        while let Err(error) = cgroup.remove() {
            anyhow::ensure!(Instant::now() < until, "a floor's cgroup stays: {error}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(parent.remove()?)
}
