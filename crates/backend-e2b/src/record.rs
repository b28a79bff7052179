//! What holds a sandbox, as far as a client of it can say.
//!
//! A sandbox is made by its template, at an endpoint that nobody here can look into. What was asked for and cannot be
//! asked of E2B is said to be the template's; what was asked for is believed when the endpoint tells it back.

use sandcrate_backend::{DiskLimit, Network, RootAccess, SessionSpec};
use sandcrate_e2b_wire::control::SandboxDetail;
use sandcrate_protocol::{Control, Enforcement};

use crate::envd::Peer;
use crate::places::Places;

pub(crate) fn record(
    spec: &SessionSpec,
    detail: Option<&SandboxDetail>,
    peer: Peer,
    places: &Places,
) -> Enforcement {
    let mut record = Enforcement::new();
    for control in [
        Control::Identity,
        Control::Namespaces,
        Control::ProcMasks,
        Control::Capabilities,
        Control::Seccomp,
        Control::Landlock,
        Control::NoSetuid,
        Control::Rlimits,
    ] {
        record.degraded(control, "by the endpoint and its template, which cannot be looked into from here");
    }
    limits(&mut record, spec, detail);
    filesystem(&mut record, spec, places);
    match (&spec.network, detail.and_then(|detail| detail.allow_internet_access)) {
        (Network::Off, Some(false)) => {
            record.enforced(Control::Network, "no access to the Internet, by the endpoint, which says so")
        }
        (Network::Off, _) => record.degraded(
            Control::Network,
            "no access to the Internet was asked for; the endpoint does not say that it is so",
        ),
        _ => record.degraded(
            Control::Network,
            "the rules were handed to the endpoint, which holds them or does not",
        ),
    }
    match peer {
        Peer::Sandcrate => record.enforced(Control::CommandKill, "by the Sandcrate at the endpoint, for the whole tree"),
        Peer::Other => record.degraded(
            Control::CommandKill,
            "the program by the endpoint, and what it started by a mark in its environment: what clears its environment escapes until the sandbox ends",
        ),
    }
    record.enforced(
        Control::Cleanup,
        format!(
            "the sandbox ends by itself {} s after this server was last heard of",
            crate::session::LIFETIME_SECONDS
        ),
    );
    record
}

fn limits(record: &mut Enforcement, spec: &SessionSpec, detail: Option<&SandboxDetail>) {
    let told = |what: Option<String>| {
        what.map_or("which does not tell".to_owned(), |what| format!("which tells {what}"))
    };
    let listed = detail.map(|detail| &detail.listed);
    let asked = &spec.limits;
    record.degraded(
        Control::Memory,
        format!(
            "by the template, {}; {} MiB were asked for and cannot be asked of E2B",
            told(listed.map(|listed| format!("{} MiB", listed.memory_mb))),
            asked.memory_bytes >> 20
        ),
    );
    record.degraded(
        Control::Cpu,
        format!(
            "by the template, {}; {} thousandths of a CPU were asked for and cannot be asked of E2B",
            told(listed.map(|listed| format!("{} CPUs", listed.cpu_count))),
            asked.cpu_millis
        ),
    );
    record.degraded(
        Control::Pids,
        format!("by the template; {} processes were asked for and cannot be asked of E2B", asked.pids),
    );
    let (DiskLimit::Accounted(bytes) | DiskLimit::Hard(bytes)) = asked.disk;
    record.degraded(
        Control::Disk,
        format!(
            "by the template, {}; {} MiB were asked for and cannot be asked of E2B",
            told(listed.map(|listed| format!("{} MiB", listed.disk_size_mb))),
            bytes >> 20
        ),
    );
    record.degraded(Control::Tmpfs, "by the template; /tmp may be part of the sandbox's disk");
}

fn filesystem(record: &mut Enforcement, spec: &SessionSpec, places: &Places) {
    let mut by =
        "the template as root; directories of the host are copies, and none of the host's files is in reach"
            .to_owned();
    if spec.root == RootAccess::ReadOnly {
        by.push_str("; whether the root can be written is the template's to say");
    }
    for (place, lies) in places.iter() {
        by.push_str(&format!(
            "; the template does not let {place} be made: it is {lies}, and commands must name it so"
        ));
    }
    record.degraded(Control::Filesystem, by);
}

#[cfg(test)]
mod tests {
    use sandcrate_backend::SessionId;
    use sandcrate_protocol::State;

    use super::*;

    #[test]
    fn every_control_has_a_finding_and_nothing_is_promised_that_was_not_told() {
        let spec = SessionSpec::new(SessionId::new("x").unwrap());
        let record = record(&spec, None, Peer::Other, &Places::default());
        for control in Control::ALL {
            assert!(record.get(control).is_some_and(|finding| !finding.by.is_empty()), "{control}");
        }
        assert_eq!(record.get(Control::Network).unwrap().state, State::Degraded);
        assert!(record.get(Control::Memory).unwrap().by.contains("512 MiB were asked for"));
    }

    #[test]
    fn a_place_that_lies_elsewhere_is_named() {
        let spec = SessionSpec::new(SessionId::new("x").unwrap());
        let places = Places::moved(&["/workspace".to_owned()], "/workspace", "/home/user");
        let by = record(&spec, None, Peer::Sandcrate, &places).get(Control::Filesystem).unwrap().by.clone();
        assert!(by.contains("/home/user/workspace"), "{by}");
    }
}
