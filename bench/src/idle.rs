//! What an idle session costs: memory, and time for the others.
//!
//! Memory of a box lies in many places: pages of its init, growth of the daemon and the launcher, and kernel memory
//! of namespaces, mounts and cgroups. Two figures bracket it. What MemAvailable loses includes everything, and also
//! whatever else the machine did meanwhile; the counted one adds what can be named.

use std::sync::Arc;
use std::time::Duration;

use sandcrate_backend::{Backend, ExecRequest, Network, SessionId, SessionSpec};
use tokio::runtime::Runtime;

use crate::args::Options;
use crate::catalog::Row;
use crate::floor::{Floor, Payload, WarmInit};
use crate::idle_floor;
use crate::measurements::{Measurements, median};
use crate::memory::Memory;
use crate::native::Native;

/// Memory moves with everything on the machine: the median of a few repetitions.
const REPETITIONS: u32 = 3;
/// Until boxes have gone to rest and what is freed later (RCU, empty cgroups) is freed.
const SETTLE: Duration = Duration::from_secs(3);

pub(crate) fn measure(
    options: &Options,
    runtime: &Runtime,
    floor: &Floor,
    measured: &mut Measurements,
) -> anyhow::Result<()> {
    let init = floor.warm_init()?;
    for _ in 0..if options.quick { 1 } else { REPETITIONS } {
        measured.value(Row::FloorIdle, idle_floor::each_mib(floor, options.sessions())?);
        let native = Native::open(runtime, 0)?;
        let first = native.session()?;
        measured.value(Row::WarmFewIdle, warm(&native, &first, &init)?);
        std::thread::sleep(SETTLE);
        let before = Memory::of(std::process::id())?;
        start_many(&native, options.sessions(), &Network::Off)?;
        std::thread::sleep(SETTLE);
        let after = Memory::of(std::process::id())?;
        let each = |mebibytes: f64| mebibytes / f64::from(options.sessions());
        measured.value(Row::IdleMemAvailable, each(before.available - after.available));
        measured.value(Row::IdleCounted, each(after.counted() - before.counted()));
        measured.value(Row::IdleProcess, each(after.boxes - before.boxes));
        measured.value(Row::IdleCaches, each(after.caches - before.caches));
        measured.value(Row::WarmManyIdle, warm(&native, &first, &init)?);
        measured.end_round();
        native.close();
    }
    measured.value(Row::FloorCrowd, idle_floor::each_mib(floor, options.crowd())?);
    measured.end_round();
    Ok(())
}

pub(crate) fn start_many(native: &Native, count: u32, network: &Network) -> anyhow::Result<()> {
    let starts = (0..count)
        .map(|_| {
            let (backend, id) = (Arc::clone(&native.backend), native.next_id()?);
            let spec = SessionSpec { network: network.clone(), ..SessionSpec::new(id) };
            Ok(native.runtime.spawn(async move { backend.start(spec).await }))
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
