//! The mount table as the sandbox sees it: propagation, flags, host paths.

use crate::proc_tree::{Mount, mounts};
use crate::report::{AttackResult, Report, Usage};

const DEVICE_NODES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
/// File systems without a disk behind them; their root field is no host path.
const PSEUDO: [&str; 9] =
    ["tmpfs", "proc", "devpts", "sysfs", "mqueue", "devtmpfs", "cgroup", "cgroup2", "binfmt_misc"];
const SYSTEM_ROOTS: [&str; 6] = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32"];

/// FS-22: no propagation tag, nosuid and nodev everywhere, no unasked host path.
///
/// Arguments are the targets of requested mounts; `/workspace` when there are none.
pub(crate) fn prop(arguments: &[String]) -> AttackResult {
    let requested: Vec<&str> = if arguments.is_empty() {
        vec!["/workspace"]
    } else {
        arguments.iter().map(String::as_str).collect()
    };
    let mounts = mounts();
    if mounts.is_empty() {
        return Err(Usage("/proc/self/mountinfo cannot be read".into()));
    }
    let mut report = Report::default();
    for mount in &mounts {
        println!(
            "attempt: mount {} -> {} root {} ({}) ({})",
            mount.target,
            mount.kind,
            mount.root,
            mount.options.join(","),
            mount.super_options
        );
        check_flags(&mut report, mount);
        check_host_paths(&mut report, mount, &requested);
    }
    report.verdict("every mount is private, nosuid, nodev and shows no unasked host path")
}

fn check_flags(report: &mut Report, mount: &Mount) {
    report.held();
    for tag in &mount.tags {
        report.breach(format!("{} has propagation tag {tag}", mount.target));
    }
    if !mount.has("nosuid") {
        report.breach(format!("{} lacks nosuid", mount.target));
    }
    if !mount.has("nodev") && !may_hold_devices(mount) {
        report.breach(format!("{} lacks nodev", mount.target));
    }
}

fn may_hold_devices(mount: &Mount) -> bool {
    let node = mount.target.strip_prefix("/dev/").is_some_and(|name| DEVICE_NODES.contains(&name));
    // A masked file is the null device bound over it.
    let mask = mount.root == "/null" && mount.target.starts_with("/proc/");
    node || mask || mount.kind == "devpts"
}

fn check_host_paths(report: &mut Report, mount: &Mount, requested: &[&str]) {
    let is_below = |path: &str, root: &str| path == root || path.starts_with(&format!("{root}/"));
    if requested.iter().any(|target| is_below(&mount.target, target)) {
        return;
    }
    let system = |path: &str| SYSTEM_ROOTS.iter().any(|root| is_below(path, root));
    if !PSEUDO.contains(&mount.kind.as_str()) && mount.root != "/" && !system(&mount.root) {
        report.breach(format!("{} shows the host path {}", mount.target, mount.root));
    }
    for option in mount.super_options.split(',') {
        let Some((key, value)) = option.split_once('=') else { continue };
        let key = key.trim_end_matches('+');
        if ["lowerdir", "upperdir", "workdir", "datadir"].contains(&key)
            && value.split(':').any(|path| path.starts_with('/') && !system(path) && path != "/")
        {
            report.breach(format!("{} shows a host path in {option}", mount.target));
        }
    }
}
