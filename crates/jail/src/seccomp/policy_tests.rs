//! Which policy files are accepted, what the errors say, and what ours decide.

use std::error::Error;

use super::table;
use super::{Action, Errno, Features, Network, Policy, PolicyError, command_policy, init_policy};

const OFF: Features = Features { network: Network::Off };
const ON: Features = Features { network: Network::On };
const HEAD: &str = "default = \"EPERM\"\nunknown = \"ENOSYS\"\n";

fn parse(rules: &str) -> Result<Policy, PolicyError> {
    Policy::parse("test", &format!("{HEAD}{rules}"), &[])
}

/// The error's message with those of its causes.
fn refusal(rules: &str) -> String {
    let error = parse(rules).expect_err("the policy should be refused");
    let cause = error.source().map(ToString::to_string).unwrap_or_default();
    format!("{error}\n{cause}")
}

fn refused(errno: i32) -> Action {
    Action::Refuse(Errno(u16::try_from(errno).unwrap()))
}

fn decide(policy: &Policy, features: Features, call: &str, args: &[u64]) -> Action {
    let mut all = [0; 6];
    all[..args.len()].copy_from_slice(args);
    let number = table::find(call).and_then(|call| call.number).expect("a native call");
    policy.decide(features, number, &all)
}

#[track_caller]
fn assert_refusal(rules: &str, message: &str) {
    let refusal = refusal(rules);
    assert!(refusal.contains(message), "{refusal:?} does not say {message:?}");
}

#[test]
fn table_has_each_name_and_number_once() {
    let mut names: Vec<_> = table::CALLS.iter().map(|call| call.name).collect();
    let mut numbers: Vec<_> = table::CALLS.iter().filter_map(|call| call.number).collect();
    let (calls, numbered) = (names.len(), numbers.len());
    names.sort_unstable();
    names.dedup();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!((names.len(), numbers.len()), (calls, numbered));
    assert_eq!(table::find("read").unwrap().number, Some(libc::SYS_read as u32));
}

#[cfg(target_arch = "x86_64")]
#[test]
fn table_has_no_gap_among_assigned_numbers() {
    let assigned = (0..=336).chain(424..=469);
    for number in assigned {
        assert!(table::CALLS.iter().any(|call| call.number == Some(number)), "{number} is missing");
    }
}

#[test]
fn slips_in_a_policy_are_errors_that_name_them() {
    for (rules, message) in [
        ("[[allow]]\nreason = \"x\"\ncalls = [\"raed\"]", "no system call is named `raed`"),
        ("[[allow]]\ncalls = [\"read\"]", "missing field `reason`"),
        ("[[allow]]\nreason = \" \"\ncalls = [\"read\"]", "a rule for read gives no reason"),
        ("[[allow]]\nreason = \"x\"\ncalls = []", "reason \"x\" names no call"),
        ("[[allow]]\nreason = \"x\"\ncall = [\"read\"]", "unknown field `call`"),
        ("[[permit]]\nreason = \"x\"\ncalls = [\"read\"]", "unknown field `permit`"),
        ("[[allow]]\nonly = \"netwrk\"\nreason = \"x\"\ncalls = [\"read\"]", "`netwrk`"),
        ("[[deny]]\nerrno = \"EPREM\"\nreason = \"x\"\ncalls = [\"read\"]", "errno `EPREM`"),
        ("[[allow]]\nreason = \"x\"\ncalls = [\"read\", \"read\"]", "`read` has two rules"),
        (
            "[[allow]]\nreason = \"x\"\ncalls = [\"read\"]\n\
             [[deny]]\nreason = \"y\"\nerrno = \"EPERM\"\ncalls = [\"read\"]",
            "`read` has two rules",
        ),
        (
            "[[allow]]\nreason = \"x\"\ncalls = [\"read\"]\n\
             [[allow]]\nonly = \"network\"\nreason = \"y\"\ncalls = [\"read\"]",
            "the rule for `read` says what already holds",
        ),
    ] {
        assert_refusal(rules, message);
    }
}

#[test]
fn syntax_errors_show_the_line() {
    assert_refusal("[[allow]]\nreason = \"x\"\ncall = [\"read\"]", "line 5");
}

#[test]
fn conditions_that_cannot_be_meant_are_errors() {
    for (condition, message) in [
        ("{ arg = 6, equals = 0 }", "an argument above 5"),
        ("{ arg = 0 }", "exactly one of"),
        ("{ arg = 0, equals = 0, any_of = [1] }", "exactly one of"),
        ("{ arg = 0, any_of = [] }", "no value"),
        ("{ arg = 0, mask = 0, equals = 0 }", "a mask that is empty"),
        ("{ arg = 0, mask = 0x100000000, equals = 0 }", "wider than its `bits`"),
        ("{ arg = 0, equals = 0x100000000 }", "outside its mask"),
        ("{ arg = 0, mask = 6, equals = 1 }", "outside its mask"),
        ("{ arg = 0, bits = 16, equals = 1 }", "other than 32 and 64"),
        ("{ arg = 0, equals = -1 }", "invalid value"),
        ("{ arg = 0, equal = 1 }", "unknown field `equal`"),
        ("", "an empty clause"),
    ] {
        assert_refusal(
            &format!(
                "[[allow_if]]\nreason = \"x\"\ncalls = [\"read\"]\n\
                 when = [[{condition}]]\notherwise = \"EPERM\""
            ),
            message,
        );
    }
}

#[test]
fn extending_policy_replaces_rules_and_must_change_them() {
    let base = parse("[[allow]]\nreason = \"x\"\ncalls = [\"read\"]").unwrap();
    let extend = |text: &str| Policy::parse("top", text, std::slice::from_ref(&base));
    let deny = "[[deny]]\nreason = \"x\"\nerrno = \"EACCES\"\ncalls = [\"read\"]";
    let top = extend(&format!("extends = \"test\"\n{deny}")).unwrap();
    assert_eq!(decide(&top, OFF, "read", &[]), refused(libc::EACCES));
    assert_eq!(decide(&top, OFF, "write", &[]), refused(libc::EPERM));
    let same = "extends = \"test\"\n[[allow]]\nreason = \"x\"\ncalls = [\"read\"]";
    assert!(matches!(extend(same), Err(PolicyError::RedundantRule { .. })));
    assert!(matches!(extend("extends = \"tset\""), Err(PolicyError::UnknownBase { .. })));
    assert!(matches!(extend(deny), Err(PolicyError::MissingField { field: "default", .. })));
}

#[test]
fn command_policy_decides_every_known_call_by_a_rule() {
    let policy = command_policy().unwrap();
    let forgotten: Vec<_> = table::CALLS
        .iter()
        .filter(|call| policy.verdict(OFF, call.name).is_none())
        .map(|call| call.name)
        .collect();
    assert_eq!(forgotten, Vec::<&str>::new());
}

#[test]
fn init_may_do_whatever_commands_may() {
    let (command, init) = (command_policy().unwrap(), init_policy().unwrap());
    let differ: Vec<_> = table::CALLS
        .iter()
        .filter(|call| command.verdict(ON, call.name) != init.verdict(ON, call.name))
        .map(|call| call.name)
        .collect();
    assert_eq!(differ, ["clone3", "openat2"]);
    for call in differ {
        assert_eq!(decide(&init, OFF, call, &[]), Action::Allow);
        assert_eq!(decide(&command, OFF, call, &[]), refused(libc::ENOSYS));
    }
}

#[test]
fn setuid_bits_are_refused_in_every_form() {
    let policy = command_policy().unwrap();
    let (creat, tmpfile) = (0o100, 0o20_200_000);
    for bits in [0o4755, 0o2755, 0o6000] {
        let mut forms = vec![
            ("fchmod", vec![0, bits]),
            ("fchmodat", vec![0, 0, bits]),
            ("fchmodat2", vec![0, 0, bits, 0]),
            ("mkdirat", vec![0, 0, bits]),
            ("mknodat", vec![0, 0, 0o100_000 | bits]),
            ("openat", vec![0, 0, creat, bits]),
            ("openat", vec![0, 0, tmpfile | 2, bits]),
            // The high half of the register is not part of the argument.
            ("fchmod", vec![0, 0xffff_ffff_0000_0000 | bits]),
        ];
        if cfg!(target_arch = "x86_64") {
            forms.extend([
                ("chmod", vec![0, bits]),
                ("creat", vec![0, bits]),
                ("mkdir", vec![0, bits]),
                ("mknod", vec![0, 0o010_000 | bits]),
                ("open", vec![0, creat, bits]),
                ("open", vec![0, tmpfile, bits]),
            ]);
        }
        for (call, args) in forms {
            assert_eq!(decide(&policy, OFF, call, &args), refused(libc::EPERM), "{call} {args:?}");
        }
    }
}

#[test]
fn open_ignores_the_mode_unless_it_makes_a_file() {
    let policy = command_policy().unwrap();
    // O_DIRECTORY (0o200000) is part of O_TMPFILE but makes nothing by itself.
    for flags in [0, 2, 0o200_000] {
        assert_eq!(decide(&policy, OFF, "openat", &[0, 0, flags, 0xffff_ffff]), Action::Allow);
    }
    assert_eq!(decide(&policy, OFF, "openat", &[0, 0, 0o100, 0o1777]), Action::Allow);
}

#[test]
fn nodes_are_files_fifos_and_sockets() {
    let policy = command_policy().unwrap();
    let mknodat = |mode| decide(&policy, OFF, "mknodat", &[0, 0, mode, 0]);
    for mode in [0o644, 0o100_644, 0o010_644, 0o140_755, 0o101_777] {
        assert_eq!(mknodat(mode), Action::Allow, "{mode:o}");
    }
    for mode in [0o020_644, 0o060_644, 0o040_755, 0o120_777, 0o170_000, 0o104_755] {
        assert_eq!(mknodat(mode), refused(libc::EPERM), "{mode:o}");
    }
}

#[test]
fn socket_families_follow_the_network() {
    let policy = command_policy().unwrap();
    let socket = |features, args: [u64; 3]| decide(&policy, features, "socket", &args);
    let cloexec = 0o2_000_000;
    for features in [OFF, ON] {
        for args in [[1, 1, 0], [1, 5 | cloexec, 0], [2, 1, 6], [10, 2 | cloexec, 17], [2, 2, 1]] {
            assert_eq!(socket(features, args), Action::Allow, "{args:?}");
        }
        for args in [[2, 3, 0], [10, 3 | cloexec, 58], [2, 10, 768], [2, 5, 132], [2, 6, 33]] {
            assert_eq!(socket(features, args), refused(libc::EPERM), "{args:?}");
        }
        for args in [[2, 1, 132], [2, 1, 256], [10, 1, 262]] {
            assert_eq!(socket(features, args), refused(libc::EPROTONOSUPPORT), "{args:?}");
        }
        // Packet, ALG, vsock, XDP, and a family beyond any.
        for family in [17, 38, 40, 44, 99] {
            assert_eq!(socket(features, [family, 2, 0]), refused(libc::EAFNOSUPPORT), "{family}");
        }
    }
    assert_eq!(socket(OFF, [16, 3, 0]), refused(libc::EAFNOSUPPORT));
    assert_eq!(socket(ON, [16, 3 | cloexec, 0]), Action::Allow);
    assert_eq!(socket(ON, [16, 3, 12]), refused(libc::EPROTONOSUPPORT));
    assert_eq!(decide(&policy, ON, "socketpair", &[1, 1, 0]), Action::Allow);
    assert_eq!(decide(&policy, ON, "socketpair", &[40, 1, 0]), refused(libc::EAFNOSUPPORT));
}

#[test]
fn pid_one_is_out_of_reach() {
    let policy = command_policy().unwrap();
    for (call, args) in [
        ("kill", [1, 9]),
        ("tkill", [1, 9]),
        ("tgkill", [1, 1]),
        ("tgkill", [7, 1]),
        ("prlimit64", [1, 0]),
        ("prlimit64", [0xdead_0000_0001, 0]),
        ("sched_setscheduler", [1, 0]),
        ("sched_setattr", [1, 0]),
        ("setpriority", [0, 1]),
        ("setpriority", [2, 1000]),
        ("ioprio_set", [1, 1]),
    ] {
        assert_eq!(decide(&policy, OFF, call, &args), refused(libc::EPERM), "{call} {args:?}");
    }
    for (call, args) in [("kill", [-1_i64 as u64, 9]), ("kill", [0, 0]), ("prlimit64", [0, 7])] {
        assert_eq!(decide(&policy, OFF, call, &args), Action::Allow, "{call} {args:?}");
    }
    assert_eq!(decide(&policy, OFF, "setpriority", &[0, 0, 10]), Action::Allow);
}

#[test]
fn new_namespaces_are_refused_and_threads_are_not() {
    let policy = command_policy().unwrap();
    // What glibc passes for a thread, for posix_spawn and for fork.
    for flags in [0x003d_0f00, 0x4111, 0x0120_0011] {
        assert_eq!(decide(&policy, OFF, "clone", &[flags]), Action::Allow, "{flags:x}");
    }
    for shift in [17, 25, 26, 27, 28, 29, 30] {
        let flags = 1 << shift | 0x11;
        assert_eq!(decide(&policy, OFF, "clone", &[flags]), refused(libc::EPERM), "{flags:x}");
    }
    for call in ["unshare", "setns", "mount", "umount2", "pivot_root", "chroot"] {
        assert_eq!(decide(&policy, OFF, call, &[]), refused(libc::EPERM), "{call}");
    }
}

#[test]
fn terminal_injection_is_refused_whatever_the_high_half_says() {
    let policy = command_policy().unwrap();
    for request in [0x5412, 0x541c, 0x5423, 0x1_0000_5412] {
        assert_eq!(decide(&policy, OFF, "ioctl", &[0, request]), refused(libc::EPERM));
    }
    // TCGETS, TIOCSCTTY, TIOCGPTPEER.
    for request in [0x5401, 0x540e, 0x5441] {
        assert_eq!(decide(&policy, OFF, "ioctl", &[0, request]), Action::Allow);
    }
}

#[test]
fn the_network_helper_has_internet_sockets_and_nothing_of_files_or_processes() {
    let policy = super::network_helper_policy().unwrap();
    let helper = |call: &str, args: &[u64]| decide(&policy, ON, call, args);
    for (family, kind, protocol) in [(2, 1, 0), (10, 1, 6), (2, 0x80802, 17), (10, 2, 58), (2, 2, 1)] {
        assert_eq!(helper("socket", &[family, kind, protocol]), Action::Allow, "{family} {kind} {protocol}");
    }
    for (family, kind, protocol) in [(1, 1, 0), (16, 3, 0), (17, 3, 3), (2, 3, 1), (10, 3, 58), (2, 1, 132)] {
        assert_eq!(
            helper("socket", &[family, kind, protocol]),
            refused(libc::EAFNOSUPPORT),
            "{family} {kind}"
        );
    }
    for call in [
        "open",
        "openat",
        "openat2",
        "execve",
        "clone",
        "clone3",
        "fork",
        "ptrace",
        "kill",
        "bind",
        "listen",
        "accept4",
        "mount",
        "setns",
        "unshare",
        "bpf",
        "io_uring_setup",
        "memfd_create",
        "prctl",
        "pidfd_open",
    ] {
        assert_eq!(helper(call, &[]), refused(libc::EPERM), "{call}");
    }
    assert_eq!(helper("ioctl", &[3, 0x5421]), Action::Allow);
    assert_eq!(helper("ioctl", &[3, 0x4004_54ca]), refused(libc::EPERM), "TUNSETIFF");
    assert_eq!(helper("mmap", &[0, 4096, 4]), refused(libc::EPERM), "executable memory");
    assert_eq!(helper("setsockopt", &[3, 1, 36]), refused(libc::EPERM), "SO_MARK");
}
