//! `probe`: attacks a sandbox from inside and says what held.
//!
//! `probe list` names every attack; `probe NAME [ARGUMENT...]` performs one. Each attempt
//! that matters is a line `attempt: ...`; the last line is `SAFE: ...`, `UNSAFE: ...` or
//! `INFO: ...`. Exit code 0 means SAFE or INFO, 1 UNSAFE, 2 wrong use, which includes an
//! attack whose precondition does not hold: SAFE is only said of attempts that were made.
//!
//! Ids up to 49 are those of the project's table of cases, ids from 50 are our own.
//! Permitted calls do no harm where the kernel allows such a choice of arguments, but run
//! this inside a sandbox only: floods flood.
//!
//! Tests build it with `RUSTFLAGS='-C target-feature=+crt-static'` for the gnu target, so
//! that it runs in a root without libraries; it also builds dynamically.

mod abi;
mod canary;
mod child;
mod fs;
mod net;
mod proc_tree;
mod process;
mod report;
mod resource;
mod sys;
mod time;

use std::process::ExitCode;
use std::time::Duration;

use child::{Child, Fate, set_alarm};
use process::{credentials, init, kernel_calls, limits, namespace, surface, terminal, trace};
use report::{AttackResult, Usage, Verdict};
use resource::{buffers, disk, memory, odd_files, processes};

/// The alarm ends the program; the supervisor gives up earlier, to still say so.
const ALARM_SECONDS: u32 = 20;
const PATIENCE: Duration = Duration::from_secs(18);

struct Attack {
    id: &'static str,
    name: &'static str,
    arguments: &'static str,
    attempts: &'static str,
    run: fn(&[String]) -> AttackResult,
}

const fn attack(
    id: &'static str,
    name: &'static str,
    arguments: &'static str,
    attempts: &'static str,
    run: fn(&[String]) -> AttackResult,
) -> Attack {
    Attack { id, name, arguments, attempts, run }
}

const ATTACKS: &[Attack] = &[
    attack("FS-01", "fs_dotdot", "CANARY", "reach a host file by path forms", fs::path::dotdot),
    attack("FS-02", "fs_procroots", "CANARY", "reach a host file by /proc/PID links", fs::path::procroots),
    attack("FS-03", "fs_fdleak", "CANARY", "find leaked descriptors", fs::descriptor::fdleak),
    attack("FS-04", "fs_stdio", "", "find host files or terminals as streams", fs::descriptor::stdio),
    attack("FS-05", "fs_procexe", "", "write to programs of other processes", fs::descriptor::procexe),
    attack("FS-06", "fs_mount", "", "mount, remount, unmount", fs::mount::mount),
    attack("FS-07", "fs_nsmount", "", "mount in a nested user namespace", fs::mount::nsmount),
    attack("FS-09", "fs_chroot", "CANARY", "chroot and climb out", fs::path::chroot),
    attack("FS-10", "fs_pivot", "", "pivot_root", fs::mount::pivot),
    attack("FS-11", "fs_setns", "", "join namespaces of other processes", namespace::setns),
    attack("FS-12", "fs_handle", "", "open files by handle", fs::handle::handle),
    attack("FS-13", "fs_mknod", "DIR", "make device nodes", fs::device::mknod),
    attack("FS-14", "fs_dev", "", "find unexpected devices in /dev", fs::device::dev),
    attack("FS-16", "fs_ro", "", "change or remount system directories", fs::readonly::ro),
    attack("FS-19", "fs_procsys", "", "open kernel settings for writing", fs::kernel_files::procsys),
    attack("FS-20", "fs_masked", "", "read kernel facts", fs::kernel_files::masked),
    attack("FS-22", "fs_prop", "[TARGET...]", "find loose flags in the mount table", fs::mount_table::prop),
    attack("FS-23", "fs_suidfile", "DIR", "leave a setuid file, by every call", fs::setuid::suidfile),
    attack("FS-24", "fs_workspace_dev", "DIR", "use device nodes in DIR", fs::device::workspace_dev),
    attack("FS-51", "fs_newmount", "", "fsopen, open_tree, move_mount, mount_setattr", fs::mount::newmount),
    attack("FS-52", "fs_sys", "", "look at /sys and control groups", fs::kernel_files::sysfs),
    attack("FS-53", "fs_sysrq", "", "open the magic request key", fs::kernel_files::sysrq),
    attack("FS-54", "fs_procmem", "", "read memory files of init and others", fs::kernel_files::procmem),
    attack("PR-01", "pr_caps", "", "hold or raise a capability", credentials::caps),
    attack("PR-02", "pr_bnd", "", "find a capability in the bounding set", credentials::bnd),
    attack("PR-03", "pr_nnp", "", "run without no_new_privs", credentials::nnp),
    attack("PR-04", "pr_seccomp", "", "run without or leave the filter", credentials::seccomp),
    attack("PR-05", "pr_uidmap", "", "find host ids 0 in the maps", credentials::uidmap),
    attack("PR-06", "pr_groups", "", "hold or set supplementary groups", credentials::groups),
    attack("PR-07", "pr_ptrace", "", "trace an own child", trace::own_child),
    attack("PR-08", "pr_ptrace1", "", "trace init", trace::init),
    attack("PR-10", "pr_keyctl", "", "use the key store", surface::keyctl),
    attack("PR-11", "pr_bpf", "", "load programs and maps into the kernel", surface::bpf),
    attack("PR-13", "pr_kexec", "", "load another kernel", kernel_calls::kexec),
    attack("PR-14", "pr_module", "", "load or remove a module", kernel_calls::module),
    attack("PR-16", "pr_iouring", "", "set up io_uring", surface::iouring),
    attack("PR-17", "pr_personality", "", "take rare personalities", surface::personality),
    attack("PR-19", "pr_clock", "", "set clocks", kernel_calls::clock),
    attack("PR-20", "pr_reboot", "", "reboot", kernel_calls::reboot),
    attack("PR-21", "pr_swap", "", "add or remove swap", kernel_calls::swap),
    attack("PR-23", "pr_iopl", "", "reach ports", kernel_calls::iopl),
    attack("PR-24", "pr_quotactl", "", "control quotas", kernel_calls::quotactl),
    attack("PR-25", "pr_fanotify", "", "watch whole file systems", surface::fanotify),
    attack("PR-27", "pr_clone3", "", "use clone3", namespace::clone3_refused),
    attack("PR-29", "pr_x32", "", "call by x32 and odd numbers", abi::x32),
    attack("PR-30", "pr_rt", "", "take real-time classes", limits::rt),
    attack("PR-31", "pr_nice", "", "raise the priority", limits::nice),
    attack("PR-32", "pr_core", "", "dump core", limits::core),
    attack("PR-33", "pr_dump", "", "tell whether this process is dumpable", credentials::dump),
    attack("PR-51", "pr_int80", "", "call by int 0x80", abi::int80_calls),
    attack("PR-52", "pr_unshare", "", "unshare each namespace", namespace::unshare),
    attack("PR-53", "pr_clone", "", "clone into each namespace", namespace::clone_namespaces),
    attack("PR-54", "pr_mapwrite", "", "write id maps", namespace::mapwrite),
    attack("PR-55", "pr_setid", "", "become another user or group", credentials::setid),
    attack("PR-56", "pr_vmread1", "", "reach memory of init without tracing", trace::init_memory),
    attack("PR-57", "pr_control1", "", "signal, limit or reschedule init", init::control),
    attack("PR-58", "pr_oom", "", "lower the own oom score", init::oom),
    attack("PR-59", "pr_acct", "", "turn on process accounting", kernel_calls::acct),
    attack("PR-60", "pr_syslog", "", "read the kernel log", kernel_calls::syslog),
    attack("PR-61", "pr_vhangup", "", "hang up the terminal", kernel_calls::vhangup),
    attack("PR-62", "pr_hostname", "", "set host and domain name", kernel_calls::hostname),
    attack("PR-63", "pr_userfaultfd", "", "handle page faults", surface::userfaultfd),
    attack("PR-64", "pr_memfd_secret", "", "hide memory from the kernel", surface::memfd_secret),
    attack("PR-65", "pr_perf", "", "open performance events", surface::perf),
    attack("PR-66", "pr_obsolete", "", "use obsolete and rare calls", surface::obsolete),
    attack("PR-67", "pr_autoload", "", "make the kernel load a module", surface::autoload),
    attack("PR-68", "pr_tiocsti", "", "push input into a terminal", terminal::tiocsti),
    attack("PR-69", "pr_signal1", "", "send init every signal by descriptor", init::signals_by_descriptor),
    attack("NT-01", "nt_ifaces", "", "find interfaces and routes", net::link::ifaces),
    attack("NT-02", "nt_tcp4", "PORT", "reach the host's IPv4 listener", net::internet::tcp4),
    attack("NT-03", "nt_tcp6", "PORT", "reach the host's IPv6 listener", net::internet::tcp6),
    attack("NT-04", "nt_udp", "[PORT]", "reach a name server", net::internet::udp),
    attack("NT-05", "nt_abstract", "NAME", "reach abstract sockets", net::unix::abstract_name),
    attack("NT-07", "nt_netlink", "", "use netlink", net::link::netlink),
    attack("NT-08", "nt_raw", "", "open raw and packet sockets", net::link::raw),
    attack("NT-51", "nt_vsock", "", "reach the hypervisor", net::link::vsock),
    attack("NT-52", "nt_unix", "[PATH...]", "reach socket files", net::unix::pathnames),
    attack("NT-53", "nt_egress", "[IP:PORT...]", "reach services and other machines", net::internet::egress),
    attack("NT-54", "nt_families", "", "open sockets of rare families", net::link::families),
    attack("RS-01", "rs_fork", "N", "start N processes", processes::fork),
    attack("RS-02", "rs_threads", "N", "start N threads", processes::threads),
    attack("RS-03", "rs_mem", "MIB", "hold MIB in one process", memory::one),
    attack("RS-04", "rs_memmulti", "MIB", "hold MIB in four processes", memory::several),
    attack("RS-07", "rs_disk", "DIR,MIB", "write MIB below DIR", disk::bytes),
    attack("RS-08", "rs_inode", "DIR,COUNT", "make COUNT inodes below DIR", disk::inodes),
    attack("RS-09", "rs_fds", "", "open descriptors without end", buffers::fds),
    attack("RS-13", "rs_cpu", "LIMIT", "use more than LIMIT processors", processes::cpu),
    attack("RS-14", "rs_deep", "DIR[,DEPTH]", "leave a very deep tree", odd_files::deep),
    attack("RS-17", "rs_names", "DIR", "leave files with odd names", odd_files::names),
    attack("RS-18", "rs_mlock", "", "lock memory", memory::mlock),
    attack("RS-19", "rs_shm", "[MIB]", "hold System V shared memory", memory::shm),
    attack("RS-51", "rs_tmpfs", "[MIB]", "fill memory-backed directories", disk::tmpfs),
    attack("RS-52", "rs_pipe", "[MIB]", "fill pipes", buffers::pipes),
    attack("RS-53", "rs_socket", "[MIB]", "fill socket buffers", buffers::sockets),
    attack("RS-54", "rs_msg", "[MIB]", "fill message queues", buffers::messages),
    attack("RS-55", "rs_memfd", "[MIB]", "hold memory that no process maps", memory::ownerless),
    attack("TM-01", "tm_ignore", "[SECONDS]", "ignore all signals", time::ignore),
    attack("TM-02", "tm_daemon", "[FORM] [SECONDS]", "leave daemons behind", time::daemon),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((name, rest)) = arguments.split_first() else {
        eprintln!("usage: probe list | probe NAME [ARGUMENT...]");
        return ExitCode::from(2);
    };
    if name == "list" {
        for attack in ATTACKS {
            let usage = format!("{} {}", attack.name, attack.arguments);
            println!("{:6} {:32} {}", attack.id, usage.trim_end(), attack.attempts);
        }
        return ExitCode::SUCCESS;
    }
    match ATTACKS.iter().find(|attack| attack.name == name) {
        // These must be the process that the sandbox knows, not a child of it.
        Some(attack) if attack.id.starts_with("TM") => ExitCode::from(conclude(attack, (attack.run)(rest))),
        Some(attack) => supervise(attack, rest),
        None => {
            eprintln!("probe: no attack named {name}; see `probe list`");
            ExitCode::from(2)
        }
    }
}

/// Prints the last line and gives the exit code.
fn conclude(attack: &Attack, result: AttackResult) -> u8 {
    let (line, code) = match result {
        Ok(Verdict::Safe(detail)) => (format!("SAFE: {detail}"), 0),
        Ok(Verdict::Info(detail)) => (format!("INFO: {detail}"), 0),
        Ok(Verdict::Unsafe(detail)) => (format!("UNSAFE: {detail}"), 1),
        Err(Usage(reason)) => {
            eprintln!("usage: probe {} {}: {reason}", attack.name, attack.arguments);
            return 2;
        }
    };
    println!("{}", line.replace('\n', " "));
    code
}

/// Runs the attack in a child, so that a killed or stuck attack still gets a verdict.
fn supervise(attack: &Attack, arguments: &[String]) -> ExitCode {
    set_alarm(ALARM_SECONDS);
    let worker = Child::spawn(|| conclude(attack, (attack.run)(arguments)).into());
    let mut worker = match worker {
        Ok(worker) => worker,
        Err(errno) => return ExitCode::from(conclude(attack, Err(Usage(format!("cannot fork: {errno}"))))),
    };
    let verdict = match worker.wait(PATIENCE) {
        Fate::Exited(code) => return ExitCode::from(code as u8),
        Fate::Killed(libc::SIGKILL) if attack.id.starts_with("RS") => {
            Verdict::Safe("the attacker was killed, as by lack of memory".into())
        }
        Fate::Killed(libc::SIGSYS) => {
            Verdict::Info("the filter killed the attacker before it was done".into())
        }
        Fate::Killed(signal) => {
            Verdict::Unsafe(format!("the attacker died by signal {signal} before it was done"))
        }
        Fate::Alive => Verdict::Unsafe("not done in time".into()),
    };
    ExitCode::from(conclude(attack, Ok(verdict)))
}
