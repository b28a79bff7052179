//! The cgroup findings of a launcher, as lines of the enforcement record.

use sandcrate_protocol::{Control, Enforcement};

use crate::cgroup::{Control as Found, Report};

/// What stands in where there is no cgroup for it.
const MEMORY: &str = "RLIMIT_DATA bounds each process, not the box";
const PIDS: &str = "RLIMIT_NPROC in the box's own user namespace; a hit is not reported";
const COMMAND_KILL: &str = "a deadline ends the command's tree and every process that left a tree";

/// The record of a machine without usable cgroups.
pub fn record_none(why: &str, enforcement: &mut Enforcement) {
    for (control, instead) in
        [(Control::Memory, MEMORY), (Control::Pids, PIDS), (Control::CommandKill, COMMAND_KILL)]
    {
        enforcement.degraded(control, format!("{instead}; {why}"));
    }
    enforcement.absent(Control::Cpu, why);
}

/// The record of a machine with some.
pub fn record(report: &Report, enforcement: &mut Enforcement) {
    let mut line = |control, found: &Found, without: &str| match found {
        Found::Enforced { by } => enforcement.enforced(control, by.clone()),
        Found::Missing { why, fix } if without.is_empty() => {
            enforcement.absent(control, format!("{why}; {fix}"))
        }
        Found::Missing { why, fix } => enforcement.degraded(control, format!("{without}; {why}; {fix}")),
    };
    line(Control::Memory, &report.memory, MEMORY);
    line(Control::Pids, &report.pids, PIDS);
    line(Control::Cpu, &report.cpu, "");
    line(Control::CommandKill, &report.freeze, COMMAND_KILL);
}
