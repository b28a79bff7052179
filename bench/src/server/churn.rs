//! Sessions made, used and deleted by the thousand: whether anything of them stays.

use std::fs;
use std::time::{Duration, Instant};

use super::{Entry, Servers, Subject};
use crate::args::Options;
use crate::catalog::{Figure, Row};
use crate::measurements::Measurements;
use crate::memory::{descendants, resident_mib};

const CALLERS: usize = 8;
/// Sessions before the first count: buffers and tables have their size by then.
const WARM_UP: usize = 50;
/// Until the pool is full again and what is removed later is removed.
const SETTLE: Duration = Duration::from_secs(1);

pub(super) fn measure(
    options: &Options,
    servers: &Servers,
    entry: &Entry,
    measured: &mut Measurements,
) -> anyhow::Result<()> {
    let of = |figure| Row::Rpc(figure, entry.server);
    let (subject, _) = servers.start(entry)?;
    let mut callers = subject.callers(CALLERS)?;
    subject.lives_at_once(&mut callers, WARM_UP)?;
    std::thread::sleep(SETTLE);
    let before = Held::by(&subject)?;
    let each = options.churn().div_ceil(CALLERS);
    let started = Instant::now();
    subject.lives_at_once(&mut callers, each)?;
    measured.value(of(Figure::ChurnRate), (each * CALLERS) as f64 / started.elapsed().as_secs_f64());
    std::thread::sleep(SETTLE);
    let after = Held::by(&subject)?;
    measured.value(of(Figure::GrownMemory), after.resident_mib - before.resident_mib);
    for (figure, before, after) in [
        (Figure::GrownDescriptors, before.descriptors, after.descriptors),
        (Figure::GrownMounts, before.mounts, after.mounts),
        (Figure::GrownCgroups, before.cgroups, after.cgroups),
        (Figure::GrownDirectories, before.directories, after.directories),
        (Figure::GrownProcesses, before.processes, after.processes),
    ] {
        measured.value(of(figure), after as f64 - before as f64);
    }
    measured.end_round();
    Ok(())
}

/// What a server and its processes hold at one moment.
struct Held {
    resident_mib: f64,
    descriptors: usize,
    mounts: usize,
    cgroups: usize,
    directories: usize,
    processes: usize,
}

impl Held {
    fn by(subject: &Subject) -> anyhow::Result<Self> {
        let mut tree = descendants(subject.pid())?;
        tree.push(subject.pid());
        let descriptors = |pid: &u32| fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
        let mounts = |pid: &u32| {
            fs::read_to_string(format!("/proc/{pid}/mountinfo")).map_or(0, |mounts| mounts.lines().count())
        };
        Ok(Self {
            resident_mib: resident_mib(&subject.pid().to_string())?,
            descriptors: tree.iter().map(descriptors).sum(),
            mounts: tree.iter().map(mounts).sum(),
            cgroups: subject.daemon.cgroups(),
            directories: subject.daemon.directories(),
            processes: tree.len(),
        })
    }
}
