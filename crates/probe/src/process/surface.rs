//! Kernel interfaces that ordinary programs do not need and attackers do.

use crate::child::attempt_in_child;
use crate::report::{AttackResult, Report};
use crate::sys::{cstring, syscall};

const SESSION_KEYRING: i32 = -3;
const PROCESS_KEYRING: i32 = -2;
const USER_KEYRING: i32 = -4;

/// PR-10: the key store, which is shared by all sandboxes of a user.
pub(crate) fn keyctl(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    for kind in [c"user", c"logon", c"keyring", c"big_key", c"asymmetric", c"encrypted"] {
        for ring in [PROCESS_KEYRING, SESSION_KEYRING, USER_KEYRING] {
            report.must_refuse(&format!("add_key({kind:?}, {ring})"), || {
                syscall!(libc::SYS_add_key, kind, c"probe:key", c"x", 1, ring)
            });
        }
    }
    report.must_refuse("request_key", || syscall!(libc::SYS_request_key, c"user", c"probe:none", 0, 0));
    for operation in 0..=32 {
        report.must_refuse(&format!("keyctl({operation})"), || {
            syscall!(libc::SYS_keyctl, operation, SESSION_KEYRING, 0, 0, 0)
        });
    }
    report.verdict("the key store is refused")
}

/// PR-11: loading programs and maps, and looking at those of others.
pub(crate) fn bpf(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    let instructions: [u64; 2] = [0xb7, 0x95];
    let program = |kind: u32| {
        let mut attributes = [0u64; 18];
        attributes[0] = u64::from(kind) | (2 << 32);
        attributes[1] = instructions.as_ptr() as u64;
        attributes[2] = c"GPL".as_ptr() as u64;
        attributes
    };
    for kind in [1, 2, 5, 6, 8, 13, 15, 26, 29] {
        let attributes = program(kind);
        report.must_refuse(&format!("bpf(load program of kind {kind})"), || {
            syscall!(libc::SYS_bpf, 5, attributes.as_ptr(), size_of_val(&attributes))
        });
    }
    for kind in [1u64, 2, 5, 6, 9, 22, 27] {
        let mut attributes = [0u64; 18];
        attributes[0] = kind | (4 << 32);
        attributes[1] = 8 | (1 << 32);
        // Some kinds find the attributes invalid before they ask for permission.
        report.must_refuse_or(&format!("bpf(create map of kind {kind})"), &[libc::EINVAL], || {
            syscall!(libc::SYS_bpf, 0, attributes.as_ptr(), size_of_val(&attributes))
        });
    }
    let empty = [0u64; 18];
    for command in 0..=37 {
        report.must_fail(&format!("bpf(command {command})"), || {
            syscall!(libc::SYS_bpf, command, empty.as_ptr(), size_of_val(&empty))
        });
    }
    report.verdict("bpf is refused")
}

/// PR-16: io_uring, which runs calls past a filter.
pub(crate) fn iouring(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    for flags in [0u32, 1, 2, 1 << 12, 1 << 16] {
        let mut parameters = [0u32; 30];
        parameters[2] = flags;
        report.must_refuse(&format!("io_uring_setup(flags {flags:#x})"), || {
            syscall!(libc::SYS_io_uring_setup, 8, parameters.as_mut_ptr())
        });
    }
    report.must_refuse("io_uring_enter(-1)", || syscall!(libc::SYS_io_uring_enter, -1, 1, 0, 0, 0, 0));
    report.must_refuse("io_uring_register(-1)", || syscall!(libc::SYS_io_uring_register, -1, 0, 0, 0));
    report.verdict("io_uring is refused")
}

/// PR-17: personalities beyond the five that programs use.
pub(crate) fn personality(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    let flags = [
        0x0004_0000u64,
        0x0008_0000,
        0x0010_0000,
        0x0020_0000,
        0x0040_0000,
        0x0080_0000,
        0x0100_0000,
        0x0200_0000,
        0x0400_0000,
        0x0800_0000,
        0x0044_0000,
        0x0006_0000,
        0x0004_0008,
    ];
    for value in flags {
        for high in [0u64, 0x1_0000_0000, 0xffff_ffff_0000_0000] {
            report.must_fail(&format!("personality({:#x})", value | high), || {
                syscall!(libc::SYS_personality, value | high)
            });
        }
    }
    for kind in (1u64..=16).filter(|kind| *kind != 8) {
        report.must_fail(&format!("personality({kind:#x})"), || syscall!(libc::SYS_personality, kind));
    }
    for value in [0u64, 8, 0x2_0000, 0x2_0008, 0xffff_ffff] {
        let outcome = attempt_in_child(|| syscall!(libc::SYS_personality, value));
        report.attempt(&format!("personality({value:#x}), may work"), outcome);
    }
    report.verdict("only the five usual personalities work")
}

/// PR-25: watching whole file systems.
pub(crate) fn fanotify(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    for flags in [0, 4, 8, 0x10, 0x200, 0x400, 0xc00, 0x204] {
        report.must_refuse(&format!("fanotify_init({flags:#x})"), || {
            syscall!(libc::SYS_fanotify_init, flags, 0)
        });
    }
    // Descriptor -1 fails after a filter would have spoken.
    report.must_fail("fanotify_mark(-1)", || {
        syscall!(libc::SYS_fanotify_mark, -1, 1 | 0x100, 0x20, libc::AT_FDCWD, c"/")
    });
    report.verdict("fanotify is refused")
}

/// PR-63: handling page faults in user space, which stretches kernel races.
pub(crate) fn userfaultfd(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    for flags in [0, 1, libc::O_CLOEXEC, libc::O_CLOEXEC | libc::O_NONBLOCK | 1] {
        report.must_refuse(&format!("userfaultfd({flags:#x})"), || syscall!(libc::SYS_userfaultfd, flags));
    }
    report.must_not_open("/dev/userfaultfd", libc::O_RDWR);
    report.verdict("userfaultfd is refused")
}

/// PR-64: memory that the kernel itself cannot see.
pub(crate) fn memfd_secret(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    for flags in [0, libc::O_CLOEXEC] {
        report.must_refuse(&format!("memfd_secret({flags:#x})"), || syscall!(libc::SYS_memfd_secret, flags));
    }
    report.verdict("memfd_secret is refused")
}

/// PR-65: performance events of this process, of init and of whole processors.
pub(crate) fn perf(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    for kind in [0u32, 1, 2, 3, 5, 6] {
        for (name, pid, cpu) in [("self", 0, -1), ("init", 1, -1), ("cpu 0", -1, 0)] {
            let mut attributes = [0u32; 32];
            attributes[0] = kind;
            attributes[1] = 128;
            report.must_refuse(&format!("perf_event_open(kind {kind}, {name})"), || {
                syscall!(libc::SYS_perf_event_open, attributes.as_ptr(), pid, cpu, -1, 0)
            });
        }
    }
    report.verdict("performance events are refused")
}

/// PR-66: obsolete and rarely filtered calls.
pub(crate) fn obsolete(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    let calls = [
        ("uselib", 134),
        ("ustat", 136),
        ("sysfs", 139),
        ("_sysctl", 156),
        ("nfsservctl", 180),
        ("getpmsg", 181),
        ("afs_syscall", 183),
        ("tuxcall", 184),
        ("security", 185),
        ("lookup_dcookie", 212),
        ("vserver", 236),
        ("epoll_ctl_old", 214),
        ("remap_file_pages", 216),
        ("modify_ldt", 154),
        ("mbind", 237),
        ("set_mempolicy", 238),
        ("lsm_set_self_attr", 460),
        ("statmount", 457),
        ("listmount", 458),
    ];
    for (name, number) in calls {
        let outcome = attempt_in_child(|| syscall!(number, 0, 0, 0, 0, 0, 0));
        let outcome = report.attempt(name, outcome);
        if !outcome.refused() {
            report.remark(format!("{name} reaches the kernel: {outcome}"));
        }
    }
    report.verdict("obsolete calls are refused")
}

/// PR-67: files of the module and helper machinery that a lookup can trigger.
pub(crate) fn autoload(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    for name in ["probe-no-such-fs", "nfs", "cifs"] {
        report.must_refuse(&format!("mount(file system {name})"), || {
            syscall!(libc::SYS_mount, c"none", c"/proc", &cstring(name), 0, 0)
        });
    }
    for (name, number) in [("alg", libc::AF_ALG), ("can", libc::AF_CAN), ("tipc", libc::AF_TIPC), ("rds", 21)]
    {
        report.must_refuse_or(&format!("socket({name}) loads a module"), &[libc::EAFNOSUPPORT], || {
            syscall!(libc::SYS_socket, number, libc::SOCK_SEQPACKET, 0)
        });
    }
    report.verdict("nothing asks the kernel to load a module")
}
