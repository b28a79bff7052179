//! The cgroup findings of a launcher, as lines of the enforcement record.

use sandcrate_protocol::{Control, Enforcement};

use crate::cgroup::{Control as Found, Report};

pub(crate) fn record(report: &Report, enforcement: &mut Enforcement) {
    let mut line = |control, found: &Found, without: &str| match found {
        Found::Enforced { by } => enforcement.enforced(control, by.clone()),
        Found::Missing { why, fix } if without.is_empty() => enforcement.absent(control, format!("{why}; {fix}")),
        Found::Missing { why, fix } => enforcement.degraded(control, format!("{without}; {why}; {fix}")),
    };
    line(Control::Memory, &report.memory, "RLIMIT_DATA bounds each process, not the box");
    line(Control::Pids, &report.pids, "RLIMIT_NPROC in the box's own user namespace; a hit is not reported");
    line(Control::Cpu, &report.cpu, "");
    line(Control::CommandKill, &report.freeze, "a deadline ends every process of the session");
}
