//! Checks of the kernel and of what surrounds this process: namespaces, seccomp, /proc, privileges.

use std::os::unix::fs::PermissionsExt;

use super::check::{Check, Fix};
use super::machine::Machine;

const CAP_SYS_ADMIN: u32 = 21;
const CAP_SYS_RESOURCE: u32 = 24;

/// The oldest kernel with id-mapped mounts (5.12) and `cgroup.kill` (5.14).
const WANTED_KERNEL: (u32, u32) = (5, 14);
/// The oldest with `mount_setattr`, without which no mount can be made read-only by descriptor.
const NEEDED_KERNEL: (u32, u32) = (5, 12);

pub(super) fn all(machine: &Machine) -> Vec<Check> {
    [
        Some(kernel(machine)),
        Some(user_namespaces(machine)),
        seccomp(machine),
        landlock(machine),
        Some(proc_visible(machine)),
        Some(privileges(machine)),
        own_filter(machine),
        core_pattern(machine),
        Some(tun_device(machine)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn kernel(machine: &Machine) -> Check {
    let (major, minor) = machine.kernel_version();
    let upgrade = |until: &str| Fix::new(["boot a kernel of 5.14 or later (Debian 12 has 6.1)"], until);
    if (major, minor) >= WANTED_KERNEL {
        Check::ok("kernel", format!("Linux {major}.{minor}"))
    } else if (major, minor) >= NEEDED_KERNEL {
        let until = "boxes run; ending one command's tree needs more steps, Landlock may be absent";
        Check::weak("kernel", format!("Linux {major}.{minor}, 5.14 is wanted"), upgrade(until))
    } else {
        Check::missing(
            "kernel",
            format!("Linux {major}.{minor}, 5.12 is needed"),
            upgrade("no box can start"),
        )
    }
}

fn user_namespaces(machine: &Machine) -> Check {
    const NAME: &str = "user namespaces";
    const UNTIL: &str =
        "no box can start as this user; as root boxes run where the kernel has user namespaces at all";
    match machine.number("proc/sys/user/max_user_namespaces") {
        None => {
            let fix = Fix::new(
                ["boot a kernel with CONFIG_USER_NS=y (every distribution kernel has it)"],
                "no box can start",
            );
            return Check::missing(NAME, "the kernel has none", fix);
        }
        Some(0) => {
            let fix = Fix::new(
                [
                    "sysctl -w user.max_user_namespaces=15000",
                    "echo user.max_user_namespaces=15000 > /etc/sysctl.d/90-sandcrate.conf   # to keep it",
                ],
                "no box can start, not even as root",
            );
            return Check::missing(NAME, "user.max_user_namespaces is 0", fix);
        }
        Some(_) => {}
    }
    if machine.is_root() {
        return Check::ok(NAME, "allowed");
    }
    if machine.number("proc/sys/kernel/unprivileged_userns_clone") == Some(0) {
        let fix = Fix::new(
            [
                "sysctl -w kernel.unprivileged_userns_clone=1",
                "echo kernel.unprivileged_userns_clone=1 > /etc/sysctl.d/90-sandcrate.conf   # to keep it",
            ],
            UNTIL,
        );
        return Check::missing(NAME, "kernel.unprivileged_userns_clone is 0: only root may make them", fix);
    }
    if machine.number("proc/sys/kernel/apparmor_restrict_unprivileged_userns") == Some(1) {
        return Check::missing(
            NAME,
            "AppArmor restricts them for ordinary users (Ubuntu 23.10 and later)",
            apparmor_fix(UNTIL),
        );
    }
    Check::ok(NAME, "allowed for ordinary users")
}

/// A profile that gives this program, and nothing else, what Ubuntu took from all.
fn apparmor_fix(until: &str) -> Fix {
    let program = std::env::current_exe()
        .map_or_else(|_| "/usr/local/bin/sandcrate".to_owned(), |exe| exe.display().to_string());
    Fix::new(
        [
            "cat > /etc/apparmor.d/sandcrate <<'END'".to_owned(),
            "abi <abi/4.0>,".to_owned(),
            "include <tunables/global>".to_owned(),
            format!("profile sandcrate {program} flags=(unconfined) {{"),
            "  userns,".to_owned(),
            "  include if exists <local/sandcrate>".to_owned(),
            "}".to_owned(),
            "END".to_owned(),
            "apparmor_parser -r /etc/apparmor.d/sandcrate".to_owned(),
        ],
        until,
    )
}

fn seccomp(machine: &Machine) -> Option<Check> {
    let actions = machine.text("proc/sys/kernel/seccomp/actions_avail")?;
    let fix = || {
        Fix::new(
            ["boot a kernel with CONFIG_SECCOMP_FILTER=y"],
            "no box can start: the filter is never left out",
        )
    };
    Some(if actions.split_whitespace().any(|action| action == "errno") {
        Check::ok("seccomp filters", "the kernel has them")
    } else {
        Check::missing("seccomp filters", "the kernel cannot refuse single calls", fix())
    })
}

/// Only where the list of security modules can be read; the box itself tells elsewhere.
fn landlock(machine: &Machine) -> Option<Check> {
    let modules = machine.text("sys/kernel/security/lsm")?;
    Some(if modules.split(',').any(|module| module == "landlock") {
        Check::ok("landlock", "active")
    } else {
        let parameter = format!("add `lsm=landlock,{modules}` to the kernel command line and reboot");
        let until = "boxes run; files are guarded by namespaces and mounts, without the second line";
        Check::weak(
            "landlock",
            format!("not among the active modules ({modules})"),
            Fix::new([parameter], until),
        )
    })
}

/// A container engine covers files of /proc; the kernel then lets nobody mount a fresh one below it.
fn proc_visible(machine: &Machine) -> Check {
    let covered: Vec<_> = machine
        .mounts()
        .into_iter()
        .map(|mount| mount.point)
        // An automount point over an empty directory hides nothing.
        .filter(|point| point.starts_with("/proc/") && point != "/proc/sys/fs/binfmt_misc")
        .collect();
    if covered.is_empty() {
        return Check::ok("/proc", "fully visible");
    }
    let fix = Fix::new(
        [
            "docker: run with `--security-opt systempaths=unconfined --security-opt seccomp=unconfined`",
            "kubernetes: securityContext.procMount: Unmasked",
        ],
        "a box may fail to mount its own /proc, and then does not start",
    );
    let some = covered.iter().take(3).map(String::as_str).collect::<Vec<_>>().join(", ");
    Check::weak("/proc", format!("{} places are covered ({some})", covered.len()), fix)
}

fn privileges(machine: &Machine) -> Check {
    const NAME: &str = "privileges";
    if !machine.is_root() {
        let fix = Fix::new(
            ["run as root for an id range of its own, a hard quota on disk, a writable root"],
            "boxes run as your own uid with one id inside; see the controls of the box below",
        );
        return Check::weak(NAME, format!("ordinary user {}", machine.user), fix);
    }
    if !machine.has_capability(CAP_SYS_ADMIN) {
        let fix = Fix::new(
            ["docker: run with `--privileged`, or `--cap-add SYS_ADMIN` and no seccomp profile"],
            "no box can start as this root; an ordinary user with user namespaces may do better",
        );
        return Check::missing(NAME, "root without CAP_SYS_ADMIN", fix);
    }
    let detail = if machine.has_capability(CAP_SYS_RESOURCE) {
        "root"
    } else {
        "root without CAP_SYS_RESOURCE: limits cannot be raised, only lowered"
    };
    Check::ok(NAME, detail)
}

/// A filter on ourselves, as container engines set it, often refuses what boxes are made with.
fn own_filter(machine: &Machine) -> Option<Check> {
    if machine.value("proc/self/status", "Seccomp")? != "2" {
        return None;
    }
    let fix = Fix::new(
        ["docker: run with `--security-opt seccomp=unconfined`"],
        "if the filter refuses clone, unshare or mount, no box can start; otherwise nothing is lost",
    );
    Some(Check::weak(
        "outer seccomp filter",
        "this process is already filtered, probably by a container engine",
        fix,
    ))
}

/// A core dump into a pipe ignores RLIMIT_CORE and starts a program of the host as root.
fn core_pattern(machine: &Machine) -> Option<Check> {
    let pattern = machine.text("proc/sys/kernel/core_pattern")?;
    Some(if pattern.starts_with('|') {
        let fix = Fix::new(
            ["sysctl -w kernel.core_pattern=core", "or leave it: boxes set RLIMIT_CORE to 0"],
            "a crash in a box may start the host's core handler, which reads what the box wrote",
        );
        Check::weak(
            "core dumps",
            format!("the kernel pipes them to `{}`", pattern.trim_start_matches('|')),
            fix,
        )
    } else {
        Check::ok("core dumps", "no handler on the host")
    })
}

/// What isolated networks are made of.
fn tun_device(machine: &Machine) -> Check {
    const NAME: &str = "tun device";
    const UNTIL: &str = "boxes run with network off; with an isolated network they do not start";
    let Ok(facts) = std::fs::metadata(machine.path("dev/net/tun")) else {
        let step = match &machine.container {
            Some(_) => "start the container with `--device /dev/net/tun`",
            None => {
                "modprobe tun; where /dev has no node then: mkdir -p /dev/net && mknod -m 666 /dev/net/tun c 10 200"
            }
        };
        return Check::weak(NAME, "there is no /dev/net/tun", Fix::new([step], UNTIL));
    };
    if !machine.is_root() && facts.permissions().mode() & 0o006 != 0o006 {
        let fix = Fix::new(["chmod 666 /dev/net/tun (as udev sets it: it gives no right by itself)"], UNTIL);
        return Check::weak(NAME, "/dev/net/tun is not open to this user", fix);
    }
    Check::ok(NAME, "/dev/net/tun can be opened")
}

/// Whether a box with an isolated network could be made; `tried` is what came of it.
pub(super) fn network_helper(tried: &Result<String, String>) -> Check {
    const NAME: &str = "isolated network";
    match tried {
        Ok(by) => Check::ok(NAME, by.clone()),
        Err(why) => {
            let fix = Fix::new(
                ["see `tun device` above; if that is ok, the step that failed is named here"],
                "boxes run with network off; with an isolated network they do not start",
            );
            Check::weak(NAME, why.clone(), fix)
        }
    }
}
