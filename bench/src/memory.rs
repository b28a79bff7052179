//! Memory of processes, of their descendants and of the kernel on their behalf.

use std::fs;

use anyhow::Context;

/// Kernel memory that namespaces, mounts, cgroups and processes take, in /proc/meminfo.
const KERNEL: [&str; 4] = ["SUnreclaim:", "Percpu:", "KernelStack:", "PageTables:"];

/// The machine's memory, and that of a process and its descendants, in MiB.
pub(crate) struct Memory {
    pub(crate) available: f64,
    kernel: f64,
    /// Dentries and inodes: the kernel gives them back when memory is short, except what is in use.
    pub(crate) caches: f64,
    /// Proportional shares of the launcher's and the boxes' processes.
    pub(crate) boxes: f64,
    /// What is resident of the process itself.
    pub(crate) own: f64,
}

impl Memory {
    pub(crate) fn of(pid: u32) -> anyhow::Result<Self> {
        let machine = fs::read_to_string("/proc/meminfo")?;
        let named = |name: &str| kib(&machine, name).with_context(|| format!("no {name} in /proc/meminfo"));
        Ok(Self {
            available: named("MemAvailable:")? / 1024.0,
            kernel: KERNEL.iter().map(|name| named(name)).sum::<anyhow::Result<f64>>()? / 1024.0,
            caches: named("SReclaimable:")? / 1024.0,
            boxes: descendants(pid)?.iter().filter_map(|pid| proportional_mib(*pid)).sum(),
            own: resident_mib(&pid.to_string())?,
        })
    }

    /// What can be named of the use of a box.
    pub(crate) fn counted(&self) -> f64 {
        self.kernel + self.boxes + self.own
    }
}

/// The resident memory of a process.
pub(crate) fn resident_mib(process: &str) -> anyhow::Result<f64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    Ok(kib(&status, "VmRSS:").context("a status without VmRSS")? / 1024.0)
}

/// The proportional shares of a process and all below it.
pub(crate) fn tree_mib(pid: u32) -> anyhow::Result<f64> {
    let below = descendants(pid)?;
    Ok(below.iter().chain([&pid]).filter_map(|pid| proportional_mib(*pid)).sum())
}

fn proportional_mib(pid: u32) -> Option<f64> {
    Some(kib(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?, "Pss:")? / 1024.0)
}

/// A figure of the form `Name:  123 kB`.
pub(crate) fn kib(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB")?.trim().parse().ok())
}

/// The children of a process and theirs: launchers, and the inits of boxes.
pub(crate) fn descendants(of: u32) -> anyhow::Result<Vec<u32>> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // What has ended meanwhile is nobody's memory.
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        // The name may hold spaces and parentheses: fields are counted from the last one (proc_pid_stat(5)).
        let parent =
            stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)?.parse::<u32>().ok());
        parents.extend(parent.map(|parent| (pid, parent)));
    }
    let mut found = vec![of];
    let mut next = 0;
    while next < found.len() {
        let parent = found[next];
        found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    Ok(found.split_off(1))
}
