//! The record of what holds a box: control by control, what enforces it, how it is degraded, or that it is
//! absent. Nothing that a session asks for is dropped without a line here.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One thing that a box promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Control {
    /// Commands are no identity of the host, and not the one of the box's init.
    Identity,
    /// Own process, mount, IPC, host name and cgroup namespaces.
    Namespaces,
    /// Only the template, private storage and the requested mounts are visible.
    Filesystem,
    /// Information files of the kernel are masked, settings are read-only.
    ProcMasks,
    /// No capabilities, none to be gained.
    Capabilities,
    /// System calls outside the policy are refused.
    Seccomp,
    /// A second line for file access.
    Landlock,
    /// No setuid or setgid file can be made, on any mount.
    NoSetuid,
    /// What the box may reach.
    Network,
    Memory,
    Pids,
    Cpu,
    /// Bytes and inodes of the private storage.
    Disk,
    /// Bytes of /tmp and /dev/shm.
    Tmpfs,
    /// Per-process limits: open files, file size, locked memory, core dumps.
    Rlimits,
    /// A deadline ends the whole tree of one command.
    CommandKill,
    /// Nothing of the box outlives its owner.
    Cleanup,
}

impl Control {
    /// Every control, in the order in which reports show them.
    pub const ALL: [Self; 17] = [
        Self::Identity,
        Self::Namespaces,
        Self::Filesystem,
        Self::ProcMasks,
        Self::Capabilities,
        Self::Seccomp,
        Self::Landlock,
        Self::NoSetuid,
        Self::Network,
        Self::Memory,
        Self::Pids,
        Self::Cpu,
        Self::Disk,
        Self::Tmpfs,
        Self::Rlimits,
        Self::CommandKill,
        Self::Cleanup,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::Namespaces => "namespaces",
            Self::Filesystem => "filesystem",
            Self::ProcMasks => "proc-masks",
            Self::Capabilities => "capabilities",
            Self::Seccomp => "seccomp",
            Self::Landlock => "landlock",
            Self::NoSetuid => "no-setuid",
            Self::Network => "network",
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Cpu => "cpu",
            Self::Disk => "disk",
            Self::Tmpfs => "tmpfs",
            Self::Rlimits => "rlimits",
            Self::CommandKill => "command-kill",
            Self::Cleanup => "cleanup",
        }
    }
}

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether a control holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Enforced,
    /// In force, but weaker than the control's name promises.
    Degraded,
    Absent,
}

/// One line of the record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub control: Control,
    pub state: State,
    /// What enforces it; for a degraded or absent control also why, in words for an operator.
    pub by: String,
}

/// What was enforced for one box, one finding per control.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Enforcement {
    findings: Vec<Finding>,
}

impl Enforcement {
    pub fn new() -> Self {
        Self::default()
    }

    /// Records a finding; a later one for the same control replaces the earlier.
    pub fn record(&mut self, control: Control, state: State, by: impl Into<String>) {
        let finding = Finding { control, state, by: by.into() };
        match self.findings.iter_mut().find(|known| known.control == control) {
            Some(known) => *known = finding,
            None => self.findings.push(finding),
        }
        self.findings.sort_by_key(|known| known.control);
    }

    pub fn enforced(&mut self, control: Control, by: impl Into<String>) {
        self.record(control, State::Enforced, by);
    }

    pub fn degraded(&mut self, control: Control, by: impl Into<String>) {
        self.record(control, State::Degraded, by);
    }

    pub fn absent(&mut self, control: Control, why: impl Into<String>) {
        self.record(control, State::Absent, why);
    }

    /// Takes over all findings of `other`.
    pub fn merge(&mut self, other: Self) {
        for finding in other.findings {
            self.record(finding.control, finding.state, finding.by);
        }
    }

    pub fn get(&self, control: Control) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.control == control)
    }

    /// True when the control is enforced in full.
    pub fn holds(&self, control: Control) -> bool {
        self.get(control).is_some_and(|finding| finding.state == State::Enforced)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_finding_replaces_the_earlier_and_order_is_fixed() {
        let mut record = Enforcement::new();
        record.enforced(Control::Memory, "cgroup v2");
        record.enforced(Control::Seccomp, "filter");
        record.degraded(Control::Memory, "RLIMIT_DATA, per process");
        let controls: Vec<_> = record.iter().map(|finding| finding.control).collect();
        assert_eq!(controls, [Control::Seccomp, Control::Memory]);
        assert!(record.holds(Control::Seccomp) && !record.holds(Control::Memory));
        assert!(!record.holds(Control::Cpu), "a control without a finding does not hold");
    }

    #[test]
    fn names_on_the_wire_are_the_names_in_reports() {
        for control in Control::ALL {
            assert_eq!(serde_json::to_value(control).unwrap(), control.name());
        }
    }
}
