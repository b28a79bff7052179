//! The compiled filter decides as the policy does: by interpreting it.
//!
//! The interpreter knows only the instructions that the kernel's emulator knows
//! when a filter is loaded; anything else would cost every call the fast path.

use std::sync::LazyLock;

use proptest::prelude::*;

use super::table;
use super::{
    Action, BoxFilters, Features, Instruction, MAX_INSTRUCTIONS, Network, Policy, box_filters,
    command_filter, command_policy, compile, init_policy,
};

const KILL: u32 = 0x8000_0000;
const ALLOW: u32 = 0x7fff_0000;

/// Runs a filter as the kernel would: its answer, and how many steps it took.
fn run(filter: &[Instruction], arch: u32, number: u32, args: &[u64; 6]) -> (u32, usize) {
    let word = |offset: u32| match offset {
        0 => number,
        4 => arch,
        16..=63 if offset.is_multiple_of(4) => {
            let arg = args[(offset as usize - 16) / 8];
            if offset.is_multiple_of(8) { arg as u32 } else { (arg >> 32) as u32 }
        }
        _ => panic!("load from offset {offset}"),
    };
    let (mut a, mut pc) = (0, 0);
    for step in 1..=MAX_INSTRUCTIONS {
        let Instruction { code, jt, jf, k } = filter[pc];
        let branch = |taken| usize::from(if taken { jt } else { jf });
        pc += 1;
        match code {
            0x20 => a = word(k),
            0x54 => a &= k,
            0x05 => pc += k as usize,
            0x15 => pc += branch(a == k),
            0x35 => pc += branch(a >= k),
            0x45 => pc += branch(a & k != 0),
            0x06 => return (k, step),
            _ => panic!("instruction {code:#x} is not known to the kernel's emulator"),
        }
    }
    unreachable!("jumps go forward only")
}

fn answer(action: Action) -> u32 {
    match action {
        Action::Allow => ALLOW,
        Action::Refuse(errno) => 0x0005_0000 | u32::from(errno.raw()),
    }
}

fn features() -> [Features; 2] {
    [Network::Off, Network::On].map(|network| Features { network })
}

fn ours() -> [Policy; 2] {
    [command_policy().unwrap(), init_policy().unwrap()]
}

/// Our policies with their filters, made once for all random calls.
static COMPILED: LazyLock<Vec<(Policy, Features, Vec<Instruction>)>> = LazyLock::new(|| {
    let pairs = ours().into_iter().flat_map(|policy| features().map(|features| (policy.clone(), features)));
    pairs
        .map(|(policy, features)| {
            let filter = compile(&policy, features).unwrap();
            (policy, features, filter)
        })
        .collect()
});

static COMMAND: LazyLock<Policy> = LazyLock::new(|| command_policy().unwrap());

/// What boxes load, by the network.
static LOADED: LazyLock<Vec<(Features, BoxFilters)>> = LazyLock::new(|| {
    features().map(|features| (features, box_filters(features.network).unwrap())).into_iter().collect()
});

#[track_caller]
fn assert_agrees(policy: &Policy, features: Features, number: u32, args: &[u64; 6]) {
    let filter = compile(policy, features).unwrap();
    let expected = answer(policy.decide(features, number, args));
    assert_eq!(run(&filter, table::AUDIT_ARCH, number, args).0, expected, "{number} {args:x?}");
}

#[test]
fn every_number_is_decided_as_the_policy_says() {
    for policy in ours() {
        for features in features() {
            let filter = compile(&policy, features).unwrap();
            let edges = [0x3fff_ffff, 0x4000_0000, 0x4000_0001, 0x7fff_ffff, 0x8000_0000, u32::MAX];
            for number in (0..2000).chain(edges) {
                for args in [[0; 6], [u64::MAX; 6], [1; 6]] {
                    let expected = answer(policy.decide(features, number, &args));
                    let (got, _) = run(&filter, table::AUDIT_ARCH, number, &args);
                    assert_eq!(got, expected, "{number} {args:x?}");
                }
            }
        }
    }
}

#[test]
fn foreign_architectures_are_killed_and_x32_is_not_implemented() {
    let filter = command_filter(Network::On).unwrap();
    // i386, 32-bit ARM, and the other of ours.
    for arch in [0x4000_0003, 0x4000_0028, table::AUDIT_ARCH ^ 0x89, 0] {
        assert_eq!(run(&filter, arch, 0, &[0; 6]).0, KILL);
    }
    let x32_read = 0x4000_0000;
    let (got, _) = run(&filter, table::AUDIT_ARCH, x32_read, &[0; 6]);
    assert_eq!(got, 0x0005_0000 | libc::ENOSYS as u32);
}

#[test]
fn x32_is_not_implemented_whatever_a_policy_says_of_unknown_numbers() {
    let policy = Policy::parse("strict", "default = \"EPERM\"\nunknown = \"EPERM\"", &[]).unwrap();
    let filter = compile(&policy, features()[0]).unwrap();
    for (number, errno) in [(0x3fff_ffff, libc::EPERM), (0x4000_0000, libc::ENOSYS)] {
        let (got, _) = run(&filter, table::AUDIT_ARCH, number, &[0; 6]);
        assert_eq!(got, 0x0005_0000 | errno as u32);
    }
}

/// What the kernel makes of a command's two filters: the stricter answer, and of equal actions that of the one loaded
/// last.
fn stack(filters: &BoxFilters, number: u32, args: &[u64; 6]) -> u32 {
    let ask = |filter| run(filter, table::AUDIT_ARCH, number, args).0;
    let (last, first) = (ask(&filters.command), ask(&filters.init));
    let strictness = |answer: u32| (answer & 0xffff_0000).cast_signed();
    if strictness(first) < strictness(last) { first } else { last }
}

#[test]
fn a_command_above_its_init_is_held_to_the_whole_policy() {
    for (features, filters) in LOADED.iter() {
        let edges = [0x3fff_ffff, 0x4000_0000, 0x4000_0001, 0x7fff_ffff, 0x8000_0000, u32::MAX];
        for number in (0..2000).chain(edges) {
            for args in [[0; 6], [u64::MAX; 6], [1; 6]] {
                let expected = answer(COMMAND.decide(*features, number, &args));
                assert_eq!(stack(filters, number, &args), expected, "{number} {args:x?}");
            }
        }
        let foreign = run(&filters.command, table::AUDIT_ARCH ^ 0x89, 0, &[0; 6]).0;
        assert_eq!(foreign, KILL, "numbers mean other calls there");
    }
}

/// It is loaded for every command, in the time a caller waits.
#[test]
fn what_a_command_loads_is_short() {
    for network in [Network::Off, Network::On] {
        let length = box_filters(network).unwrap().command.len();
        assert!(length <= 20, "{length} instructions");
    }
}

#[test]
fn filters_stay_small_and_shallow() {
    for network in [Network::Off, Network::On] {
        for filter in [command_filter(network).unwrap(), box_filters(network).unwrap().init] {
            // The load time is mostly this length; the budget has room for a dozen rules.
            assert!(filter.len() < 240, "{} instructions", filter.len());
            for number in 0..500 {
                let (_, steps) = run(&filter, table::AUDIT_ARCH, number, &[0; 6]);
                assert!(steps <= 28, "{number} takes {steps} steps");
            }
        }
    }
}

#[test]
fn branches_reach_across_blocks_longer_than_eight_bits() {
    let values: Vec<_> = (0..300).map(|value| (value * 3).to_string()).collect();
    let values = values.join(", ");
    let text = format!(
        "default = \"EPERM\"\nunknown = \"ENOSYS\"\n\
         [[allow_if]]\nreason = \"x\"\ncalls = [\"read\", \"ioctl\"]\notherwise = \"EACCES\"\n\
         when = [[{{ arg = 0, any_of = [{values}] }}, {{ arg = 1, none_of = [{values}] }}]]\n\
         [[allow_if]]\nreason = \"x\"\ncalls = [\"statx\"]\notherwise = \"EACCES\"\n\
         when = [[{{ arg = 0, bits = 64, any_of = [{values}] }}]]\n"
    );
    let policy = Policy::parse("long", &text, &[]).unwrap();
    for value in [0, 1, 3, 600, 601, 897, 898, 1 << 32] {
        for number in [libc::SYS_read, libc::SYS_ioctl, libc::SYS_statx, libc::SYS_write] {
            for second in [0, 1, 897] {
                let args = [value, second, 0, 0, 0, 0];
                assert_agrees(&policy, features()[0], number as u32, &args);
            }
        }
    }
}

#[test]
fn a_filter_the_kernel_would_not_take_is_an_error() {
    let values: Vec<_> = (0..5000).map(|value| value.to_string()).collect();
    let text = format!(
        "default = \"EPERM\"\nunknown = \"ENOSYS\"\n[[allow_if]]\nreason = \"x\"\n\
         calls = [\"read\"]\notherwise = \"EPERM\"\nwhen = [[{{ arg = 0, any_of = [{}] }}]]",
        values.join(", ")
    );
    let policy = Policy::parse("huge", &text, &[]).unwrap();
    let error = compile(&policy, features()[0]).unwrap_err();
    assert!(error.to_string().contains("more than the kernel takes"), "{error}");
}

/// Argument values near those that rules compare with.
fn argument() -> impl Strategy<Value = u64> {
    let interesting = prop_oneof![
        0_u64..64,
        Just(0o20_200_102),
        Just(0o100_000),
        (0_u32..32).prop_map(|bit| 1 << bit),
        0o6000_u64..0o7000,
        0x5400_u64..0x5430,
        prop::sample::select(vec![0x20000, 0x20008, 0xffff_ffff]),
        any::<u64>(),
    ];
    (interesting, prop_oneof![3 => Just(0_u64), 1 => any::<u64>()]).prop_map(|(low, high)| low | high << 32)
}

fn number() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 0_u32..480, 1 => 0x4000_0000_u32..0x4000_0200, 1 => any::<u32>()]
}

/// The TOML of one condition, sound by construction.
fn condition() -> impl Strategy<Value = String> {
    let wide = any::<bool>();
    let value = prop_oneof![0_u64..8, (0_u64..8).prop_map(|value| value << 32 | 1)];
    let values = prop::collection::vec(value, 1..4);
    let mask = prop_oneof![Just(7_u64), Just(u64::MAX >> 1), Just(0x7_0000_0001)];
    (0_u8..3, wide, mask, values, any::<bool>()).prop_map(|(arg, wide, mask, values, any_of)| {
        let bits = if wide { 64 } else { 32 };
        let mask = if wide { mask } else { mask & 0xffff_ffff };
        let values: Vec<_> = values.iter().map(|value| (value & mask).to_string()).collect();
        let test = if any_of { "any_of" } else { "none_of" };
        let values = values.join(", ");
        format!("{{ arg = {arg}, bits = {bits}, mask = {mask}, {test} = [{values}] }}")
    })
}

/// The TOML of a policy with a rule of a random kind for random calls.
fn policy() -> impl Strategy<Value = String> {
    let clause = prop::collection::vec(condition(), 1..3).prop_map(|all| all.join(", "));
    let clauses = prop::collection::vec(clause, 2..5);
    let calls = prop::collection::btree_set(0..table::CALLS.len(), 1..60);
    (calls, prop::collection::vec((0_u8..3, clauses), 60)).prop_map(|(calls, kinds)| {
        let mut text = "default = \"EPERM\"\nunknown = \"ENOSYS\"\n".to_owned();
        for (call, (kind, clauses)) in calls.into_iter().zip(kinds) {
            let head = format!("reason = \"x\"\ncalls = [\"{}\"]", table::CALLS[call].name);
            text += &match kind {
                0 => format!("[[allow]]\n{head}\n"),
                1 => format!("[[deny]]\n{head}\nerrno = \"EACCES\"\n"),
                _ => format!(
                    "[[allow_if]]\n{head}\notherwise = \"EINVAL\"\nwhen = [[{}]]\n\
                     refuse = [{{ errno = \"ESRCH\", when = [{}] }}]\n",
                    clauses[1..].join("], ["),
                    clauses[0]
                ),
            };
        }
        text
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn our_filters_decide_as_their_policies(
        calls in prop::collection::vec((number(), prop::array::uniform6(argument())), 100),
    ) {
        for (policy, features, filter) in COMPILED.iter() {
            for (number, args) in &calls {
                let expected = answer(policy.decide(*features, *number, args));
                let (got, _) = run(filter, table::AUDIT_ARCH, *number, args);
                prop_assert_eq!(got, expected, "{} {:x?}", number, args);
            }
        }
        for (features, filters) in LOADED.iter() {
            for (number, args) in &calls {
                let expected = answer(COMMAND.decide(*features, *number, args));
                prop_assert_eq!(stack(filters, *number, args), expected, "{} {:x?}", number, args);
            }
        }
    }

    #[test]
    fn any_filter_decides_as_its_policy(
        text in policy(),
        args in prop::collection::vec(prop::array::uniform6(
            (0_u64..8, prop_oneof![Just(0_u64), 0_u64..8]).prop_map(|(low, high)| low | high << 32)
        ), 8),
    ) {
        let policy = Policy::parse("random", &text, &[]).unwrap();
        let filter = compile(&policy, features()[0]).unwrap();
        for number in 0..480 {
            for args in &args {
                let expected = answer(policy.decide(features()[0], number, args));
                let (got, _) = run(&filter, table::AUDIT_ARCH, number, args);
                prop_assert_eq!(got, expected, "{} {:x?}", number, args);
            }
        }
    }
}
