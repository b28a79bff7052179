//! Says what cgroups enforce on this host, or why not and what a person can do about it.

use rustix::process::geteuid;
use serde::Serialize;

use super::parent::Node;
use super::{Controller, Version};

/// One control: what enforces it, or why nothing does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Control {
    Enforced { by: String },
    Missing { why: String, fix: String },
}

impl Control {
    pub fn is_enforced(&self) -> bool {
        matches!(self, Self::Enforced { .. })
    }
}

/// What [`Parent`](super::Parent) can do for its boxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    pub memory: Control,
    pub pids: Control,
    pub cpu: Control,
    /// Killing everything in a box at once.
    pub kill: Control,
    pub freeze: Control,
}

/// Why a hierarchy does not give some controllers; the first one that names a controller counts.
#[derive(Debug)]
pub(super) struct Gap {
    version: Version,
    controllers: Vec<Controller>,
    why: String,
}

impl Gap {
    pub(super) fn new(version: Version, controllers: &[Controller], why: String) -> Self {
        Self { version, controllers: controllers.to_vec(), why }
    }
}

impl Report {
    pub(super) fn new(nodes: &[Node], gaps: &[Gap]) -> Self {
        let limit = |controller| limit(controller, nodes, gaps);
        let v2 = nodes.iter().find(|node| node.version == Version::V2);
        let by_v2 = |file| v2.filter(|node| node.dir.has(file)).map(|_| enforced("cgroup v2"));
        let listed = || nodes.first().map(|_| enforced("SIGKILL to every listed process"));
        let no_v2 = || match gaps.iter().find(|gap| gap.version == Version::V2 && v2.is_none()) {
            Some(gap) => missing(gap.why.clone(), Some(Version::V2)),
            None => missing("no cgroup v2 hierarchy that can do it".to_owned(), None),
        };
        Self {
            memory: limit(Controller::Memory),
            pids: limit(Controller::Pids),
            cpu: limit(Controller::Cpu),
            kill: by_v2("cgroup.kill").or_else(listed).unwrap_or_else(no_v2),
            freeze: by_v2("cgroup.freeze").unwrap_or_else(no_v2),
        }
    }
}

fn limit(controller: Controller, nodes: &[Node], gaps: &[Gap]) -> Control {
    match nodes.iter().find(|node| node.controllers.contains(&controller)) {
        Some(node) if node.version == Version::V1 => enforced(&format!("cgroup v1 {controller}")),
        Some(_) => enforced("cgroup v2"),
        None => match gaps.iter().find(|gap| gap.controllers.contains(&controller)) {
            Some(gap) => missing(gap.why.clone(), Some(gap.version)),
            None => missing(format!("no cgroup hierarchy can limit {controller}"), None),
        },
    }
}

fn enforced(by: &str) -> Control {
    Control::Enforced { by: by.to_owned() }
}

fn missing(why: String, version: Option<Version>) -> Control {
    Control::Missing { why, fix: fix(version, geteuid().is_root()).to_owned() }
}

fn fix(version: Option<Version>, root: bool) -> &'static str {
    match (version, root) {
        (Some(Version::V2), false) => {
            "start it in a cgroup of its own: `systemd-run --user --scope -p Delegate=yes sandcrate …`; \
             if the user's systemd lacks the controller itself, root adds `[Service] Delegate=cpu \
             memory pids` in /etc/systemd/system/user@.service.d/delegate.conf"
        }
        (Some(Version::V2), true) => {
            "give it a cgroup of its own: `Delegate=yes` in its unit or `systemd-run --scope -p \
             Delegate=yes sandcrate …`; in a container, mount /sys/fs/cgroup read-write"
        }
        (Some(Version::V1), false) => {
            "cgroup v1 cannot be delegated: run as root, or boot with \
             `systemd.unified_cgroup_hierarchy=1`"
        }
        (Some(Version::V1), true) => {
            "mount the hierarchy read-write; in a container, with `--privileged` or \
             `-v /sys/fs/cgroup:/sys/fs/cgroup:rw`"
        }
        (None, _) => {
            "mount cgroup v2 (`mount -t cgroup2 none /sys/fs/cgroup`) on a kernel that has the \
             controller; some need `cgroup_enable=memory` on their command line"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rootless_user_is_told_to_delegate() {
        assert!(fix(Some(Version::V2), false).contains("systemd-run --user --scope -p Delegate=yes"));
        assert!(fix(Some(Version::V1), false).contains("run as root"));
    }
}
