//! From the start of a server to its first answer, and what it holds while nothing happens.

use std::time::Duration;

use super::Servers;
use crate::args::Options;
use crate::catalog::{Figure, Row};
use crate::measurements::Measurements;
use crate::memory::{resident_mib, tree_mib};

/// Until what a server prepares for its first session is prepared, and what its start needed is given back.
const SETTLE: Duration = Duration::from_secs(2);

pub(super) fn measure(
    options: &Options,
    servers: &Servers,
    measured: &mut Measurements,
) -> anyhow::Result<()> {
    // In turns, so that what else the machine does weighs on all.
    for _ in 0..options.rounds() {
        for entry in servers.entries.iter().filter(|entry| entry.server.is_shipped()) {
            let (subject, time) = servers.start(entry)?;
            measured.time(Row::Rpc(Figure::Start, entry.server), time);
            std::thread::sleep(SETTLE);
            let pid = subject.pid();
            measured.value(Row::Rpc(Figure::Idle, entry.server), resident_mib(&pid.to_string())?);
            measured.value(Row::Rpc(Figure::IdleTree, entry.server), tree_mib(pid)?);
        }
        measured.end_round();
    }
    Ok(())
}
