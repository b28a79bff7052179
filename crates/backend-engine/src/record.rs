//! What holds a container, as the engine and the kernel tell it after the fact.

use bollard::models::ContainerInspectResponse;
use sandcrate_backend::{DiskLimit, SessionSpec};
use sandcrate_protocol::{Control, Enforcement};

use crate::container::OWN_PROCESSES;
use crate::volumes::Volume;

/// Adds to what the box's init found inside: limits by inspection, namespaces by comparison with ours.
pub(crate) fn complete(
    record: &mut Enforcement,
    spec: &SessionSpec,
    inspected: &ContainerInspectResponse,
    pid: i32,
    volumes: &[Volume],
) {
    limits(record, spec, inspected);
    namespaces(record, pid);
    let (DiskLimit::Accounted(bytes) | DiskLimit::Hard(bytes)) = spec.limits.disk;
    let places: String =
        volumes.iter().map(|volume| format!(", {} (the image's volume)", volume.place)).collect();
    record.degraded(
        Control::Disk,
        format!(
            "{} MiB of workspace and home{places}, accounted while commands run and ended when over; a writable root and shared directories without a quota are not counted",
            bytes >> 20
        ),
    );
}

fn limits(record: &mut Enforcement, spec: &SessionSpec, inspected: &ContainerInspectResponse) {
    let Some(host) = inspected.host_config.as_ref() else {
        for control in [Control::Memory, Control::Pids, Control::Cpu] {
            record.absent(control, "the engine does not tell its limits");
        }
        return;
    };
    let wanted = i64::try_from(spec.limits.memory_bytes).unwrap_or(i64::MAX);
    match (host.memory, host.memory_swap) {
        (Some(memory), Some(swap)) if memory == wanted && swap == wanted => {
            record.enforced(
                Control::Memory,
                format!("{} MiB by the engine's cgroup, no swap besides", memory >> 20),
            );
        }
        (Some(memory), swap) if memory == wanted => record.degraded(
            Control::Memory,
            format!("{} MiB by the engine's cgroup, with swap {swap:?}", memory >> 20),
        ),
        other => record.absent(Control::Memory, format!("the engine reports {other:?}")),
    }
    let asked = i64::from(spec.limits.pids) + i64::from(OWN_PROCESSES);
    match host.pids_limit {
        Some(pids) if pids == asked => {
            record.enforced(
                Control::Pids,
                format!(
                    "{pids} by the engine's cgroup; the box's init and one process for each command count too"
                ),
            );
        }
        Some(pids) if pids > 0 => record
            .degraded(Control::Pids, format!("{pids} by the engine's cgroup, where {asked} were asked for")),
        other => record.absent(Control::Pids, format!("the engine reports {other:?}")),
    }
    let nano = i64::from(spec.limits.cpu_millis) * 1_000_000;
    let quota = host.cpu_quota.zip(host.cpu_period).map(|(quota, period)| quota * 1000 / period.max(1));
    match host.nano_cpus {
        Some(set) if set == nano => record.enforced(Control::Cpu, share(spec)),
        _ if quota == Some(i64::from(spec.limits.cpu_millis)) => record.enforced(Control::Cpu, share(spec)),
        other => record.absent(Control::Cpu, format!("the engine reports {other:?}")),
    }
}

/// What the box's init says of its files holds only as far as the mounts are those that were checked.
pub(crate) fn uncompared(record: &mut Enforcement, why: &std::io::Error) {
    record.degraded(
        Control::Filesystem,
        format!("the image as root and the requested mounts; whether these are what was checked cannot be seen from here ({why})"),
    );
}

fn share(spec: &SessionSpec) -> String {
    format!("{} thousandths of a CPU by the engine's cgroup", spec.limits.cpu_millis)
}

fn namespaces(record: &mut Enforcement, pid: i32) {
    let link = |process: &str, name: &str| std::fs::read_link(format!("/proc/{process}/ns/{name}")).ok();
    let names = ["mnt", "pid", "ipc", "uts", "cgroup"];
    let compared: Vec<(&str, Option<bool>)> = names
        .iter()
        .map(|name| {
            let theirs = link(&pid.to_string(), name);
            (*name, theirs.map(|theirs| Some(theirs) != link("self", name)))
        })
        .collect();
    let shared: Vec<&str> =
        compared.iter().filter(|(_, own)| *own == Some(false)).map(|(name, _)| *name).collect();
    if compared.iter().any(|(_, own)| own.is_none()) {
        record
            .degraded(Control::Namespaces, "made by the engine; they cannot be compared with ours from here");
    } else if shared.is_empty() {
        record
            .enforced(Control::Namespaces, "mount, pid, ipc, uts and cgroup namespaces of its own, compared");
    } else {
        record.degraded(Control::Namespaces, format!("shared with the host: {}", shared.join(", ")));
    }
}
