//! Control groups: limits, kill and freeze for boxes, on v1, v2 and hybrid hosts.
//!
//! The order of use: [`Discovery::probe`] reads what the host has, [`sweep`] ends what a dead
//! instance left, [`Parent::open`] makes this instance's directories, [`Parent::create`] makes a
//! [`BoxCgroup`] for each box, [`UsageReader`] reads what it used (in another process, from passed
//! fds), and the box's init makes a [`CommandCgroup`] for each command.
//!
//! Only `probe`, `sweep` and `open` resolve paths. Everything later works on directory fds, so
//! that the launcher may have left the host's root by then.

mod box_cgroup;
mod command;
mod confine;
mod dir;
mod discovery;
mod error;
mod kill;
mod parent;
mod report;
mod sweep;
mod usage;
mod v1;
mod v2;

#[cfg(test)]
#[path = "fake_tests.rs"]
mod fake_tests;
#[cfg(test)]
#[path = "real_tests.rs"]
mod real_tests;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use box_cgroup::BoxCgroup;
pub use command::CommandCgroup;
pub use confine::Confined;
pub use discovery::{Discovery, Hierarchy, Mode};
pub use error::CgroupError;
pub use parent::{Owner, Parent, Placement};
pub use report::{Control, Report};
pub use sweep::sweep;
pub use usage::{CpuTime, UsageReader};

/// What a box may use; `None` is unlimited.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Memory including tmpfs and page cache; the box never swaps when this is set.
    pub memory_bytes: Option<u64>,
    /// Processes and threads of the box's commands; init and its worker come on top.
    pub pids: Option<u32>,
    /// Thousandths of a CPU.
    pub cpu_millis: Option<u32>,
}

/// init and the worker that does its file operations are not counted against the user's limit.
const PIDS_HEADROOM: u32 = 2;
const CPU_PERIOD_US: u64 = 100_000;

impl Limits {
    fn pids_max(&self) -> String {
        or_max(self.pids.map(|pids| u64::from(pids.saturating_add(PIDS_HEADROOM))))
    }

    fn cpu_quota_us(&self) -> Option<u64> {
        // The kernel refuses a quota below 1 ms (sched(7), CFS bandwidth).
        self.cpu_millis.map(|millis| (u64::from(millis) * CPU_PERIOD_US / 1000).max(1000))
    }
}

fn or_max(limit: Option<u64>) -> String {
    limit.map_or_else(|| "max".to_owned(), |limit| limit.to_string())
}

/// The controllers that boxes need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Controller {
    Memory,
    Pids,
    Cpu,
}

impl Controller {
    pub const ALL: [Self; 3] = [Self::Memory, Self::Pids, Self::Cpu];

    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Cpu => "cpu",
        }
    }

    /// Those of ours named in `list`, whose items `separator` divides.
    fn parse_list(list: &str, separator: char) -> Vec<Self> {
        let named = |c: &Self| list.trim().split(separator).any(|name| name == c.name());
        Self::ALL.into_iter().filter(named).collect()
    }
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The two cgroup interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Version {
    V1,
    V2,
}

impl Version {
    /// The file whose presence shows that a limit can be set; `cpu` may be built without quotas.
    fn limit_file(self, controller: Controller) -> &'static str {
        match (self, controller) {
            (Self::V1, Controller::Memory) => "memory.limit_in_bytes",
            (Self::V2, Controller::Memory) => "memory.max",
            (_, Controller::Pids) => "pids.max",
            (Self::V1, Controller::Cpu) => "cpu.cfs_quota_us",
            (Self::V2, Controller::Cpu) => "cpu.max",
        }
    }
}

/// Checks a name that becomes part of a directory name.
fn check_name(what: &'static str, name: &str) -> Result<(), CgroupError> {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if (1..=64).contains(&name.len()) && name.bytes().all(allowed) {
        return Ok(());
    }
    Err(CgroupError::Name { what, name: name.chars().take(80).collect() })
}
