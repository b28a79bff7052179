//! Files of the kernel: settings that must not open for writing, facts that must not be readable.
//!
//! Nothing of the kernel's is ever written here; opening a setting for writing is proof enough. Only the files of
//! a process that open for everybody are written to, with what they hold by default.

use std::fs;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::proc_tree::{belongs_to_another, process_ids};
use crate::report::{AttackResult, Report};
use crate::sys::{close, cstring, lstat, open, syscall, zeroed};

const SETTINGS: [&str; 30] = [
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/hotplug",
    "/proc/sys/kernel/poweroff_cmd",
    "/proc/sys/kernel/panic",
    "/proc/sys/kernel/sysrq",
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/ns_last_pid",
    "/proc/sys/kernel/randomize_va_space",
    "/proc/sys/kernel/usermodehelper/bset",
    "/proc/sys/kernel/unprivileged_bpf_disabled",
    "/proc/sys/fs/binfmt_misc/register",
    "/proc/sys/fs/suid_dumpable",
    "/proc/sys/fs/protected_symlinks",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/vm/panic_on_oom",
    "/proc/sys/vm/drop_caches",
    "/proc/sys/user/max_user_namespaces",
    "/proc/sysrq-trigger",
    "/proc/mtrr",
    "/proc/acpi/wakeup",
    "/proc/irq/default_smp_affinity",
    "/proc/bus/pci/00",
    "/proc/scsi/scsi",
    "/proc/timer_stats",
    "/sys/kernel/uevent_helper",
    "/sys/fs/cgroup/release_agent",
    "/sys/fs/cgroup/cgroup.procs",
    "/sys/power/state",
    "/sys/kernel/mm/transparent_hugepage/enabled",
];
/// Files of a process through which another process can harm it.
const PROCESS_FILES: [&str; 13] = [
    "oom_score_adj",
    "oom_adj",
    "mem",
    "comm",
    "clear_refs",
    "coredump_filter",
    "autogroup",
    "uid_map",
    "gid_map",
    "projid_map",
    "setgroups",
    "timens_offsets",
    "sched",
];

/// FS-19: kernel settings and the files of init, opened for writing.
pub(crate) fn procsys(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    for path in SETTINGS {
        for flags in [libc::O_WRONLY, libc::O_RDWR] {
            report.must_not_open(path, flags);
        }
        report.must_not_open(&format!("/proc/self/root{path}"), libc::O_WRONLY);
        report.must_not_open(&format!("/proc/1/root{path}"), libc::O_WRONLY);
    }
    let cgroups = ["memory", "pids", "cpu", "devices", "freezer", "systemd", "unified"];
    for name in cgroups {
        for file in ["release_agent", "notify_on_release", "cgroup.procs", "tasks"] {
            report.must_not_open(&format!("/sys/fs/cgroup/{name}/{file}"), libc::O_WRONLY);
        }
    }
    if std::process::id() != 1 {
        for file in PROCESS_FILES {
            report.must_not_open(&format!("/proc/1/{file}"), libc::O_WRONLY);
        }
        must_not_write_open_files(&mut report, 1);
    }
    let deadline = Instant::now() + Duration::from_secs(6);
    for root in ["/proc/sys", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/driver", "/proc/acpi", "/sys"] {
        walk_for_writable(&mut report, Path::new(root), 8, deadline);
    }
    report.verdict("no kernel setting opens for writing")
}

/// These have mode 0666 and refuse at the write, so that only the write tells.
pub(crate) fn must_not_write_open_files(report: &mut Report, pid: i32) {
    for (file, content) in [("timerslack_ns", "50000"), ("attr/current", "probe"), ("attr/exec", "probe")] {
        let path = format!("/proc/{pid}/{file}");
        report.must_fail(&format!("write {content:?} to {path}"), || {
            crate::process::namespace::write_file(&path, content)
        });
    }
}

fn walk_for_writable(report: &mut Report, directory: &Path, depth: usize, deadline: Instant) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if Instant::now() > deadline {
            report.remark(format!("no time left to look below {}", directory.display()));
            return;
        }
        let Ok(kind) = entry.file_type() else { continue };
        let path = entry.path();
        if kind.is_dir() && depth > 0 {
            walk_for_writable(report, &path, depth - 1, deadline);
        } else if kind.is_file() {
            let path = path.display().to_string();
            report.held();
            if let Ok(fd) = open(&path, libc::O_WRONLY | libc::O_NONBLOCK | libc::O_CLOEXEC) {
                close(fd);
                report.breach(format!("{path} opens for writing"));
            }
        }
    }
}

/// What must be masked: memory, addresses, keys, timers, hardware and boot arguments.
const MASKED: [&str; 30] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/key-users",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/kallsyms",
    "/proc/kmsg",
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/kpagecgroup",
    "/proc/slabinfo",
    "/proc/vmallocinfo",
    "/proc/interrupts",
    "/proc/config.gz",
    "/proc/cmdline",
    "/proc/vmcore",
    "/proc/bootconfig",
    "/proc/dynamic_debug",
    "/sys/firmware",
    "/sys/kernel/debug",
    "/sys/kernel/tracing",
    "/sys/kernel/security",
    "/sys/kernel/notes",
    "/sys/kernel/vmcoreinfo",
    "/sys/devices/virtual/powercap",
];
/// Facts about the host that are printed when readable but do not decide.
const REVEALING: [&str; 18] = [
    "/proc/iomem",
    "/proc/ioports",
    "/proc/modules",
    "/proc/softirqs",
    "/proc/pagetypeinfo",
    "/proc/buddyinfo",
    "/proc/zoneinfo",
    "/proc/schedstat",
    "/proc/diskstats",
    "/proc/partitions",
    "/proc/swaps",
    "/proc/locks",
    "/proc/consoles",
    "/proc/devices",
    "/proc/misc",
    "/proc/crypto",
    "/proc/loadavg",
    "/proc/version",
];

/// FS-20: kernel facts that must be masked.
pub(crate) fn masked(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    for path in MASKED {
        for form in [path.to_owned(), format!("/proc/self/root{path}"), format!("/proc/1/root{path}")] {
            report.held();
            if let Some(size) = content(&form) {
                report.breach(format!("{form} shows {size}"));
            }
        }
    }
    for path in REVEALING {
        if let Some(size) = content(path) {
            println!("attempt: read {path} -> {size}, not judged");
        }
    }
    report.verdict("masked files show nothing")
}

/// What a file or directory shows, or nothing when it is absent, closed or empty.
fn content(path: &str) -> Option<String> {
    if fs::metadata(path).ok()?.is_dir() {
        let count = fs::read_dir(path).ok()?.count();
        return (count > 0).then(|| format!("{count} entries"));
    }
    let mut file = fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    let mut buffer = [0u8; 512];
    let read = file.read(&mut buffer).ok()?;
    (read > 0).then(|| format!("{read} bytes"))
}

const SYSFS_MAGIC: i64 = 0x6265_6572;
const CGROUP_MAGIC: [i64; 2] = [0x0027_e0eb, 0x6367_7270];

/// FS-52: `/sys` by its own path and by others, and control groups in it.
pub(crate) fn sysfs(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    for path in
        ["/sys", "/proc/self/root/sys", "/proc/1/root/sys", "/sys/fs/cgroup", "/cgroup", "/sys/fs/bpf"]
    {
        let mut found = zeroed::<libc::statfs>();
        let result = syscall!(libc::SYS_statfs, &cstring(path), &raw mut found);
        report.attempt(&format!("statfs({path})"), result);
        if result.is_err() {
            continue;
        }
        if CGROUP_MAGIC.contains(&found.f_type) {
            report.breach(format!("{path} is a control group file system"));
        } else if found.f_type == SYSFS_MAGIC {
            report.remark(format!("{path} is sysfs"));
        }
    }
    for path in
        ["/sys/kernel", "/sys/block", "/sys/bus", "/sys/module", "/sys/power", "/sys/firmware", "/sys/class"]
    {
        if let Some(size) = content(path) {
            report.remark(format!("{path} shows {size}"));
        }
    }
    walk_for_writable(&mut report, Path::new("/sys"), 6, Instant::now() + Duration::from_secs(5));
    report.verdict("/sys shows nothing of the host")
}

/// FS-53: the magic request key, opened only.
pub(crate) fn sysrq(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    for path in
        ["/proc/sysrq-trigger", "/proc/self/root/proc/sysrq-trigger", "/proc/1/root/proc/sysrq-trigger"]
    {
        let shown = lstat(path).map(|found| format!("{:o} device {:#x}", found.st_mode, found.st_rdev));
        println!("attempt: lstat({path}) -> {}", shown.unwrap_or_else(|errno| errno.to_string()));
        for flags in [libc::O_WRONLY, libc::O_RDWR, libc::O_WRONLY | libc::O_APPEND] {
            report.must_not_open(path, flags);
        }
    }
    report.must_not_open("/proc/sys/kernel/sysrq", libc::O_WRONLY);
    report.verdict("the magic request key does not open for writing")
}

/// FS-54: the memory of init and of processes of other users.
pub(crate) fn procmem(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    let own = std::process::id();
    let others =
        process_ids().into_iter().filter(|pid| *pid != own && (*pid == 1 || belongs_to_another(*pid)));
    for pid in others {
        for file in
            ["mem", "pagemap", "maps", "smaps", "environ", "auxv", "stack", "syscall", "numa_maps", "io"]
        {
            for folder in [format!("/proc/{pid}"), format!("/proc/{pid}/task/{pid}")] {
                report.must_not_read(&format!("{folder}/{file}"));
            }
        }
        report.must_not_open(&format!("/proc/{pid}/mem"), libc::O_RDWR);
    }
    let forced = force_write_own_memory();
    println!("attempt: write own read-only page by /proc/self/mem -> {forced:?}, not judged");
    report.verdict("memory of init and of other users is closed")
}

/// Whether `/proc/self/mem` overrides page protection; it concerns this process only.
fn force_write_own_memory() -> Result<(), std::io::Error> {
    use std::os::unix::fs::FileExt;
    static CONSTANT: [u8; 16] = *b"probe read only ";
    let file = fs::OpenOptions::new().write(true).open("/proc/self/mem")?;
    file.write_all_at(&CONSTANT, CONSTANT.as_ptr() as u64)
}
