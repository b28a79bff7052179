//! A server that holds many idle sessions: what each costs in memory, and the others in time.

use std::time::Duration;

use super::{Caller, Entry, Servers, Subject};
use crate::args::Options;
use crate::catalog::{Figure, Row};
use crate::floor::{Floor, Payload, WarmInit};
use crate::measurements::{Measurements, median};
use crate::memory::Memory;

/// Sessions asked for at once.
const BATCH: usize = 50;
/// Until boxes have gone to rest and what is freed later (RCU, empty cgroups) is freed.
const SETTLE: Duration = Duration::from_secs(3);

pub(super) fn measure(
    options: &Options,
    servers: &Servers,
    entry: &Entry,
    floor: &Floor,
    measured: &mut Measurements,
) -> anyhow::Result<()> {
    let of = |figure| Row::Rpc(figure, entry.server);
    let init = floor.warm_init()?;
    let (subject, _) = servers.start(entry)?;
    let mut caller = subject.caller()?;
    let first = subject.session(&mut caller)?;
    measured.value(of(Figure::WarmAlone), warm(&subject, &mut caller, &first, &init)?);
    std::thread::sleep(SETTLE);
    let before = Memory::of(subject.pid())?;
    let sessions: Vec<_> = (0..options.crowd()).map(|_| subject.next_id()).collect();
    for batch in sessions.chunks(BATCH) {
        subject.run(caller.create_at_once(batch))?;
    }
    std::thread::sleep(SETTLE);
    let after = Memory::of(subject.pid())?;
    let each = |mebibytes: f64| mebibytes / f64::from(options.crowd());
    measured.value(of(Figure::SessionMemAvailable), each(before.available - after.available));
    measured.value(of(Figure::SessionCounted), each(after.counted() - before.counted()));
    measured.value(of(Figure::SessionServer), each(after.own - before.own));
    measured.value(of(Figure::SessionProcess), each(after.boxes - before.boxes));
    measured.value(of(Figure::SessionCaches), each(after.caches - before.caches));
    measured.value(of(Figure::WarmCrowded), warm(&subject, &mut caller, &first, &init)?);
    measured.end_round();
    Ok(())
}

/// A warm exec as a multiple of the floor, taken in turns with it.
fn warm(subject: &Subject, caller: &mut Caller, session: &str, init: &WarmInit) -> anyhow::Result<f64> {
    let (mut ours, mut floor) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        for _ in 0..10 {
            floor.push(init.run(Payload::True)?.as_secs_f64());
        }
        for _ in 0..10 {
            ours.push(subject.run(caller.exec(session, "true"))?.as_secs_f64());
        }
    }
    Ok(median(&ours) / median(&floor))
}
