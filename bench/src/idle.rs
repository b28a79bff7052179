//! What an idle session costs: memory, and time for the others.
//!
//! Memory of a box lies in many places: pages of its init, growth of the daemon and the launcher, and kernel memory
//! of namespaces, mounts and cgroups. Two figures bracket it. What MemAvailable loses includes everything, and also
//! whatever else the machine did meanwhile; the counted one adds what can be named.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use sandcrate_backend::{Backend, ExecRequest, SessionId, SessionSpec};
use tokio::runtime::Runtime;

use crate::args::Options;
use crate::bulk::{kib, resident_mib};
use crate::catalog::Row;
use crate::floor::{Floor, Payload, WarmInit};
use crate::measurements::{Measurements, median};
use crate::native::Native;

/// Memory moves with everything on the machine: the median of a few repetitions.
const REPETITIONS: u32 = 3;
/// Kernel memory that namespaces, mounts, cgroups and processes take, in /proc/meminfo.
const KERNEL: [&str; 4] = ["SUnreclaim:", "Percpu:", "KernelStack:", "PageTables:"];
/// Until what is freed later (RCU, empty cgroups) is freed.
const SETTLE: Duration = Duration::from_millis(500);

pub(crate) fn measure(
    options: &Options,
    runtime: &Runtime,
    floor: &Floor,
    measured: &mut Measurements,
) -> anyhow::Result<()> {
    let init = floor.warm_init()?;
    for _ in 0..if options.quick { 1 } else { REPETITIONS } {
        let native = Native::open(runtime, 0)?;
        let first = native.session()?;
        measured.value(Row::WarmFewIdle, warm(&native, &first, &init)?);
        std::thread::sleep(SETTLE);
        let before = Memory::now()?;
        start_many(&native, options.sessions())?;
        std::thread::sleep(SETTLE);
        let after = Memory::now()?;
        let each = |mebibytes: f64| mebibytes / f64::from(options.sessions());
        measured.value(Row::IdleMemAvailable, each(before.available - after.available));
        measured.value(Row::IdleCounted, each(after.counted() - before.counted()));
        measured.value(Row::IdleProcess, each(after.boxes - before.boxes));
        measured.value(Row::WarmManyIdle, warm(&native, &first, &init)?);
        measured.end_round();
        native.close();
    }
    Ok(())
}

fn start_many(native: &Native, count: u32) -> anyhow::Result<()> {
    let starts = (0..count)
        .map(|_| {
            let (backend, id) = (Arc::clone(&native.backend), native.next_id()?);
            Ok(native.runtime.spawn(async move { backend.start(SessionSpec::new(id)).await }))
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    for start in starts {
        native.runtime.block_on(start)??;
    }
    Ok(())
}

/// A warm exec as a multiple of the floor, taken in turns with it.
fn warm(native: &Native, session: &SessionId, init: &WarmInit) -> anyhow::Result<f64> {
    let request = ExecRequest::argv(["true"]);
    let (mut ours, mut floor) = (Vec::new(), Vec::new());
    for _ in 0..12 {
        for _ in 0..10 {
            floor.push(init.run(Payload::True)?.as_secs_f64());
        }
        for _ in 0..10 {
            ours.push(native.exec(session, &request)?.as_secs_f64());
        }
    }
    Ok(median(&ours) / median(&floor))
}

/// The machine's memory, and ours, in MiB.
struct Memory {
    available: f64,
    kernel: f64,
    /// Proportional shares of the launcher's and the boxes' processes.
    boxes: f64,
    own: f64,
}

impl Memory {
    fn now() -> anyhow::Result<Self> {
        let machine = fs::read_to_string("/proc/meminfo")?;
        let named = |name: &str| kib(&machine, name).with_context(|| format!("no {name} in /proc/meminfo"));
        Ok(Self {
            available: named("MemAvailable:")? / 1024.0,
            kernel: KERNEL.iter().map(|name| named(name)).sum::<anyhow::Result<f64>>()? / 1024.0,
            boxes: descendants()?.iter().filter_map(|pid| proportional_mib(*pid)).sum(),
            own: resident_mib("self")?,
        })
    }

    /// What can be named of the use of a box.
    fn counted(&self) -> f64 {
        self.kernel + self.boxes + self.own
    }
}

fn proportional_mib(pid: u32) -> Option<f64> {
    Some(kib(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?, "Pss:")? / 1024.0)
}

/// Our children and theirs: launchers, and the inits of boxes.
fn descendants() -> anyhow::Result<Vec<u32>> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // What has ended meanwhile is nobody's memory.
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        // The name may hold spaces and parentheses: fields are counted from the last one (proc_pid_stat(5)).
        let parent =
            stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)?.parse::<u32>().ok());
        parents.extend(parent.map(|parent| (pid, parent)));
    }
    let mut found = vec![std::process::id()];
    let mut next = 0;
    while next < found.len() {
        let parent = found[next];
        found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    Ok(found.split_off(1))
}
