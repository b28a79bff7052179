//! The list of attempts, with the ids of the project's security cases.

use sandcrate_protocol::Control;
use sandcrate_sys::attempt;

use super::outcome::{Outcome, must_be_refused};
use super::{Bait, files, kernel, network, processes, resources};

/// Who says how it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judge {
    /// The attempt itself; one that dies without a word has failed to say so and is looked into.
    Itself,
    /// The memory limit must have killed it.
    MemoryLimit,
    /// The disk limit must have stopped it: by an error that it reports, or by its end.
    DiskLimit,
    /// The time limit must have ended it.
    TimeLimit,
}

#[derive(Debug)]
pub(super) struct Attack {
    pub(super) id: &'static str,
    /// Unique; the role's argument.
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    pub(super) inside: fn(&Bait) -> Outcome,
    pub(super) judge: Judge,
    /// What stands against it, where a machine may be without: a box that says so itself breaks no promise.
    pub(super) control: Option<Control>,
}

const fn attack(
    id: &'static str,
    name: &'static str,
    what: &'static str,
    inside: fn(&Bait) -> Outcome,
) -> Attack {
    Attack { id, name, what, inside, judge: Judge::Itself, control: None }
}

impl Attack {
    const fn judged_by(mut self, judge: Judge) -> Self {
        self.judge = judge;
        self
    }

    const fn against(mut self, control: Control) -> Self {
        self.control = Some(control);
        self
    }
}

/// In the order in which they run: those that may end the box come last.
pub(super) const ALL: &[Attack] = &[
    attack(
        "FS-01",
        "host file",
        "read a file of the host by `..`, /proc/*/root, /proc/*/cwd, /dev/fd",
        files::canary,
    ),
    attack("FS-03", "leaked descriptors", "find an open descriptor beside 0, 1, 2", files::descriptors),
    attack("FS-05", "program overwrite", "open /proc/*/exe for writing", files::executables),
    attack("FS-06", "mount", "mount a tmpfs", kernel::mount),
    attack("FS-06", "new mount API", "fsopen a tmpfs", |_| must_be_refused(attempt::fsopen())),
    attack("FS-07", "nested user namespace", "unshare into a user namespace of its own", |_| {
        must_be_refused(attempt::unshare_user())
    }),
    attack("FS-07", "nested mount namespace", "unshare into a mount namespace of its own", |_| {
        must_be_refused(attempt::unshare_mount())
    }),
    attack("FS-09", "chroot", "chroot into /tmp", kernel::chroot),
    attack("FS-10", "pivot_root", "pivot_root into /tmp", kernel::pivot_root),
    attack("FS-11", "setns", "enter the namespaces of PID 1", kernel::setns),
    attack("FS-12", "file handles", "open_by_handle_at", |_| must_be_refused(attempt::open_by_handle_at())),
    attack("FS-13", "device nodes", "make block and character devices", files::device_nodes),
    attack("FS-14", "/dev", "find a device outside the allow list", files::devices),
    attack("FS-16", "system files", "write to /, /usr, /etc, /bin", files::system_files),
    attack(
        "FS-19",
        "kernel settings",
        "open core_pattern, modprobe, sysrq-trigger for writing",
        files::kernel_settings,
    ),
    attack(
        "FS-20",
        "kernel information",
        "read kcore, kallsyms, keys, config.gz, cmdline",
        files::kernel_information,
    ),
    attack(
        "FS-22",
        "mount table",
        "find a shared mount, one with setuid, or a path of the host",
        files::mount_table,
    ),
    attack("FS-23", "setuid files", "chmod 4755 and 2755 in /workspace and /tmp", files::setuid),
    attack("PR-01", "capabilities", "hold or be able to gain a capability", processes::capabilities),
    attack("PR-03", "new privileges", "run without no_new_privs", processes::no_new_privileges),
    attack("PR-04", "system call filter", "run without a seccomp filter", processes::seccomp),
    attack("PR-05", "identity", "be an identity of the host's root", processes::identity),
    attack("PR-05", "setuid to root", "setresuid to 0", processes::become_root),
    attack("PR-08", "tracing of PID 1", "ptrace the box's init", |_| must_be_refused(attempt::ptrace_init())),
    attack("PR-08", "memory of PID 1", "open /proc/1/mem, environ, fd, root", processes::init_files),
    attack("PR-08", "other memory", "process_vm_readv", |_| must_be_refused(attempt::process_vm_readv())),
    attack("PR-09", "killing PID 1", "send SIGKILL to the box's init", processes::kill_init),
    attack("PR-10", "keyring", "keyctl", |_| must_be_refused(attempt::keyctl())),
    attack("PR-10", "keys", "add_key", |_| must_be_refused(attempt::add_key())),
    attack("PR-11", "bpf", "load a program into the kernel", |_| must_be_refused(attempt::bpf())),
    attack("PR-12", "perf events", "perf_event_open", |_| must_be_refused(attempt::perf_event_open())),
    attack("PR-13", "kexec", "load another kernel", |_| must_be_refused(attempt::kexec_load())),
    attack("PR-14", "kernel modules", "init_module", |_| must_be_refused(attempt::init_module())),
    attack(
        "PR-15",
        "userfaultfd",
        "handle faults of the kernel",
        |_| must_be_refused(attempt::userfaultfd()),
    ),
    attack("PR-16", "io_uring", "io_uring_setup", |_| must_be_refused(attempt::io_uring_setup())),
    attack("PR-18", "secret memory", "memfd_secret", |_| must_be_refused(attempt::memfd_secret())),
    attack("PR-19", "clock", "set the machine's clock to what it is", kernel::clock),
    attack("PR-21", "swap", "swapoff", |_| must_be_refused(attempt::swapoff())),
    attack("PR-22", "host name", "sethostname", kernel::host_name),
    attack("PR-27", "clone3", "clone3, whose arguments no filter can see", |_| {
        must_be_refused(attempt::clone3())
    }),
    attack("PR-32", "core dumps", "have a core limit above 0", processes::core_limit),
    attack(
        "PR-34",
        "foreign processes",
        "see processes, arguments or variables of the host",
        processes::foreign,
    ),
    attack("NT-01", "interfaces", "find a network interface beside lo", network::interfaces),
    attack("NT-02", "host over IPv4", "connect to a listener on the host's 127.0.0.1", network::tcp4),
    attack("NT-03", "host over IPv6", "connect to a listener on the host's ::1", network::tcp6),
    attack("NT-04", "world over UDP", "send a packet to an address outside", network::udp),
    attack(
        "NT-05",
        "abstract socket",
        "connect to an abstract unix socket of the host",
        network::abstract_socket,
    ),
    attack("NT-06", "vsock", "reach the hypervisor by AF_VSOCK", network::vsock),
    attack("NT-07", "netlink", "configure the network", network::netlink),
    attack("NT-08", "raw sockets", "raw and packet sockets", network::raw),
    attack("RS-01", "processes", "start more than the limit", resources::processes).against(Control::Pids),
    attack("RS-02", "threads", "start more than the limit", resources::threads).against(Control::Pids),
    attack("RS-06", "/tmp", "fill /tmp beyond its size", resources::fill_tmp).against(Control::Tmpfs),
    attack("RS-09", "open files", "open more than the limit", resources::open_files)
        .against(Control::Rlimits),
    attack("RS-13", "CPU", "use more CPU time than the limit", resources::cpu).against(Control::Cpu),
    attack("TM-01", "time limit", "outlive it, with a child in a group of its own", resources::outlive)
        .judged_by(Judge::TimeLimit)
        .against(Control::CommandKill),
    attack("TM-02", "leftovers", "find what should have ended with the time limit", processes::leftovers)
        .against(Control::CommandKill),
    attack("RS-03", "memory", "take twice the limit", resources::memory)
        .judged_by(Judge::MemoryLimit)
        .against(Control::Memory),
    attack("RS-07", "disk", "fill /workspace beyond the quota", resources::fill_disk)
        .judged_by(Judge::DiskLimit)
        .against(Control::Disk),
    attack("RS-08", "inodes", "make more files than the quota", resources::inodes)
        .judged_by(Judge::DiskLimit)
        .against(Control::Disk),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_because_they_select_the_attempt() {
        let mut names: Vec<_> = ALL.iter().map(|attack| attack.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }
}
